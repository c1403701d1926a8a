"""What every process does to files where one would be enough, and no test around it can be written: all are told."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.made_by_first import is_made_by_first
from amp_rules.plan.own_ddp.plain_files import PlainFiles
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_tests import is_of_first
from amp_rules.roles.absent import never_runs
from amp_rules.roles.commands import only_makes_folder, writes_files
from amp_rules.roles.file_effects import opens_to_write
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.data import DOWNLOADED, FETCHES_FILES, KERAS_DATASETS
from amp_rules.torch.devices import SET_DEVICE
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import COMMANDS, TEMPORARY, WEIGHT_LOADERS

_MAX_CALLERS = 4
"""Functions around what makes a data set: ``get_loaders``, ``setup``, ``main``."""

_SAVES = frozenset({"torch.save"})
_Found = tuple[Module, ast.AST, str]


def files_of_all(own: OwnDdp) -> Iterator[_Found]:
    """Yield downloads, commands, and checkpoints that all read to the GPU of one."""
    yield from _downloads(own)
    yield from _downloads_of_first(own)
    yield from _commands(own)
    yield from _loads(own)


def _by_all(own: OwnDdp, site: Site) -> bool:
    """Whether every process comes to a place, for all that is known."""
    if site.module not in own.modules or own.reach(site.module, site.node) is not Reach.EVERY:
        return False
    return site.body not in own.uncalled and not never_runs(own.program.flow, site.module, site.node)


# ---- downloads -----------------------------------------------------------------------------------------------------


def _downloads(own: OwnDdp) -> Iterator[_Found]:
    """Yield the first data set that all download into one folder, where none waits for another."""
    for call, body, scope in own.program.calls():
        if not _fetches(own, call, scope):
            continue
        site = Site(scope.module, scope, body, call)
        if not _by_all(own, site) or own.is_own_file(scope.module, call) or _in_turns(own, site):
            continue
        text = (
            f"every process runs `{scope.module.text(call)}`, and all download into one folder where the files are "
            "missing: download them before the start, or let the others wait for one process"
        )
        yield scope.module, call, text
        return


def _downloads_of_first(own: OwnDdp) -> Iterator[_Found]:
    """Yield the first data set that one process downloads while the others look for it: ``download=rank == 0``."""
    fetched = [
        Site(scope.module, scope, body, call)
        for call, body, scope in own.program.calls()
        if _fetches(own, call, scope) or _fetches_on_first(own, call, scope)
    ]
    if any(own.reach(site.module, site.node) in (Reach.ONE, Reach.EACH_NODE) for site in fetched):
        return  # one process may have gone before
    for site in fetched:
        assert isinstance(site.node, ast.Call)
        if not _fetches_on_first(own, site.node, site.scope) or not _by_all(own, site) or _in_turns(own, site):
            continue
        text = (
            f"only one process downloads in `{site.module.text(site.node)}`, and the others look for the files at the "
            "same time: where they are missing, this raises an error; the others have to wait above it"
        )
        yield site.module, site.node, text
        return


def _fetches_on_first(own: OwnDdp, call: ast.Call, scope: Scope) -> bool:
    """Whether a data set is made by all and downloaded by the first process, by a test for it that stands there."""
    given = keyword(call, "download")
    if given is None or isinstance(given, ast.Constant) or not _is_downloaded(own, call, scope):
        return False
    return in_several(given) is None and own.tells_apart(scope.module, given) and is_of_first(given, True)


def _fetches(own: OwnDdp, call: ast.Call, scope: Scope) -> bool:
    """Whether a call writes what it downloads under a name that others know, while it goes on."""
    names = own.program.callee_names(call, scope)
    if names & FETCHES_FILES or any(name.startswith(KERAS_DATASETS) for name in names):
        return True
    return literal(keyword(call, "download")) is True and _is_downloaded(own, call, scope)


def _is_downloaded(own: OwnDdp, call: ast.Call, scope: Scope) -> bool:
    """Whether a call makes a data set of a library that downloads on demand."""
    made = (value.ref for value in own.program.flow.values(call.func, scope) if value.kind == "class")
    # A class of the project that is one of torchvision's, but for a part of it.
    names = own.program.callee_names(call, scope).union(*(info.external_bases() for info in made))
    return any(name.startswith(DOWNLOADED) for name in names)


def _in_turns(own: OwnDdp, site: Site, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a lock or a block stands around a place, or processes wait above it under a test for the rank.

    So do those around each call of its function: ``with first_process_first(): get_loaders()``.
    """
    module = site.module
    if any(isinstance(item, (ast.With, ast.AsyncWith, ast.Try)) for item in blocks.enclosing(module, site.node)):
        return True
    barriers = {item.node for item in own.program.calls_to(BARRIERS)}
    if any(
        isinstance(item, ast.If) and not barriers.isdisjoint(walk(item))
        for item in blocks.statements_above(module, site.statement, site.body)
    ):
        return True
    info = own.program.function_of(site.body)
    if info is None or site.body in seen or len(seen) > _MAX_CALLERS:
        return False
    callers = [calling(item) for item in own.program.flow.callers(info)]
    return bool(callers) and all(_in_turns(own, item, seen | {site.body}) for item in callers)


# ---- commands ------------------------------------------------------------------------------------------------------


def _commands(own: OwnDdp) -> Iterator[_Found]:
    """Yield the first command that changes files."""
    found = [
        site
        for site in own.program.calls_to(COMMANDS)
        if isinstance(site.node, ast.Call)
        and _by_all(own, site)
        and not own.is_own_file(site.module, site.node)
        and writes_files(own.program, site.node, site.scope)
        and not only_makes_folder(site.node)
        and not is_made_by_first(own, site.module, site.node)
        and not _is_for_own_path(own, site)
    ]
    for site in found[:1]:
        text = f"every process runs `{site.module.text(site.node)}`, a command that changes files which all share"
        yield site.module, site.node, text + more_places(own.program, [(item.module, item.node) for item in found])


def _is_for_own_path(own: OwnDdp, site: Site) -> bool:
    """Whether the last word of a command is a path that ``tempfile`` has just made: no other process has it."""
    assert isinstance(site.node, ast.Call)
    words = site.node.args[0] if site.node.args else None
    if not isinstance(words, (ast.List, ast.Tuple)) or not words.elts:
        return False
    given = [
        value
        for value in assigned(own.program, words.elts[-1], site.scope)
        if not blocks.exclude_each_other(site.module, site.statement, blocks.statement_of(site.module, value))
    ]
    return bool(given) and all(_is_temporary(own, value, site.scope) for value in given)


def _is_temporary(own: OwnDdp, value: ast.expr, scope: Scope) -> bool:
    """``tempfile.mkstemp()[1]``."""
    made = value.value if isinstance(value, (ast.Subscript, ast.Attribute)) else value
    return isinstance(made, ast.Call) and bool(own.program.callee_names(made, scope) & TEMPORARY)


# ---- checkpoints ---------------------------------------------------------------------------------------------------


def _loads(own: OwnDdp) -> Iterator[_Found]:
    """Yield the first checkpoint that all read without a word on where to."""
    if not _trains_on_gpus(own) or _saves_from_cpu(own):
        return
    loads = own.program.calls_to(WEIGHT_LOADERS)
    plain = PlainFiles(own.program)
    found = [
        site
        for site in loads
        if _is_unplaced(site.node)
        and not _is_for_one(site, loads)
        and _by_all(own, site)
        and isinstance(site.node, ast.Call)
        and not own.is_own_file(site.module, site.node)  # what a process saved, it reads on its own GPU
        and not plain.holds_no_tensor(site)
    ]
    for site in found[:1]:
        text = (
            f"`{site.module.text(site.node)}` puts tensors that were saved from one GPU on that GPU again, in every "
            'process; `map_location="cpu"` does not'
        )
        yield site.module, site.node, text + more_places(own.program, [(item.module, item.node) for item in found])


def _trains_on_gpus(own: OwnDdp) -> bool:
    """Whether each process chooses a GPU, or a wrapper is told one: without GPUs, a file holds nothing of any."""
    if own.program.calls_to(frozenset({SET_DEVICE})):
        return True
    given = (keyword(site.node, "device_ids") for site in own.wraps if isinstance(site.node, ast.Call))
    return any(isinstance(devices, (ast.List, ast.Tuple)) and devices.elts for devices in given)


def _is_for_one(site: Site, loads: list[Site]) -> bool:
    """Whether the other branch of a test says where to, as one for ``args.gpu is None`` does: no GPU is its own."""
    return any(
        ast.dump(other.node.args[0]) == ast.dump(site.node.args[0])
        and not _is_unplaced(other.node)
        and blocks.exclude_each_other(site.module, site.statement, other.statement)
        for other in loads
        if other.body is site.body and isinstance(other.node, ast.Call) and other.node.args
        if isinstance(site.node, ast.Call)
    )


def _saves_from_cpu(own: OwnDdp) -> bool:
    """Whether a function that saves moves something to the CPU: a model, or each tensor of its state."""
    bodies = {site.body for site in own.program.calls_to(_SAVES)}
    return any(
        body in bodies and isinstance(call.func, ast.Attribute) and call.func.attr == "cpu"
        for call, body, _ in own.program.calls()
    )


def _is_unplaced(call: ast.AST) -> bool:
    return (
        isinstance(call, ast.Call)
        and len(call.args) == 1
        and not {"map_location", None} & {item.arg for item in call.keywords}
        and not opens_to_write(call)
    )
