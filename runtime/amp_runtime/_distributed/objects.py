"""Picklable values that the ranks send each other.

As ``broadcast_object_list`` and ``all_gather_object`` of torch, which need NumPy: torch installs without it.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

from amp_runtime._distributed.passes import end_passes


def broadcast_object(value: Any, src: int, device: torch.device, group: Any = None) -> Any:
    """Rank ``src``'s picklable ``value`` on every rank. A collective.

    Args:
        value: of the other ranks it is not read.
        src: the rank among all that sends.
        device: one that the process group serves.
        group: the process group; all ranks by default.
    """
    end_passes()
    sends = dist.get_rank() == src
    sent = bytearray(pickle.dumps(value)) if sends else bytearray()
    size = torch.tensor([len(sent)], device=device)
    dist.broadcast(size, src=src, group=group)
    contents = torch.frombuffer(sent if sends else bytearray(int(size)), dtype=torch.uint8).to(device)
    dist.broadcast(contents, src=src, group=group)
    return value if sends else pickle.loads(bytes_of(contents))


def all_objects(value: Any, device: torch.device, group: Any = None) -> list[Any]:
    """Every rank's picklable ``value``, by rank. A collective.

    Args:
        value: this rank's.
        device: one that the process group serves.
        group: the process group; all ranks by default.
    """
    end_passes()
    sent = pickle.dumps(value)
    size = torch.tensor([len(sent)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    most = max(map(int, sizes))
    contents = torch.frombuffer(bytearray(sent.ljust(most, b"\0")), dtype=torch.uint8).to(device)
    received = [torch.empty_like(contents) for _ in sizes]
    dist.all_gather(received, contents, group=group)
    return [pickle.loads(bytes_of(part[: int(length)])) for part, length in zip(received, sizes, strict=True)]


def bytes_of(numbers: torch.Tensor) -> bytearray:
    """The contents of a uint8 vector on any device, without NumPy."""
    contents = bytearray(numbers.numel())
    torch.frombuffer(contents, dtype=torch.uint8).copy_(numbers)
    return contents
