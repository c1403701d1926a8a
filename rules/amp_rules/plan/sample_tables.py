"""Tables with a row for each sample: each process writes the rows of its share, and reads those of all."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from amp_rules.plan.parts_of_values import parts_made_of
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.containers import CONTAINERS
from amp_rules.torch.data import COUNTERS, TABLE_CLEARS, TABLE_WRITES
from amp_rules.torch.distributed import GATHERS
from amp_rules.torch.wrappers import PROGRESS_BARS


@dataclass(frozen=True)
class SampleTable(Site):
    """A statement that writes the rows of a batch's samples.

    Attributes:
        table: the variable that holds the table.
    """

    table: str


def sample_tables(program: Program, data: TrainingData) -> Iterator[SampleTable]:
    """Yield where training loops write into tables at places that come with the batch: ``bank[index] = features``.

    A table that nothing reads, and one that each round makes anew, differ between processes to no effect. What is
    written sample by sample, ``for i, value in zip(index.tolist(), values): bank[i] = value``, may only be shown in the
    end; it counts where it says what is trained on, or what the loss is made of.
    """
    found: set[ast.AST] = set()
    for loop in data.loops:
        if not isinstance(loop.node, blocks.LOOPS) or loop.node in found:
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
        yield from _in_methods(program, loop, inside, found)
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
        yield from _sample_by_sample(program, loop, inside, batch, made)


def _sample_by_sample(
    program: Program, loop: Site, inside: list[ast.AST], batch: set[str], made: set[str]
) -> Iterator[SampleTable]:
    """The tables that are written at the place of one sample after another, and that training follows."""
    samples = {name for node in inside for name in _of_samples(program, loop, node, batch)}
    samples = _with_computed(inside, samples, _reads_any)
    told: set[str] = set()
    for node in inside:
        written = _written(node) or _added_to(node)
        if written is None or not blocks.reads(written[1]) & samples:
            continue
        path = blocks.path_of(written[0])
        if path is None or path in made | told or path.partition(".")[0] in batch | samples:
            continue
        if _says_what_is_trained_on(program, loop, path):
            told.add(path)
            yield SampleTable(loop.module, loop.scope, loop.body, blocks.statement_of(loop.module, node), path)


def _of_samples(program: Program, loop: Site, node: ast.AST, batch: set[str]) -> set[str]:
    """The variables of a loop over the samples of a batch; not the place in it, which is the same in each batch."""
    if not isinstance(node, ast.For) or not blocks.reads(node.iter) & batch:
        return set()
    if isinstance(node.iter, ast.Call) and program.callee_names(node.iter, loop.scope) & COUNTERS:
        return set()
    return _items_of(program, node, loop.scope)


def _added_to(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The table and the index of ``seen[i] += 1`` and ``losses[i].append(loss)``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return node.target.value, node.target.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        row = node.func.value
        if isinstance(row, ast.Subscript):
            return row.value, row.slice
        if isinstance(row, ast.Call) and isinstance(row.func, ast.Attribute) and row.func.attr == "setdefault":
            return (row.func.value, row.args[0]) if row.args else None
    return None


def _says_what_is_trained_on(program: Program, loop: Site, table: str) -> bool:
    """Whether the loader of the loop, or a loss in it, is made of a table."""
    assert isinstance(loop.node, blocks.LOOPS)
    followed = _with_computed(list(blocks.walk_body(loop.body)), {table}, _reads_any)
    losses = {path for site in program.backwards if site.body is loop.body for path in blocks.reads(site.loss)}
    iterated = blocks.reads(loop.node.iter) if isinstance(loop.node, (ast.For, ast.AsyncFor)) else set()
    return bool(followed & (losses | iterated))


def _in_methods(program: Program, loop: Site, inside: list[ast.AST], found: set[ast.AST]) -> Iterator[SampleTable]:
    """The tables that an object keeps and a method writes, at places that it is given: ``memory(features, index)``.

    What an object that is no model keeps may only be shown in the end; it counts where a loss is made of it.
    """
    called = program.called_from(inside)
    for body in called:
        info = program.function_of(body)
        scope = program.flow.scopes.get(body)
        if info is None or scope is None or body in found or info.receiver is None:
            continue
        is_model = program.is_model_code(body)
        read = set() if is_model else _read_for_losses(program, {loop.body, *called}, body)
        if not is_model and not read:
            continue
        found.add(body)
        nodes = list(blocks.walk_body(body))
        if any(isinstance(node, ast.Call) and program.callee_names(node, scope) & GATHERS for node in nodes):
            continue  # it may be given the rows of all processes
        made = {path for node in nodes if isinstance(node, ast.Assign) for path in _assigned_whole(node)}
        takes = partial(_takes_more_than_shape, scope.module.parents)
        given = _with_computed(nodes, set(info.parameters) - {info.receiver}, takes)
        for node in nodes:
            written = _written(node)
            if written is None or _is_range(written[1]):
                continue
            path = blocks.path_of(written[0])
            if path is None or not path.startswith(f"{info.receiver}.") or path in made:
                continue
            if _is_container(program, info, path):
                continue  # its keys are kinds of samples, such as sizes: `self.masks[x.size(1)] = ...`
            site = Site(scope.module, scope, body, node)
            if not is_model and path.partition(".")[2] not in read:
                continue
            if blocks.reads(written[1]) & given and _is_read(program, site, path, node):
                yield SampleTable(scope.module, scope, body, blocks.statement_of(scope.module, node), path)


def _read_for_losses(program: Program, bodies: set[ast.AST], method: ast.AST) -> set[str]:
    """The attributes of the object of a method that are read on the way to the losses of some bodies."""
    values: list[ast.AST] = []
    owner = program.owner_of(method)
    for site in program.backwards:
        if site.body in bodies:
            values += parts_made_of(site.body, site.loss)
    found: set[str] = set()
    for body in program.called_from(values):
        reader, scope = program.function_of(body), program.flow.scopes.get(body)
        other = program.owner_of(body)
        if reader is None or scope is None or other is None or owner is None or reader.receiver is None:
            continue
        if owner not in other.mro() and other not in owner.mro():
            continue
        for node in blocks.walk_body(body):
            path = blocks.path_of(node) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else None
            if path is not None and path.startswith(f"{reader.receiver}."):
                if not is_written(scope.module.parents.get(node)):
                    found.add(path.partition(".")[2])
    return found


def _is_container(program: Program, info: FunctionFacts, path: str) -> bool:
    """Whether the class makes an attribute that holds others by index or name, rather than rows."""
    attribute = ".".join(path.split(".")[:2])
    for method in info.cls.methods.values() if info.cls is not None else ():
        scope = program.flow.scopes.get(method.node)
        for node in method.nodes:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or scope is None or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if attribute not in map(blocks.path_of, targets):
                continue
            if isinstance(node.value, (ast.Dict, ast.DictComp, ast.List, ast.ListComp)):
                return True
            if isinstance(node.value, ast.Call) and program.callee_names(node.value, scope) & CONTAINERS:
                return True
    return False


def _assigned_whole(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        path = blocks.path_of(target)
        if path is not None and not isinstance(target, ast.Subscript):
            yield path


def _is_range(index: ast.expr) -> bool:
    """``ptr : ptr + n``, the place of a queue."""
    return any(isinstance(part, ast.Slice) and (part.lower or part.upper) for part in walk(index))


def _with_computed(nodes: list[ast.AST], found: set[str], takes: Callable[[ast.expr, set[str]], object]) -> set[str]:
    """Variables, and those that are computed from them: what is assigned a value that takes one of them."""
    while True:
        before = len(found)
        for node in nodes:
            if isinstance(node, ast.Assign) and takes(node.value, found):
                found |= {
                    part.id
                    for target in node.targets
                    for part in walk(target)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }
        if len(found) == before:
            return found


def _takes_more_than_shape(parents: Mapping[ast.AST, ast.AST], value: ast.expr, known: set[str]) -> bool:
    return any(
        isinstance(part, ast.Name) and part.id in known and not is_written(parents.get(part)) for part in walk(value)
    )


def _of_batch(program: Program, loop: Site, inside: list[ast.AST]) -> set[str]:
    """Variables that hold parts of the batch, or what was computed from them; not the number of the round."""
    if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or _counts(program, loop):
        drawn = {name for node in inside for name in _drawn(program, loop, node)}
        return _with_computed(inside, drawn, _reads_any)
    return _with_computed(inside, _items_of(program, loop.node, loop.scope), _reads_any)


def _items_of(program: Program, loop: ast.For | ast.AsyncFor, scope: Scope) -> set[str]:
    """The variables of a loop for what it goes through, without that for the number of the round."""
    target, iterated = loop.target, loop.iter
    if isinstance(iterated, ast.Call) and "builtins.enumerate" in program.callee_names(iterated, scope):
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            return set()
        target = target.elts[1]
    return {part.id for part in walk(target) if isinstance(part, ast.Name)}


def _reads_any(value: ast.expr, known: set[str]) -> set[str]:
    return blocks.reads(value) & known


def _counts(program: Program, loop: Site) -> bool:
    """Whether a loop goes by numbers of its own, behind a progress bar or not, and draws its batches in its body."""
    iterated = loop.node.iter  # type: ignore[attr-defined]
    while isinstance(iterated, ast.Call):
        names = program.callee_names(iterated, loop.scope)
        if names & COUNTERS:
            return True
        if not (names & PROGRESS_BARS and iterated.args):
            return False
        iterated = iterated.args[0]
    return False


def _drawn(program: Program, loop: Site, node: ast.AST) -> Iterator[str]:
    """The variables that a statement gives a batch: ``x, y = next(batches)``."""
    if isinstance(node, (ast.Assign, ast.NamedExpr)):
        value = node.value
        is_next = isinstance(value, ast.Call) and "builtins.next" in program.callee_names(value, loop.scope)
        if is_next or any(item.kind == "batch" for item in program.flow.values(value, loop.scope)):
            yield from blocks.writes(node) if isinstance(node, ast.stmt) else [node.target.id]


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
