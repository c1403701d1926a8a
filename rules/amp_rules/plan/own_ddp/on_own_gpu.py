"""Tensors that a script puts on the GPU of its process itself, by its rank."""

from __future__ import annotations

import ast

from amp_rules.plan.own_ddp.local_ranks import gpu_in_name, gpu_named
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.rank_values import RankValues
from amp_rules.roles.devices import Devices
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope
from amp_rules.torch.devices import DEVICE, MOVING


def is_on_own_gpu(own: OwnDdp, name: str, site: Site) -> bool:
    """Whether a variable of a function is certainly such a tensor: ``total = torch.zeros(1, device=device)``.

    What is added to it in place leaves it there.
    """
    given = [
        value
        for node in own.program.nodes_of(site.body)
        if isinstance(node, ast.Assign)
        for item in node.targets
        for target, value in blocks.unpacked(item, node.value)
        if blocks.path_of(target) == name
    ]
    return bool(given) and all(_is_put(own, value, site.scope) for value in given)


def _is_put(own: OwnDdp, value: ast.expr | None, scope: Scope) -> bool:
    """``torch.zeros(1, device=device)``, ``torch.zeros(1).to(device)``, ``torch.zeros(1).cuda(rank)``"""
    if not isinstance(value, ast.Call):
        return False
    moves = isinstance(value.func, ast.Attribute) and value.func.attr in MOVING and bool(value.args)
    if not moves and not any(name.startswith("torch.") for name in own.program.callee_names(value, scope)):
        return False
    device = value.args[0] if moves else keyword(value, "device")
    return device is not None and _is_own_gpu(own, device, scope)


def _is_own_gpu(own: OwnDdp, device: ast.expr, scope: Scope) -> bool:
    devices = Devices(own.program)
    origins = devices.origins(device, scope) if isinstance(device, (ast.Name, ast.Attribute)) else None
    found = [(item.expression, item.scope) for item in origins] if origins else [(device, scope)]
    return all(_names_own(own, node, where) for node, where in found)


def _names_own(own: OwnDdp, node: ast.expr, scope: Scope) -> bool:
    """``torch.device("cuda", rank)``, ``f"cuda:{rank}"``, ``rank``"""
    is_device = isinstance(node, ast.Call) and DEVICE in own.program.callee_names(node, scope)
    given = gpu_named(node) if is_device and isinstance(node, ast.Call) else gpu_in_name(node)
    if is_device and isinstance(node, ast.Call) and given is None and len(node.args) == 1:
        given = node.args[0]  # ``torch.device(rank)``
    return RankValues(own.program).of(given if given is not None else node, scope) is not None
