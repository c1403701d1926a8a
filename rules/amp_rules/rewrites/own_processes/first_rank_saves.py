"""Let the first process alone write files, in a script with processes of its own.

## What it does
Statements that save a checkpoint, an image or an array, and those that remove, move or copy files, run under a test for
the first rank where every process reached them. The test is the script's own where it has one, as in
`if args.rank == 0:`; else a variable that is the rank, or `torch.distributed.get_rank()`. The time in a name makes no
file of one process: all come there at about the same time. Where all processes read the file later, at a place to
which they all come once, they wait above it: `torch.distributed.barrier()`. The handler of a log's file is a
`logging.NullHandler()` on the other processes. Above the process group the test asks the environment that a launcher
sets, where the processes join by it.

## Why
Several processes that write one file at the same time leave a broken one.

## Before
    torch.save(model.module.state_dict(), "checkpoint.pt")

## After
    if rank == 0:
        torch.save(model.module.state_dict(), "checkpoint.pt")

## When it declines
Where a test on the way asks for the rank already; for commands, downloads, and methods that only their names say to
save; where what is saved is put together by all processes, where a result of the statement is used, and where the file
is read again in a loop, or by only some processes: no barrier can stand there (AMP288). So is an export of a model in
`DistributedDataParallel`, of which the forward pass wants all processes (AMP288). All statements of a file
from its opening on are left then, and a file that is named after it (`path + ".json"`) with it. Files that stay open,
and those that `logging.basicConfig` opens, are left, and named (AMP288); but no log of which the others write nothing.

## Leaving it out
Yes: the script then writes as it did.

## Source
https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from amp_rules.checks.common.file_writes import access_of
from amp_rules.checks.common.rank_branches import names_rank
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.context import Change, adjacent
from amp_rules.plan.file_guards import FileGuards, file_guards
from amp_rules.plan.file_names import more_places, name_of
from amp_rules.plan.file_order import FileOrder
from amp_rules.plan.own_ddp.arrays_of_all import makes_array
from amp_rules.plan.own_ddp.file_roots import stand_apart
from amp_rules.plan.own_ddp.files_beside import is_beside
from amp_rules.plan.own_ddp.first_rank import NO_WORD, FirstRank
from amp_rules.plan.own_ddp.forwards_of_one import traces_wrapped
from amp_rules.plan.own_ddp.lookups import is_only_looked_up
from amp_rules.plan.own_ddp.loose_tests import loose_tests
from amp_rules.plan.own_ddp.made_by_first import is_made_by_first
from amp_rules.plan.own_ddp.probes import probes_taken_away
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.saving_helpers import by_calls
from amp_rules.plan.own_ddp.waits import Waits
from amp_rules.plan.rule import Rule
from amp_rules.roles.absent import never_runs
from amp_rules.roles.file_effects import file_effects, given_paths, keeps_nothing, mode_of, opens_to_write
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.sites import Site
from amp_rules.roles.told_by_argument import is_ruled_out
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name, walk
from amp_rules.text.actions import Insert, Replace, Wrap
from amp_rules.text.line_width import either_within
from amp_rules.torch.distributed import SPAWNS
from amp_rules.torch.file_access import KEEPERS, LOOKING_METHODS, LOOKS, MOVES, REMOVERS
from amp_rules.torch.idioms import NAMED_FILE_WRITER
from amp_rules.torch.writers import LIBRARY_SAVERS, LOG_KEEPERS, NAMED_LOGS

_NO_HANDLER = "logging.NullHandler"
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
        if is_ruled_out(own.program, module, node) or never_runs(own.program.flow, module, node):
            return True
        if is_made_by_first(own, module, node):
            return True
        # The ways to a place are many: this is asked last.
        if own.reach(module, node) is not Reach.EVERY:
            return True
        holder = own.may_be_own_file(module, node) if isinstance(node, ast.Call) else None
        if holder is not None:
            own_on_some_way[node] = module, holder
        return holder is not None

    own_on_some_way: dict[ast.AST, tuple[Module, ast.expr]] = {}
    guards = file_guards(own.program, paths, [], is_left)
    opened = [(site.module, site.statement) for site in guards.calls if not is_left(site.module, site.node)]
    _leave_calls(own, guards, is_left)
    for node, (module, holder) in list(own_on_some_way.items())[:1]:
        others = more_places(own.program, [(where, item) for item, (where, _) in own_on_some_way.items()])
        text = f"every process writes this file, whose path {own.way_of_rank(holder)}{others}"
        own.leave(RULE, module, node, text)
    yield from _logs(own, first_rank)
    _leave_savers(own)
    _leave_unknown(own)
    for module, node, text in (*loose_tests(own), *probes_taken_away(own)):
        own.leave(RULE, module, node, text)
    order = FileOrder(own.program, paths, guards, of_writer=lambda *place: _is_of_first(own, *place))
    waits = order.barriers()
    saves = _lifted(guards.statements)
    saves = [row for row in saves if not is_left(*row) and not is_only_looked_up(own.program, *row)]
    told = _with_neighbours(saves, [row for row in saves if own.told_by_rank(*row)])
    saves = [row for row in saves if row not in told]
    read = {row: _read_elsewhere(own, order, *row) for row in saves} if order.reasons or waits else {}
    awaited = _awaited(own, order, first_rank, [row for row, found in read.items() if found is not None])
    read = {row: found for row, found in read.items() if row not in awaited}
    moved = [path for row, found in read.items() if found is not None for path in _moved_by(own, *row)]
    kept = _with_neighbours(saves, [row for row in saves if read.get(row) is not None or _is_moved(row, moved)])
    traced = [row for row in saves if row not in kept and traces_wrapped(own, row[1])]
    for module, statement in traced[:1]:
        text = "every process writes this file, and the model that it runs for that is in DistributedDataParallel, "
        text += "which sends its buffers to all: export its `module`, on the first process alone"
        own.leave(RULE, module, statement, text + more_places(own.program, traced))
    kept |= _with_neighbours(saves, traced)
    named = [row for row in saves if row not in kept and _is_named_to_callers(own, *row)]
    for module, statement in named[:1]:
        text = "every process writes this file, and its name is given back to what may read it"
        text += more_places(own.program, named)
        own.leave(RULE, module, statement, text)
    kept |= _with_neighbours(saves, named)
    left = [*kept, *opened]
    beside = [row for row in saves if row not in kept and any(is_beside(own, row, other) for other in left)]
    for module, statement in beside[:1]:
        text = "every process writes this file, as it does the one that this is named after"
        own.leave(RULE, module, statement, text + more_places(own.program, beside))
    kept |= _with_neighbours(saves, beside)
    written = [row for row in saves if row not in kept]
    helpers = {
        body: calls
        for body, calls in by_calls(own, written).items()
        if all(first_rank.known_at(*row) is not None for row in calls)
    }
    written = [row for row in written if blocks.body_of(*row) not in helpers]
    written += [row for calls in helpers.values() for row in calls]
    for module, first, last in adjacent(written):
        test = first_rank.known_at(module, first)
        if test is None:
            text = "every process writes this file here, where the rank is not known yet: write it below the group"
            is_later = first_rank.at(module, first) is not None
            own.leave(RULE, module, first, text if is_later else f"every process writes this file, and {NO_WORD}")
            continue
        message = f"`{module.text(first)}` runs on the first process only"
        yield Change(RULE, module, first, message, [Wrap(first, last, f"if {test.text}:")])
    written_and_read = [item for row in written for item in awaited.get(row, ())]
    turns = Waits(own, order)
    for module, place in turns.barriers(written_and_read):
        text = "the file is read once the first process has written it"
        yield Change(RULE, module, place, text, [Insert(place, turns.code(module, place))])
    _leave_read(own, order, [found for found in read.values() if found is not None])


def _is_of_first(own: OwnDdp, module: Module, node: ast.AST) -> bool:
    return own.reach(module, node) is Reach.ONE and own.is_of_first_alone(module, node)


def _awaited(
    own: OwnDdp, order: FileOrder, first_rank: FirstRank, saves: list[_Row]
) -> dict[_Row, list[tuple[ast.AST, list[Site]]]]:
    """The statements for whose files all can wait, with the calls that write them and what reads those."""
    turns = Waits(own, order)
    found = {}
    for row in saves:
        if first_rank.known_at(*row) is None:
            continue
        calls = [(node, readers) for node in walk(row[1]) if (readers := _readers(own, order, node))]
        if all(turns.can_wait(call, readers) for call, readers in calls):
            found[row] = calls
    return found


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


def _is_named_to_callers(own: OwnDdp, module: Module, statement: ast.stmt) -> bool:
    """Whether a function gives back, by a variable, which file it writes: what reads it then would have to wait."""
    paths = {
        path
        for node in walk(statement)
        if isinstance(node, ast.Call) and own.saves(module, node)
        for item in _paths_written(own, module, node)
        if isinstance(item, ast.Name) and (path := blocks.path_of(item)) is not None
    }
    info = own.program.function_of(blocks.body_of(module, statement))
    callers = own.program.flow.callers(info) if info is not None else []
    if not paths or all(isinstance(item.scope.module.parents[item.call], ast.Expr) for item in callers):
        return False
    returns = (node for node in blocks.walk_body(blocks.body_of(module, statement)) if isinstance(node, ast.Return))
    return any(
        blocks.path_of(part) in paths
        for node in returns
        if node.value is not None
        for part in (node.value.elts if isinstance(node.value, ast.Tuple) else [node.value])
    )


def _paths_written(own: OwnDdp, module: Module, call: ast.Call) -> Sequence[ast.expr]:
    """What says which file a call writes: not what it writes there, which a function may well give back."""
    access = access_of(own.facts(module), call)
    return [access.path] if access is not None and access.path is not None else given_paths(call, 2)


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
        readers = _readers(own, order, node)
        if located is not None and readers:
            body, scope = located
            nearest = min(readers, key=lambda site: (site.body is not body, site.module is not module))
            alone = all(site.body is body for site in readers)
            return _Read(Site(module, scope, body, node), nearest, _only_called(own, body) if alone else None)
    return None


def _readers(own: OwnDdp, order: FileOrder, node: ast.AST) -> list[Site]:
    """What reads a file that a call writes, on other processes than the one that would write alone."""
    found = []
    changes = isinstance(node, ast.Call) and _changes_what_is_there(own, node)
    for site in order.readers.get(node, ()):
        if not changes and (_begins_anew(site.node) or _is_elsewhere(own, node, site)):
            continue  # which reads nothing of what was written
        # A helper may read this file for the first process, and others for all.
        told = [met for read, met, _ in order.places.get(node, ()) if read.node is site.node]
        if not all(
            _is_read_by_first(own, place) for place in (told if told and node not in order.unwaited else [site])
        ):
            found.append(site)
    return found


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


def _changes_what_is_there(own: OwnDdp, call: ast.Call) -> bool:
    """Whether a call makes a folder or takes something away, which may matter to what only writes."""
    located = own.program.locate(call)
    if located is None or last_name(call.func) in ("mkdir", "makedirs"):
        return True
    return bool(own.program.callee_names(call, located[1]) & REMOVERS)


def _is_elsewhere(own: OwnDdp, call: ast.AST, reader: Site) -> bool:
    located = own.program.locate(call) if isinstance(call, ast.Call) else None
    if located is None:
        return False
    body, scope = located
    return stand_apart(own.program, Site(scope.module, scope, body, call), reader)


def _begins_anew(call: ast.AST) -> bool:
    """Whether a call opens a file to write it from its beginning."""
    mode = mode_of(call) if isinstance(call, ast.Call) and opens_to_write(call) else None
    return isinstance(mode, ast.Constant) and "w" in str(mode.value) and "+" not in str(mode.value)


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


def _leave_read(own: OwnDdp, order: FileOrder, read: list[_Read]) -> None:
    """Note files that are read again: the first of them, and how many more there are."""
    for write, reader, function in read[:1]:
        where = "" if reader.module is write.module else f" in `{name_of(own.program, reader.module)}`"
        # What makes a folder reads no file of it.
        taken = _takes_away(own, write)
        text = "every process takes this file away" if taken else "every process writes this file"
        is_first = function is None and order.comes_first(write.node, reader.node)
        if not (taken and last_name(getattr(reader.node, "func", None)) in ("mkdir", "makedirs")):
            deed = "look for it" if _looks(own, reader) else "read it"
            text += f", and `{reader.module.text(reader.node)}`{where} may {deed}{' first' * is_first}"
        barrier = "left to one process, the others would have to wait for it"
        if is_first:
            barrier = "left to one process, that one would have to wait until the others have done so"
        if function is not None:
            barrier = f"call `{function}` on the first process alone"
        # What asks for those is another line.
        said = "files that every process changes and asks for are also"
        others = more_places(own.program, [(item.write.module, item.write.node) for item in read], said)
        own.leave(RULE, write.module, write.node, f"{text}: {barrier}{others}")


def _looks(own: OwnDdp, reader: Site) -> bool:
    """Whether a call only asks whether a file is there."""
    call = reader.node
    return isinstance(call, ast.Call) and (
        bool(own.program.callee_names(call, reader.scope) & LOOKS) or last_name(call.func) in LOOKING_METHODS
    )


def _takes_away(own: OwnDdp, write: Site) -> bool:
    call = write.node
    return isinstance(call, ast.Call) and bool(own.program.callee_names(call, write.scope) & REMOVERS)


def _leave_calls(own: OwnDdp, guards: FileGuards, is_left: Callable[[Module, ast.AST], bool]) -> None:
    """Note files that stay open, and results that are used: no test around the statement can leave them to one."""
    for site in guards.calls:
        call = site.module.parents[site.node]
        if not is_left(site.module, call) and not makes_array(own, call, site.scope):
            own.leave(RULE, site.module, call, f"every process runs `{site.module.text(call)}`, which writes a file")
    guards.calls.clear()


def _logs(own: OwnDdp, first_rank: FirstRank) -> Iterator[Change]:
    """Yield an edit for each file of a log that every process opens; of those that stay, the first is noted."""
    is_noted = False
    for site in own.program.calls_to(LOG_KEEPERS & KEEPERS | NAMED_LOGS):
        call = site.node
        if site.module not in own.modules or not isinstance(call, ast.Call) or own.is_own_file(site.module, call):
            continue
        is_named = bool(own.program.callee_names(call, site.scope) & NAMED_LOGS)
        if is_named and _has_no_file(call):
            continue
        if never_runs(own.program.flow, site.module, call) or is_ruled_out(own.program, site.module, call):
            continue
        if _is_sent_nowhere(own, site, call):
            continue
        is_spawned = _runs_in_the_spawned(own, site)
        if own.reach(site.module, call) is not Reach.EVERY and not is_spawned:
            continue
        test = None if is_named or is_spawned else first_rank.known_at(site.module, call)
        other = own.word(site.module, _NO_HANDLER)
        if test is not None and other is not None and not _tells_rank(site):
            message = f"`{site.module.text(call)}` opens a log on the first process alone"
            edit = either_within(site.module, call, test.text, f"{other}()")
            yield Change(RULE, site.module, call, message, [Replace(call, edit)])
        elif not is_noted:
            is_noted = True
            own.leave(RULE, site.module, call, f"every process runs `{site.module.text(call)}`, which opens a log")


def _is_sent_nowhere(own: OwnDdp, site: Site, call: ast.Call) -> bool:
    """Whether some processes give the log no file: ``if rank != 0: filename = os.devnull``."""
    given = keyword(call, "filename") or (call.args[0] if call.args else None)
    if not isinstance(given, ast.Name):
        return False
    return any(
        isinstance(node, ast.Assign)
        and given.id in blocks.writes(node)
        and (is_none(node.value) or keeps_nothing(own.program, node.value, site.scope))
        and own.reach(site.module, node) is not Reach.EVERY
        for node in blocks.walk_body(site.body)
    )


def _tells_rank(site: Site) -> bool:
    """Whether the class that opens a log, or the form that its function gives the lines, writes the rank into them."""
    around = [item for item in site.module.ancestors(site.node) if isinstance(item, (ast.ClassDef, *blocks.BODIES))]
    owner = next((item for item in around if isinstance(item, ast.ClassDef)), None)
    forms = [node for node in blocks.walk_body(site.body) if last_name(getattr(node, "func", None)) == "Formatter"]
    own = set(walk(site.node))
    return any(
        isinstance(node, ast.FormattedValue) and names_rank(node.value) and node not in own
        for part in ([owner] if owner is not None else forms)
        for node in walk(part)
    )


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
    return given is None or is_none(given)


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
