"""Classes of a script that derive from a logging client and only log: ``class Logger(SummaryWriter)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.writers import CLIENTS_TO_DERIVE_FROM

_OF_CLIENTS = frozenset({"log_dir", "logdir"})
"""What a stand-in for a writer tells as the writer does."""


def made(program: Program) -> Iterator[Site]:
    """Yield the calls that make an object of such a class, which other processes can do without."""
    known: dict[ClassInfo, bool] = {}
    for call, body, scope in program.calls():
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            continue
        for value in program.flow.values(call, scope):
            if value.kind != "instance" or value.site is not call:
                continue
            info: ClassInfo = value.ref
            if not info.external_bases() & CLIENTS_TO_DERIVE_FROM:
                continue
            if info not in known:
                known[info] = _only_logs(program, info)
            if known[info]:
                yield Site(scope.module, scope, body, call)


def _only_logs(program: Program, info: ClassInfo) -> bool:
    """Whether objects give nothing back: their methods return nothing, and nobody reads what they keep."""
    kept: set[str] = set()
    own: set[ast.AST] = set()
    for cls in info.mro():
        own |= set(walk(cls.facts.node))
        for method in cls.facts.methods.values():
            if method.yields or any(not is_none(item) for item in method.returns):
                return False
    for node in own:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            kept.add(node.attr)
    return not any(
        isinstance(node, ast.Attribute)
        and node not in own
        and node.attr in kept - _OF_CLIENTS
        and any(
            value.kind == "instance" and info in value.ref.mro() for value in program.flow.values(node.value, scope)
        )
        for node, _, scope in program.nodes()
    )
