"""Where processes wait for a file that the main process writes, moves or removes."""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from amp_rules.plan import declining
from amp_rules.plan.brought_files import hold_apart, is_brought
from amp_rules.plan.declining import Declined
from amp_rules.plan.failing_files import follows_failed_training
from amp_rules.plan.file_guards import FileGuards, is_guarded
from amp_rules.plan.file_reads import HELPERS, FileReads
from amp_rules.plan.sample_caches import LOOKED, SampleCaches
from amp_rules.plan.sample_files import bodies_of_samples
from amp_rules.plan.statement_order import between, comes_after
from amp_rules.plan.waits_above_loops import WaitsAboveLoops, Ways
from amp_rules.plan.waits_within import waits_within
from amp_rules.plan.writes_within_reads import behind, is_within
from amp_rules.plan.written_on_import import not_on_import, written_on_import
from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.made_folders import folder_made
from amp_rules.roles.program import Program
from amp_rules.roles.property_reads import property_reads
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.threads import bodies_of_threads
from amp_rules.roles.workers import workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, walk
from amp_rules.torch.data import RUN_FOR_SAMPLES
from amp_rules.torch.failures import ENDS_PROCESS

_FAR = 60
"""Callers above callers that are looked at to tell which of two statements comes first."""

_EXISTING = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir"})
_LOOKED = LOOKED | {"isdir", "is_dir"}


class FileOrder:
    """Reads of files that the main process alone has written.

    Attributes:
        reasons: where no barrier helps.
        readers: by the calls that change a file, the reads of it that have to wait for them, or to come first.
        places: by the same calls, each read that has to wait, where it is told of the file, and the statement before
            which all would wait for it.
        covered: of these statements, those above which the processes wait already, and where.
        unwaited: calls of which some read has to come first, or no wait helps.
    """

    def __init__(
        self,
        program: Program,
        paths: Paths,
        guards: FileGuards,
        is_of_batch: Callable[[ast.expr, Scope], bool] | None = None,
        of_writer: Callable[[Module, ast.AST], bool] | None = None,
    ) -> None:
        """Take the program.

        Args:
            program: the program.
            paths: which files its expressions name.
            guards: what the main process does alone.
            is_of_batch: whether a path follows from the batches of one process.
            of_writer: whether the script itself leaves a place to the process that would write alone.
        """
        self._program = program
        self._guards = guards
        self._of_writer = of_writer
        self._caches = SampleCaches(program, is_of_batch)
        self._asked = FileReads(program, paths, guards, of_writer)
        inner = self._asked.inner
        left = {site.node for site in guards.calls}
        calls = {parent for site in guards.calls if isinstance(parent := site.module.parents[site.node], ast.Call)}
        self._not_by_all = program.called_from([*inner, *calls, *guards.in_turns])
        self._of_samples = bodies_of_samples(program)
        nodes = {info.node: program.nodes_of(info.node) for _, info in workers(program)}
        pools = {body: inner for body, inner in nodes.items() if not any(map(program.runs_backward, inner))}
        self._of_pools = {*pools, *program.called_from([node for inner in pools.values() for node in inner])}
        self._of_threads = bodies_of_threads(program)
        self._effects = [item for item in guards.effects if item.call in inner or item.call.func in left]
        self.reasons: list[Declined] = []
        self.readers: defaultdict[ast.AST, list[Site]] = defaultdict(list)
        self.places: defaultdict[ast.AST, list[tuple[Site, Site, ast.stmt]]] = defaultdict(list)
        self.covered: dict[ast.stmt, ast.stmt] = {}
        self.unwaited: set[ast.AST] = set()
        self._early: set[tuple[ast.AST, ast.AST]] = set()
        self._declined: set[ast.Call] = set()
        self._known_ways: dict[tuple[ast.AST, ast.AST], dict[ast.AST, list[Site]]] = {}

    def barriers(self) -> list[tuple[Module, ast.stmt, str]]:
        """Statements before which all processes wait, each with the reason."""
        return self._barriers

    def comes_first(self, change: ast.AST, read: ast.AST) -> bool:
        """Whether a read of a file comes before a change of it alone: who changes it would wait for those who read."""
        is_later = any(site.node is read for site, _, _ in self.places.get(change, ()))
        return (change, read) in self._early and not is_later

    def own_reads(self) -> frozenset[ast.AST]:
        """Reads of a cache that has a file for each sample of a batch: each process has other samples."""
        self.barriers()
        return frozenset(self._caches.reads)

    @cached_property
    def _barriers(self) -> list[tuple[Module, ast.stmt, str]]:
        found: dict[ast.stmt, tuple[Module, str]] = {}
        waits: dict[ast.stmt, list[tuple[Site, FileEffect]]] = {}
        reads = list(self._asked.reads())
        for site, path in reads:
            if self._in_data_set(site):
                self._decline_data_set(site, path)
                continue
            for given, own in self._asked.from_callers(site, path, HELPERS):
                effects = list(self._written(given, own, read=site))
                for at, place, effect in self._written_within(site, given, own):
                    self.readers[effect.call].append(site)
                    self.places[effect.call].append((site, at, place))
                    found.setdefault(place, (at.module, "the file is read once the main process has written it"))
                    waits.setdefault(place, []).append((at, effect))
                if not effects and given is not site:
                    # The helper may write the file before it reads it: a cache that it builds where there is none.
                    given, effects = site, list(self._written(site, path, within=site.body))
                written = [item for effect in effects for item in self._ways(effect).get(site.body, ())]
                if effects and self._caches.keeps(site, path, written):
                    continue
                effects = [effect for effect in effects if not self._declined_on_import(given, effect)]
                meetings = self._where_all_come(given, HELPERS) if effects else ()
                for met in (above for item in meetings for above in self._makes_data(item, effects)):
                    for effect in effects:
                        if isinstance(met.statement, ast.While) and self._writes_before(met, effect, met.statement):
                            self._decline_rounds(met, effect)
                            continue
                        self.readers[effect.call].append(site)
                        place = self._before_the_look(met, effect)
                        self.places[effect.call].append((site, met, place))
                        found.setdefault(place, (met.module, "the file is read once the main process has written it"))
                        waits.setdefault(place, []).append((met, effect))
        waited = self._leave_out_covered(found, waits)
        for site, path in reads:
            if self._in_data_set(site) or self._caches.is_beside(site, path):
                continue
            for change in self._changed_next(site, path):
                self.readers[change.node].append(site)
                self.unwaited.add(change.node)
                self._early.add((change.node, site.node))
            for place, module in self._waits_for_look(site, path):
                found.setdefault(place, (module, "the file is changed once all processes have looked at it"))
                waited[place].append(self._ways(site))
        loops = WaitsAboveLoops(self._program, self._not_by_all)
        moved: dict[ast.stmt, tuple[Module, str]] = {}
        for item, (module, why) in found.items():
            if (body := blocks.body_of(module, item)) in self._of_pools or body in self._of_threads:
                continue  # a process of a pool is none of those that wait for each other, nor is a thread
            if not follows_failed_training(self._program, module, item):
                file, above_all = loops.place(module, item, waited[item])
                moved.setdefault(above_all, (file, why))
        files = {*(site.node for site, _ in reads), *(effect.call for effect in self._guards.effects)}
        again = [item for item, (at, _) in moved.items() if waits_within(self._program, at, item, moved, files)]
        for item in again:
            del moved[item]
        return [(module, item, why) for item, (module, why) in moved.items()]

    def _leave_out_covered(
        self, found: dict[ast.stmt, tuple[Module, str]], waits: dict[ast.stmt, list[tuple[Site, FileEffect]]]
    ) -> defaultdict[ast.stmt, list[Ways]]:
        """Leave out the places above which the processes have waited already; give back what the others wait for.

        One that covers another waits for the files of that, too: it is moved above no loop that writes them.
        """
        covered: dict[ast.stmt, ast.stmt] = {}
        for item in list(found):
            other = self._waits_outside(item, waits)
            if other is not None:
                covered[item] = other
        for item in sorted(found.keys() - covered.keys(), key=lambda item: item.lineno):
            # Those above are decided on first: who waits there for nothing anew covers nothing.
            other = self._waits_above(item, waits, covered.keys())
            if other is not None:
                covered[item] = other
        self.covered = covered
        waited: defaultdict[ast.stmt, list[Ways]] = defaultdict(list)
        for item, at in waits.items():
            place = item
            while place in covered:
                place = covered[place]
            waited[place] += [self._ways(effect) for _, effect in at]
            if item in covered:
                del found[item]
        return waited

    def _where_all_come(self, site: Site, depth: int, run: FunctionFacts | None = None) -> Iterator[Site]:
        """The site, or what calls its function where that also runs on the main process alone, or in turns.

        A property that is read in a condition decides like the look in it: they wait where it is read.
        """
        info = self._program.function_of(site.body)
        read = property_reads(self._program, info) if info is not None and depth else ()
        if site.body not in self._not_by_all and not read:
            yield site
            return
        for above in self._runs_of(info, site, run) if info is not None and depth else ():
            if not self._asked.is_left(above):
                yield from self._where_all_come(above, depth - 1, info)

    def _runs_of(self, info: FunctionFacts, site: Site, run: FunctionFacts | None) -> Iterator[Site]:
        """What runs the function of a site: its calls, and where it is read as a property."""
        yield from map(calling, self._program.found_by_name.callers(info, site.node, run))
        yield from property_reads(self._program, info)

    def _makes_data(self, site: Site, effects: Collection[FileEffect]) -> Iterator[Site]:
        """The site, or what makes the data set in whose constructor it stands: a data set may be made by one alone.

        A constructor that writes the files itself waits for them where it reads them.
        """
        info = self._program.function_of(site.body)
        owner = self._program.flow.class_of(info) if info is not None and info.name == "__init__" else None
        makers = self._program.flow.callers(info) if info is not None and owner is not None else ()
        is_data = owner is not None and any(name in owner.facts.methods for name in RUN_FOR_SAMPLES)
        sites = [calling(caller) for caller in makers]
        if not is_data or not sites or any(site.body in self._ways(effect) for effect in effects):
            yield site
            return
        if any(above.body in self._not_by_all or self._asked.is_left(above) for above in sites):
            yield site
            return
        yield from sites

    def _before_the_look(self, site: Site, effect: FileEffect) -> ast.stmt:
        """The outermost statement around a read that looks for the file or opens it: ranks may find it differently.

        What writes the file above the read stays outside: nobody is to wait for it before it is written.
        """
        module, found = site.module, site.statement
        for parent in blocks.enclosing(module, found):
            if self._writes_before(site, effect, parent):
                break
            if _is_a_look(parent):
                found = parent
        return _out_of_elif(module, found)

    def _writes_before(self, site: Site, effect: FileEffect, within: ast.stmt) -> bool:
        """Whether a statement around a read also writes the file, and can do so before the read."""
        writes = self._ways(effect).get(site.body, [])
        return any(comes_after(site.module, site.statement, item.statement, within) for item in writes)

    def _waits_outside(self, place: ast.stmt, waits: dict[ast.stmt, list[tuple[Site, FileEffect]]]) -> ast.stmt | None:
        """The statement around a place before which the processes wait already, for all that it waits for."""
        module = waits[place][0][0].module
        found = (
            parent
            for parent in blocks.enclosing(module, place)
            if parent in waits
            and all(
                any(effect is other for _, other in waits[parent]) and not self._writes_before(met, effect, parent)
                for met, effect in waits[place]
            )
        )
        return next(found, None)

    def _waits_above(
        self,
        place: ast.stmt,
        waits: dict[ast.stmt, list[tuple[Site, FileEffect]]],
        without: Collection[ast.stmt],
    ) -> ast.stmt | None:
        """The nearest statement above in the function before which they wait, if nothing writes the files since.

        Args:
            place: the statement.
            waits: the statements before which they wait, with what for.
            without: those of them that are left out.
        """
        module = waits[place][0][0].module
        for around in [place, *blocks.enclosing(module, place)]:
            where = blocks.place(module, around)
            above = [index for index, item in enumerate(where.suite[: where.index]) if item in waits]
            last = next((index for index in reversed(above) if where.suite[index] not in without), None)
            if last is None:
                continue
            passed = where.suite[last : where.index + (around is not place)]
            inside = {node for item in passed for node in walk(item)}
            is_written = any(
                item.statement in inside
                for met, effect in waits[place]
                for item in self._ways(effect).get(met.body, ())
            )
            return None if is_written else where.suite[last]
        return None

    def _whole_guard(self, module: Module, statement: ast.stmt) -> ast.stmt:
        """The first of the statements that stand under one guard with the given one; itself where there is none."""
        guarded = self._guards.statements
        found = next((item for item in [statement, *blocks.enclosing(module, statement)] if item in guarded), statement)
        where = blocks.place(module, found)
        index = where.index
        while found in guarded and index > 0 and where.suite[index - 1] in guarded:
            index -= 1
        return where.suite[index]

    def _before_folder_is_made(self, module: Module, statement: ast.stmt) -> ast.stmt:
        """The outermost condition that looks at files only to make a folder: no process is to wait inside of it."""
        found = statement
        for parent in blocks.enclosing(module, statement):
            if isinstance(parent, ast.If) and _looks(parent.test) and not self._asked.does_more(parent):
                found = parent
        return _out_of_elif(module, found)

    # ---- which of the writes ---------------------------------------------------------------------------------

    def _written(
        self, site: Site, path: ast.expr, within: ast.AST | None = None, read: Site | None = None
    ) -> Iterator[FileEffect]:
        """Calls that may have written, moved or removed the file before it is read, of those that a body runs."""
        for effect in self._effects:
            if within is not None and within not in self._ways(effect):
                continue
            is_same = any(self._asked.may_be_same(site, path, effect, other, read) for other in effect.paths)
            if not is_same and (read is None or not self._asked.may_be_kept(read, site, path, effect)):
                continue
            ways = self._followed(site, effect)
            only_in_rounds = all(read_at.node is write_at.node for read_at, write_at in ways)
            if ways and (is_same or not only_in_rounds or not is_brought(self._program, site, path)):
                yield effect

    def _followed(self, site: Site, effect: Site) -> list[tuple[Site, Site]]:
        """The places by which a run can come to the read after the write; one call in a loop leads to both."""
        reads, writes = self._ways(site), self._ways(effect)
        return [
            (read, write)
            for body in reads.keys() & writes.keys()
            for read in reads[body]
            for write in writes[body]
            if comes_after(read.module, read.statement, write.statement)
            and not blocks.exclude_each_other(read.module, read.statement, write.statement)
            and not hold_apart(self._program, read, write)
        ]

    def _written_within(self, site: Site, given: Site, path: ast.expr) -> Iterator[tuple[Site, ast.stmt, FileEffect]]:
        """Where they wait for what an argument of the call that reads writes: behind the write, or before the read."""
        reads = self._ways(given)
        for effect in self._effects:
            if not is_within(reads, self._ways(effect)) or self._followed(given, effect):
                continue
            if not any(self._asked.may_be_same(given, path, effect, other, site) for other in effect.paths):
                continue
            at: Site = effect
            place = behind(effect)
            if place is None or effect.body in self._not_by_all:
                place, at = self._before_the_look(site, effect), site
            if at.body not in self._not_by_all and at.body not in reads.keys() & self._ways(effect).keys():
                yield at, place, effect

    def _changed_next(self, site: Site, path: ast.expr) -> Iterator[Site]:
        """Changes of a file that the main process may make while others still look at it: no step lies between."""
        for change, paths in self._changes:
            assert isinstance(change.node, ast.Call)
            if change.statement is site.statement or is_guarded(change.module, change.node):
                continue
            if change.node in self._guards.in_turns or self._asks_what_failed(site, path, change):
                continue
            if not isinstance(change, FileEffect) and self._ends_where_missing(site):
                continue
            same = [item for item in paths if self._asked.may_be_same(site, path, change, item)]
            if all(self._asked.is_only_added_to(site, path, change, item) for item in same):
                continue
            if self._is_made_now(change) and all(self._asked.is_newer(site, path, change, item) for item in same):
                continue
            if self._meets_not(site, change):
                yield change

    def _is_made_now(self, change: Site) -> bool:
        """Whether no loop leads to a change: what it makes was not there when the run began to look."""
        ways = (site for sites in self._ways(change).values() for site in sites)
        return not any(blocks.loop_around(site.module, site.statement) for site in ways)

    def _asks_what_failed(self, site: Site, path: ast.expr, change: Site) -> bool:
        """Whether a folder is looked for because making it has failed: it stays there when one is made next."""
        assert isinstance(change.node, ast.Call)
        if folder_made(self._program, change.node, change.scope) is None:
            return False
        handler = next((item for item in site.module.ancestors(site.node) if isinstance(item, ast.ExceptHandler)), None)
        tried = getattr(site.module.parents.get(handler), "body", ()) if handler is not None else ()
        calls = [node for item in tried for node in walk(item) if isinstance(node, ast.Call)]
        made = [folder_made(self._program, call, site.scope) for call in calls]
        return any(folder is not None and ast.dump(folder) == ast.dump(path) for folder in made)

    def _ends_where_missing(self, site: Site) -> bool:
        """Whether the script ends where a file is not there: who comes to make a folder has seen that it was."""
        denied = site.module.parents.get(site.node)
        asked = site.module.parents.get(denied) if denied is not None else None
        if not (isinstance(denied, ast.UnaryOp) and isinstance(denied.op, ast.Not) and isinstance(asked, ast.If)):
            return False
        last = asked.body[-1]
        call = last.value if isinstance(last, ast.Expr) else None
        ends = isinstance(call, ast.Call) and bool(self._program.callee_names(call, site.scope) & ENDS_PROCESS)
        is_for_file = asked.test is denied and called_name(site.node) in _EXISTING  # type: ignore[arg-type]
        return is_for_file and (ends or isinstance(last, ast.Raise))

    @cached_property
    def _changes(self) -> list[tuple[Site, Sequence[ast.expr]]]:
        """What changes files, folders that are made among it, with the paths."""
        found: list[tuple[Site, Sequence[ast.expr]]] = [(item, item.paths) for item in self._effects]
        for call, body, scope in self._program.calls():
            folder = folder_made(self._program, call, scope)
            site = Site(scope.module, scope, body, call)
            if folder is not None and not self._asked.is_left(site):
                found.append((site, (folder,)))
        return found

    def _meets_not(self, site: Site, change: Site) -> bool:
        """Whether the change comes next after the read, without a training step between them."""
        reads, changes = self._ways(site), self._ways(change)
        for body in reads.keys() & changes.keys():
            for read in itertools.filterfalse(self._asked.is_left, reads[body]):
                for later in changes[body]:
                    passed = between(read.module, read.statement, later.statement)
                    if passed and not any(self._program.runs_backward(item) for item in passed):
                        return True
        return False

    def _waits_for_look(self, site: Site, path: ast.expr) -> list[tuple[ast.stmt, Module]]:
        """Where processes wait until all have looked at a file: before what changes it next."""
        met = [
            (change, self._whole_guard(at.module, self._before_folder_is_made(at.module, at.statement)), at.module)
            for change in self._changed_next(site, path)
            for at in self._where_all_come(change, HELPERS)
        ]
        places = {place for _, place, _ in met}
        return [
            (place, module) for change, place, module in met if not self._has_waited(site, change, places - {place})
        ]

    def _has_waited(self, site: Site, change: Site, places: set[ast.stmt]) -> bool:
        """Whether the processes wait on each way from a look to a change already, at one of the places after it."""
        reads, changes = self._ways(site), self._ways(change)
        ways = [
            passed
            for body in reads.keys() & changes.keys()
            for read in reads[body]
            for later in changes[body]
            if (passed := between(read.module, read.statement, later.statement))
        ]
        return bool(places) and all(
            any(self._waits(item, places, HELPERS) for item in above)
            or self._waits_first(last, change, places, HELPERS)
            for *above, last in ways
        )

    def _waits_first(self, statement: ast.stmt, change: Site, places: set[ast.stmt], depth: int) -> bool:
        """Whether each run of the statement that makes a change, or calls what does, waits at a place before it."""
        if statement in places:
            return True
        called = getattr(statement, "value", None)
        if not isinstance(called, ast.Call) or called is change.node or not depth:
            return False
        changes, callees = self._ways(change), self._program.flow.callees(called)
        return bool(callees) and all(
            self._body_waits(info.node, places, depth - 1, change if info.node in changes else None) for info in callees
        )

    def _waits(self, statement: ast.stmt, places: set[ast.stmt], depth: int) -> bool:
        """Whether each run of a statement waits at one of the places: it is one, or calls a function that does."""
        if statement in places:
            return True
        if not isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)) or not depth:
            return False
        called = statement.value
        callees = self._program.flow.callees(called) if isinstance(called, ast.Call) else ()
        return bool(callees) and all(self._body_waits(info.node, places, depth - 1) for info in callees)

    def _body_waits(self, body: ast.AST, places: set[ast.stmt], depth: int, change: Site | None = None) -> bool:
        """Whether each run of a function waits at one of the places, before it can end or makes the change."""
        ways = self._ways(change).get(body, ()) if change is not None else ()
        for item in blocks.own_parts(body):
            if change is not None and any(way.statement in walk(item) for way in ways):
                return isinstance(item, ast.stmt) and self._waits_first(item, change, places, depth)
            if isinstance(item, ast.stmt) and self._waits(item, places, depth):
                return True
            if any(isinstance(node, (ast.Return, ast.Raise)) for node in blocks.walk_own(item)):
                return False
        return False

    def _ways(self, site: Site) -> dict[ast.AST, list[Site]]:
        """The statements, by their bodies, that lead to a call: its own, and those that call its function."""
        key = site.node, site.body
        known = self._known_ways.get(key)
        if known is None:
            known = self._known_ways[key] = self._found_ways(site)
        return known

    def _found_ways(self, site: Site) -> dict[ast.AST, list[Site]]:
        found: dict[ast.AST, list[Site]] = {site.body: [site]}
        pending: list[tuple[Site, FunctionFacts | None]] = [(site, None)]
        for _ in range(_FAR):
            if not pending:
                break
            current, run = pending.pop(0)
            info = self._program.function_of(current.body)
            for above in self._runs_of(info, current, run) if info is not None else ():
                known = found.setdefault(above.body, [])
                if all(item.statement is not above.statement for item in known):
                    known.append(above)
                    pending.append((above, info))
        return found

    # ---- what a barrier does not mend ------------------------------------------------------------------------

    def _decline_rounds(self, site: Site, effect: FileEffect) -> None:
        """Decline where a loop goes on until the main process has written a file in it."""
        if effect.call in self._declined:
            return
        self._declined.add(effect.call)
        self.readers[effect.call].append(site)
        self.unwaited.add(effect.call)
        self.reasons.append(
            declining.decline(
                declining.FILES,
                site.module,
                site.node,
                f"`{site.module.text(site.node)}` ends a loop once line {effect.told_line} has written the file, and "
                "each process would see that in a different iteration",
                "run the loop under `if amp.is_main_process():`",
            )
        )

    def _declined_on_import(self, site: Site, effect: FileEffect) -> bool:
        """Decline where a file is written and read while files are imported: no process waits there."""
        if self._of_writer is not None or not written_on_import(effect, self._followed(site, effect)):
            return False
        if effect.call not in self._declined:
            self._declined.add(effect.call)
            self.readers[effect.call].append(site)
            self.unwaited.add(effect.call)
            self.reasons.append(not_on_import(effect, site))
        return True

    def _in_data_set(self, site: Site) -> bool:
        """Whether the read is made for a sample: in a worker, or as often as a rank's share asks for."""
        return not self._of_samples.isdisjoint(self._ways(site))

    def _decline_data_set(self, site: Site, path: ast.expr) -> None:
        """Decline where a data set keeps files that the main process alone would write."""
        effect = next(
            (
                item
                for item in self._guards.effects
                if (item in self._effects or item.if_alone)
                and self._in_data_set(item)
                and any(self._asked.may_be_same(site, path, item, other) for other in item.paths)
            ),
            None,
        )
        if effect is None or effect.call in self._declined:
            return
        self._declined.add(effect.call)
        self.readers[effect.call].append(site)
        self.unwaited.add(effect.call)
        self.reasons.append(
            declining.decline(
                declining.FILES,
                site.module,
                site.node,
                f"`{site.module.text(site.node)}` looks, where samples are made, for what line {effect.told_line} of "
                f"{effect.module.path.name} writes, and each process is asked for other samples",
                "write the files before the training",
            )
        )


def _is_a_look(statement: ast.stmt) -> bool:
    """Whether a statement looks for a file, opens one, or goes on in another way where it cannot be read."""
    if isinstance(statement, ast.With):
        return any(_calls(item.context_expr, {"open"}) for item in statement.items)
    if isinstance(statement, ast.Try):
        return bool(statement.handlers)
    return isinstance(statement, ast.If) and _looks(statement.test)


def _out_of_elif(module: Module, found: ast.stmt) -> ast.stmt:
    """The statement; the whole of an ``if`` for an ``elif`` of it, before which nothing can stand."""
    while isinstance(found, ast.If) and blocks.is_elif(module, found):
        above = module.parents[found]
        assert isinstance(above, ast.If)
        found = above
    return found


def _looks(test: ast.expr) -> bool:
    """Whether a test looks whether a file is there."""
    return _calls(test, _LOOKED)


def _calls(node: ast.expr, names: Collection[str]) -> bool:
    """Whether something of one of the names is called in an expression."""
    return any(isinstance(item, ast.Call) and called_name(item) in names for item in walk(node))
