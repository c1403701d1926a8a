"""Which calls read files, or look for them, and which of what the main process writes they may mean."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plan.file_guards import FileGuards, is_guarded, looks_at_files
from amp_rules.plan.file_meets import FileMeets
from amp_rules.plan.path_branches import PathBranches
from amp_rules.plan.written_parameters import WrittenParameters
from amp_rules.roles.commands import only_makes_folder
from amp_rules.roles.file_effects import FileEffect, given_paths, mode_of
from amp_rules.roles.file_paths import NOW, Paths, may_be_same, taken_as_it_is
from amp_rules.roles.made_folders import folder_made
from amp_rules.roles.path_objects import is_path
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.unpacked_here import is_relative, unpacks_here
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import COMPREHENSIONS, last_name, values_given, walk
from amp_rules.torch.file_access import (
    CHANGERS,
    COMMANDS,
    FOLDER_LOADERS,
    LOADERS,
    LOOKING_METHODS,
    LOOKS,
    MAKES_FOLDERS,
    MEDIA_OF_RUNS,
    OPENERS,
    PATTERNS,
    READING_METHODS,
    STORES,
    TAKE_PATHS_AS_TEXTS,
    TEXT_OPENERS,
)
from amp_rules.torch.questions import ASKS
from amp_rules.torch.writers import FILE_WRITERS, MODEL_WRITERS, RUNS, WHOLE_OBJECT_WRITERS, WRITERS

HELPERS = 3
"""Helpers that hand a path on to each other; more are not followed, and the read itself is the place."""

_MAKES_FOLDER = frozenset({"mkdir", "makedirs"})
_FALSE = ast.Constant(False)
_COMMANDS = frozenset(name.rpartition(".")[2] for name in COMMANDS)
_LISTS = frozenset({"listdir", "scandir", "walk", "iterdir", "glob", "rglob"})
_LOOKS_FOR_FOLDERS = frozenset({"exists", "lexists", "isdir", "is_dir"})
_BY_PATTERN = frozenset({"glob", "iglob", "rglob"})
_ASKS_FOR_FOLDERS = _LOOKS_FOR_FOLDERS | _LISTS | _BY_PATTERN | {"stat"}
"""Those that answer, or fail, by which folders are there."""
_HERE = (".", "./")
_EXTENSION = re.compile(r"\.[A-Za-z]\w*$")


def _endings_kept(reading: Site) -> tuple[str, ...]:
    """The endings that a comprehension keeps: ``[name for name in listdir(path) if name.endswith(".pt")]``."""
    loop = next(
        (
            part
            for parent in reading.module.ancestors(reading.node)
            if isinstance(parent, COMPREHENSIONS)
            for part in parent.generators
            if any(node is reading.node for node in walk(part.iter))
        ),
        None,
    )
    for test in loop.ifs if loop is not None else ():
        if isinstance(test, ast.Call) and last_name(test.func) == "endswith" and len(test.args) == 1:
            given = test.args[0].elts if isinstance(test.args[0], ast.Tuple) else [test.args[0]]
            endings = [literal(item) for item in given]
            return tuple(item for item in endings if isinstance(item, str)) if ... not in endings else ()
    return ()


class FileReads:
    """Reads that all processes make.

    Attributes:
        inner: what the main process alone runs.
    """

    def __init__(
        self,
        program: Program,
        paths: Paths,
        guards: FileGuards,
        of_writer: Callable[[Module, ast.AST], bool] | None = None,
    ) -> None:
        """Take the program.

        Args:
            program: the program.
            paths: which files its expressions name.
            guards: what the main process does alone.
            of_writer: whether the script itself leaves a place to the process that would write alone.
        """
        self._of_writer = of_writer
        self._program = program
        self._paths = paths
        self._guards = guards
        self._meets = FileMeets(program, paths)
        self._branches = PathBranches(program, paths)
        self._parameters = WrittenParameters(program, guards.effects)
        self._unpacked_here = {item.call for item in guards.effects if unpacks_here(program, paths, item)}
        self._written: dict[ast.AST, set[str]] = {}
        self._given: dict[tuple[ast.AST, str, int], list[tuple[Site, ast.expr] | None]] = {}
        self.inner = {child for statement in guards.statements for child in walk(statement)}

    def reads(self) -> Iterator[tuple[Site, ast.expr]]:
        """Calls that read files, or look for them, with the expression of the path; not those of one process alone."""
        for call, body, scope in self._program.calls():
            site = Site(scope.module, scope, body, call)
            if self.is_left(site, asks_script=False):
                continue
            path = self._path_read(call, scope)
            if path is None:
                path = self._path_handed_on(site, call)
            if path is not None and not self._is_of_writer(site):
                yield site, path

    def from_callers(self, site: Site, path: ast.expr, depth: int) -> Iterator[tuple[Site, ast.expr]]:
        """The read, or where a helper that reads is given the path: other calls of it may read other files."""
        info = self._program.function_of(site.body)
        if info is None or depth == 0 or not (isinstance(path, ast.Name) and path.id in _parameters(site.body)):
            yield site, path
            return
        if self._parameters.before(site, path.id):
            yield site, path
            return
        if info.node not in self._written:
            written = {name for node in info.body for name in blocks.writes(node)}
            kept = {name for name in info.parameters if name in written and self._stays_as_it_is(info, name)}
            self._written[info.node] = written - kept
        if path.id in self._written[info.node]:
            yield site, path  # it is made another one in between: ``folder = folder + "_small"``
        key = (info.node, path.id, depth)
        if key not in self._given:
            self._given[key] = list(self._given_by_callers(info, path.id, depth))
        for given in self._given[key]:
            yield given if given is not None else (site, path)

    def _stays_as_it_is(self, info: FunctionFacts, name: str) -> bool:
        """Whether all that a function makes of a path is another form of the same: ``path = Path(path)``."""
        scope = self._program.flow.scopes.get(info.node)
        if scope is None:
            return False
        inner = list(walk(info.node))
        made = sum(
            isinstance(node, ast.Assign)
            and [blocks.path_of(target) for target in node.targets] == [name]
            and blocks.path_of(taken_as_it_is(self._program, node.value, scope)) == name
            for node in inner
        )
        named = [node for node in inner if isinstance(node, ast.Name) and node.id == name]
        return 0 < made == sum(isinstance(node.ctx, ast.Store) for node in named)

    def _given_by_callers(self, info: FunctionFacts, name: str, depth: int) -> Iterator[tuple[Site, ast.expr] | None]:
        """Yield what calls of a helper give it as a path; None for one that gives none."""
        for caller in self._program.flow.callers(info):
            given = info.argument_or_default(caller.call, name)
            above = calling(caller)
            if self.is_left(above):
                continue
            if given is None:
                yield None
            else:
                yield from self.from_callers(above, given, depth - 1)

    def _path_read(self, call: ast.Call, scope: Scope) -> ast.expr | None:
        names = self._program.callee_names(call, scope)
        given = next(iter(given_paths(call)), None)
        if names & (LOADERS | MEDIA_OF_RUNS) and given is not None:
            return given
        if names & FOLDER_LOADERS:
            return given if given is not None else keyword(call, "root")
        if names & MAKES_FOLDERS and given is not None:
            return given
        if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and not names:
            return call.func.value
        if (names & STORES or any(name in OPENERS for name in names)) and given is not None:
            return None if any(item.call is call for item in self._guards.effects) else given
        if names & LOOKS:
            given = _listed_here(call, scope.module, given)
        if names & LOOKS and given is not None and self._decides(call, scope):
            return given
        if isinstance(call.func, ast.Attribute) and not self._program.flow.callees(call):
            if call.func.attr in READING_METHODS:
                return call.func.value
            if call.func.attr == "open" and is_path(self._program, call.func.value, scope):
                return None if any(item.call is call for item in self._guards.effects) else call.func.value
            if call.func.attr in LOOKING_METHODS and looks_at_files(self._program, call, scope):
                return call.func.value if self._decides(call, scope) else None
        return None

    def _path_handed_on(self, site: Site, call: ast.Call) -> ast.expr | None:
        """The path of a file that the main process writes, where a library's call takes it and gives something back.

        Only what names that very file counts: nothing says that the call reads it.
        """
        if not self._writes or call in self._changing:
            return None
        if self._program.callee_names(call, site.scope) & COMMANDS:
            return self._path_in_command(site, call)
        if isinstance(site.module.parents[call], ast.Expr):
            return None
        for given in values_given(call):
            if _named(given) is None:
                continue
            for above, path in self.from_callers(site, given, HELPERS):
                if any(_is_one(above, path, *write) for write in self._writes.get(_named(path) or "", ())):
                    return given if self._is_of_library(call, site.scope) else None
        return None

    def _path_in_command(self, site: Site, call: ast.Call) -> ast.expr | None:
        """The path of such a file in the words of a command, which reads it: ``["orca", "node", path]``."""
        for given in (part for word in values_given(call) for part in walk(word)):
            if isinstance(given, (ast.Name, ast.Attribute)):
                if any(_is_one(site, given, *write) for write in self._writes.get(_named(given) or "", ())):
                    return given
        return None

    def _is_of_library(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call is none of the project's, and of no library that handles the texts of paths alone."""
        names = self._program.callee_names(call, scope)
        if self._program.flow.callees(call) or any(name.partition(".")[0] in TAKE_PATHS_AS_TEXTS for name in names):
            return False
        if names & (WRITERS | RUNS) or any(value.kind == "class" for value in self._values(call.func, scope)):
            return False
        return not isinstance(call.func, ast.Attribute) or not any(
            value.kind in ("sequence", "constant") for value in self._values(call.func.value, scope)
        )

    def _values(self, node: ast.expr, scope: Scope) -> Collection[Value]:
        return self._program.flow.values(node, scope)

    @cached_property
    def _changing(self) -> set[ast.Call]:
        return {item.call for item in self._guards.effects}

    @cached_property
    def _writes(self) -> dict[str, list[tuple[FileEffect, ast.expr]]]:
        """What is written by the main process, by the text of its path: a variable, an attribute, a literal."""
        left = {site.node for site in self._guards.calls}
        found: dict[str, list[tuple[FileEffect, ast.expr]]] = {}
        for effect in self._guards.effects:
            if effect.removes or not (effect.call in self.inner or effect.call.func in left):
                continue
            for path in self._path_written(effect):
                text = _named(path)
                if text is not None:
                    found.setdefault(text, []).append((effect, path))
        return found

    def _path_written(self, effect: FileEffect) -> Sequence[ast.expr]:
        """The path of what is written, without what is written there."""
        names = self._program.callee_names(effect.call, effect.scope)
        place = next((FILE_WRITERS[name] for name in sorted(names) if name in FILE_WRITERS), None)
        if place is not None and place < len(effect.call.args):
            return effect.call.args[place : place + 1]
        if names & COMMANDS:
            return effect.paths[-1:]  # ``wget URL -O path``, ``cp source target``: what is written is named last
        return () if names & CHANGERS else effect.paths[:1]

    def _decides(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a look at files decides more than that a folder is made."""
        module = scope.module
        for parent in blocks.enclosing(module, call):
            if isinstance(parent, (ast.If, ast.While)) and any(call is node for node in walk(parent.test)):
                return self.does_more(parent)
        return True

    def does_more(self, statement: ast.If | ast.While) -> bool:
        """Whether a look at files decides more than that each process makes a folder.

        The main process may look once another one has made it, and would not write what is left to it alone.
        """
        inner = [*statement.body, *statement.orelse]
        if not all(map(self.only_makes_folders, inner)):
            return True
        nodes = [node for item in inner for node in walk(item)]
        made = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func) in _MAKES_FOLDER]
        return any(node in self._guards.statements for node in nodes) and not self.inner.issuperset(made)

    def only_makes_folders(self, statement: ast.stmt, depth: int = HELPERS) -> bool:
        """Whether a statement makes folders, tells of it, or runs on the main process only, and does nothing else."""
        if statement in self._guards.statements or isinstance(statement, ast.Pass):
            return True
        if isinstance(statement, ast.If):
            # A question is asked by all processes, or by none.
            inner = [*statement.body, *statement.orelse]
            return not self._asks(statement.test) and all(self.only_makes_folders(item, depth) for item in inner)
        if isinstance(statement, ast.Try):
            return all(self.only_makes_folders(item, depth) for item in statement.body)
        called = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
        if isinstance(called, ast.Constant):
            return True
        if not isinstance(called, ast.Call):
            return False
        helpers = self._program.flow.callees(called) if isinstance(statement, ast.Expr) and depth else set()
        if helpers:
            bodies = [item for info in helpers for item in blocks.own_parts(info.node)]
            return all(isinstance(item, ast.stmt) and self.only_makes_folders(item, depth - 1) for item in bodies)
        if any(isinstance(node, ast.Call) and self._reads_too(node) for node in walk(called)):
            return False
        if last_name(called.func) in _COMMANDS and only_makes_folder(called):
            return True
        return last_name(called.func) in ("mkdir", "makedirs", "chmod", "print", "info", "warning") or called.func in {
            site.node for site in self._guards.calls
        }

    @cached_property
    def _asks(self) -> Callable[[ast.AST], bool]:
        """Whether running a node asks whoever started the program."""
        asking = {site.node for site in self._program.calls_to(ASKS)}
        return self._program.closure(lambda node: node in asking)

    def _reads_too(self, call: ast.Call) -> bool:
        """Whether a call reads a file, or runs a function of the project, which may."""
        located = self._program.locate(call)
        if located is None or self._program.flow.callees(call):
            return True
        return bool(self._program.callee_names(call, located[1]) & (LOADERS | OPENERS.keys()))

    def may_be_same(self, site: Site, path: ast.expr, effect: Site, other: ast.expr, read: Site | None = None) -> bool:
        """Whether the path that is read and the one that is written may be of one file, or of a folder and its file.

        A folder that all processes make has to do with what happens to the one that it is in, and with nothing else.

        Args:
            site: where the path stands.
            path: the path.
            effect: what is written.
            other: the path of that.
            read: the call that reads, where a helper of the script is given the path.
        """
        reading = site if read is None else read
        assert isinstance(reading.node, ast.Call)
        assert isinstance(effect.node, ast.Call)
        name = last_name(reading.node.func)
        if self._reads_text(reading) and self._writes_bytes(effect):
            return False
        removes = isinstance(effect, FileEffect) and effect.removes
        changes_inside = removes or (isinstance(effect, FileEffect) and effect.fills_folder)
        if name in _MAKES_FOLDER:
            if not changes_inside:
                return False
            if not removes and literal(keyword(reading.node, "exist_ok") or _FALSE) is not False:
                return False  # it is left as it is found
            if _whole(path) == _whole(other) and _are_of_one_scope(site, path, effect, other):
                # ``makedirs`` fails where the folder goes while it looks, and what is made goes too. What fills it
                # makes no folder of that name in it.
                return removes
            folders = self._paths.of(other, effect.scope)
            return any(may_be_same(one, _inside(two)) for one in self._paths.of(path, site.scope) for two in folders)
        makes_folder = folder_made(self._program, effect.node, effect.scope) is not None
        only_makes = makes_folder and not changes_inside
        if only_makes and name not in _ASKS_FOR_FOLDERS:
            return False  # a file that is read in a folder is there no sooner
        if self._meets.is_source(effect, other):
            return False
        if self._branches.are_apart(path, site.scope, other, effect.scope):
            return False
        if _whole(path) == _whole(other) and _are_of_one_scope(site, path, effect, other):
            return True
        if self._meets.is_handed_on(path, site.scope, other, effect.scope):
            return True
        ones, others = self._paths.of(path, site.scope), self._paths.of(other, effect.scope)
        if effect.node in self._unpacked_here:
            return any(map(is_relative, ones))
        if changes_inside:
            others = frozenset({*others, *(_inside(one) for one in others)})  # with what is in it
        names, inside = self._program.callee_names(reading.node, reading.scope), frozenset(map(_inside, ones))
        if only_makes and name in _BY_PATTERN and not names & PATTERNS:
            ones = inside  # nothing is found where no folder is
        elif names & FOLDER_LOADERS or (name in _LISTS and not names & PATTERNS):
            ones |= inside
        elif name in _LOOKS_FOR_FOLDERS and makes_folder:
            ones |= inside  # one that is made brings those that it is in
        pairs = [(one, two) for one in ones for two in others if may_be_same(one, two)]
        if name in _LOOKS_FOR_FOLDERS:  # a folder is there with a file in it or without
            pairs = [(one, two) for one, two in pairs if not two.startswith(f"{one}/") or not re.search(r"\w", one)]
        if kept := _endings_kept(reading):
            pairs = [(one, two) for one, two in pairs if not _EXTENSION.search(two) or two.endswith(kept)]
        return self._meets.have_to_do(site, path, effect, other, pairs)

    def is_newer(self, site: Site, path: ast.expr, change: Site, other: ast.expr) -> bool:
        """Whether what is changed has the time in its name, each way that it may be, and what is read has none."""
        texts = self._paths.of(other, change.scope)
        return all(NOW in text for text in texts) and not self._paths.is_of_this_moment(path, site.scope)

    def is_only_added_to(self, site: Site, path: ast.expr, change: Site, other: ast.expr) -> bool:
        """Whether a change adds to the end of a file whose name, as far as it is known, is not that of what is read.

        Who reads a file meanwhile finds what was there. A list of samples is no log: ``*/list/*.txt``, ``*/log.txt``.
        """
        assert isinstance(site.node, ast.Call) and isinstance(change.node, ast.Call)
        mode = mode_of(change.node)
        if not (isinstance(mode, ast.Constant) and str(mode.value).startswith("a")):
            return False
        if last_name(site.node.func) in _LOOKS_FOR_FOLDERS | _LISTS | {"isfile", "is_file"}:
            return False
        return self._paths.of(path, site.scope).isdisjoint(self._paths.of(other, change.scope))

    def _reads_text(self, reading: Site) -> bool:
        """Whether a call opens a file to read it as text."""
        call = reading.node
        assert isinstance(call, ast.Call)
        if not self._program.callee_names(call, reading.scope) & TEXT_OPENERS:
            return False
        mode = mode_of(call)
        return mode is None or (isinstance(mode, ast.Constant) and "b" not in str(mode.value))

    def _writes_bytes(self, effect: Site) -> bool:
        """Whether a call writes what no program reads as text: weights, arrays, objects."""
        assert isinstance(effect.node, ast.Call)
        if self._program.callee_names(effect.node, effect.scope) & MODEL_WRITERS.keys():
            return True
        # ``with open(path, "wb") as file: pickle.dump(rows, file)``, and nothing else goes into it.
        item = effect.module.parents[effect.node]
        mode = mode_of(effect.node)
        if not (isinstance(item, ast.withitem) and isinstance(item.optional_vars, ast.Name)) or mode is None:
            return False
        name, block = item.optional_vars.id, effect.module.parents[item]
        uses = [
            effect.module.parents[node]
            for part in getattr(block, "body", ())
            for node in walk(part)
            if isinstance(node, ast.Name) and node.id == name
        ]
        return bool(uses) and all(
            isinstance(use, ast.Call) and self._program.callee_names(use, effect.scope) & WHOLE_OBJECT_WRITERS
            for use in uses
        )

    def may_be_kept(self, read: Site, given: Site, path: ast.expr, effect: FileEffect) -> bool:
        """Whether a call reads weights, from where the site says, that may be those which the training keeps."""
        return any(
            self._meets.may_be_kept(read, path, given.scope, effect, other) for other in self._path_written(effect)
        )

    def is_left(self, site: Site, *, asks_script: bool = True) -> bool:
        """Whether the main process alone comes to a call, or the processes come one after the other."""
        if site.node in self.inner or site.node in self._guards.in_turns or is_guarded(site.module, site.node):
            return True
        # The ways to a place are many: this is asked last, and not of each call of a program.
        return asks_script and self._is_of_writer(site)

    def _is_of_writer(self, site: Site) -> bool:
        return self._of_writer is not None and self._of_writer(site.module, site.node)


def _inside(folder: str) -> str:
    """The text of what is in a folder: ``data/*`` of ``data``, and of ``data/``."""
    return f"{folder.rstrip('/')}/*"


def _listed_here(call: ast.Call, module: Module, given: ast.expr | None) -> ast.expr | None:
    """The path that a look is given; of the folder that a process runs in, what is looked for in its names.

    ``"words.npy" in os.listdir()``.
    """
    test = module.parents[call]
    asks = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.NotIn))
    is_here = given is None or literal(given) in _HERE
    return test.left if is_here and asks and isinstance(test, ast.Compare) else given


def _named(path: ast.expr) -> str | None:
    """The text of a path that is a literal, a variable or an attribute, or put together of these in one expression."""
    if isinstance(path, ast.Constant):
        return repr(path.value) if isinstance(path.value, str) else None
    is_made = isinstance(path, (ast.JoinedStr, ast.BinOp)) or (
        isinstance(path, ast.Call) and isinstance(path.func, ast.Attribute) and path.func.attr in ("format", "join")
    )
    return ast.unparse(path) if is_made else blocks.path_of(path)


def _is_one(site: Site, path: ast.expr, effect: FileEffect, other: ast.expr) -> bool:
    """Whether two paths of the same text are of one file."""
    return isinstance(path, ast.Constant) or _are_of_one_scope(site, path, effect, other)


def _are_of_one_scope(site: Site, path: ast.expr, effect: Site, other: ast.expr) -> bool:
    """Whether the same text means the same in both places."""
    if site.module is not effect.module:
        return False
    return site.body is effect.body or not (_is_local(path, site) or _is_local(other, effect))


def _parameters(body: ast.AST) -> set[str]:
    return {item.arg for item in arguments_of(body)} if isinstance(body, FunctionNode) else set()


def _is_local(path: ast.expr, site: Site) -> bool:
    """Whether a path is made of variables of its function, which elsewhere are others."""
    return any(
        isinstance(node, ast.Name) and site.scope.owner(node.id).is_function and node.id != "self"
        for node in walk(path)
    )


def _whole(path: ast.expr) -> str:
    """The text of an expression; of an item, that of its container: ``kept[0]`` may be what ``kept[-1]`` is."""
    return ast.unparse(path.value if isinstance(path, ast.Subscript) else path)
