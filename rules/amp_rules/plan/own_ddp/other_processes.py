"""Libraries that could look after processes, and do not where a script joins torch's group: by how they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.idle import is_within_idle
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import JOINS, OPENS_RPC, REDUCES_ON_TPU


def calls_itself_alone(program: Program) -> bool:
    """Whether RPC is opened for one process alone, as a pipeline needs it: ``init_rpc("worker", world_size=1)``."""
    opened = [site.node for site in program.calls_to(frozenset({OPENS_RPC}))]
    sizes = [keyword(call, "world_size") for call in opened if isinstance(call, ast.Call)]
    return bool(sizes) and all(size is not None and literal(size) == 1 for size in sizes)


def is_choice_of_device(program: Program, name: str, node: ast.AST, module: Module) -> bool:
    """Whether torch_xla steps under a flag, ``if args.tpu: xm.optimizer_step(...)``, and joins and feeds no processes.

    The processes of the script are torch's then: what joins them does not stand under the flag.
    """
    package, _, own = name.partition(".")
    if package != "torch_xla" or own.rpartition(".")[2] not in REDUCES_ON_TPU:
        return False
    flags = set(_flags(module, node))
    joins = [site for site in program.calls_to(JOINS) if not is_within_idle(program, site.node, site.module)]
    return bool(flags and joins) and all(flags.isdisjoint(_flags(site.module, site.node)) for site in joins)


def _flags(module: Module, node: ast.AST) -> Iterator[str]:
    """The flags that are on where a place is reached: the names of ``if args.tpu:`` and ``if use_tpu:``."""
    below = node
    for parent in module.ancestors(node):
        if isinstance(parent, blocks.BODIES):
            return
        if isinstance(parent, ast.If) and below in parent.body and isinstance(parent.test, (ast.Name, ast.Attribute)):
            yield ast.unparse(parent.test)
        below = parent
