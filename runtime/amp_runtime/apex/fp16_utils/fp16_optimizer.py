"""``FP16_Optimizer``: an optimizer around another one, with float32 masters and a loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime.apex import _replicas
from amp_runtime.apex.fp16_utils.fp16util import clip_grad_norm
from amp_runtime.apex.fp16_utils.loss_scaler import DynamicLossScaler, LossScaler, found_in

_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "scale_factor", "scale_window")


class WrappingOptimizer(torch.optim.Optimizer):
    """An optimizer with the groups and the state of the one that it wraps, so that schedulers take it.

    Attributes:
        optimizer: the wrapped optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # The constructor of Optimizer is not called: it would make groups and a state of its own.
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(f"{type(self).__name__} got {optimizer!r}; allowed: an optimizer")
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's groups, which hold masters."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's default options."""
        return self.optimizer.defaults

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


class FP16_Optimizer(WrappingOptimizer):
    """Gives half parameters float32 masters, scales the loss, and skips steps whose gradients overflow.

        optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=1e-3), dynamic_loss_scale=True)
        optimizer.zero_grad()
        optimizer.backward(loss)
        optimizer.step()

    It works on every device. An overflow skips the step under a fixed scale too, where Apex applied it; and all ranks
    that train a model together skip together.

    Args:
        init_optimizer: an optimizer of the model's parameters. Its groups hold masters from here on.
        static_loss_scale: the scale.
        dynamic_loss_scale: let it adapt instead.
        dynamic_loss_args: keywords for :class:`DynamicLossScaler`.
        verbose: print skipped steps.

    Attributes:
        optimizer: ``init_optimizer``.
        fp16_groups: the half parameters of each group.
        fp32_from_fp16_groups: their masters.
        fp32_from_fp32_groups: the float32 parameters of each group.
        overflow: whether the last gradients were infinite or NaN.
        loss_scaler: the scale's :class:`LossScaler` or :class:`DynamicLossScaler`.

    Raises:
        TypeError: a trainable parameter is neither float32 nor half.
    """

    def __init__(
        self,
        init_optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        super().__init__(init_optimizer)
        self.verbose = verbose
        self.fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp32_groups: list[list[torch.Tensor]] = []
        for group in self.optimizer.param_groups:
            self._adopt(group)
        self.dynamic_loss_scale = dynamic_loss_scale
        self.loss_scaler: LossScaler = (
            DynamicLossScaler(**(dynamic_loss_args or {})) if dynamic_loss_scale else LossScaler(static_loss_scale)
        )
        self.overflow = False
        self.first_closure_call_this_step = True
        self.clip_grad_norm = clip_grad_norm
        self._own_are_true = False

    def _adopt(self, group: dict[str, Any]) -> None:
        half: list[torch.Tensor] = []
        masters: list[torch.Tensor] = []
        own: list[torch.Tensor] = []
        for index, parameter in enumerate(group["params"]):
            if not parameter.requires_grad:
                continue
            if parameter.dtype in HALF_DTYPES:
                master = parameter.detach().to(torch.float32, copy=True).requires_grad_()
                group["params"][index] = master
                if parameter in self.optimizer.state:
                    state = self.optimizer.state.pop(parameter)
                    self.optimizer.state[master] = {name: _widened(value) for name, value in state.items()}
                half.append(parameter)
                masters.append(master)
            elif parameter.dtype is torch.float32:
                own.append(parameter)
            else:
                raise TypeError(
                    "Wrapped parameters must be either torch.float32, torch.float16 or torch.bfloat16. Received "
                    f"{parameter.dtype}"
                )
        self.fp16_groups.append(half)
        self.fp32_from_fp16_groups.append(masters)
        self.fp32_from_fp32_groups.append(own)

    def maybe_print(self, msg: str) -> None:
        """Prints ``msg`` if ``verbose``."""
        if self.verbose:
            print(msg)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the wrapped optimizer, with masters for its half parameters."""
        self.optimizer.add_param_group(param_group)
        self._adopt(self.optimizer.param_groups[-1])

    def zero_grad(  # type: ignore[override]
        self, set_grads_to_None: bool = False, set_to_none: bool | None = None
    ) -> None:
        """Clears the gradients of the model's parameters and of the masters.

        Args:
            set_grads_to_None: set them to ``None`` instead of zero.
            set_to_none: the same, by torch's name.
        """
        to_none = set_grads_to_None if set_to_none is None else set_to_none
        self._own_are_true = False
        groups = [group["params"] for group in self.optimizer.param_groups] + self.fp16_groups
        for parameter in (parameter for group in groups for parameter in group):
            if to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad = parameter.grad.detach().zero_()

    def backward(self, loss: torch.Tensor, update_master_grads: bool = True, retain_graph: bool = False) -> None:
        """Runs the backward pass of the scaled loss.

        Args:
            loss: a scalar; it becomes float32.
            update_master_grads: also gives the masters the true gradients. Not for passes before the last, where there
                are several before a step.
            retain_graph: keep the graph for another pass.
        """
        if self._own_are_true:  # float32 gradients that wait for their step join scaled ones
            self._multiply_own(self.loss_scaler.loss_scale)
            self._own_are_true = False
        self.loss_scaler.backward(loss.float(), retain_graph=retain_graph)
        if update_master_grads:
            self.update_master_grads()

    def update_master_grads(self) -> None:
        """Copies the model's gradients to the masters, with their true values, unless they overflowed."""
        model_params = [p for group in (*self.fp16_groups, *self.fp32_from_fp32_groups) for p in group]
        self.overflow = any(bool(flag.item()) for flag in _replicas.agree(found_in(model_params), model_params))
        if self.overflow:
            return
        inverse = 1.0 / self.loss_scaler.loss_scale
        with torch.no_grad():
            for parameter, master in self._pairs():
                if parameter.grad is not None:
                    master.grad = parameter.grad.detach().to(torch.float32, copy=True).mul_(inverse)
        if not self._own_are_true:
            self._multiply_own(inverse)
            self._own_are_true = True

    def _multiply_own(self, factor: float) -> None:
        with torch.no_grad():
            for group in self.fp32_from_fp32_groups:
                for parameter in group:
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            pair
            for half, masters in zip(self.fp16_groups, self.fp32_from_fp16_groups, strict=True)
            for pair in zip(half, masters, strict=True)
        ]

    def _master_params_to_model_params(self) -> None:
        with torch.no_grad():
            for parameter, master in self._pairs():
                parameter.copy_(master)

    def _model_params_to_master_params(self) -> None:
        with torch.no_grad():
            for parameter, master in self._pairs():
                master.copy_(parameter)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> Any:
        """Clips the true gradients of all parameters by their norm.

        Returns:
            The norm before; -1 if they overflowed.
        """
        if self.overflow:
            return -1
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return self.clip_grad_norm(parameters, max_norm, norm_type)

    def inspect_master_grad_data(self) -> list[list[torch.Tensor | None]] | None:
        """The masters' gradients, a list for each group; ``None`` after an overflow."""
        if self.overflow:
            print(
                "Warning:  calling FP16_Optimizer.inspect_master_grad_data while in an overflow state.  Gradients are "
                "currently invalid (may be inf, nan, or stale).  Returning None."
            )
            return None
        groups = self.optimizer.param_groups
        return [[None if p.grad is None else p.grad.data for p in group["params"]] for group in groups]

    def step(self, closure: Any = None) -> Any:
        """Steps the wrapped optimizer and rounds the masters into the model; nothing after an overflow.

        Args:
            closure: computes the loss, calls :meth:`backward` and returns the loss; only with a fixed scale.

        Returns:
            What the wrapped optimizer's step returned; ``None`` for a skipped step.

        Raises:
            RuntimeError: a closure was given with a dynamic scale, or its gradients overflow.
        """
        if closure is not None and self.dynamic_loss_scale:
            raise RuntimeError(
                "FP16_Optimizer.step got a closure with dynamic_loss_scale=True; allowed: a closure with a fixed scale"
            )
        if closure is not None:
            self.overflow = False
            result = self._step_with_closure(closure)
        else:
            scale = self.loss_scaler.loss_scale
            self.loss_scaler.update_scale(self.overflow)
            if self.overflow:
                self.maybe_print(
                    f"OVERFLOW! Skipping step. Attempted loss scale: {scale}, reducing to {self.loss_scaler.loss_scale}"
                )
                return None
            result = self.optimizer.step()
        self._master_params_to_model_params()
        return result

    def _step_with_closure(self, closure: Any) -> Any:
        def wrapped_closure() -> Any:
            if self.first_closure_call_this_step:
                self.first_closure_call_this_step = False
            else:  # the wrapped optimizer moved the masters
                self._master_params_to_model_params()
            loss = closure()
            if self.overflow:
                raise RuntimeError(
                    "FP16_Optimizer.step: the gradients of its closure are infinite or NaN at the fixed loss scale "
                    f"{self.loss_scaler.loss_scale:g}; use a smaller static_loss_scale"
                )
            return loss

        try:
            return self.optimizer.step(wrapped_closure)
        finally:
            self.first_closure_call_this_step = True

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, with Apex's keys; ``loss_scaler`` holds numbers instead of an object."""
        scaler = {name: getattr(self.loss_scaler, name) for name in _SCALER_STATE if hasattr(self.loss_scaler, name)}
        return {
            "loss_scaler": scaler,
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "first_closure_call_this_step": self.first_closure_call_this_step,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": self.fp32_from_fp16_groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of :meth:`state_dict`, or one that Apex saved; also the model's half parameters.

        Args:
            state_dict: the state.
        """
        saved = state_dict["loss_scaler"]
        values = saved if isinstance(saved, Mapping) else vars(saved)
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        self.loss_scaler = DynamicLossScaler() if self.dynamic_loss_scale else LossScaler()
        for name in _SCALER_STATE:
            if name in values and hasattr(self.loss_scaler, name):
                setattr(self.loss_scaler, name, values[name])
        self.overflow = state_dict["overflow"]
        self.first_closure_call_this_step = state_dict["first_closure_call_this_step"]
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        with torch.no_grad():
            for masters, given in zip(self.fp32_from_fp16_groups, state_dict["fp32_from_fp16"], strict=True):
                for master, value in zip(masters, given, strict=True):
                    master.copy_(value)
        self._master_params_to_model_params()

    @property
    def loss_scale(self) -> float:
        """The loss scale; may be set."""
        return self.loss_scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler.cur_scale = value


def _widened(value: Any) -> Any:
    """Optimizer state as float32 where it is half."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF_DTYPES else value
