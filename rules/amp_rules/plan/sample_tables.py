"""Tables with a row for each sample: each process writes the rows of its share, and reads those of all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from amp_rules.roles.batches import TrainingData
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.data import TABLE_CLEARS, TABLE_WRITES


@dataclass(frozen=True)
class SampleTable(Site):
    """A statement that writes the rows of a batch's samples.

    Attributes:
        table: the variable that holds the table.
    """

    table: str


def sample_tables(program: Program, data: TrainingData) -> Iterator[SampleTable]:
    """Yield where training loops write into tables at places that come with the batch: ``bank[index] = features``.

    A table that nothing reads, and one that each round makes anew, differ between processes to no effect.
    """
    found: set[ast.AST] = set()
    for loop in data.loops:
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or loop.node in found:
            continue
        found.add(loop.node)
        inside = [node for item in loop.node.body for node in blocks.walk_own(item)]
        made = {
            path
            for node in inside
            if isinstance(node, ast.Assign)
            for target in node.targets
            for part in (target.elts if isinstance(target, ast.Tuple) else [target])
            if not isinstance(part, ast.Subscript) and (path := blocks.path_of(part)) is not None
        }
        made |= {
            path
            for node in inside
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TABLE_CLEARS
            if (path := blocks.path_of(node.func.value)) is not None
        }
        batch = _of_batch(program, loop, inside)
        for node in inside:
            written = _written(node)
            if written is None:
                continue
            table, index = written
            path = blocks.path_of(table)
            if path is None or path in made or path.partition(".")[0] in batch or not blocks.reads(index) & batch:
                continue
            if _is_read(program, loop, path, node):
                statement = blocks.statement_of(loop.module, node)
                yield SampleTable(loop.module, loop.scope, loop.body, statement, path)


def _of_batch(program: Program, loop: Site, inside: list[ast.AST]) -> set[str]:
    """Variables that hold parts of the batch, or what was computed from them; not the number of the round."""
    assert isinstance(loop.node, (ast.For, ast.AsyncFor))
    target, iterated = loop.node.target, loop.node.iter
    if isinstance(iterated, ast.Call) and "builtins.enumerate" in program.callee_names(iterated, loop.scope):
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return set()
        target = target.elts[1]
    found = {node.id for node in walk(target) if isinstance(node, ast.Name)}
    while True:
        before = len(found)
        for node in inside:
            if isinstance(node, ast.Assign) and blocks.reads(node.value) & found:
                found |= {
                    part.id for item in node.targets for part in walk(item)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }  # fmt: skip
        if len(found) == before:
            return found


def _written(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The table and the index of what writes rows: ``bank[index] = z``, ``bank.index_copy_(0, index, z)``."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
        return node.targets[0].value, node.targets[0].slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TABLE_WRITES:
        if len(node.args) > 1:
            return node.func.value, node.args[1]
    return None


def _is_read(program: Program, loop: Site, path: str, write: ast.AST) -> bool:
    """Whether something reads the table besides the write itself, in the function or, for an attribute, anywhere."""
    own = set(walk(write.targets[0])) if isinstance(write, ast.Assign) else set(walk(write))
    for node, _, scope in program.nodes():
        if node in own or blocks.path_of(node) != path or isinstance(node, ast.Subscript):
            continue
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            is_same = program.flow.key(node, scope) == program.flow.key(_as_expression(path), loop.scope)
            if is_same and not is_written(scope.module.parents.get(node)):
                return True
    return False


def _as_expression(path: str) -> ast.expr:
    return ast.parse(path, mode="eval").body


def is_written(parent: ast.AST | None) -> bool:
    """Whether what holds a name only writes rows, or asks how many there are."""
    if isinstance(parent, ast.Subscript):
        return not isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.Attribute) and parent.attr in {"shape", "size", "device", "dtype", *TABLE_WRITES}
