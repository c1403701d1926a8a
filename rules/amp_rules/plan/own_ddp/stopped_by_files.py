"""Training loops that a file ends, which the first process to see it changes: the others find it changed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.checks.common.file_writes import access_of
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk

_LOOKS = frozenset({"exists", "isfile", "is_file"})


def file_changed(own: OwnDdp, module: Module, test: ast.expr) -> str | None:
    """The path of a file that a test of an ``if`` asks for, and that is changed where it holds; None for none.

    ``if os.path.exists("stop"): os.remove("stop"); break``, or both in a function that the test calls.
    """
    branch = module.parents[test]
    body = branch.body if isinstance(branch, ast.If) else []
    found = _changed(own, module, walk(test), (part for item in body for part in walk(item)))
    if found is not None:
        return found
    for call in walk(test):
        for info in own.program.flow.callees(call) if isinstance(call, ast.Call) else ():
            nodes = list(blocks.walk_body(info.node))
            found = _changed(own, info.module.module, nodes, nodes)
            if found is not None:
                return found
    return None


def _changed(own: OwnDdp, module: Module, asking: Iterable[ast.AST], changing: Iterable[ast.AST]) -> str | None:
    """A path that some nodes read or look for, and that others write or take away, in every process alike."""
    asked = {
        ast.unparse(path) for node in asking if isinstance(node, ast.Call) for path in _paths_read(own, module, node)
    }
    for node in changing if asked else ():
        access = access_of(own.facts(module), node) if isinstance(node, ast.Call) else None
        if access is None or access.path is None or access.kind not in ("write", "remove"):
            continue
        if ast.unparse(access.path) not in asked or own.is_own_file(module, access.call):
            continue
        if not own.is_of_first_alone(module, access.call):
            return module.text(access.path)
    return None


def _paths_read(own: OwnDdp, module: Module, call: ast.Call) -> Iterator[ast.expr]:
    """Yield the path that a call reads a file of, or looks for."""
    if last_name(call.func) in _LOOKS:
        if call.args:
            yield call.args[0]
        elif isinstance(call.func, ast.Attribute):
            yield call.func.value
    elif last_name(call.func) == "open" and call.args and access_of(own.facts(module), call) is None:
        yield call.args[0]
