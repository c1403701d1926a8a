"""Objects that only the main process needs: loggers, writers, progress bars."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from amp_runtime._core.context import context

T = TypeVar("T")


def on_main(factory: Callable[..., T]) -> Callable[..., T]:
    """Makes an object on rank 0 only: ``writer = amp.on_main(SummaryWriter)(log_dir)``.

    On other ranks the factory is not called, and a stand-in comes back that accepts any attribute, call, item
    and ``with``, and does nothing. The factory is looked at when it is called, so it may be wrapped before
    ``amp.init``.

    Args:
        factory: a class or function that makes the object.

    Returns:
        A function with the factory's arguments, which gives the object or its stand-in.

    Raises:
        TypeError: ``factory`` cannot be called.
    """
    if not callable(factory):
        raise TypeError(f"amp.on_main got {factory!r}; give it what makes the object, as in amp.on_main(Writer)(path)")

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> T:
        return factory(*args, **kwargs) if context.rank == 0 else cast(T, Nothing())

    return make


class Nothing:
    """Stands in for an object of the main process.

    It is true, so that ``if writer:`` is the same on all ranks.
    """

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # copying, pickling and arrays ask for protocols that are not here
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        pass

    def __delattr__(self, name: str) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self

    def __getitem__(self, key: Any) -> Nothing:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "<nothing on this rank>"
