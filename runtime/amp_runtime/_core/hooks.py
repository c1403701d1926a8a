"""Hooks on the modules of a prepared model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any


class Hook:
    """A hook that a copy of the model keeps, and a pickled model does not.

    So a saved model can be loaded without this package, and prepared again with it.

    Attributes:
        run: the function that is called.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return self

    def __reduce__(self) -> Any:
        # In the standard library, takes any arguments and returns None: as a hook of any kind it does nothing.
        return getattr, (nullcontext(), "__exit__")


def has_hook(hooks: dict[int, Any], run: Callable[..., Any]) -> bool:
    """Whether one of a module's ``hooks`` is a :class:`Hook` that calls ``run``."""
    return any(isinstance(hook, Hook) and hook.run is run for hook in hooks.values())


def remove_hooks(hooks: dict[int, Any], runs: tuple[Any, ...]) -> None:
    """Removes those of a module's ``hooks`` that call one of ``runs``."""
    for key, hook in list(hooks.items()):
        if isinstance(hook, Hook) and hook.run in runs:
            del hooks[key]
