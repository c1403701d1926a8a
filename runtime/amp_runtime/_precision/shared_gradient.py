"""The gradient that a half parameter and its master show together.

Once gradients have their true values (after ``amp.scaler.unscale_``), both show the same float32 tensor. What the
script does to it in place, on either side, is what the step uses, without rounding. If the script assigns
another tensor to ``parameter.grad``, that one is used; else the one it assigned to the master's ``grad``. A
float32 tensor can be assigned to the ``grad`` of a half parameter where torch has ``Tensor.grad_dtype``; before, the
gradient has to be edited in place.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from amp_runtime._core.versions import allow_gradients_of


@dataclass
class SharedGradient:
    """What is known about the gradient of one parameter and its master.

    Attributes:
        lent: the master's gradient, which the parameter shows as well.
        shown: the parameter's ``grad``, when it was made to show that.
        version: the version of ``shown`` then.
    """

    lent: torch.Tensor | None = None
    shown: weakref.ref[torch.Tensor] | None = None
    version: int = -1

    def settle(self, parameter: torch.Tensor, master: torch.Tensor) -> None:
        """Decides which gradient counts, and makes it the master's."""
        gradient = parameter.grad
        if gradient is None:
            master.grad = None
        elif not self._is_settled(gradient, master):
            master.grad = gradient.detach().to(master.dtype, copy=True)

    def _is_settled(self, gradient: torch.Tensor, master: torch.Tensor) -> bool:
        if self.shown is None or self.shown() is not gradient:
            return False
        if self.lent is None:
            return gradient._version == self.version and master.grad is not None
        if master.grad is not self.lent:
            return True  # the script gave the master another one
        return gradient.dtype is self.lent.dtype and gradient.data_ptr() == self.lent.data_ptr()

    def take(self, parameter: torch.Tensor, master: torch.Tensor) -> bool:
        """Gives the master a float32 gradient of its own; returns whether there is one."""
        self.settle(parameter, master)
        shown, own = parameter.grad, master.grad
        if shown is None or own is None:
            return False
        if not own.is_sparse and own.data_ptr() == shown.data_ptr():
            master.grad = own.clone()
        self.forget()
        return True

    def show(self, parameter: torch.Tensor, master: torch.Tensor) -> bool:
        """Makes the parameter show the master's gradient; returns whether it does."""
        gradient, full = parameter.grad, master.grad
        self.forget()
        if gradient is None or full is None:
            return False
        self.shown, self.version = weakref.ref(gradient), gradient._version
        if gradient.is_sparse or gradient.requires_grad:  # these cannot be given another tensor's memory
            return False
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # Under DDP the gradient is its view of a bucket, which must go on being that.
            parameter.grad = gradient = gradient.detach()
            self.shown = weakref.ref(gradient)
        allow_gradients_of(parameter, None)
        gradient.data = full
        self.lent = full
        return True

    def forget(self) -> None:
        """Lets go of the gradient; both keep what they show."""
        self.lent = self.shown = None


def make_half_again(parameter: torch.Tensor) -> None:
    """Gives the parameter a gradient of its own type, on which torch DDP insists."""
    gradient = parameter.grad
    if gradient is None or gradient.dtype is parameter.dtype or gradient.is_sparse or gradient.requires_grad:
        return
    gradient.data = gradient.data.to(parameter.dtype)
    allow_gradients_of(parameter, parameter.dtype)
