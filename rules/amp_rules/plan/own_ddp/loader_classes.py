"""Loaders of a class of the project whose constructor gives them their sampler: ``super().__init__(sampler=...)``."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.flow.values import Value
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.kinds import is_loader_value
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.path_objects import assigned
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.syntax import conjuncts, is_none, own_name
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS


def has_distributed_sampler(own: OwnDdp, loader: Value) -> bool:
    """Whether all samplers that such a loader may get by what its own call says are torch's for several processes."""
    if loader.kind != "instance" or not is_loader_value(loader) or not isinstance(loader.site, ast.Call):
        return False
    start = loader.ref.find_method("__init__")
    scope = own.program.flow.scopes.get(start.node) if start is not None else None
    if start is None or scope is None:
        return False
    given = [item for node in start.nodes if (item := _sampler_of_base(node)) is not None]
    if len(given) != 1:
        return False
    made = assigned(own.program, given[0], scope) or given
    chosen = [item for item in made if not _is_left_out(own, start, loader.site, item)]
    distributed = {site.node for site in own.program.calls_to(DISTRIBUTED_SAMPLERS)}
    if any(item in distributed and _is_sure(own, start, loader.site, item) for item in chosen):
        chosen = [item for item in chosen if not is_none(item)]  # ``sampler = None`` above it
    return bool(chosen) and all(item in distributed for item in chosen)


def _sampler_of_base(node: ast.AST) -> ast.expr | None:
    """The sampler that ``super().__init__(...)`` is given."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"):
        return None
    above = node.func.value
    is_base = isinstance(above, ast.Call) and own_name(above.func) == "super"
    return given_to_loader(node, "sampler") if is_base else None


def _is_left_out(own: OwnDdp, start: FunctionFacts, call: ast.Call, made: ast.expr) -> bool:
    """Whether a test of what a call gives keeps it from a sampler: ``split == "train"`` of ``Loader(split="val")``."""
    return any(_comes_out(start, call, test) not in (holds, None) for test, holds in _tests(own, start, made))


def _is_sure(own: OwnDdp, start: FunctionFacts, call: ast.Call, made: ast.expr) -> bool:
    """Whether a call gets a sampler wherever there are several processes."""
    return all(
        (in_several(part) is True and holds) or _comes_out(start, call, part) is holds
        for test, holds in _tests(own, start, made)
        for part in (conjuncts(test) if holds else [test])
    )


def _tests(own: OwnDdp, start: FunctionFacts, made: ast.expr) -> list[tuple[ast.expr, bool]]:
    module = own.program.flow.scopes[start.node].module
    return [*own.branches(module, blocks.statement_of(module, made))]


def _comes_out(start: FunctionFacts, call: ast.Call, test: ast.expr) -> bool | None:
    """How a test of a parameter comes out for one call: ``split == "train"``, ``train``; None where it is not known."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = _comes_out(start, call, test.operand)
        return None if found is None else not found
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = [_comes_out(start, call, part) for part in test.values]
        return False if False in parts else None if None in parts else True
    if isinstance(test, ast.Name) and test.id in start.parameters:
        given = start.argument_or_default(call, test.id)
        return bool(given.value) if isinstance(given, ast.Constant) else None
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id in start.parameters):
        return None
    given = start.argument_or_default(call, test.left.id)
    wanted = test.comparators[0]
    if len(test.ops) != 1 or not isinstance(given, ast.Constant) or not isinstance(wanted, ast.Constant):
        return None
    is_same = literal(given) == literal(wanted)
    if isinstance(test.ops[0], ast.Eq):
        return is_same
    return not is_same if isinstance(test.ops[0], ast.NotEq) else None
