"""What is known about PyTorch code: the program model, the rewrites, the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amp_rules.plan.migration import migrate

__all__ = ["migrate"]


def __getattr__(name: str) -> Any:
    # The command line starts without LibCST; only a migration needs it.
    if name == "migrate":
        from amp_rules.plan.migration import migrate

        return migrate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
