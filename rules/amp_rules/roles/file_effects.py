"""Calls that change files or keep them open: in several processes only one may run them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.roles.commands import only_makes_folder, words_given, words_held, writes_files
from amp_rules.roles.never_given import is_never_given
from amp_rules.roles.path_objects import is_path
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.stores import changes_store
from amp_rules.source import blocks
from amp_rules.source.index import argument_at, ends_process, keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_text, own_name, values_given, walk
from amp_rules.torch.file_access import (
    ARCHIVES,
    CHANGERS,
    CHANGING_METHODS,
    COMMANDS,
    COPIES,
    ENDS_OF_COMMANDS,
    EXPORTING_METHODS,
    FILE_ERRORS,
    FILE_READS,
    FILLING_METHODS,
    FILLS_FOLDERS,
    KEEPERS,
    MAKES_FOLDERS,
    MEMORY_MAKERS,
    OPENERS,
    PATH_KEYWORDS,
    PATH_METHODS,
    PORT_METHODS,
    READERS_OF_OPEN_FILES,
    REMOVERS,
    SENDING_METHODS,
    SENDS,
    STORES,
    TEXT_OPENERS,
    UNPACKING,
    UPLOADS,
    WHEN_ALONE,
    WITH_A_PATH,
)
from amp_rules.torch.writers import FILE_WRITERS

_OF_PLAIN_OBJECTS = frozenset(name for made in (list, dict, set, str, bytes) for name in dir(made))
"""Methods of lists, dictionaries and texts."""

_SENDING = frozenset(name for methods in SENDING_METHODS.values() for name in methods)

_HERE = ast.Constant(".")
"""The folder where the process runs, for what is told of none."""

_WRITE_MODE = re.compile(r"[wax][bt]?\+?[bt]?")

_ENDING = re.compile(r"^[^\s]*\.[A-Za-z][A-Za-z0-9]{1,5}$")
"""A text that ends as the name of a file does."""

_OF_PYTHON = frozenset({"builtins", "torch", *sys.stdlib_module_names})
"""Packages whose objects with such methods are known by name."""


@dataclass(frozen=True)
class FileEffect(Site):
    """One such call.

    Attributes:
        call: the call.
        paths: expressions that say which files.
        keeps_open: whether its result is an open file, which further calls write to.
        removes: whether it takes away what was there.
        reads_too: whether what it opens can also be read from.
        fills_folder: whether it makes a folder with files in it.
        if_alone: whether it is left to one process only where nothing else needs what it gives.
    """

    call: ast.Call
    paths: tuple[ast.expr, ...] = ()
    keeps_open: bool = False
    removes: bool = False
    reads_too: bool = False
    fills_folder: bool = False
    if_alone: bool = False


def file_effects(program: Program) -> list[FileEffect]:
    """Every call that changes files or keeps one open, in the order of files and lines."""
    found = []
    for call, body, scope in program.calls():
        effect = _effect(program, call, body, scope)
        if effect is not None and not _writes_memory(program, effect):
            found.append(effect)
    return found


def opens_to_write(call: ast.Call) -> bool:
    """Whether a call opens a file to write or to append to it, by a mode that stands there."""
    mode = mode_of(call)
    return isinstance(mode, ast.Constant) and str(mode.value)[:1] in ("w", "a", "x")


def mode_of(call: ast.Call) -> ast.expr | None:
    """The mode in which a call opens a file; None where it says none."""
    return call.args[1] if len(call.args) > 1 else keyword(call, "mode")


def given_paths(call: ast.Call, first: int = 1) -> tuple[ast.expr, ...]:
    """What says which file a call is about: its first arguments, and those that are named so."""
    named = (item.value for item in call.keywords if item.arg in PATH_KEYWORDS)
    return (*call.args[:first], *named)


def effect_names() -> frozenset[str]:
    """Names of functions that change files whoever calls them."""
    return CHANGERS - WHEN_ALONE


def makes_folder(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call makes a folder, and fails where it is there already."""
    names = program.callee_names(call, scope)
    keywords = {item.arg: item.value for item in call.keywords}
    allowed = keywords.get("exist_ok")
    is_os = bool(names & MAKES_FOLDERS) and bool(call.args)
    is_path = isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and not names and not call.args
    return (is_os or is_path) and None not in keywords and not (isinstance(allowed, ast.Constant) and allowed.value)


def try_that_expects(module: Module, call: ast.Call, errors: Collection[str] = FILE_ERRORS) -> ast.Try | None:
    """The nearest ``try`` around a call that catches such errors and goes on; one that ends the run does not count."""
    return try_that_catches(module, call, errors)


def try_that_catches(module: Module, node: ast.AST, errors: Collection[str]) -> ast.Try | None:
    """The same of any place, and of errors by their names."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if isinstance(parent, blocks.BODIES):
            return None
        if isinstance(parent, ast.Try) and child in parent.body:
            if any(_catches(item, errors) and not _ends_the_run(item) for item in parent.handlers):
                return parent
        child = parent
    return None


def _catches(handler: ast.ExceptHandler, errors: Collection[str]) -> bool:
    return handler.type is None or any(own_name(node) in errors for node in walk(handler.type))


def _ends_the_run(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) or (isinstance(last, ast.Expr) and ends_process(last.value))


def _effect(program: Program, call: ast.Call, body: ast.AST, scope: Scope) -> FileEffect | None:
    module = scope.module
    names = program.callee_names(call, scope)
    opener = next((name for name in sorted(names) if name in OPENERS), None)
    if opener is not None:
        if any(keeps_nothing(program, path, scope) for path in given_paths(call)):
            return None
        mode = _mode(program, call, OPENERS[opener], scope)
        if not mode & set("wax+"):
            return None
        if not mode & set("wax") and opener in TEXT_OPENERS and _is_only_read(program, call, body, scope):
            return None
        reads = "+" in mode or (opener in ("h5py.File", "pandas.HDFStore", "netCDF4.Dataset") and "w" not in mode)
        return FileEffect(module, scope, body, call, call, given_paths(call), True, False, reads)
    if names & KEEPERS:
        return FileEffect(module, scope, body, call, call, given_paths(call), True)
    if names & STORES:
        if not changes_store(program, call):
            return None
        return FileEffect(module, scope, body, call, call, given_paths(call), True, False, True)
    if "logging.basicConfig" in names and not any(item.arg == "filename" for item in call.keywords):
        return None
    if names & SENDS or _is_sent(program, call, scope):
        return _sent(call, body, scope)
    if names & COMMANDS and only_makes_folder(call):
        return None  # by all processes: what they do next may need it
    if names & CHANGERS:
        if names & WHEN_ALONE and not _is_alone(module, call):
            if not (names & COMMANDS and _is_kept(module, call) and writes_files(program, call, scope)):
                return None
            given = _told(program, call, names, scope)
            return FileEffect(module, scope, body, call, call, given, keeps_open=True, if_alone=True)
        given = _told(program, call, names, scope)
        fills = bool(names & FILLS_FOLDERS)
        return FileEffect(module, scope, body, call, call, given, removes=bool(names & REMOVERS), fills_folder=fills)
    if _copies_what_is_written(program, call, names, body, scope):
        return FileEffect(module, scope, body, call, call, tuple(call.args[1:2]))
    return _method(program, call, body, scope)


def _is_sent(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is a method by which a client sends something."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _SENDING:
        return False
    attr, clients = call.func.attr, program.flow.values(call.func.value, scope)
    return any(value.kind == "object" and attr in SENDING_METHODS.get(value.ref, ()) for value in clients)


def _sent(call: ast.Call, body: ast.AST, scope: Scope) -> FileEffect | None:
    """What is sent where all that is done with the answer, if anything, is to look at it here."""
    if _is_alone(scope.module, call):
        return FileEffect(scope.module, scope, body, call, call)
    if not _is_kept(scope.module, call):
        return None
    return FileEffect(scope.module, scope, body, call, call, keeps_open=True, if_alone=True)


def keeps_nothing(program: Program, path: ast.expr, scope: Scope) -> bool:
    """Whether what is written to a path goes nowhere, on each process: ``os.devnull``."""
    return "os.devnull" in program.names(path, scope) or literal(path) == "/dev/null"


def _told(program: Program, call: ast.Call, names: Collection[str], scope: Scope) -> tuple[ast.expr, ...]:
    """What says which files a call changes: of what is written there, as of an image, its text says nothing.

    A command may write to each file that one of its words names, in the call or in the variable that holds them.
    """
    if not COMMANDS.isdisjoint(names) and call.args:
        held = words_held(program, call.args[0], scope)
        return (*given_paths(call, 2), *words_given(call.args[0]), *held)
    place = next((FILE_WRITERS[name] for name in sorted(names) if name in FILE_WRITERS), None)
    is_copy = any(name.startswith("shutil.") for name in names)
    is_plain = not any(isinstance(item, ast.Starred) for item in call.args)
    if place is None or is_copy or not is_plain or place >= len(call.args):
        return given_paths(call, 2)
    return (call.args[place],)


def _is_alone(module: Module, call: ast.Call) -> bool:
    """Whether a call is a statement, as it is or to wait for its end."""
    parent = module.parents[call]
    if isinstance(parent, ast.Attribute) and parent.attr in ENDS_OF_COMMANDS:
        waited = module.parents[parent]
        return isinstance(waited, ast.Call) and isinstance(module.parents[waited], ast.Expr)
    return isinstance(parent, ast.Expr)


def _is_kept(module: Module, call: ast.Call) -> bool:
    """Whether what a command gives is a variable, which may only be waited for."""
    parent = module.parents[call]
    return isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name)


def _copies_what_is_written(
    program: Program, call: ast.Call, names: Collection[str], body: ast.AST, scope: Scope
) -> bool:
    """``bucket.copy(path, there)`` of a library that is not known, where the same function writes to ``path``."""
    is_alone = isinstance(scope.module.parents[call], ast.Expr)
    if not is_alone or len(call.args) < 2 or not any(name.rpartition(".")[2] in COPIES for name in names):
        return False
    source = ast.unparse(call.args[0])
    return any(
        isinstance(node, ast.Call)
        and any(ast.unparse(item) == source for item in node.args[:2])
        and bool(program.callee_names(node, scope) & CHANGERS)
        for node in program.nodes_of(body)
    )


def _method(program: Program, call: ast.Call, body: ast.AST, scope: Scope) -> FileEffect | None:
    """What a method of a library's object, or of something unknown, does to files."""
    if not isinstance(call.func, ast.Attribute) or program.flow.callees(call):
        return None
    attr, receiver = call.func.attr, call.func.value
    if attr == "open" and (is_path(program, receiver, scope) or _says_mode(program, call, scope)):
        mode = _mode(program, call, 0, scope)
        if mode & set("wax+"):
            return FileEffect(scope.module, scope, body, call, call, (receiver,), True, False, "+" in mode)
        return None
    if attr in PATH_METHODS:
        if not (len(call.args) == 1 and not call.keywords and is_path(program, receiver, scope)):
            return None
    elif attr in PORT_METHODS:
        if not any(value.name == "socket.socket" for value in program.flow.values(receiver, scope)):
            return None
    elif attr == "extract":
        if not any(value.name in ARCHIVES for value in program.flow.values(receiver, scope)):
            return None
    elif attr == "dump":
        # ``array.dump("scores.dat")``; a pickler, which has such a method too, is given what it writes.
        if len(call.args) != 1 or program.callee_names(call, scope) or not _is_path(program, call.args[0], scope):
            return None
    elif attr in EXPORTING_METHODS:
        if not _exports(program, call, scope):
            return None
    elif attr not in CHANGING_METHODS or (attr in WITH_A_PATH and not (call.args or call.keywords)):
        return None
    values = program.flow.values(receiver, scope)
    if any(value.kind in ("class", "function", "module") for value in values):
        return None
    if attr in _OF_PLAIN_OBJECTS and any(value.kind in ("sequence", "constant") for value in values):
        return None  # ``rows.to_csv(path)`` is none of a list's, whatever the variable held before
    if attr == "save" and any(value.kind == "instance" for value in values) and not _derives(values):
        return None
    if is_never_given(program, receiver, scope):
        return None
    of_path = attr in ("write_text", "write_bytes", "unlink", "touch", "symlink_to", "rmdir", *PATH_METHODS)
    fills = attr in FILLING_METHODS or attr in UNPACKING
    paths = (receiver,) if of_path else () if attr in UPLOADS else given_paths(call)
    if attr in UNPACKING:
        position, name = UNPACKING[attr]
        to = argument_at(call, name, position)
        paths = (to if to is not None else _HERE,)
    removes = attr in ("unlink", "rmdir", *PATH_METHODS)
    return FileEffect(scope.module, scope, body, call, call, paths, removes=removes, fills_folder=fills)


def _exports(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether an object of a library writes itself: ``song.write("song.mid")``, ``mesh.export(folder + "/mesh.obj")``.

    What is written to an open file, a socket or a bar of progress, is a text as well, but has no file's ending.
    """
    if not isinstance(call.func, ast.Attribute) or not isinstance(scope.module.parents.get(call), ast.Expr):
        return False
    values = program.flow.values(call.func.value, scope)
    made = {value.name.partition(".")[0] for value in values if value.kind == "object"}
    of_library = all(value.kind == "object" for value in values) and made.isdisjoint(_OF_PYTHON)
    return bool(made) and of_library and any(_is_file(program, item, scope) for item in values_given(call))


def _is_file(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression, or what the variable of that name is given, is the path of a file."""
    if isinstance(node, ast.Name) and (located := program.locate(node)) is not None:
        node = blocks.given_once(program.nodes_of(located[0]), node.id) or node
    return is_path(program, node, scope) or _has_ending(program, node, scope)


def _has_ending(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a path that ends in the ending of a file."""
    if isinstance(node, ast.Call) and "os.path.join" in program.callee_names(node, scope) and node.args:
        return _has_ending(program, node.args[-1], scope)
    if isinstance(node, ast.Call) and own_name(node.func) == "format" and isinstance(node.func, ast.Attribute):
        return _has_ending(program, node.func.value, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod, ast.Div)):
        return _has_ending(program, node.left if isinstance(node.op, ast.Mod) else node.right, scope)
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _has_ending(program, node.values[-1], scope)
    texts = [value.ref for value in program.flow.values(node, scope) if value.kind == "constant"]
    texts = [node.value] if isinstance(node, ast.Constant) else texts
    return any(isinstance(text, str) and _ENDING.search(text) for text in texts)


def _is_path(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a path by how it is written: a text, or one that is joined."""
    joins = isinstance(node, ast.Call) and "os.path.join" in program.callee_names(node, scope)
    return joins or is_text(node) or is_path(program, node, scope)


def _says_mode(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether ``x.open("w")`` of something unknown opens ``x`` itself, by the mode that it is given first."""
    given = call.args[0] if call.args else keyword(call, "mode")
    is_mode = isinstance(given, ast.Constant) and isinstance(given.value, str) and _WRITE_MODE.fullmatch(given.value)
    return bool(is_mode) and not program.callee_names(call, scope)


def _derives(values: set[Value]) -> bool:
    """Whether an object's class has a base in a library, which may have the method."""
    return any(value.kind == "instance" and value.ref.external_bases() for value in values)


def _mode(program: Program, call: ast.Call, position: int, scope: Scope) -> set[str]:
    """The letters that the mode of an opened file may hold; of an unknown mode, those of its uses."""
    given = next((item.value for item in call.keywords if item.arg == "mode"), None)
    if given is None and len(call.args) > position:
        given = call.args[position]
    if given is None:
        return {"r"}
    letters: set[str] = set()
    known = False
    for node in walk(given):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            letters |= set(node.value)
            known = True
    # Of ``mode + flags`` each part says some.
    parts = [given.left, given.right] if isinstance(given, ast.BinOp) else [given]
    for value in (value for part in parts for value in program.flow.values(part, scope)):
        if value.kind == "constant" and isinstance(value.ref, str):
            letters |= set(value.ref)
            known = True
    if known:
        return letters
    return {"w"} if _is_written(program, call) else {"r"}


def _is_written(program: Program, opened: ast.Call) -> bool:
    """Whether something calls a writing method on what was opened."""
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ("write", "writelines")
        and any(value.site is opened for value in program.flow.values(call.func.value, scope))
        for call, _, scope in program.calls()
    )


def _is_only_read(program: Program, opened: ast.Call, body: ast.AST, scope: Scope) -> bool:
    """Whether nothing but reads is done with a file that may be changed: ``pickle.load(open(path, "rb+"))``."""
    module = scope.module
    parent = module.parents[opened]
    if isinstance(parent, ast.withitem):
        name = parent.optional_vars
    elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        name = parent.targets[0]
    else:
        return _reads(program, opened, scope)
    if not isinstance(name, ast.Name):
        return name is None
    return all(
        _reads(program, node, scope)
        for node in walk(body)
        if isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
    )


def _reads(program: Program, file: ast.expr, scope: Scope) -> bool:
    """Whether what an open file is used for, where it stands, is a read from it, or its end."""
    parents = scope.module.parents
    parent = parents[file]
    if isinstance(parent, ast.Call):
        return parent.args[:1] == [file] and bool(program.callee_names(parent, scope) & READERS_OF_OPEN_FILES)
    if isinstance(parent, ast.Attribute):
        return parent.attr in FILE_READS | {"close"} and isinstance(parents[parent], ast.Call)
    return isinstance(parent, (ast.For, ast.comprehension)) and parent.iter is file


def _writes_memory(program: Program, effect: FileEffect) -> bool:
    """Whether the file is a buffer in memory, which every process goes on to use."""
    given = [*effect.call.args, *(item.value for item in effect.call.keywords)]
    return any(
        value.kind == "object" and value.ref in MEMORY_MAKERS
        for argument in given
        if isinstance(argument, (ast.Name, ast.Attribute))
        for value in program.flow.values(argument, effect.scope)
    )
