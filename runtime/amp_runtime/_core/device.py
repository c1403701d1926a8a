"""The device of this process."""

from __future__ import annotations

import torch

from amp_runtime._core.context import context
from amp_runtime._distributed import launch


def device(preferred: torch.device | str | int | None = None) -> torch.device:
    """The device to train on.

    Alone, exactly the preferred one. In several processes this rank's own GPU, also where the script names
    ``cuda:0``; the CPU if the script prefers it or there is no CUDA. Before ``amp.init``, as in a constant of a module,
    the launcher's environment tells which rank this is.

    Args:
        preferred: what the script would use alone. ``None`` is CUDA where there is one, else the CPU. A negative
            number is given back as it is: ``torch.cuda.set_device(-1)`` does nothing.

    Raises:
        RuntimeError: ``preferred`` is a string that torch does not know.
    """
    if isinstance(preferred, int) and preferred < 0:
        return preferred  # type: ignore[return-value]  # no device of torch has such an index
    if preferred is None:
        wanted = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        wanted = preferred if isinstance(preferred, torch.device) else torch.device(preferred)
    if not _is_distributed() or wanted.type not in ("cpu", "cuda"):
        return wanted
    if wanted.type == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", _local_rank() % torch.cuda.device_count())


def _is_distributed() -> bool:
    return context.distributed if context.initialised else launch.launched_world_size() > 1


def _local_rank() -> int:
    return context.local_rank if context.initialised else launch.announced_local_rank() or 0


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: what Python does now is not done again when the graph is replayed."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())
