"""``apex.parallel.LARC``."""

from typing import Any


class LARC:
    """Refuses: torch has no such optimizer."""

    def __init__(self, *args: Any, **more: Any) -> None:
        raise NotImplementedError("the stand-in for Apex has no LARC; install Apex to compare with it")
