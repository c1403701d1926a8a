"""Caches that all look for, and that the first process writes where they are missing: a late look finds half a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.file_writes import access_of
from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.made_by_first import is_in_turns
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import conjuncts, walk
from amp_rules.torch.distributed import BARRIERS
from amp_rules.torch.file_access import LOADERS, LOOKS


def read_half_written(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such reading: ``if exists(path): load(path)``, and ``save(path)`` on one process otherwise."""
    barriers = {site.body for site in own.program.calls_to(BARRIERS)}
    for node, body, scope in own.program.nodes():
        module = scope.module
        if not isinstance(node, ast.If) or module not in own.modules or body in own.uncalled or body in barriers:
            continue
        looked = _looked_for(own, node, scope)
        if looked is None:
            continue
        path, there, missing = looked
        read = next((call for call in _calls(there) if _reads(own, call, scope, path)), None)
        write = next((call for call in _calls(missing) if _writes(own, module, call, path)), None)
        if read is None or write is None or not own.is_of_first_alone(module, write):
            continue
        if own.reach(module, node) is not Reach.EVERY or is_in_turns(own, Site(module, scope, body, node)):
            continue
        text = (
            f"`{path}` may be read here while another process still writes it: `{module.text(node.test)}` waits for "
            "nobody; let the first process come here before the others"
        )
        yield module, read, text
        return


def _looked_for(own: OwnDdp, branch: ast.If, scope: Scope) -> tuple[str, list[ast.stmt], list[ast.stmt]] | None:
    """The path that a test looks for, with what runs where the file is there and where it is missing."""
    for part in conjuncts(branch.test):
        is_not = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not)
        call = part.operand if isinstance(part, ast.UnaryOp) else part
        if isinstance(call, ast.Call) and call.args and own.program.callee_names(call, scope) & LOOKS:
            if is_not and part is not branch.test:
                return None  # the file may be there where the branch does not run
            sides = (branch.orelse, branch.body) if is_not else (branch.body, branch.orelse)
            return ast.unparse(call.args[0]), *sides
    return None


def _calls(statements: list[ast.stmt]) -> Iterator[ast.Call]:
    for statement in statements:
        yield from (node for node in walk(statement) if isinstance(node, ast.Call))


def _reads(own: OwnDdp, call: ast.Call, scope: Scope, path: str) -> bool:
    is_loader = bool(own.program.callee_names(call, scope) & LOADERS)
    return is_loader and bool(call.args) and ast.unparse(call.args[0]) == path


def _writes(own: OwnDdp, module: Module, call: ast.Call, path: str) -> bool:
    access = access_of(own.facts(module), call)
    is_write = access is not None and access.kind == "write" and access.path is not None
    return is_write and ast.unparse(access.path) == path  # type: ignore[union-attr, arg-type]
