"""``Tensor.numpy`` for bfloat16, a type that NumPy does not have."""

from __future__ import annotations

import functools
from typing import Any

import torch

from amp_runtime._core.context import context

_original: Any = torch.Tensor.numpy
_inherited = True


@functools.wraps(torch.Tensor.numpy)
def _numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    if context.mixed and self.dtype is torch.bfloat16:
        try:
            return _original(self, force=force)
        except TypeError:  # and nothing else: a tensor that requires grad is refused as ever
            pass
        return _original(self.float(), force=force)
    return _original(self, force=force)


def convert_bfloat16(wanted: bool) -> None:
    """Makes ``Tensor.numpy``, and with it ``numpy.asarray(tensor)``, return bfloat16 as float32; or undoes it.

    Scripts convert intermediate results, which are bfloat16 in an autocast region and would raise a
    ``TypeError``. Everything else is torch's own.
    """
    global _original, _inherited
    installed = torch.Tensor.numpy is _numpy
    if wanted and not installed:
        _original, _inherited = torch.Tensor.numpy, "numpy" not in vars(torch.Tensor)
        torch.Tensor.numpy = _numpy  # type: ignore[method-assign, assignment]
    elif installed and not wanted:
        if _inherited:
            del torch.Tensor.numpy
        else:
            torch.Tensor.numpy = _original  # type: ignore[method-assign]
