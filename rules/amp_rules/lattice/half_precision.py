"""What becomes of an operation in half precision: asked by the rules of the linter and by the rewrites.

Autocast's tables (:mod:`amp_rules.torch.casts`), the operations without half kernels
(:mod:`amp_rules.torch.half_precision`) and those that write numbers (:mod:`amp_rules.torch.written_numbers`) give one
answer here, for the operation's canonical name as the linter has it;
:func:`amp_rules.lattice.operation_names.function_named` and ``layer_named`` find that for a qualified name of torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from amp_rules.lattice.mode import Device, Mode
from amp_rules.torch import casts
from amp_rules.torch.half_precision import COMPLEX_MAKERS, FOURIER, NO_KERNEL, NO_KERNEL_ANYWHERE
from amp_rules.torch.written_numbers import WRITTEN, Outcome

Fate = Literal["lowered", "float32", "widest", "refused", "no kernel", "as given"]
"""What an operation does with a half tensor.

``lowered``, ``float32``, ``widest``: autocast runs it in half whatever it is given, in float32, or in the widest type
of its tensors; ``refused``: autocast raises; ``no kernel``: it raises for want of a half kernel; ``as given``: it runs
in the type of its tensors.
"""


class Casts:
    """Autocast's table for a device.

    Attributes:
        lower: the operations that it runs in half.
        float32: those that it runs in float32.
        widest: those that it runs in the widest type of their tensors.
        refused: those for which it raises.
    """

    def __init__(self, device: Device) -> None:
        cuda = device == "cuda"
        self.lower = casts.CUDA_LOWER if cuda else casts.CPU_LOWER
        self.float32 = casts.CUDA_FLOAT32 if cuda else casts.CPU_FLOAT32
        self.widest = casts.CUDA_WIDEST if cuda else casts.CPU_WIDEST
        self.refused = casts.CUDA_REFUSED if cuda else casts.CPU_REFUSED


_table = lru_cache(maxsize=2)(Casts)


def fate(operation: str, mode: Mode, autocast: bool) -> Fate:
    """What an operation does with a half tensor.

    Args:
        operation: its canonical name.
        mode: whose device and half type are meant.
        autocast: whether autocast is on where it runs.
    """
    table = _table(mode.device)
    if autocast:
        if operation in table.refused:
            return "refused"
        if operation in table.float32:
            # Autocast casts before the kernel is chosen: ``cdist`` runs though it has no half kernel.
            return "float32"
    if operation in NO_KERNEL[mode.device, mode.dtype]:
        return "no kernel"
    if autocast and operation in table.lower:
        return "lowered"
    return "widest" if autocast and operation in table.widest else "as given"


def why_not(operation: str, mode: Mode) -> str:
    """What to say of an operation that has no half kernel."""
    if operation in FOURIER and mode.device == "cuda":
        if mode.fp16:
            return "takes float16 only in sizes that are powers of two"
        return "takes bfloat16 in the newest releases of torch alone"
    if operation in COMPLEX_MAKERS and mode.fp16:
        return "makes complex32 of float16, for which torch has few operations"
    if operation in NO_KERNEL_ANYWHERE:
        return "has no half precision on any device"
    return f"has no {'float16' if mode.fp16 else 'bfloat16'} on {'CUDA' if mode.device == 'cuda' else 'the CPU'}"


def written_number(operation: str, mode: Mode) -> Outcome | None:
    """What becomes of a number that an operation writes into a tensor which cannot hold it; None of any other one."""
    found = WRITTEN.get(operation)
    return None if found is None else found.cuda if mode.device == "cuda" else found.cpu
