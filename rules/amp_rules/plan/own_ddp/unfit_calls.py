"""Calls of the several processes that Python refuses: the function takes no argument of such a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name


def unfit_calls(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield them, where several processes alone come by: a run of one process has not shown them."""
    for call, body, scope in own.program.calls():
        module = scope.module
        if not call.keywords or module not in own.modules or body in own.uncalled:
            continue
        if own.several_alone(module, call) is not True:
            continue
        refused = _refused_by_all(own, call)
        if refused:
            names = ", ".join(f"`{name}`" for name in refused)
            text = f"`{module.text(call.func)}` takes no {names}: this call fails"
            where = "" if own.is_several_always else " in several processes"
            yield module, call, f"{text}{where}, and what it gives was not looked at"


def is_called_in_vain(own: OwnDdp, body: ast.AST) -> bool:
    """Whether the calls that several processes make of a function all fail."""
    info = own.program.function_of(body)
    callers = own.program.flow.callers(info) if info is not None else []
    several = [item.call for item in callers if own.several_alone(item.scope.module, item.call) is not False]
    return info is not None and bool(several) and all(_refused(info, call) for call in several)


def _refused_by_all(own: OwnDdp, call: ast.Call) -> list[str]:
    """The keywords that none of the functions takes which a call may run."""
    callees = list(own.program.flow.callees(call))
    found = [_refused(info, call) for info in callees]
    return found[0] if found and all(item == found[0] for item in found) else []


def _refused(info: FunctionFacts, call: ast.Call) -> list[str]:
    """The keywords of a call that a function does not take; a decorator may take any.

    ``Net.from_pretrained`` of a library comes to ``__init__``, and hands on what it likes.
    """
    node = info.node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.args.kwarg or node.decorator_list:
        return []
    if info.name != last_name(call.func):
        return []
    taken = {item.arg for item in [*node.args.args, *node.args.kwonlyargs]}
    return [item.arg for item in call.keywords if item.arg is not None and item.arg not in taken]
