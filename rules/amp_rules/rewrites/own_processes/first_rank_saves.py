"""Let the first process alone write files, in a script with processes of its own.

## What it does
Statements that save a checkpoint, an image or an array, and those that remove, move or copy files, run under a test for
the first rank where every process reached them. The test is the script's own where it has one, as in
`if args.rank == 0:`; else a variable that is the rank, or `torch.distributed.get_rank()`. The time in a name makes no
file of one process: all come there at about the same time.

## Why
Several processes that write one file at the same time leave a broken one.

## Before
    torch.save(model.module.state_dict(), "checkpoint.pt")

## After
    if rank == 0:
        torch.save(model.module.state_dict(), "checkpoint.pt")

## When it declines
Where a test on the way asks for the rank already; for commands, downloads, and methods that only their names say to
save; where what is saved is put together by all processes, where a result of the statement is used, and where another
place reads the file again: that would need a barrier (AMP288). All statements of a file from its opening on are left
then. Files that stay open, and those of logs, are left, and named (AMP288).

## Leaving it out
Yes: the script then writes as it did.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from amp_rules.checks.common.rank_branches import in_several, names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.context import Change, adjacent
from amp_rules.plan.file_guards import FileGuards, file_guards
from amp_rules.plan.file_order import FileOrder
from amp_rules.plan.own_ddp.first_rank import NO_WORD, FirstRank
from amp_rules.plan.own_ddp.program import OwnDdp, more_places
from amp_rules.plan.own_ddp.saving_helpers import by_calls
from amp_rules.plan.rule import Rule
from amp_rules.roles.absent import never_runs
from amp_rules.roles.file_effects import file_effects, mode_of, opens_to_write
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.sites import Site
from amp_rules.roles.told_by_argument import is_ruled_out
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.text.actions import Wrap
from amp_rules.torch.distributed import SPAWNS
from amp_rules.torch.file_access import KEEPERS, MOVES
from amp_rules.torch.idioms import NAMED_FILE_WRITER
from amp_rules.torch.writers import LIBRARY_SAVERS, LOG_KEEPERS, NAMED_LOGS

_Row = tuple[Module, ast.stmt]

RULE = Rule("AMP234", "save-on-first-rank", "The first process alone writes files.", "distribution", optional=True)


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield a test around each group of statements that write files."""
    first_rank = FirstRank(own)
    paths = Paths(own.program)

    def is_left(module: Module, node: ast.AST) -> bool:
        if module not in own.modules:
            return True
        # Commands and downloads may be for each machine, and what keeps a log is no file to be saved.
        if isinstance(node, ast.Call) and (not own.saves(module, node) or own.is_own_file(module, node)):
            return True
        if is_ruled_out(own.program, module, node):
            return True
        # The ways to a place are many: this is asked last.
        return own.reach(module, node) is not Reach.EVERY

    guards = file_guards(own.program, paths, [], is_left)
    _leave_calls(own, guards, is_left)
    _leave_logs(own)
    _leave_savers(own)
    _leave_unknown(own)
    _leave_loose_tests(own)
    _leave_other_modes(own)
    order = FileOrder(own.program, paths, guards)
    waits = order.barriers()
    saves = _lifted(guards.statements)
    saves = [row for row in saves if not is_left(*row)]
    told = _with_neighbours(saves, [row for row in saves if own.told_by_rank(*row)])
    saves = [row for row in saves if row not in told]
    read = {row: _read_elsewhere(own, order, *row) for row in saves} if order.reasons or waits else {}
    moved = [path for row, found in read.items() if found is not None for path in _moved_by(own, *row)]
    kept = _with_neighbours(saves, [row for row in saves if read.get(row) is not None or _is_moved(row, moved)])
    written = [row for row in saves if row not in kept]
    helpers = {
        body: calls
        for body, calls in by_calls(own, written).items()
        if all(first_rank.at(*row) is not None for row in calls)
    }
    written = [row for row in written if blocks.body_of(*row) not in helpers]
    written += [row for calls in helpers.values() for row in calls]
    for module, first, last in adjacent(written):
        test = first_rank.at(module, first)
        if test is None:
            own.leave(RULE, module, first, f"every process writes this file, and {NO_WORD}")
            continue
        if first_rank.is_told_later(module, first, test):
            text = "every process writes this file here, where the rank is not known yet: write it below the group"
            own.leave(RULE, module, first, text)
            continue
        message = f"`{module.text(first)}` runs on the first process only"
        yield Change(RULE, module, first, message, [Wrap(first, last, f"if {test.text}:")])
    _leave_read(own, [found for found in read.values() if found is not None])


def _with_neighbours(saves: list[_Row], left: list[_Row]) -> set[_Row]:
    """Those that are left as they are, and those that share a variable with one of them: a file from its opening on."""
    found, pending = set(left), list(left)
    while pending:
        module, statement = pending.pop()
        suite, reads = blocks.place(module, statement).suite, blocks.reads(statement)
        for row in saves:
            if row in found or row[0] is not module or blocks.place(*row).suite != suite:
                continue
            is_given = blocks.touches(blocks.writes(statement), blocks.reads(row[1]))
            if is_given or blocks.touches(blocks.writes(row[1]), reads):
                found.add(row)
                pending.append(row)
    return found


def _moved_by(own: OwnDdp, module: Module, statement: ast.stmt) -> Iterator[tuple[Module, ast.stmt, str]]:
    """What a statement that every process keeps takes away to another name: each needs a file of its own there."""
    for node in walk(statement):
        located = own.program.locate(node) if isinstance(node, ast.Call) and node.args else None
        if located is not None and own.program.callee_names(node, located[1]) & MOVES:  # type: ignore[arg-type]
            path = blocks.path_of(node.args[0])  # type: ignore[attr-defined]
            if path is not None:
                yield module, statement, path


def _is_moved(row: tuple[Module, ast.stmt], moved: list[tuple[Module, ast.stmt, str]]) -> bool:
    """Whether a statement writes, in the same suite, what each process takes away later."""
    module, statement = row
    return any(
        module is where
        and blocks.place(module, statement).suite == blocks.place(module, move).suite
        and path in blocks.reads(statement)
        for where, move, path in moved
    )


class _Read(NamedTuple):
    """What is written, the nearest place that may read it, and the function that alone does both, if one does."""

    write: Site
    reader: Site
    function: str | None


def _read_elsewhere(own: OwnDdp, order: FileOrder, module: Module, statement: ast.stmt) -> _Read | None:
    """What a statement writes that another place may read, and that place: the nearest of them."""
    for node in walk(statement):
        located = own.program.locate(node) if isinstance(node, ast.Call) and node in order.readers else None
        readers = [site for site in order.readers.get(node, ()) if not _is_read_by_first(own, site)]
        if located is not None and readers:
            body, scope = located
            nearest = min(readers, key=lambda site: (site.body is not body, site.module is not module))
            alone = all(site.body is body for site in readers)
            return _Read(Site(module, scope, body, node), nearest, _only_called(own, body) if alone else None)
    return None


def _is_read_by_first(own: OwnDdp, reader: Site) -> bool:
    """Whether the process that would write alone is the only one that reads, and nobody has to wait.

    Nor does one of each machine that only adds to the file: it reads nothing.
    """
    alone = own.reach(reader.module, reader.node)
    if alone is not Reach.ONE and not (alone is Reach.EACH_NODE and _only_writes(reader.node)):
        return False
    return own.is_of_first_alone(reader.module, reader.node)


def _only_writes(call: ast.AST) -> bool:
    if not isinstance(call, ast.Call) or not opens_to_write(call):
        return False
    mode = mode_of(call)
    return isinstance(mode, ast.Constant) and "+" not in str(mode.value)


def _only_called(own: OwnDdp, body: ast.AST) -> str | None:
    """The name of a function of which every call can be left to one process: none trains, or wants its result."""
    info = own.program.function_of(body)
    callers = own.program.flow.callers(info) if info is not None else []
    if info is None or not callers or info.name.startswith("__"):
        return None  # an object is made on every process
    if any(map(own.program.runs_step, blocks.own_parts(body))):
        return None
    calls = [(caller.scope.module, caller.call) for caller in callers]
    return info.name if all(isinstance(module.parents[call], ast.Expr) for module, call in calls) else None


def _leave_read(own: OwnDdp, read: list[_Read]) -> None:
    """Note files that are read again: the first of them, and how many more there are."""
    for write, reader, function in read[:1]:
        where = "" if reader.module is write.module else f" in `{reader.module.path.name}`"
        text = f"every process writes this file, and `{reader.module.text(reader.node)}`{where} may read it"
        barrier = "left to one process, the others would have to wait for it"
        if function is not None:
            barrier = f"call `{function}` on the first process alone"
        own.leave(RULE, write.module, write.node, f"{text}: {barrier}{more_places(len(read))}")


def _leave_calls(own: OwnDdp, guards: FileGuards, is_left: Callable[[Module, ast.AST], bool]) -> None:
    """Note files that stay open, and results that are used: no test around the statement can leave them to one."""
    for site in guards.calls:
        call = site.module.parents[site.node]
        if not is_left(site.module, call):
            own.leave(RULE, site.module, call, f"every process runs `{site.module.text(call)}`, which writes a file")
    guards.calls.clear()


def _leave_logs(own: OwnDdp) -> None:
    """Note the file of a log that every process opens: the first of them, since a script sets its logs up at once."""
    for site in own.program.calls_to(LOG_KEEPERS & KEEPERS | NAMED_LOGS):
        call = site.node
        if site.module not in own.modules or not isinstance(call, ast.Call) or own.is_own_file(site.module, call):
            continue
        if own.program.callee_names(call, site.scope) & NAMED_LOGS and _has_no_file(call):
            continue
        if never_runs(own.program.flow, site.module, call):
            continue
        if own.reach(site.module, call) is Reach.EVERY or _runs_in_the_spawned(own, site):
            own.leave(RULE, site.module, call, f"every process runs `{site.module.text(call)}`, which opens a log")
            return


def _runs_in_the_spawned(own: OwnDdp, site: Site) -> bool:
    """Whether a place is of the script's own file and no guard's: processes that it spawns run the file first."""
    return (
        site.module is own.program.entry
        and isinstance(site.body, ast.Module)
        and not any(isinstance(item, ast.If) for item in blocks.enclosing(site.module, site.node))
        and bool(own.program.calls_to(SPAWNS))
    )


def _has_no_file(call: ast.Call) -> bool:
    """Whether ``logging.basicConfig`` sets up no file."""
    given = keyword(call, "filename")
    return given is None or (isinstance(given, ast.Constant) and given.value is None)


def _leave_savers(own: OwnDdp) -> None:
    """Note what a library writes by an object or a function of its own."""
    for call, _, scope in own.program.calls():
        module, does = scope.module, _written_by_library(own, call, scope)
        if does is None or module not in own.modules or own.is_own_file(module, call):
            continue
        if own.reach(module, call) is Reach.EVERY and not never_runs(own.program.flow, module, call):
            own.leave(RULE, module, call, f"every process runs `{module.text(call)}`, which {does}")


def _written_by_library(own: OwnDdp, call: ast.Call, scope: Scope) -> str | None:
    """What a call of a library's writer does; a star import may have brought its name."""
    names = own.program.callee_names(call, scope)
    if not names and isinstance(call.func, ast.Name) and call.func.id not in scope.owner(call.func.id).bound:
        names = {f"{star}.{call.func.id}" for star in names_of(scope.module).stars}
    return next((text for name, text in LIBRARY_SAVERS.items() if name in names), None)


def _leave_unknown(own: OwnDdp) -> None:
    """Note calls of what was not found, whose name says that it writes a file: ``save_pickle(model, path)``."""
    known = {effect.call for effect in file_effects(own.program)}
    for call, _, scope in own.program.calls():
        module = scope.module
        if module not in own.modules or call in known or not isinstance(module.parents[call], ast.Expr):
            continue
        if not NAMED_FILE_WRITER.search(last_name(call.func)) or own.program.flow.callees(call):
            continue
        if any(map(names_rank, call.args)) or never_runs(own.program.flow, module, call):
            continue
        if own.reach(module, call) is Reach.EVERY:
            text = module.text(call)
            own.leave(RULE, module, call, f"every process runs `{text}`, which is not known and may write a file")


def _leave_loose_tests(own: OwnDdp) -> None:
    """Note ``if not best or loss < best and rank == 0:``, which lets every process write where its first part holds."""
    for call, _, scope in own.program.calls():
        module = scope.module
        if module not in own.modules or not own.saves(module, call) or own.is_own_file(module, call):
            continue
        for test, holds in own.branches(module, call):
            if holds and (part := _open_part(test)) is not None:
                text = (
                    f"every process runs `{module.text(call)}` where `{module.text(part)}`: the test asks for the rank"
                )
                own.leave(RULE, module, call, f"{text} only behind `or`")
                break


def _leave_other_modes(own: OwnDdp) -> None:
    """Note ``if not spawned or rank == 0:`` around a file, where ``distributed = several or spawned`` joins too."""
    modes = dict(_modes(own))
    saving = {call for call, _, scope in own.program.calls() if own.saves(scope.module, call)} if modes else set()
    saves = own.program.closure(lambda node: node in saving)
    for node, _, scope in own.program.nodes() if saving else ():
        mode = _mode_without_rank(node.test) if isinstance(node, ast.If) else None
        if not isinstance(node, ast.If) or mode not in modes or scope.module not in own.modules:
            continue
        first = next((item for item in node.body if saves(item)), None)
        if first is not None:
            text = (
                f"every process writes this file where `{modes[mode]}` lets them join without `{mode}`: the test asks "
                "for the rank only with it"
            )
            own.leave(RULE, scope.module, first, text)
            return


def _modes(own: OwnDdp) -> Iterator[tuple[str, str]]:
    """Yield switches that are one of several ways to join, with another of these ways."""
    asked = {
        path
        for site in own.joins
        for test, holds in own.branches(site.module, site.node)
        if holds
        for path in blocks.reads(test)
    }
    for node, _, scope in own.program.nodes():
        value = node.value if isinstance(node, ast.Assign) else None
        if not (isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or) and len(value.values) == 2):
            continue
        if not asked.intersection(blocks.writes(node)):
            continue
        for one, other in (value.values, value.values[::-1]):
            path = blocks.path_of(one) if isinstance(one, (ast.Name, ast.Attribute)) else None
            if path is not None and in_several(other):
                yield path, scope.module.text(other)


def _mode_without_rank(test: ast.expr) -> str | None:
    """``spawned`` of ``not spawned or (spawned and rank == 0)``."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and len(test.values) == 2):
        return None
    for one, other in (test.values, test.values[::-1]):
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not) and names_rank(other):
            return blocks.path_of(one.operand)
    return None


def _open_part(test: ast.expr) -> ast.expr | None:
    """The part of a test beside ``or`` that asks for no rank, where the other part asks more of the same variable."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) and len(test.values) == 2):
        return None
    loose, strict = test.values
    if not (isinstance(strict, ast.BoolOp) and isinstance(strict.op, ast.And) and names_rank(strict)):
        return None
    if names_rank(loose) or in_several(loose) is not None:
        return None
    others = [item for item in strict.values if not names_rank(item)]
    if any(ast.unparse(loose) == f"not {ast.unparse(item)}" for item in others):
        return None  # ``not distributed or (distributed and rank == 0)``
    return loose if any(blocks.reads(item) & blocks.reads(loose) for item in others) else None


def _lifted(found: dict[ast.stmt, Module]) -> list[tuple[Module, ast.stmt]]:
    """The statements; beside another one the ``if best:`` around some that asks for nothing but variables."""
    chosen = dict(found)
    for statement, module in found.items():
        parent = module.parents[statement]
        if not (
            isinstance(parent, ast.If) and not parent.orelse and isinstance(parent.test, (ast.Name, ast.Attribute))
        ):
            continue
        if parent in getattr(module.parents[parent], "orelse", ()) or not all(item in chosen for item in parent.body):
            continue
        where = blocks.place(module, parent)
        if any(item in chosen for item in where.suite[max(0, where.index - 1) : where.index + 2]):
            for item in parent.body:
                del chosen[item]
            chosen[parent] = module
    return [(module, statement) for statement, module in chosen.items()]
