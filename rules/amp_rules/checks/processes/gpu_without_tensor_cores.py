"""Half precision for speed on a GPU that has no Tensor Cores."""

from __future__ import annotations

import ast
import re

from amp_rules.checks.common.calls import calls_named
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts

_WITHOUT = re.compile(
    r"\b(Tesla[ -]?)?(P100|P40|K80|K40|M60|M40|GTX[ -]?(?:9|10|16)[0-9]0(?:[ -]?Ti)?|TITAN[ -]?Xp?|Pascal GPUs?)\b"
)
"""GPUs before Volta, and those of Turing that were made without them."""
_WITH = re.compile(
    r"\b([VATHB]100|[AL]40S?|T4|A10G?|L4|H200|RTX|TITAN[ -]?(V|RTX)|Volta|Turing|Ampere|Hopper|Blackwell)\b"
)


class GpuWithoutTensorCores(Check):
    """Half precision for speed on a GPU that has no Tensor Cores.

    ## What it does

    Finds autocast and loss scaling in a file whose comments or texts name a GPU without Tensor Cores (P100, GTX 1080,
    M40) and none that has some. It rests on what the text says of the GPU, so it is a hint.

    ## Why

    Tensor Cores came with Volta: compute capability 7.0. A GTX 1080 computes float16 at 1/64 of its float32 rate, so
    cuBLAS converts to float32 and back: a step takes as long as in float32, and the conversions on top. The GTX 16
    series has capability 7.5 and no Tensor Cores. Memory is what half precision saves there.

    ## Example

        # Tesla P100
        scaler = torch.cuda.amp.GradScaler()

    ## Use instead

        # Tesla P100
        scaler = torch.cuda.amp.GradScaler(enabled=torch.cuda.get_device_capability() >= (7, 0))

    ## When it is silent

    When the file names another GPU as well, when the capability is compared with something, and when nothing of mixed
    precision is called.

    ## Source

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions
    """

    code = "AMP956"
    name = "gpu-without-tensor-cores"
    severity = "info"
    message = "Half precision is used on a GPU without Tensor Cores."
    advice = "Measure it there: without Tensor Cores half precision saves memory and no time."
    triggers = ("P100", "P40", "K80", "K40", "M60", "M40", "GTX", "TITAN X", "Pascal GPU")

    def applies(self, mode: Mode) -> bool:
        """CPUs have none either, and nobody expects it."""
        return mode.device == "cuda"

    def visit_module(self, file: LintedFile) -> None:
        """Look for what the text says of the GPU, and for mixed precision."""
        module = file.module
        named = _named(module)
        if named is None or _asks_for_capability(module):
            return
        for call in calls_named(module, ("GradScaler", "autocast")):
            if (module.dotted(call.func) or "").startswith(("torch.cuda.amp.", "torch.amp.", "torch.autocast")):
                message = f"The code names `{named}`, which has no Tensor Cores: half precision is no faster there"
                self.report_in(file, call, message)
                return


def _named(module: ModuleFacts) -> str | None:
    """The GPU that a comment or a text names, where no other one is named."""
    rows = [row.partition("#")[2] for row in module.module.lines if "#" in row]
    rows += [
        item.value for item in module.module.nodes if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
    if any(_WITH.search(row) for row in rows):
        return None
    return next((found[0] for row in rows if (found := _WITHOUT.search(row))), None)


def _asks_for_capability(module: ModuleFacts) -> bool:
    return any(
        isinstance(item, ast.Compare)
        for call in module.index.named.get("get_device_capability", ())
        for item in module.index.ancestors(call)
    )
