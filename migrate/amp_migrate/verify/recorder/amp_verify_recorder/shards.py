"""Tensors that are shared out over the processes, of which each looks at its own part."""

from __future__ import annotations

import sys
from typing import Any


def is_shared_out(tensor: Any) -> bool:
    """Whether a tensor is one of torch's DTensors."""
    return hasattr(tensor, "to_local")


def holds_rows(parameter: Any) -> bool:
    """Whether a parameter is this process's rows of a table of ``amp.shard_embedding``."""
    rows = sys.modules.get("amp_runtime._core.rows")
    return rows is not None and rows.table_of(parameter) is not None


def own_part(tensor: Any) -> Any:
    """This process's part of a tensor, or the tensor: putting it together would take all processes at once."""
    return tensor.to_local() if is_shared_out(tensor) else tensor
