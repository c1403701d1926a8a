"""Queues of samples that training steps write: each process would have those of its own batches, or of rank 0's.

A place in them is no sample's: it comes from a number that goes on with each batch
(``self.queue[:, ptr : ptr + n] = keys.T``), or the newest samples push out the oldest
(``queue = torch.cat([keys, queue])[:size]``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.sample_tables import SampleTable, is_written
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.data import JOINS_ROWS, NUMBERS_IN_ORDER, TABLE_WRITES
from amp_rules.torch.distributed import GATHERS


@dataclass(frozen=True)
class _Code:
    """What runs in a training loop: its own statements, or a function that they call."""

    body: ast.AST
    scope: Scope
    nodes: list[ast.AST]
    is_loop: bool

    def lasts(self, path: str) -> bool:
        """Whether what the path names may be there in the next round too."""
        return self.is_loop or path.startswith("self.")


def sample_queues(program: Program, data: TrainingData) -> Iterator[SampleTable]:
    """Yield where training loops write such queues, of which their steps read something."""
    found: set[ast.AST] = set()
    gathers = program.closure(lambda node: _is_gather(program, node))

    def is_gathered(code: _Code) -> bool:
        """Whether what is written may be that of all processes already."""
        if code.is_loop:
            return any(_is_gather(program, node) for node in code.nodes)
        return any(map(gathers, blocks.own_parts(code.body)))

    for loop in data.loops:
        if not isinstance(loop.node, blocks.LOOPS):
            continue
        inside = [node for item in loop.node.body for node in blocks.walk_own(item)]
        codes = [_Code(loop.body, loop.scope, inside, True)]
        for body in program.called_from(inside):
            module = program.module_of(body)
            if module is not None and program.runs(body):
                codes.append(_Code(body, program.flow.scopes[body], list(blocks.walk_body(body)), False))
        for code in codes:
            for statement, table in _writes(program, code):
                if statement in found or is_gathered(code) or not _is_read(program, codes, code, table):
                    continue
                if not code.is_loop and _is_reset(program, loop.node.body, code, table):
                    continue
                found.add(statement)
                yield SampleTable(code.scope.module, code.scope, code.body, statement, blocks.path_of(table) or "")


def _is_gather(program: Program, node: ast.AST) -> bool:
    located = program.locate(node) if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Call) and located is not None and bool(program.callee_names(node, located[1]) & GATHERS)


def _writes(program: Program, code: _Code) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """The statements that write a queue, with the queue."""
    for node in code.nodes:
        written = _rows(program, code, node) or _pushed(program, code, node)
        path = blocks.path_of(written) if written is not None else None
        if written is None or path is None or not code.lasts(path):
            continue
        statement = blocks.statement_of(code.scope.module, node)
        if not _is_made(code, path, statement):
            yield statement, written


def _is_made(code: _Code, path: str, write: ast.stmt) -> bool:
    """Whether each round makes it anew, so that nothing lasts."""
    return any(
        isinstance(node, ast.Assign)
        and node is not write
        and path not in blocks.reads(node.value)
        and any(not isinstance(item, ast.Subscript) and blocks.path_of(item) == path for item in _targets(node))
        for node in code.nodes
    )


def _is_reset(program: Program, suite: list[ast.stmt], code: _Code, table: ast.expr) -> bool:
    """Whether each round of a loop makes an object's attribute anew, by a method that it calls: ``model.reset()``."""
    info, path = program.function_of(code.body), blocks.path_of(table)
    owner = program.flow.class_of(info) if info is not None else None
    return owner is not None and path is not None and _makes_anew(program, suite, owner, path, set())


def _makes_anew(program: Program, suite: list[ast.stmt], owner: ClassInfo, path: str, seen: set[ast.AST]) -> bool:
    """Whether each run of a suite assigns something else to an attribute, here or in a function that it calls."""
    for statement in suite:
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)):
            if any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in walk(statement)):
                return False
            continue
        if isinstance(statement, ast.Assign) and path not in blocks.reads(statement.value):
            whole = [item for item in _targets(statement) if not isinstance(item, ast.Subscript)]
            if path in map(blocks.path_of, whole) and _is_of(program, statement, owner):
                return True
        for call in walk(statement):
            for info in program.flow.callees(call) if isinstance(call, ast.Call) else ():
                if info.node in seen or not isinstance(info.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    continue
                seen.add(info.node)
                if _makes_anew(program, info.node.body, owner, path, seen):
                    return True
    return False


def _is_of(program: Program, statement: ast.stmt, owner: ClassInfo) -> bool:
    """Whether a method of a class, of its bases or of those that derive from it has a statement."""
    located = program.locate(statement)
    info = program.function_of(located[0]) if located is not None else None
    other = program.flow.class_of(info) if info is not None else None
    return other is not None and (other in owner.mro() or owner in other.mro())


def _targets(node: ast.Assign) -> Iterator[ast.expr]:
    """What is assigned, each of several at once by itself."""
    pending = [*node.targets]
    while pending:
        target = pending.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            pending.extend(target.elts)
        else:
            yield target


def _rows(program: Program, code: _Code, node: ast.AST) -> ast.expr | None:
    """``queue[ptr : ptr + n] = keys`` and ``queue.index_copy_(0, places, keys)``, where the place goes on."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        table, index = node.targets[0].value, node.targets[0].slice
        is_range = any(isinstance(part, ast.Slice) and (part.lower or part.upper) for part in walk(index))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TABLE_WRITES:
        if len(node.args) < 2:
            return None
        table, index, is_range = node.func.value, node.args[1], False
    else:
        return None
    sources, parts = _sources(code, index)
    is_range = is_range or any(
        isinstance(part, ast.Call) and program.callee_names(part, code.scope) & NUMBERS_IN_ORDER for part in parts
    )
    return table if is_range and any(_goes_on(code, path) for path in sources) else None


def _sources(code: _Code, node: ast.expr) -> tuple[set[str], list[ast.AST]]:
    """The paths that a value comes from, and all nodes that it is computed by."""
    paths, parts = blocks.reads(node), list(walk(node))
    while True:
        before = len(paths)
        for item in code.nodes:
            if isinstance(item, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id in paths for target in item.targets
            ):
                paths |= blocks.reads(item.value)
                parts += walk(item.value)
        if len(paths) == before:
            return paths, parts


def _goes_on(code: _Code, path: str) -> bool:
    """Whether a number lasts over the rounds and is moved in each."""
    if not code.lasts(path):
        return False
    for node in code.nodes:
        if isinstance(node, ast.AugAssign) and blocks.path_of(node.target) == path:
            return True
        if isinstance(node, ast.Assign) and any(blocks.path_of(item) == path for item in node.targets):
            if not code.is_loop or path in _sources(code, node.value)[0]:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            if blocks.path_of(node.func.value) == path:
                return True
    return False


def _pushed(program: Program, code: _Code, node: ast.AST) -> ast.expr | None:
    """``queue = torch.cat([keys, queue])[:size]``, ``queue = torch.cat([queue[n:], keys])``."""
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
        return None
    target = node.targets[0]
    path = blocks.path_of(target)
    if path is None or isinstance(target, ast.Subscript):
        return None
    parts = list(walk(node.value))
    joined = [
        part
        for part in parts
        if isinstance(part, ast.Call) and program.callee_names(part, code.scope) & JOINS_ROWS and part.args
    ]
    if not any(path in blocks.reads(call.args[0]) and _others(call.args[0], path) for call in joined):
        return None
    is_cut = any(isinstance(part, ast.Slice) and (part.lower or part.upper) for part in parts)
    return target if is_cut else None


def _others(joined: ast.expr, path: str) -> bool:
    """Whether something else is joined with what a path names."""
    return isinstance(joined, (ast.List, ast.Tuple)) and any(path not in blocks.reads(item) for item in joined.elts)


def _is_read(program: Program, codes: list[_Code], code: _Code, table: ast.expr) -> bool:
    """Whether the training loop reads the queue besides the statements that write it."""
    key = program.flow.key(blocks.reading(table), code.scope)
    path = blocks.path_of(table)
    for other in codes:
        for node in other.nodes:
            if not (isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)):
                continue
            own = blocks.path_of(node)
            if own is None or own.rpartition(".")[2] != (path or "").rpartition(".")[2]:
                continue
            if program.flow.key(node, other.scope) != key or is_written(other.scope.module.parents.get(node)):
                continue
            statement = blocks.statement_of(other.scope.module, node)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if not any(blocks.path_of(item) == own for item in targets):
                return True
    return False
