"""Stands in for Apex's kernels; ``apex.multi_tensor_apply``, which calls them, says that they are not there."""

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: object) -> NoReturn:
        raise NotImplementedError(f"amp_C.{name} needs Apex")

    return refuse
