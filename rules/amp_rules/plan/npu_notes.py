"""What asks for an NPU of Ascend, or for ``mps`` and never for CUDA: it is left as it is, and told.

An NPU is told once for each file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from amp_rules.plan.notes import NPU_LEFT, note
from amp_rules.plan.report import Note
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of

_PACKAGE = "torch_npu"
_METHOD = "npu"
_BACKEND = "hccl"
_ELSEWHERE = re.compile(r"cuda|accelerator|\bdevice['\"]|\bgpus?\b|\bxpu\b|\bnpu\b", re.IGNORECASE)
"""Words of a script that takes other devices too, or one that it is told."""


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


def mps_notes(modules: Iterable[Module]) -> Iterator[Note]:
    """Yield a note for a program whose only device beside the CPU is ``mps``, at the first place."""
    made: list[tuple[Module, ast.Call]] = []
    for module in modules:
        if _ELSEWHERE.search(module.source.text):
            return
        if "mps" not in module.source.text:
            continue
        names = names_of(module)
        calls = [node for node in module.nodes if isinstance(node, ast.Call)]
        made += [(module, call) for call in calls if "torch.device" in names.targets(call.func)]
    of_mps = [(module, call) for module, call in made if any(map(_is_mps, ast.walk(call)))]
    if of_mps:
        module, call = of_mps[0]
        is_asked = any("mps.is_" in item.source.text for item, _ in made)
        if not is_asked and len(call.args) == 1 and _is_mps(call.args[0]):
            told = "nothing can be put there on a machine with GPUs of CUDA, where the script ends with an error"
        else:
            told = "the script never asks for CUDA, and each process trains on the CPU where there are GPUs"
        yield note(
            NPU_LEFT,
            module,
            call,
            f"`{module.text(call)}`: {told}; no process group takes tensors on `mps`; take `amp.device()` for the "
            "device",
        )


def _is_mps(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "mps"


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
