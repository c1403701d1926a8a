"""Objects that only the main process needs: loggers, writers, progress bars."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from amp_runtime._core.context import context
from amp_runtime._core.randomness import random_state_with_gpu, set_random_state_with_gpu
from amp_runtime._distributed.group import from_main_process, is_main_process

_PARAMETERS_OF_OPEN = ("file", "mode", "buffering", "encoding", "errors", "newline", "closefd", "opener")

_PARAMETERS_OF_ADD_FIGURE = ("tag", "figure", "global_step", "close", "walltime")

_FOLDERS = ("log_dir", "logdir")
_PATH = (str, os.PathLike)

T = TypeVar("T")


def on_main(factory: Callable[..., T], *, share_folder: bool = False) -> Callable[..., T]:
    """Makes an object on rank 0 only: ``writer = amp.on_main(SummaryWriter)(log_dir)``.

    On other ranks the factory is not called, and a stand-in comes back that accepts any attribute, call, item
    and ``with``, and does nothing; for ``open`` it is a file that keeps nothing, for a handler of ``logging`` one that
    does not log. The factory is looked at when it is called, so it may be wrapped before ``amp.init``.

    Args:
        factory: a class or function that makes the object.
        share_folder: for a writer of TensorBoard that makes up its folder, and is asked for it on all ranks: the
            stand-in tells the folder of rank 0's writer. The call of the factory is then a collective, after
            ``amp.init``: every rank must come to it.

    Returns:
        A function with the factory's arguments, which gives the object or its stand-in.

    Raises:
        TypeError: ``factory`` cannot be called.
        RuntimeError: a folder is to be shared before ``amp.init``.
    """
    if not callable(factory):
        raise TypeError(f"amp.on_main got {factory!r}; give it what makes the object, as in amp.on_main(Writer)(path)")

    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> T:
        if share_folder and context.distributed:
            return _made_and_told(make_alone, args, kwargs)
        if share_folder and not is_main_process():
            raise RuntimeError("amp.on_main(..., share_folder=True)(...) came before amp.init; call amp.init first")
        return make_alone(*args, **kwargs)

    def make_alone(*args: Any, **kwargs: Any) -> T:
        if not is_main_process():
            return cast(T, _stand_in(factory, args, kwargs))
        if not context.distributed:
            return factory(*args, **kwargs)
        state = random_state_with_gpu()
        try:
            return factory(*args, **kwargs)
        finally:
            set_random_state_with_gpu(state)  # what rank 0 draws alone must not lead it away from the others

    return make


def _made_and_told(make: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    """The object, or a stand-in that tells the folder of rank 0's writer."""
    if not is_main_process():
        folder = from_main_process(None)
        return make(*args, **kwargs) if folder is None else cast(T, Nothing(folder))
    folder = None
    try:
        made = make(*args, **kwargs)
        folder = next((told for name in _FOLDERS if isinstance(told := getattr(made, name, None), _PATH)), None)
        return made
    finally:
        from_main_process(folder)  # where the factory fails, too: the others wait for it


def _stand_in(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What other ranks get: something of the same kind where others of the script insist on one."""
    if factory is open:
        options = {"file": None, **dict(zip(_PARAMETERS_OF_OPEN, args, strict=False)), **kwargs}
        mode = str(options.get("mode", "r")).replace("x", "w")
        return open(**{**options, "file": os.devnull, "mode": mode, "opener": None, "closefd": True})
    if isinstance(factory, type) and issubclass(factory, logging.Handler):
        return logging.NullHandler()
    return Nothing(_folder_given(factory, args, kwargs))


def _folder_given(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The folder that a writer of TensorBoard is given, which scripts ask it for on all ranks; None without."""
    try:
        given = inspect.signature(factory).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    return next((given[name] for name in _FOLDERS if given.get(name)), None)


class Nothing:
    """Stands in for an object of the main process.

    It is true, so that ``if writer:`` is the same on all ranks.

    Args:
        folder: what a writer of TensorBoard tells of its folder; None for other objects.
    """

    _folder: Any = None

    def __init__(self, folder: Any = None) -> None:
        object.__setattr__(self, "_folder", folder)

    def get_logdir(self) -> Any:
        """The folder of a writer, as it tells it."""
        return self if self._folder is None else self._folder

    def add_figure(self, *given: Any, **named: Any) -> Nothing:
        """Closes the figures that a writer of TensorBoard would draw and close: they would stay open on this rank."""
        drawing = sys.modules.get("matplotlib.pyplot")
        options = {**dict(zip(_PARAMETERS_OF_ADD_FIGURE, given, strict=False)), **named}
        figure = options.get("figure")
        if drawing is not None and options.get("close", True):
            for item in figure if isinstance(figure, (list, tuple)) else [figure]:
                if isinstance(item, drawing.Figure):
                    drawing.close(item)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)  # copying, pickling and arrays ask for protocols that are not here
        return self.get_logdir() if name in _FOLDERS else self

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

    def __format__(self, form: str) -> str:
        return repr(self)  # a form for numbers fits no stand-in

    def __repr__(self) -> str:
        return "<nothing on this rank>"
