"""Models and batches that each process puts on the current GPU, where nothing makes that another than GPU 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.devices import Devices
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.torch.devices import CHOOSING, DEVICE

_CURRENT = ("cuda", "cuda:0", 0)


def one_device(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such place: all processes of a machine share that GPU there."""
    if own.program.calls_to(CHOOSING) or _hides_gpus(own):
        return
    devices = Devices(own.program)
    found = [
        (call, scope.module, bool(own.program.roles.modules(call.func.value, scope)))
        for call, _, scope in own.program.calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("to", "cuda")
        and scope.module in own.modules
        and _goes_to_first(devices, call, scope)
    ]
    # Before batches, the model that they go through.
    for call, module, is_model in sorted(found, key=lambda item: not item[2]):
        if not is_model and not _is_trained_on(own, module, call):
            continue
        if own.reach(module, call) is not Reach.EVERY or own.is_of_first_alone(module, call):
            continue
        text = f"`{module.text(call)}` puts it on GPU 0 in every process of a machine"
        yield module, call, f"{text}: nothing chooses another, as `torch.cuda.set_device(local_rank)` above would"
        return


def _is_trained_on(own: OwnDdp, module: Module, call: ast.Call) -> bool:
    """Whether what is moved is of a loop that trains a wrapped model."""
    loop = next((item for item in blocks.enclosing(module, call) if isinstance(item, ast.For)), None)
    return bool(own.wraps) and loop is not None and own.program.runs_backward(loop)


def _goes_to_first(devices: Devices, call: ast.Call, scope: Scope) -> bool:
    assert isinstance(call.func, ast.Attribute)
    if not call.args:
        return call.func.attr == "cuda" and not call.keywords
    return _is_first(devices, call.args[0], scope)


def _is_first(devices: Devices, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is the current GPU, or the first, for certain."""
    if isinstance(node, ast.Constant):
        return node.value in _CURRENT and node.value is not False
    if isinstance(node, ast.IfExp):
        # ``"cuda" if torch.cuda.is_available() else "cpu"``
        return _is_first(devices, node.body, scope) and literal(node.orelse) in ("cpu", None)
    if isinstance(node, ast.Call):
        is_device = DEVICE in devices.program.callee_names(node, scope)
        return is_device and len(node.args) == 1 and not node.keywords and _is_first(devices, node.args[0], scope)
    if not isinstance(node, (ast.Name, ast.Attribute)) or devices.is_option(node, scope):
        return False
    origins = devices.origins(node, scope)
    return bool(origins) and all(
        not isinstance(item.expression, (ast.Name, ast.Attribute)) and _is_first(devices, item.expression, item.scope)
        for item in origins or ()
    )


def _hides_gpus(own: OwnDdp) -> bool:
    """Whether something chooses the GPUs that a process sees."""
    return any("CUDA_VISIBLE_DEVICES" in module.source.text for module in own.program.flow.modules)
