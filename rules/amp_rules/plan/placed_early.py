"""Tensors that a file places on plain CUDA when it is imported: the process has not chosen its GPU by then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.statements import is_under_main_guard
from amp_rules.plan.arguments_in_reach import Place
from amp_rules.roles.device_origins import DeviceUse
from amp_rules.roles.devices import Devices
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_OF_TORCH = ("torch.", "torchvision.")
"""Libraries whose functions give tensors and models."""


def early_uses(devices: Devices, start: Place | None) -> Iterator[tuple[DeviceUse, DeviceUse]]:
    """Yield uses above the start that name plain CUDA, each with the place where the device is written.

    Args:
        devices: the devices of the program.
        start: where the processes get their GPUs; None where that is not known.
    """
    for use in devices.uses:
        if use.is_constructor or use.chooses or not _is_early(use.module, use.node, start):
            continue
        for origin in devices.origins(use.expression, use.scope) or ():
            if devices.kind(origin.expression, origin.scope) == "plain" and _names_cuda(origin.expression):
                if not _is_compared(devices, origin):
                    yield use, origin


def early_calls(devices: Devices, start: Place | None) -> Iterator[Site]:
    """Yield ``torch.tensor(...).cuda()`` above the start."""
    for call, body, scope in devices.program.calls():
        func = call.func
        if not (isinstance(func, ast.Attribute) and func.attr == "cuda") or call.args or call.keywords:
            continue
        site = Site(scope.module, scope, body, call)
        if _is_early(site.module, call, start) and _is_of_torch(devices, func.value, site):
            yield site


def _is_of_torch(devices: Devices, node: ast.expr, site: Site) -> bool:
    """Whether a function of torch made what is moved, or a class of the script's models; or it is a part of such."""
    values = devices.program.flow.values(node, site.scope)
    if values and all(
        (value.kind == "object" and str(value.ref).startswith(_OF_TORCH)) or is_module(value) for value in values
    ):
        return True
    whole = node
    while isinstance(whole, (ast.Attribute, ast.Subscript)):
        whole = whole.value  # ``vgg19(pretrained=True).features[:15]``
    names = devices.program.callee_names(whole, site.scope) if isinstance(whole, ast.Call) else ()
    return whole is not node and bool(names) and all(name.startswith(_OF_TORCH) for name in names)


def _is_early(module: Module, node: ast.AST, start: Place | None) -> bool:
    """Whether a node of a file's own body runs above the start: on import, or in the script above the place."""
    if not isinstance(blocks.body_of(module, node), ast.Module) or module.cells:
        return False
    if is_under_main_guard(module, node):
        return False
    if not module.is_entry:
        return True
    if start is None or start.module is not module:
        return False
    top = blocks.top_statement(module, start.statement)
    if top is start.statement:
        return getattr(node, "lineno", 0) < top.lineno
    # The start stands in a function, or under the guard: both run below the definitions of the file.
    return isinstance(top, (ast.FunctionDef, ast.AsyncFunctionDef)) or getattr(node, "lineno", 0) < top.lineno


def _is_compared(devices: Devices, origin: DeviceUse) -> bool:
    """Whether the script compares the device that is assigned: one with an index is another."""
    statement = origin.module.parents.get(origin.node)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    key = devices.program.flow.key(blocks.reading(target), origin.scope) if isinstance(target, ast.expr) else None
    loads = devices.loads(key) if key is not None else ()
    return any(isinstance(scope.module.parents.get(node), ast.Compare) for node, scope in loads)


def _names_cuda(node: ast.expr) -> bool:
    """``"cuda"``, ``torch.device("cuda" if torch.cuda.is_available() else "cpu")``."""
    return any(isinstance(part, ast.Constant) and part.value == "cuda" for part in walk(node))
