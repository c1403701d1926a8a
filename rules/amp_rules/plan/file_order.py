"""Where processes wait for a file that the main process writes, moves or removes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.file_guards import FileGuards, is_guarded, looks_at_files
from amp_rules.plan.statement_order import between, comes_after
from amp_rules.roles.file_effects import FileEffect, only_reads
from amp_rules.roles.file_paths import Paths, may_be_same
from amp_rules.roles.steps import Program, Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import called_name, walk
from amp_rules.torch.file_access import LOADERS, LOOKING_METHODS, LOOKS, MAKES_FOLDERS, OPENERS, READING_METHODS, STORES

_FAR = 60
"""Callers above callers that are looked at to tell which of two statements comes first."""


_LOOKED = frozenset({"exists", "isfile", "is_file", "lexists"})
_HELPERS = 3
"""Helpers that hand a path on to each other; more are not followed, and the read itself is the place."""


def _parameters(body: ast.AST) -> set[str]:
    return {item.arg for item in arguments_of(body)} if isinstance(body, FunctionNode) else set()


class FileOrder:
    """Reads of files that the main process alone has written."""

    def __init__(self, program: Program, paths: Paths, guards: FileGuards) -> None:
        self._program = program
        self._paths = paths
        self._guards = guards
        self._inner = {child for statement in guards.statements for child in walk(statement)}
        left = {site.node for site in guards.calls}
        self._effects = [item for item in guards.effects if item.call in self._inner or item.call.func in left]
        self.reasons: list[Declined] = []
        self._declined: set[ast.Call] = set()

    def barriers(self) -> list[tuple[Module, ast.stmt, str]]:
        """Statements before which all processes wait, each with the reason."""
        found: dict[ast.stmt, tuple[Module, str]] = {}
        reads = list(self._reads())
        for site, path in reads:
            if self._in_data_set(site):
                self._decline_data_set(site, path)
                continue
            for given, own in self._from_callers(site, path, _HELPERS):
                effect = self._written(given, own)
                if effect is None and given is not site:
                    # The helper may write the file before it reads it: a cache that it builds where there is none.
                    given, effect = site, self._written(site, path, within=site.body)
                if effect is not None:
                    place = _before_the_look(given.module, given.statement)
                    found.setdefault(place, (given.module, "the file is read once the main process has written it"))
        for site, path in reads:
            for change in () if self._in_data_set(site) else self._changed_next(site, path):
                place = self._whole_guard(change.module, self._before_folder_is_made(change.module, change.statement))
                found.setdefault(place, (change.module, "the file is changed once all processes have looked at it"))
        inner = {child for statement in found for child in walk(statement) if child is not statement}
        return [
            (module, item, why)
            for item, (module, why) in found.items()
            if item not in inner and not self._ends_training(module, item, _HELPERS)
        ]

    def _ends_training(self, module: Module, node: ast.AST, depth: int) -> bool:
        """Whether a place is reached only when the training has failed: one process may come there alone."""
        for parent in module.ancestors(node):
            if isinstance(parent, ast.ExceptHandler):
                failed = module.parents[parent]
                if isinstance(failed, ast.Try) and any(map(self._program.runs_backward, failed.body)):
                    return True
        info = self._program.function_of(blocks.body_of(module, node))
        callers = self._program.flow.callers(info) if info is not None and depth else []
        return bool(callers) and all(self._ends_training(item.scope.module, item.call, depth - 1) for item in callers)

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
            if isinstance(parent, ast.If) and _looks(parent.test) and self._only_makes_folders(parent):
                found = parent
        return _out_of_elif(module, found)

    def _reads(self) -> Iterator[tuple[Site, ast.expr]]:
        """Calls that read files, or look for them, with the expression of the path; not those of one process alone."""
        for call, body, scope in self._program.calls():
            if call in self._inner or is_guarded(scope.module, call):
                continue
            path = self._path_read(call, scope)
            if path is not None:
                yield Site(scope.module, scope, body, call), path

    def _from_callers(self, site: Site, path: ast.expr, depth: int) -> Iterator[tuple[Site, ast.expr]]:
        """The read, or where a helper that reads is given the path: other calls of it may read other files."""
        info = self._program.function_of(site.body)
        if info is None or depth == 0 or not (isinstance(path, ast.Name) and path.id in _parameters(site.body)):
            yield site, path
            return
        for caller in self._program.flow.callers(info):
            given = info.argument_or_default(caller.call, path.id)
            above = calling(caller)
            if above.node in self._inner or is_guarded(above.module, above.node):
                continue
            if given is None:
                yield site, path
            else:
                yield from self._from_callers(above, given, depth - 1)

    def _path_read(self, call: ast.Call, scope: Scope) -> ast.expr | None:
        names = self._program.callee_names(call, scope)
        if names & LOADERS and call.args:
            return call.args[0]
        if names & STORES and call.args and only_reads(call):
            return call.args[0]
        if any(name in OPENERS for name in names) and call.args:
            return None if any(item.call is call for item in self._guards.effects) else call.args[0]
        if names & LOOKS and call.args and self._decides(call, scope):
            return call.args[0]
        if isinstance(call.func, ast.Attribute) and not self._program.flow.callees(call):
            if call.func.attr in READING_METHODS:
                return call.func.value
            if call.func.attr in LOOKING_METHODS and looks_at_files(self._program, call, scope):
                return call.func.value if self._decides(call, scope) else None
        return None

    def _decides(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a look at files decides more than that a folder is made."""
        module = scope.module
        for parent in blocks.enclosing(module, call):
            if isinstance(parent, (ast.If, ast.While)) and any(call is node for node in walk(parent.test)):
                return not all(self._only_makes_folders(item) for item in [*parent.body, *parent.orelse])
        return True

    def _only_makes_folders(self, statement: ast.stmt) -> bool:
        if statement in self._guards.statements or isinstance(statement, ast.Pass):
            return True
        if isinstance(statement, ast.If):
            return all(self._only_makes_folders(item) for item in [*statement.body, *statement.orelse])
        if isinstance(statement, ast.Try):
            return all(self._only_makes_folders(item) for item in statement.body)
        called = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
        if not isinstance(called, ast.Call):
            return False
        name = blocks.path_of(called.func) or ""
        return name.rpartition(".")[2] in ("mkdir", "makedirs", "print", "info", "warning") or called.func in {
            site.node for site in self._guards.calls
        }

    # ---- which of the writes ---------------------------------------------------------------------------------

    def _written(self, site: Site, path: ast.expr, within: ast.AST | None = None) -> FileEffect | None:
        """A call that may have written, moved or removed the file before it is read, of those that a body runs."""
        for effect in self._effects:
            if within is not None and within not in self._ways(effect):
                continue
            if any(self._may_be_same(site, path, effect, other) for other in effect.paths) and self._follows(
                site, effect
            ):
                return effect
        return None

    def _may_be_same(self, site: Site, path: ast.expr, effect: Site, other: ast.expr) -> bool:
        if site.module is effect.module and _whole(path) == _whole(other):
            if site.body is effect.body or (not _is_local(path, site) and not _is_local(other, effect)):
                return True
        ones, others = self._paths.of(path, site.scope), self._paths.of(other, effect.scope)
        if isinstance(effect, FileEffect) and effect.removes:
            others = frozenset({*others, *(f"{one}/*" for one in others)})  # a folder goes with what is in it
        assert isinstance(site.node, ast.Call)
        name = blocks.path_of(site.node.func) or ""
        if name.rpartition(".")[2] in ("listdir", "scandir", "walk", "iterdir", "glob", "rglob"):
            ones = frozenset({*ones, *(f"{one}/*" for one in ones)})
        return any(may_be_same(one, two) for one in ones for two in others)

    def _follows(self, site: Site, effect: Site) -> bool:
        """Whether a run can come to the read after the write."""
        reads, writes = self._ways(site), self._ways(effect)
        return any(
            comes_after(read.module, read.statement, write.statement)
            for body in reads.keys() & writes.keys()
            for read in reads[body]
            for write in writes[body]
        )

    def _changed_next(self, site: Site, path: ast.expr) -> Iterator[Site]:
        """Changes of a file that the main process may make while others still look at it: no step lies between."""
        for change, paths in self._changes:
            assert isinstance(change.node, ast.Call)
            if change.statement is site.statement or is_guarded(change.module, change.node):
                continue
            if any(self._may_be_same(site, path, change, other) for other in paths) and self._meets_not(site, change):
                yield change

    @cached_property
    def _changes(self) -> list[tuple[Site, Sequence[ast.expr]]]:
        """What changes files, folders that are made among it, with the paths."""
        found: list[tuple[Site, Sequence[ast.expr]]] = [(item, item.paths) for item in self._effects]
        for site in self._program.calls_to(MAKES_FOLDERS):
            if isinstance(site.node, ast.Call) and site.node.args:
                found.append((site, site.node.args[:1]))
        return found

    def _meets_not(self, site: Site, change: Site) -> bool:
        """Whether the change comes next after the read, without a training step between them."""
        reads, changes = self._ways(site), self._ways(change)
        for body in reads.keys() & changes.keys():
            for read in reads[body]:
                for later in changes[body]:
                    passed = between(read.module, read.statement, later.statement)
                    if passed and not any(self._program.runs_backward(item) for item in passed):
                        return True
        return False

    def _ways(self, site: Site) -> dict[ast.AST, list[Site]]:
        """The statements, by their bodies, that lead to a call: its own, and those that call its function."""
        found: dict[ast.AST, list[Site]] = {site.body: [site]}
        pending = [site]
        for _ in range(_FAR):
            if not pending:
                break
            current = pending.pop(0)
            info = self._program.function_of(current.body)
            for caller in self._program.flow.callers(info) if info is not None else ():
                above = calling(caller)
                known = found.setdefault(above.body, [])
                if all(item.statement is not above.statement for item in known):
                    known.append(above)
                    pending.append(above)
        return found

    # ---- what a barrier does not mend ------------------------------------------------------------------------

    def _in_data_set(self, site: Site) -> bool:
        """Whether the read is made for a sample: in a worker, or as often as a rank's share asks for."""
        for body in self._ways(site):
            info = self._program.function_of(body)
            if info is not None and info.name in ("__getitem__", "collate_fn") and info.cls is not None:
                return True
        return False

    def _decline_data_set(self, site: Site, path: ast.expr) -> None:
        """Decline where a data set keeps files that the main process alone would write."""
        effect = next(
            (
                item
                for item in self._effects
                if self._in_data_set(item) and any(self._may_be_same(site, path, item, other) for other in item.paths)
            ),
            None,
        )
        if effect is None or effect.call in self._declined:
            return
        self._declined.add(effect.call)
        self.reasons.append(
            declining.decline(
                declining.FILES,
                site.module,
                site.node,
                f"`{site.module.text(site.node)}` looks in a data set for what line {effect.line} of "
                f"{effect.module.path.name} writes, and each process is asked for other samples",
                "write the files before the training",
            )
        )


def _before_the_look(module: Module, statement: ast.stmt) -> ast.stmt:
    """The outermost statement around a read that looks for the file or opens it: ranks may find it differently."""
    found = statement
    for parent in blocks.enclosing(module, statement):
        if isinstance(parent, ast.With):
            is_around = any(_calls(item.context_expr, {"open"}) for item in parent.items)
        else:
            is_around = isinstance(parent, ast.If) and _looks(parent.test)
        if is_around:
            found = parent
    return _out_of_elif(module, found)


def _out_of_elif(module: Module, found: ast.stmt) -> ast.stmt:
    """The statement; the whole of an ``if`` for an ``elif`` of it, before which nothing can stand."""
    while True:
        above = module.parents[found]
        if not (isinstance(above, ast.If) and above.orelse == [found]):
            return found
        found = above


def _looks(test: ast.expr) -> bool:
    """Whether a test looks whether a file is there."""
    return _calls(test, _LOOKED)


def _calls(node: ast.expr, names: Collection[str]) -> bool:
    """Whether something of one of the names is called in an expression."""
    return any(isinstance(item, ast.Call) and called_name(item) in names for item in walk(node))


def _is_local(path: ast.expr, site: Site) -> bool:
    """Whether a path is made of variables of its function, which elsewhere are others."""
    return any(
        isinstance(node, ast.Name) and site.scope.owner(node.id).is_function and node.id != "self"
        for node in walk(path)
    )


def _whole(path: ast.expr) -> str:
    """The text of an expression; of an item, that of its container: ``kept[0]`` may be what ``kept[-1]`` is."""
    return ast.unparse(path.value if isinstance(path, ast.Subscript) else path)
