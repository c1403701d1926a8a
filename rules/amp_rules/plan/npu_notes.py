"""What asks for an NPU of Ascend: it is left as it is, and told once for each file."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.plan.notes import NPU_LEFT, note
from amp_rules.plan.report import Note
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of

_PACKAGE = "torch_npu"
_METHOD = "npu"
_BACKEND = "hccl"


def npu_notes(modules: Iterable[Module]) -> Iterator[Note]:
    """Yield a note for each file that asks for an NPU, at the first place after its imports."""
    for module in modules:
        places = sorted(_places(module), key=lambda node: (node.lineno, node.col_offset))
        if places:
            more = f" ({len(places) - 1} more in this file)" if len(places) > 1 else ""
            yield note(
                NPU_LEFT,
                module,
                places[0],
                f"`{module.text(places[0])}` asks for an NPU and stays{more}; the runtime trains on CUDA and on the "
                "CPU: take `amp.device()` for the device, and `amp.init(ddp=True)` for the process group",
            )


def _places(module: Module) -> Iterator[ast.expr]:
    # Most files have no such word, and are not looked through.
    if _METHOD not in module.source.text and _BACKEND not in module.source.text:
        return
    names = names_of(module)
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.split(":")[0] in (_METHOD, _BACKEND) and isinstance(
                module.parents[node], (ast.Call, ast.keyword)
            ):
                yield node
        elif isinstance(node, (ast.Attribute, ast.Name)) and not isinstance(module.parents[node], ast.Attribute):
            # The longest path is told.
            of_npus = any(target.startswith((f"{_PACKAGE}.", "torch.npu.")) for target in names.targets(node))
            if of_npus or _is_moved(module, node):
                yield node


def _is_moved(module: Module, node: ast.expr) -> bool:
    """``model.npu()``."""
    call = module.parents[node]
    return isinstance(node, ast.Attribute) and node.attr == _METHOD and isinstance(call, ast.Call) and call.func is node
