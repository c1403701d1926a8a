"""Whether a program may use a GPU: what never does joins over gloo, on a machine with GPUs, too."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.source.modules import Module

_NAMES = ("cuda", "gpu", "accelerator")


def may_use_gpu(program: Program) -> bool:
    """Whether the program names a GPU, or takes a device from where it is not known here."""
    return any(_names_gpu(module) for module in program.flow.modules)


def _names_gpu(module: Module) -> bool:
    known: bool | None = module.kept.get("names gpu")
    if known is None:
        known = module.kept["names gpu"] = any(map(_is_of_gpu, module.nodes))
    return known


def _is_of_gpu(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("device", "to"):
        # ``torch.device(args.device)``: what it is stands on the command line.
        of_device = node.func.attr == "device" and any(not isinstance(item, ast.Constant) for item in node.args)
        return of_device or any(isinstance(item, ast.Attribute) and item.attr == "device" for item in node.args)
    text = ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        if text.lower().endswith("device"):
            return True  # ``config["device"]``, ``add_argument("--device")``
    elif isinstance(node, ast.Attribute):
        text = node.attr
    elif isinstance(node, ast.Name):
        text = node.id
    return any(name in text.lower() for name in _NAMES)
