"""Reading a checkpoint file, without running what may be in it."""

from __future__ import annotations

import argparse
import codecs
import collections
import errno
import io
import pathlib
import pickle
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from amp_runtime._core.context import context
from amp_runtime._core.versions import NAMED_SAFE_GLOBALS
from amp_runtime._distributed.group import from_main_process
from amp_runtime._saving.ranks import gather_objects

_HARMLESS = (argparse.Namespace, collections.Counter, collections.defaultdict, set, slice)
_PATHS = ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath")


def read(path: pathlib.Path, map_location: Any, trusted: bool) -> Any:
    """The contents of a file that ``torch.save`` wrote.

    Every rank reads it. Where only the main process can see the file, on the disk of its machine, it sends it.

    Raises:
        FileNotFoundError: the main process does not see it.
        RuntimeError: it is not whole, or holds objects that only trusted files may hold.
    """
    seen = gather_objects(path.exists())
    if not seen[0]:
        raise FileNotFoundError(f"amp.load_checkpoint: there is no file {str(path)!r}")
    if all(seen):
        return _load(path, path, map_location, trusted)
    sent = from_main_process(path.read_bytes() if context.rank == 0 else b"")
    return _load(io.BytesIO(sent), path, map_location, trusted)


def _load(file: Any, path: pathlib.Path, map_location: Any, trusted: bool) -> Any:
    try:
        with _allowing_harmless_classes():
            return torch.load(file, map_location=map_location, weights_only=not trusted)
    except pickle.UnpicklingError as error:
        raise RuntimeError(_explained(str(error), path)) from error
    except (ImportError, AttributeError, MemoryError):  # of a trusted file's classes
        raise
    except Exception as error:  # what torch raises for damaged files has no end
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        text = f"{type(error).__name__}: {error}".split("\n")[0]
        raise RuntimeError(f"amp.load_checkpoint: {str(path)!r} is damaged, or no checkpoint file: {text}") from error


def _explained(error: str, path: pathlib.Path) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", error)
    if found is None:
        return f"amp.load_checkpoint: {str(path)!r} is damaged, or no checkpoint file: {error.splitlines()[-1]}"
    return (
        f"amp.load_checkpoint: {str(path)!r} holds a {found[1]}, whose code would run while it is read. If you trust "
        "where the file comes from, pass trusted=True"
    )


@contextmanager
def _allowing_harmless_classes() -> Iterator[None]:
    """``torch.serialization.safe_globals``, which torch 2.4 has not yet."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals(harmless_globals())
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def harmless_globals() -> list[Any]:
    """Classes of the standard library and of NumPy that checkpoints often hold and that do nothing when read."""
    allowed: list[Any] = [*_HARMLESS, *(getattr(pathlib, name) for name in _PATHS)]
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return allowed
    core = numpy.core if numpy.__version__.startswith("1.") else numpy._core
    allowed += [
        codecs.encode,
        numpy.ndarray,
        numpy.dtype,
        *{type(numpy.dtype(letter)) for letter in "?bBhHiIlLqQefdFDU"},
    ]
    for name in ("_reconstruct", "scalar"):
        function = getattr(core.multiarray, name)
        allowed.append(function)
        if NAMED_SAFE_GLOBALS:
            allowed += [(function, f"numpy.{package}.multiarray.{name}") for package in ("core", "_core")]
    return allowed
