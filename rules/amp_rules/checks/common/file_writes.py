"""What writes, removes or keeps open a file, and whether the file is of one process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, NamedTuple

from amp_rules.checks.common.calls import own_name_of
from amp_rules.checks.common.origins import Origin, argument, origins
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.resolver import root_of
from amp_rules.source.syntax import COMPREHENSIONS, children, last_name, walk
from amp_rules.torch.devices import KEYWORDS
from amp_rules.torch.file_access import (
    OF_THIS_MOMENT,
    OF_THIS_PROCESS,
    OPENERS,
    REMOVERS,
    SAVERS_OF_PRETRAINED,
    TEMPORARY,
)
from amp_rules.torch.idioms import EXACT_RANK, NAMED_OWN_HOLE, NAMED_OWN_PART, NAMED_RANK, NAMED_SEVERAL
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL, PROGRESS_BARS
from amp_rules.torch.writers import FILE_WRITERS, LOG_KEEPERS, PATH_WRITERS, WRITERS

Kind = Literal["write", "remove", "folder", "log"]


class Access(NamedTuple):
    """A call that changes a file.

    Attributes:
        call: the call.
        kind: what it does: ``write`` a content, ``remove`` or move a file away, make a ``folder`` that must not be
            there, keep a ``log``.
        path: what it is told to change; None where that does not stand among its arguments.
    """

    call: ast.Call
    kind: Kind
    path: ast.expr | None


_SCRIPTED = ("torch.jit.script", "torch.jit.trace")
_MOVES = ("cuda", "to")
_PATHS = ("f", "path", "file", "filename", "save_directory", "fname", "fp", "log_dir", "logdir", "dir", "name")


def access_of(module: ModuleFacts, call: ast.Call) -> Access | None:
    """What a call does to files, as far as it is a library's."""
    dotted = module.dotted(call.func) or ""
    name = dotted.rpartition(".")[2] or last_name(call.func)
    if dotted in FILE_WRITERS:
        return Access(call, "write", _path(module, call, FILE_WRITERS[dotted]))
    if dotted in OPENERS or dotted == "open":
        return _opened(module, call, OPENERS.get(dotted, 1))
    if dotted in REMOVERS:
        lenient = dotted == "shutil.rmtree" and (literal(keyword(call, "ignore_errors")) is True or len(call.args) > 1)
        return None if lenient else Access(call, "remove", _path(module, call, 0))
    if dotted in ("os.makedirs", "os.mkdir"):
        return None if _may_be_there(call, 2) else Access(call, "folder", _path(module, call, 0))
    if dotted == "wandb.init":
        # A run of each process is asked for by a group.
        return None if keyword(call, "group") is not None else Access(call, "log", None)
    if dotted in WRITERS or dotted in LOG_KEEPERS:
        return Access(call, "log", _path(module, call, 0))
    if isinstance(call.func, ast.Attribute):
        return _method(module, call, name or last_name(call.func))
    return None


def _method(module: ModuleFacts, call: ast.Call, name: str) -> Access | None:
    """Methods of paths, tables, figures and models."""
    assert isinstance(call.func, ast.Attribute)
    held = call.func.value
    if name in SAVERS_OF_PRETRAINED:
        return Access(call, "write", _path(module, call, 0))
    if name == "save" and _is_scripted(module, held):
        return Access(call, "write", _path(module, call, 0))
    if name in PATH_WRITERS:
        if name.startswith("write"):
            return Access(call, "write", held)
        path = _path(module, call, 0)
        return Access(call, "write", path) if path is not None else None
    if name == "mkdir" and _is_path(module, held):
        return None if _may_be_there(call, 2) else Access(call, "folder", held)
    if name in ("unlink", "rmdir") and _is_path(module, held):
        return None if literal(keyword(call, "missing_ok")) is True else Access(call, "remove", held)
    return None


def _is_path(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an object is a ``Path``, or made of one."""
    for item in origins(module, node):
        made = item.node
        while isinstance(made, (ast.BinOp, ast.Attribute)):
            made = made.left if isinstance(made, ast.BinOp) else made.value
        if isinstance(made, ast.Name):
            made = next((inner.node for inner in origins(item.module, made)), made)
        if isinstance(made, ast.Call) and own_name_of(item.module, made) in ("Path", "PosixPath"):
            return True
    return False


def _is_scripted(module: ModuleFacts, node: ast.expr) -> bool:
    return any(
        isinstance(item.node, ast.Call) and item.module.dotted(item.node.func) in _SCRIPTED
        for item in origins(module, node)
    )


def _opened(module: ModuleFacts, call: ast.Call, position: int) -> Access | None:
    mode = argument(module, call, "mode", position)
    text = literal(mode.node) if mode is not None else None
    if isinstance(text, str) and (text[:1] in ("w", "a", "x") or "+" in text):
        return Access(call, "write", call.args[0] if call.args else keyword(call, "file"))
    return None


def is_text(module: ModuleFacts, access: Access) -> bool:
    """Whether a text is written, of which no process has a part of its own as it has of a sharded model."""
    mode = argument(module, access.call, "mode", 1)
    text = literal(mode.node) if mode is not None else None
    return access.kind == "write" and isinstance(text, str) and text in ("w", "wt", "w+", "a", "a+")


def _path(module: ModuleFacts, call: ast.Call, position: int) -> ast.expr | None:
    if len(call.args) > position:
        return call.args[position]
    return next((item.value for item in call.keywords if item.arg in _PATHS), None)


def _may_be_there(call: ast.Call, position: int) -> bool:
    """``exist_ok=True``, or whatever is not False for certain."""
    given = keyword(call, "exist_ok") or (call.args[position] if len(call.args) > position else None)
    return given is not None and literal(given) is not False


def is_shared(module: ModuleFacts, access: Access, *, by_clock: bool = True) -> bool:
    """Whether all processes mean the same file, as far as can be seen: no rank, no moment, no sample names it.

    Args:
        module: the file.
        access: the call that changes a file.
        by_clock: whether the clock tells the processes' files apart, which come to a place at about the same time.
    """
    call = access.call
    given = [*call.args, *(item.value for item in call.keywords)]
    if keyword(call, "is_main_process") is not None or keyword(call, "save_function") is not None:
        return False
    paths = [access.path] if access.path is not None else given
    # Several processes that go through one folder remove the same files of it.
    by_sample = access.kind == "write"
    if any(_is_open_file(module, path) for path in paths):
        return False
    return not any(_is_own(item, by_sample, by_clock) for path in paths for item in _parts(module, path))


def _is_open_file(module: ModuleFacts, path: ast.expr) -> bool:
    """Whether what is written to is a file that is open already: where it is opened, it is judged.

    What is read from one, a folder that a file of settings names, is alike for all processes.
    """
    for place in (Origin(module, path), *origins(module, path)):
        if isinstance(place.node, ast.Call):
            if place.module.dotted(place.node.func) in OPENERS or last_name(place.node.func) in _OPENING:
                return True
    return False


_MAX_PARTS = 60
"""Expressions that a path may be put together of; beyond, the rest is not asked."""


def _parts(module: ModuleFacts, path: ast.expr) -> list[Origin]:
    """The expressions that a path is put together of, through names and calls."""
    found = [Origin(module, path)]
    seen = {id(path)}
    for place in found:
        for item in _read_in(place.node):
            # Of ``file.name`` the file tells.
            held = origins(place.module, item.value) if isinstance(item, ast.Attribute) else []
            for origin in [*origins(place.module, item), *(part for part in held if _is_of_process(part))]:
                if id(origin.node) not in seen and len(found) < _MAX_PARTS and not _is_on_gpu(origin):
                    seen.add(id(origin.node))
                    found.append(origin)
    return found


def _is_on_gpu(place: Origin) -> bool:
    """Whether an expression puts something on the GPU of its process: a number that it gives tells nothing of that."""
    if not isinstance(place.node, ast.Call):
        return False
    is_moved = isinstance(place.node.func, ast.Attribute) and place.node.func.attr in _MOVES
    return is_moved or place.module.dotted(place.node.func) in DISTRIBUTED_DATA_PARALLEL


def _is_of_process(place: Origin) -> bool:
    return isinstance(place.node, ast.Call) and place.module.dotted(place.node.func) in TEMPORARY


def _read_in(node: ast.expr) -> Iterator[ast.expr]:
    """The names and attributes that an expression reads, without the objects that they belong to."""
    pending: list[ast.AST] = [node]
    while pending:
        item = pending.pop()
        if _tells_size(item):
            continue
        if isinstance(item, (ast.Name, ast.Attribute)):
            yield item
            # ``Path(x)`` of ``Path(x).parent.name``.
            made = root_of(item)
            if not isinstance(made, ast.Name):
                pending.append(made)
        elif isinstance(item, ast.Call):
            # What is called with a path gives one: of ``folder.joinpath(name)`` the folder counts.
            if isinstance(item.func, ast.Attribute):
                pending.append(item.func.value)
            pending += [*item.args, *(part.value for part in item.keywords if part.arg not in KEYWORDS)]
        else:
            pending += children(item)


def _is_own(place: Origin, by_sample: bool, by_clock: bool) -> bool:
    """Whether an expression makes a path that is of one process, or of one sample."""
    moments, calls = (OF_THIS_MOMENT, _OWN_CALLS) if by_clock else (OF_THIS_PROCESS, _OWN_CALLS - _CLOCKS)
    for item in _without_devices(place.node):
        if isinstance(item, ast.Call):
            dotted = place.module.dotted(item.func) or ""
            if dotted in TEMPORARY | moments or last_name(item.func) in calls:
                return True
        elif isinstance(item, ast.Constant):
            if isinstance(item.value, str) and (EXACT_RANK.search(item.value) or NAMED_OWN_HOLE.search(item.value)):
                return True
        elif _names_process(last_name(item)) or last_name(item) in ("stdout", "stderr", "devnull"):
            return True
        if by_sample and isinstance(item, ast.Name) and is_of_data(place.module, item):
            return True
    return False


def _without_devices(node: ast.AST) -> Iterator[ast.AST]:
    """An expression with its parts, but for the device that something is read to: what is read names no process."""
    pending = [node]
    while pending:
        item = pending.pop()
        if isinstance(item, ast.keyword) and item.arg in KEYWORDS:
            continue
        yield item
        pending += children(item)


_OPENING = frozenset({"open", "BytesIO", "StringIO"})
"""Calls that give an open file, by their own names."""
_OWN_CALLS = frozenset({"BytesIO", "StringIO", "now", "strftime", "get_timestamp", "gethostname", "getpid"})
"""Calls that give each process something of its own."""
_CLOCKS = frozenset({"now", "strftime", "get_timestamp"})
"""Those of them that ask the clock."""


def _names_process(name: str) -> bool:
    return bool((NAMED_RANK.search(name) or NAMED_OWN_PART.search(name)) and not NAMED_SEVERAL.search(name))


_COUNTS = ("range", "count", "trange")
_OF_ENTRIES = frozenset({"items", "keys", "values"})
_BARS = frozenset(name.rpartition(".")[2] for name in PROGRESS_BARS)


def is_of_data(module: ModuleFacts, name: ast.Name) -> bool:
    """Whether a loop over data binds a name: files named after the data are of different processes.

    Not the number of a round, which all processes count alike, nor how many samples there are, and not what stands in
    the script or names its parts.
    """
    if _is_asked_for_size(module, name):
        return False
    for loop in module.index.loops_around(name):
        if isinstance(loop, ast.While):
            continue
        target = loop.target
        if _is_numbered(loop) and isinstance(target, ast.Tuple):
            target = ast.Tuple(target.elts[1:], ast.Store())
        if _binds(target, name) and not _counts_epochs(loop) and not _is_of_names(module, loop.iter):
            return True
    return any(
        _binds(part.target, name)
        for around in module.index.ancestors(name)
        if isinstance(around, COMPREHENSIONS)
        for part in around.generators
    )


def _is_asked_for_size(module: ModuleFacts, name: ast.Name) -> bool:
    """Whether a name stands there for its size alone: ``images`` of ``images.size(0)``."""
    return any(_tells_size(around) for around, _ in zip(module.index.ancestors(name), range(2), strict=False))


def _tells_size(node: ast.AST) -> bool:
    """``images.size(0)``, ``images.shape``, ``len(images)``: of a name they tell nothing."""
    if isinstance(node, ast.Call):
        asked = node.func
        return (isinstance(asked, ast.Attribute) and asked.attr in _SIZES) or last_name(asked) == "len"
    return isinstance(node, ast.Attribute) and node.attr in _SIZES


_SIZES = frozenset({"size", "shape", "ndim", "numel"})


def _binds(target: ast.expr, name: ast.Name) -> bool:
    return any(isinstance(item, ast.Name) and item.id == name.id for item in walk(target))


def _is_numbered(loop: ast.For | ast.AsyncFor) -> bool:
    """``for step, batch in enumerate(loader)``, also under a progress bar."""
    iterated = _below_bars(loop.iter)
    return isinstance(iterated, ast.Call) and last_name(iterated.func) == "enumerate"


def _is_of_names(module: ModuleFacts, iterated: ast.expr) -> bool:
    """``["generator", "critic"]``, a variable that holds such a list, ``networks.items()``."""
    if isinstance(iterated, ast.Call):
        is_enumerated = last_name(iterated.func) == "enumerate" and bool(iterated.args)
        return _is_of_names(module, iterated.args[0]) if is_enumerated else last_name(iterated.func) in _OF_ENTRIES
    made = [place.node for place in origins(module, iterated)]
    return bool(made) and all(
        isinstance(node, (ast.List, ast.Tuple)) and bool(node.elts) and all(map(_is_constant, node.elts))
        for node in made
    )


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _below_bars(iterated: ast.expr) -> ast.expr:
    """``range(10)`` of ``tqdm(range(10))``."""
    while isinstance(iterated, ast.Call) and last_name(iterated.func) in _BARS and iterated.args:
        iterated = iterated.args[0]
    return iterated


def _counts_epochs(loop: ast.For | ast.AsyncFor) -> bool:
    """``for epoch in range(...)``: numbers that all processes count alike."""
    if any("epoch" in text for text in (ast.unparse(loop.target).lower(), ast.unparse(loop.iter).lower())):
        return True
    counted = _below_bars(loop.iter)
    return isinstance(counted, ast.Call) and last_name(counted.func) in _COUNTS
