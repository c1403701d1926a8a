"""``apex.contrib.optimizers.FP16_Optimizer``, which was ``apex.optimizers.FP16_Optimizer`` until October 2019."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from amp_runtime.apex import _replicas
from amp_runtime.apex.fp16_utils.fp16_optimizer import WrappingOptimizer
from amp_runtime.apex.fp16_utils.loss_scaler import DynamicLossScaler, LossScaler, found_in


class FP16_Optimizer(WrappingOptimizer):
    """Gives all parameters float32 masters, scales the loss, and skips steps whose gradients overflow.

    Apex's took its own old FusedAdam and FusedSGD only; this one takes any optimizer, on every device.

        optimizer = FP16_Optimizer(FusedAdam(model.parameters()), dynamic_loss_scale=True)
        optimizer.backward(loss)
        optimizer.step()

    Args:
        init_optimizer: an optimizer of the model's parameters. Its groups hold masters from here on.
        static_loss_scale: the scale.
        dynamic_loss_scale: let it adapt instead: from 2**16, doubled after 1000 steps, at least 1.
        dynamic_loss_args: must be ``None``, as in Apex.
        verbose: print skipped steps.

    Attributes:
        optimizer: ``init_optimizer``.
        fp16_groups: the model's parameters of each group.
        fp32_groups: their masters.
        overflow: whether the last step was skipped.
        loss_scaler: holds ``cur_scale``.

    Raises:
        SystemError: ``dynamic_loss_args`` was given.
    """

    def __init__(
        self,
        init_optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Any = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(init_optimizer)
        if dynamic_loss_scale and dynamic_loss_args is not None:
            raise SystemError("Do not support dynamic loss scale args for now.")
        self.verbose = verbose
        self.fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_groups: list[list[torch.Tensor]] = []
        for group in self.optimizer.param_groups:
            self._adopt(group)
        self.dynamic_loss_scale = dynamic_loss_scale
        # Apex begins here at 2**16, and at 2**32 in the class of fp16_utils.
        self.loss_scaler = DynamicLossScaler(2.0**16) if dynamic_loss_scale else LossScaler(static_loss_scale)
        self.overflow = False

    def _adopt(self, group: dict[str, Any]) -> None:
        parameters = list(group["params"])
        masters = [p.detach().to(torch.float32, copy=True).requires_grad_(p.requires_grad) for p in parameters]
        for parameter, master in zip(parameters, masters, strict=True):
            if parameter in self.optimizer.state:
                self.optimizer.state[master] = self.optimizer.state.pop(parameter)
        group["params"] = masters
        self.fp16_groups.append(parameters)
        self.fp32_groups.append(masters)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the wrapped optimizer, with masters for its parameters."""
        self.optimizer.add_param_group(param_group)
        self._adopt(self.optimizer.param_groups[-1])

    def zero_grad(  # type: ignore[override]
        self, set_grads_to_None: bool = True, set_to_none: bool | None = None
    ) -> None:
        """Clears the gradients of the model's parameters.

        Args:
            set_grads_to_None: set them to ``None`` instead of zero.
            set_to_none: the same, by torch's name.
        """
        to_none = set_grads_to_None if set_to_none is None else set_to_none
        for parameter in (parameter for group in self.fp16_groups for parameter in group):
            if to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = parameter.grad.detach().zero_()

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """Runs the backward pass of the scaled loss, which becomes float32."""
        self.loss_scaler.backward(loss.float(), retain_graph=retain_graph)

    def step(self, closure: Any = None) -> Any:
        """Steps the wrapped optimizer and rounds the masters into the model, unless a gradient is not finite.

        Args:
            closure: not supported, as in Apex.

        Returns:
            What the wrapped optimizer's step returned; ``None`` for a skipped step.

        Raises:
            RuntimeError: a closure was given.
        """
        if closure is not None:
            raise RuntimeError("FP16_Optimizer.step got a closure; allowed: None")
        parameters = [parameter for group in self.fp16_groups for parameter in group]
        self.overflow = any(bool(flag.item()) for flag in _replicas.agree(found_in(parameters), parameters))
        scale = self.loss_scaler.loss_scale
        self.loss_scaler.update_scale(self.overflow)
        if self.overflow:
            if self.verbose:
                reduced = self.loss_scaler.loss_scale
                print(f"OVERFLOW! Skipping step. Attempted loss scale: {scale}, reducing to {reduced}")
            return None
        masters = [master for group in self.fp32_groups for master in group]
        with torch.no_grad():
            for parameter, master in zip(parameters, masters, strict=True):
                master.grad = None if parameter.grad is None else parameter.grad.detach().float() / scale
        result = self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(parameters, masters, strict=True):
                parameter.copy_(master)
                master.grad = None
        return result

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, with Apex's keys."""
        return {
            "dynamic_loss_scale": self.dynamic_loss_scale,
            **vars(self.loss_scaler),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_groups": self.fp32_groups,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state of :meth:`state_dict`; also the model's parameters.

        Args:
            state_dict: the state.
        """
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        self.loss_scaler = DynamicLossScaler() if self.dynamic_loss_scale else LossScaler()
        for name in vars(self.loss_scaler):
            if name in state_dict:
                setattr(self.loss_scaler, name, state_dict[name])
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        with torch.no_grad():
            for group in zip(self.fp16_groups, self.fp32_groups, state_dict["fp32_groups"], strict=True):
                for parameter, master, value in zip(*group, strict=True):
                    master.copy_(value)
                    parameter.copy_(master)

    @property
    def cur_scale(self) -> float:
        """The loss scale; may be set."""
        return self.loss_scaler.cur_scale

    @cur_scale.setter
    def cur_scale(self, value: float) -> None:
        self.loss_scaler.cur_scale = value

    @property
    def loss_scale(self) -> float:
        """The loss scale; may be set."""
        return self.loss_scaler.cur_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler.cur_scale = value
