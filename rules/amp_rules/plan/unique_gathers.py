"""What evaluations gather from all processes and keep once: ``ids, index = np.unique(ids, return_index=True)``.

Reference code for detection does so, since samplers repeat samples. It is right where each process evaluates all data,
too.
"""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.torch.distributed import GATHERS

_UNIQUE = frozenset({"numpy.unique"})
_GROWING = frozenset({"append", "extend"})


def is_kept_once(program: Program, site: Site) -> bool:
    """Whether all that ask a helper to gather keep each thing once, or what belongs to the things that are kept.

    Args:
        program: the program.
        site: a call that gathers, in the helper.
    """
    info = program.function_of(site.body)
    callers = program.flow.callers(info) if info is not None and not program.is_model_code(site.body) else []
    return bool(callers) and all(_keeps_once(program, calling(item), item.call) for item in callers)


def counts_gathered(program: Program, node: ast.AST, site: Site) -> bool:
    """Whether a number of processes says how many things a helper gathers: ``for _ in range(world_size)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and any(
            isinstance(item, ast.Call) and bool(program.callee_names(item, site.scope) & GATHERS)
            for item in program.nodes_of(site.body)
        )
    )


def _keeps_once(program: Program, site: Site, call: ast.Call) -> bool:
    statement = site.statement
    if not (isinstance(statement, ast.Assign) and statement.value is call):
        return False
    nodes = program.nodes_of(site.body)
    made = _made_of(nodes, blocks.writes(statement))
    kept: set[str] = set()
    for node in nodes:
        value = node.value if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not (isinstance(value, ast.Call) and program.callee_names(value, site.scope) & _UNIQUE and value.args):
            continue
        if not made.isdisjoint(blocks.reads(value.args[0])):
            return True
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if literal(keyword(value, "return_index") or ast.Constant(False)) is True and isinstance(target, ast.Tuple):
            kept |= {path for item in target.elts[1:2] if (path := blocks.path_of(item)) is not None}
    return any(
        isinstance(node, ast.Subscript)
        and not made.isdisjoint(blocks.reads(node.value))
        and not kept.isdisjoint(blocks.reads(node.slice))
        for node in nodes
    )


def _made_of(nodes: list[ast.AST], first: set[str]) -> set[str]:
    """The variables that hold what is made of others: parts in a loop, and lists that they are put into."""
    found = set(first)
    while True:
        before = len(found)
        for node in nodes:
            if isinstance(node, ast.For) and not found.isdisjoint(blocks.reads(node.iter)):
                found |= blocks.writes_target(node)
            elif isinstance(node, ast.Assign) and not found.isdisjoint(blocks.reads(node.value)):
                found |= blocks.writes(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWING:
                path = blocks.path_of(node.func.value)
                if path is not None and any(not found.isdisjoint(blocks.reads(item)) for item in node.args):
                    found.add(path)
        if len(found) == before:
            return found
