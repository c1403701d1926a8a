"""Models and batches that each process puts on the current GPU, where nothing makes that another than GPU 0."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.devices import Devices
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.devices import CHOOSING, DEVICE

_CURRENT = ("cuda", "cuda:0", 0)


def one_device(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such place: all processes of a machine share that GPU there."""
    if _hides_gpus(own):
        return
    if own.program.calls_to(CHOOSING):
        yield from _without_number(own)
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
        if not (_may_be_trained(own, module, call) if is_model else _is_trained_on(own, module, call)):
            continue
        if own.reach(module, call) is not Reach.EVERY or own.is_of_first_alone(module, call):
            continue
        text = f"`{module.text(call)}` puts it on GPU 0 in every process of a machine"
        yield module, call, f"{text}: nothing chooses another, as `torch.cuda.set_device(local_rank)` above would"
        return


def _without_number(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where a model is wrapped on the way that is given no GPU, which is a launcher's.

    ``if args.gpu is not None:`` chooses it, and nothing asks for the local rank in its ``else``.
    """
    starts = Starts(own.program, own.joins)
    if any("local_rank" in module.source.text.lower() for module in own.program.flow.modules) or not starts.by_launcher:
        return
    devices = Devices(own.program)
    choosing = {site.node for site in own.program.calls_to(CHOOSING)}
    for site in own.wraps:
        assert isinstance(site.node, ast.Call)
        given = site.node.args[0] if site.node.args else None
        if given is None or keyword(site.node, "device_ids") is not None or site.module not in own.modules:
            continue
        path = blocks.path_of(given)
        where = blocks.place(site.module, site.statement)
        branch = where.parent
        if not isinstance(branch, ast.If) or not starts.is_direct(site):
            continue
        holds = site.statement in branch.body
        other = branch.orelse if holds else branch.body
        if not _asks_for_none(branch.test, holds=holds):
            continue
        if not any(node in choosing for item in other for node in walk(item)):
            continue
        for item in where.suite[: where.index + 1]:
            for call in walk(item):
                if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                    continue
                is_moved = call.func.attr in ("to", "cuda") and _goes_to_first(devices, call, site.scope)
                if is_moved and (call is given or (path is not None and blocks.path_of(call.func.value) == path)):
                    text = f"`{site.module.text(call)}` puts it on GPU 0 in every process that a launcher starts on a"
                    way = "machine: nothing reads `LOCAL_RANK` on this way; call `torch.cuda.set_device` with it above"
                    yield site.module, call, f"{text} {way}"
                    return


def _asks_for_none(test: ast.expr, *, holds: bool) -> bool:
    """Whether a branch is that of a number which is not given: ``args.gpu is None``."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not is_none(test.comparators[0]):
        return False
    return isinstance(test.ops[0], ast.Is if holds else ast.IsNot)


def _is_trained_on(own: OwnDdp, module: Module, call: ast.Call) -> bool:
    """Whether what is moved is of a loop that trains a wrapped model."""
    loop = next((item for item in blocks.enclosing(module, call) if isinstance(item, ast.For)), None)
    return bool(own.wraps) and loop is not None and own.program.runs_backward(loop)


def _may_be_trained(own: OwnDdp, module: Module, call: ast.Call) -> bool:
    """Whether a model that is moved may be one that trains: not a variable of a function that only runs it."""
    body = blocks.body_of(module, call)
    assert isinstance(call.func, ast.Attribute)
    held = call.func.value
    if not isinstance(held, ast.Name) or isinstance(body, ast.Module):
        return True
    parts = blocks.own_parts(body)
    if any(map(own.program.runs_backward, parts)) or any(map(own.program.runs_step, parts)):
        return True
    info = own.program.function_of(body)
    given = info is not None and held.id in info.parameters
    kept = any(
        isinstance(node, (ast.Return, ast.Yield)) or (isinstance(node, ast.Assign) and _is_kept(node, held.id))
        for node in blocks.walk_body(body)
        if held.id in blocks.reads(node)
    )
    return given or kept


def _is_kept(node: ast.Assign, name: str) -> bool:
    """``self.model = model``"""
    return name in blocks.reads(node.value) and any(isinstance(item, ast.Attribute) for item in node.targets)


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
