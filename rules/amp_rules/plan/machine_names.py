"""Names of machines beside a time in the name of a run: with the time alone, machines would still differ."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_text, walk
from amp_rules.torch.replication import MACHINE


def joined_with_machine(program: Program, module: Module, time: ast.Call) -> ast.expr | None:
    """The text that puts a time and the name of the machine together, beside the place where the time is read.

    None where the time goes anywhere else, too: there it has to be the same by itself.
    """
    located = program.locate(time)
    if located is None:
        return None
    body, _ = located
    named = {call for call in program.nodes_of(body) if isinstance(call, ast.Call) and _names_machine(program, call)}
    if not named:
        return None
    assigned = [node for node in program.nodes_of(body) if isinstance(node, ast.Assign)]
    hosts = {path for item in assigned if not named.isdisjoint(walk(item.value)) for path in blocks.writes(item)}
    read = blocks.statement_of(module, time)
    if not isinstance(read, ast.Assign):
        return None
    if not named.isdisjoint(walk(read.value)) or blocks.reads(read.value) & hosts:
        return read.value if _is_put_together(program, read.value) else None
    times = blocks.writes(read)
    parts = [node for node in program.nodes_of(body) if isinstance(node, (ast.Name, ast.Attribute))]
    uses = {blocks.statement_of(module, node) for node in parts if _is_read(node) and blocks.path_of(node) in times}
    join = next(iter(uses)) if len(uses) == 1 else None
    if not isinstance(join, ast.Assign) or join not in blocks.place(module, read).suite:
        return None
    is_joined = not named.isdisjoint(walk(join.value)) or bool(blocks.reads(join.value) & hosts)
    return join.value if is_joined and len(times) == 1 and _is_put_together(program, join.value) else None


def _is_put_together(program: Program, node: ast.expr) -> bool:
    """Whether an expression is a text, or a path, made of others: no object that only this process may have."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        located = program.locate(node)
        is_path = located is not None and "os.path.join" in program.callee_names(node, located[1])
        return is_path or (node.func.attr in ("format", "join") and is_text(node.func.value))
    return is_text(node)


def _is_read(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _names_machine(program: Program, call: ast.Call) -> bool:
    located = program.locate(call)
    return located is not None and bool(program.callee_names(call, located[1]) & MACHINE)
