"""Settings that one process alone changes for itself, as before it evaluates: ``args.local_rank = -1``."""

from __future__ import annotations

import ast

from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.path_objects import assigned
from amp_rules.source.syntax import walk


def is_chosen_by_what_one_sets(own: OwnDdp, loader: Value) -> bool:
    """Whether a test that chooses a loader or its sampler asks for an attribute that one process alone sets.

    ``SequentialSampler(data) if args.local_rank == -1 else DistributedSampler(data)``.
    """
    call = loader.site
    located = own.program.locate(call) if isinstance(call, ast.Call) else None
    if located is None or not isinstance(call, ast.Call):
        return False
    module = located[1].module
    made: list[ast.expr] = [call]
    for name in ("sampler", "batch_sampler"):
        given = given_to_loader(call, name)
        made += (assigned(own.program, given, located[1]) or [given]) if given is not None else []
    tests = [test for node in made for test, _ in own.branches(module, node)]
    tests += [part.test for node in made for part in walk(node) if isinstance(part, ast.IfExp)]
    asked = {part.attr for test in tests for part in walk(test) if isinstance(part, ast.Attribute)}
    return bool(asked) and any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in asked
        and own.is_of_first_alone(scope.module, node)
        for node, _, scope in own.program.nodes()
    )
