"""What the devices of all ranks have in half precision."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist

from amp_runtime._core import capabilities
from amp_runtime._core.context import context
from amp_runtime._distributed.group import flag_device
from amp_runtime._precision.lacking import lacking, note_emulation


def try_operations(device: torch.device) -> None:
    """Has the operations tried that a kind of device may lack in half, and all ranks take the same answers.

    In several processes it is a collective: what one rank lacks, no rank uses. Weights of different types could not be
    averaged, and ranks that scale their losses would wait for those that do not.

    Args:
        device: where they are tried: the model's. Its kind may differ between the ranks.
    """
    kind = device.type
    # A trial on the current GPU instead would make a context there, which takes memory, perhaps another process's.
    with torch.cuda.device(device) if kind == "cuda" else nullcontext():
        lacking(kind, context.half_dtype(kind))
    if context.distributed:
        _agree(kind)
    if kind != "cpu" or not torch.cuda.is_available():
        # A model that is on the CPU here may be moved below; where it stays, its first region tells.
        note_emulation(kind, context.half_dtype(kind))


def _agree(kind: str) -> None:
    # Every rank takes part in both reductions whatever it knows already, so that none waits for one that does not come.
    everywhere = _minimum([int(context.half_dtype(kind) is torch.bfloat16)])
    if context.dtype_name == "auto":
        context.choose_half(kind, torch.bfloat16 if everywhere[0] else torch.float16)
    dtype = context.half_dtype(kind)
    names, missing = list(capabilities.TRIALS), lacking(kind, dtype)
    there = _minimum([int(name not in missing) for name in names])
    capabilities.agree(kind, dtype, [name for name, has_it in zip(names, there, strict=True) if not has_it])


def _minimum(answers: list[int]) -> list[int]:
    box = torch.tensor(answers, dtype=torch.int32, device=flag_device())
    dist.all_reduce(box, op=dist.ReduceOp.MIN)
    found: list[int] = box.tolist()
    return found
