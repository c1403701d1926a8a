"""Errors that a training step can end with on one process alone, by their own names."""

from __future__ import annotations

ALL_ERRORS = frozenset({"Exception", "BaseException"})
"""What catches any."""

ERRORS_OF_A_DEVICE = frozenset(
    {*ALL_ERRORS, "RuntimeError", "MemoryError", "OutOfMemoryError", "AcceleratorError", "CudaError"}
)
"""What catches that a device has no memory left, or has failed: for one a ``RuntimeError``."""

ENDS_PROCESS = frozenset({"sys.exit", "os._exit", "builtins.exit", "builtins.quit"})
"""What ends the process."""
