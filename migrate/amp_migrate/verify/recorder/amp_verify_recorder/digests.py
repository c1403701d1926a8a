"""Bytes and digests of tensors."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

from .shards import own_part

# Digests cost time: of larger batches nothing is noted, of longer rows evenly spread numbers and the sum of all bits.
_LARGEST, _ROWS, _LONGEST = 1 << 28, 4096, 256
_PARTS, _NESTED = 8, 3


def bytes_of(torch: Any, tensor: Any) -> bytes:
    """The numbers of a tensor, halves as float32; not through numpy, which may be missing."""
    data = own_part(tensor.detach()).cpu().contiguous().reshape(-1)
    data = data.float() if data.dtype in (torch.float16, torch.bfloat16) else data
    return ctypes.string_at(data.data_ptr(), data.numel() * data.element_size())


def contents(torch: Any, batch: Any) -> list[str]:
    """A digest of each sample of a batch: of the rows of all tensors in it that have one for each sample."""
    tensors = _by_sample(torch, batch)
    if not tensors or sum(tensor.numel() * tensor.element_size() for tensor in tensors) > _LARGEST:
        return []
    count = len(tensors[0])
    rows = [hashlib.blake2b(digest_size=8) for _ in range(count)]
    with torch.no_grad():
        for tensor in tensors:
            data = _as_rows(torch, tensor.reshape(count, -1))
            length = len(data) // count
            for number, row in enumerate(rows):
                row.update(data[number * length : (number + 1) * length])
    return [row.hexdigest() for row in rows]


def labels(torch: Any, batch: Any) -> list[str]:
    """The whole numbers of which a batch has one for each sample, as labels are; several with commas between."""
    columns = [
        tensor.reshape(-1).tolist()
        for tensor in _by_sample(torch, batch)
        if tensor.numel() == len(tensor) and not (tensor.is_floating_point() or tensor.is_complex())
    ]
    return [",".join(str(int(number)) for number in row) for row in zip(*columns, strict=True)]


def _by_sample(torch: Any, batch: Any) -> list[Any]:
    """The tensors in a batch that have a row for each sample."""
    tensors = [
        part.detach()
        for part in tensors_in(torch, batch)
        if part.device.type == "cpu" and part.layout is torch.strided and part.dim()
    ]
    if not tensors or not 0 < len(tensors[0]) <= _ROWS:
        return []
    return [tensor for tensor in tensors if len(tensor) == len(tensors[0])]


def _as_rows(torch: Any, rows: Any) -> bytes:
    """The bytes of a matrix, or of a part of each row and of the sum of its bits, which is exact in any order."""
    if rows.is_complex():
        rows = torch.view_as_real(rows).reshape(len(rows), -1)
    if rows.shape[1] <= _LONGEST:
        return bytes_of(torch, rows)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = rows.contiguous().view(kinds[rows.element_size()])
    part = bits[:, :: -(-rows.shape[1] // _LONGEST)].to(torch.int64)
    return bytes_of(torch, torch.cat([part, bits.sum(1, keepdim=True, dtype=torch.int64)], dim=1))


def tensors_in(torch: Any, batch: Any, depth: int = _NESTED) -> list[Any]:
    """The first few tensors in lists, tuples and dicts, so deep inside each other."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not depth or not isinstance(parts, (list, tuple)):
        return []
    return [tensor for part in parts[:_PARTS] for tensor in tensors_in(torch, part, depth - 1)][:_PARTS]
