"""No model is sharded."""

from __future__ import annotations

from typing import Any

from amp_runtime._core.left_out import refuse


def has_sharded_models() -> bool:
    """Whether a model that was sharded here is alive."""
    return False


def refuse_replaced(*_: Any) -> None:
    """Refuses parameters that a model had before it was sharded."""


refuse_replaced_together = refuse_for_rows = refuse_replaced


def refuse_settings(*_: Any) -> None:
    """Refuses shards.

    Raises:
        LeftOutError: always.
    """
    refuse("sharding of parameters over processes, for parallel='fsdp' or shard=True,")


refuse_keywords = refuse_model = shard = refuse_settings


def forget_all() -> None:
    """Forgets the sharded models."""
