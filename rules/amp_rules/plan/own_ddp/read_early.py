"""Files that one process writes and all read, with nothing in between that waits."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.checks.common.file_writes import access_of
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_names import name_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import BARRIERS, EXCHANGES
from amp_rules.torch.file_access import LOADERS, MAKES_FOLDERS, NEED_FOLDERS
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_MAX_CALLERS = 4
"""Functions between a file and the function that both writes and reads it: ``save``, ``train``, ``fit``, ``main``."""

_Way = list[Site]
"""From a place up to the file's own suite: the place, the call of its function, and so on."""


def read_early(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield a reading that every process runs, of what one of them may be writing: the first for each file."""
    reads = [
        site
        for site in own.program.calls_to(LOADERS | NEED_FOLDERS)
        if site.module in own.modules and isinstance(site.node, ast.Call) and site.node.args
    ]
    reads = [site for site in reads if own.reach(site.module, site.node) is Reach.EVERY]
    if not reads:
        return
    paths, waits = Paths(own.program), waiting_calls(own)
    for write, path in _written_by_first(own):
        makes = bool(own.program.callee_names(write.node, write.scope) & MAKES_FOLDERS)  # type: ignore[arg-type]
        for read in reads:
            assert isinstance(read.node, ast.Call)
            if makes is not bool(own.program.callee_names(read.node, read.scope) & NEED_FOLDERS):
                continue
            if not _is_same(paths, write, path, read, read.node.args[0]):
                continue
            if any(_follows(one, other, waits) for one in _ways(own, write) for other in _ways(own, read)):
                does = "look" if makes else "read"
                where = "" if read.module is write.module else f" in `{name_of(own.program, write.module)}`"
                yield (
                    read.module,
                    read.node,
                    f"`{read.module.text(read.node)}` may {does} before `{write.module.text(write.node)}`{where} is "
                    "done in another process: nothing between them waits for it",
                )
                return


def _written_by_first(own: OwnDdp) -> Iterator[tuple[Site, ast.expr]]:
    for call, body, scope in own.program.calls():
        module = scope.module
        access = access_of(own.facts(module), call) if module in own.modules else None
        if own.program.callee_names(call, scope) & MAKES_FOLDERS and call.args and module in own.modules:
            if own.is_of_first_alone(module, call):
                yield Site(module, scope, body, call), call.args[0]
            continue
        if access is None or access.kind != "write" or access.path is None or own.is_own_file(module, call):
            continue
        if own.is_of_first_alone(module, call):
            yield Site(module, scope, body, call), access.path


def _is_same(paths: Paths, write: Site, path: ast.expr, read: Site, other: ast.expr) -> bool:
    """Whether two paths are of one file, for certain or by the same words in one function."""
    if write.body is read.body and ast.unparse(path) == ast.unparse(other):
        return True
    exact = {text for text in paths.of(path, write.scope) if text and "*" not in text and not text.startswith("<")}
    return bool(exact & paths.of(other, read.scope)) or _is_same_setting(path, other)


def _is_same_setting(path: ast.expr, other: ast.expr) -> bool:
    """``args.checkpoint`` in two functions."""
    one, two = (blocks.path_of(item) if isinstance(item, ast.Attribute) else None for item in (path, other))
    return one is not None and two is not None and one.removeprefix("self.") == two.removeprefix("self.")


def _ways(own: OwnDdp, site: Site) -> list[_Way]:
    """The ways up from a place."""
    found: list[_Way] = []
    pending: list[_Way] = [[site]]
    while pending and len(found) < _MANY:
        way = pending.pop()
        info = own.program.function_of(way[-1].body)
        callers = own.program.flow.callers(info) if info is not None and len(way) <= _MAX_CALLERS else []
        bodies = {item.body for item in way}
        callers = [item for item in callers if calling(item).body not in bodies]
        pending += [[*way, calling(item)] for item in callers]
        if not callers:
            found.append(way)
    return found


_MANY = 16
"""Ways that are looked at; helpers that save are called at a few places."""


def _follows(write: _Way, read: _Way, waits: Callable[[ast.AST], bool]) -> bool:
    """Whether a reading comes after a writing on its way, with nothing in between that waits."""
    for place, above in enumerate(write):
        other = next((index for index, item in enumerate(read) if item.body is above.body), None)
        if other is None:
            continue
        later = read[other]
        if above.node is later.node or not _precedes(above, later):
            return False
        between = [*_after(write[:place], waits), *_before(read[:other], waits)]
        between += [
            node
            for node in _waiting(above, waits)
            if _end(above.node) < node.lineno < later.node.lineno  # type: ignore[attr-defined]
        ]
        return not between
    return False


def _precedes(one: Site, other: Site) -> bool:
    """Whether a place stands above another, which a loop around both would not lead back to."""
    if blocks.exclude_each_other(one.module, one.node, other.node):
        return False
    return _end(one.node) < other.line


def _after(way: _Way, waits: Callable[[ast.AST], bool]) -> Iterator[ast.Call]:
    """Yield what waits below the places of a way, in the functions that have ended when its last one is done."""
    for site in way:
        yield from (node for node in _waiting(site, waits) if node.lineno > _end(site.node))


def _before(way: _Way, waits: Callable[[ast.AST], bool]) -> Iterator[ast.Call]:
    """Yield what waits above the places of a way, in the functions that it has gone into."""
    for site in way:
        yield from (node for node in _waiting(site, waits) if node.lineno < site.line)


def _waiting(site: Site, waits: Callable[[ast.AST], bool]) -> Iterator[ast.Call]:
    for node in blocks.walk_body(site.body):
        if isinstance(node, ast.Call) and waits(node):
            yield node


def waiting_calls(own: OwnDdp) -> Callable[[ast.AST], bool]:
    """Whether a call waits for the other processes: by a collective operation, a backward pass or a new wrapper."""
    calls = {site.node for site in own.program.calls_to(EXCHANGES | BARRIERS | DISTRIBUTED_DATA_PARALLEL)}
    calls |= {site.node for site in own.program.backwards}
    return own.program.closure(lambda node: node in calls)


def _end(node: ast.AST) -> int:
    line: int = getattr(node, "end_lineno", 0)
    return line
