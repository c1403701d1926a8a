"""torchao, imported when it is needed and not before: the runtime works without it."""

from __future__ import annotations

import importlib
import logging
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

KINDS = ("dynamic", "static", "qat")
INSTALL = shlex.join(["pip", "install", "torchao>=0.18"])
"""The line that installs it, as the message tells it."""


def part(name: str) -> Any:
    """A module of torchao, as in ``part("quantization.pt2e")``.

    Raises:
        ImportError: torchao is missing, or cannot be loaded with this torch; the message says how to install it.
    """
    try:
        with quietly():
            return importlib.import_module(f"torchao.{name}")
    except ImportError as error:
        raise ImportError(
            f"amp.quantize needs torchao, which cannot be imported ({error}); install it with: {INSTALL}"
        ) from error


def check(kind: str) -> None:
    """Raises what ``amp.quantize`` would raise of a kind and of torchao, before anything has trained.

    Raises:
        ValueError: there is no such kind.
        ImportError: see :func:`part`.
    """
    if kind not in KINDS:
        raise ValueError(f"amp.quantize got kind={kind!r}; allowed: 'dynamic', 'static', 'qat'")
    part("quantization")
    if kind != "dynamic":
        part("quantization.pt2e")


@contextmanager
def quietly() -> Iterator[None]:
    """Leaves out what torchao and export tell of kernels for other machines, and of their own old interfaces."""
    previous = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(previous)
