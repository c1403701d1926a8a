"""LARC, layer-wise adaptive rate control on top of any optimizer (after LARS, https://arxiv.org/abs/1708.03888)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.versions import separated, two_norms
from amp_runtime.optim import _checks
from amp_runtime.optim._base import evaluated, with_gradients


class LARC(torch.optim.Optimizer):
    """Gives each tensor its own learning rate, then lets the wrapped optimizer step.

    Before the step a tensor's gradient becomes ``(g + weight_decay * p) * rate`` in place, with
    ``rate = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps)``; with ``clip`` it is ``min(rate / lr, 1)``,
    so that the optimizer's learning rate is the upper limit. Tensors whose norm, or whose gradient's, is 0 are left
    alone. The wrapped optimizer steps without weight decay.

    It is an optimizer itself, with the groups and the state of the wrapped one, so schedulers, ``amp.scaler`` and
    torch's ``GradScaler`` take it. Its ``state_dict`` is the wrapped optimizer's.

    Args:
        optimizer: the optimizer to wrap.
        trust_coefficient: at least 0.
        clip: limit the rate to the group's ``lr``, instead of scaling ``lr`` with it.
        eps: added to the denominator, at least 0.

    Attributes:
        optim: the wrapped optimizer.

    Raises:
        TypeError: ``optimizer`` is not an optimizer.
        ValueError: a number is out of range.
    """

    _step_supports_amp_scaling = False  # the wrapped one's may; torch's GradScaler would tell this one, in vain

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        trust_coefficient: float = 0.02,
        clip: bool = True,
        eps: float = 1e-8,
    ) -> None:
        # The constructor of Optimizer is not called: it would make groups and a state of its own.
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"LARC got {optimizer!r} as an optimizer; allowed: a torch optimizer")
        _checks.number("LARC", "trust_coefficient", trust_coefficient)
        _checks.number("LARC", "eps", eps)
        self.optim = optimizer
        self.trust_coefficient = trust_coefficient
        self.eps = eps
        self.clip = clip

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.optim, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The wrapped optimizer's groups."""
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optim.param_groups = value

    @property
    def state(self) -> Any:
        """The wrapped optimizer's state."""
        return self.optim.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optim.state = value

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's default options."""
        return self.optim.defaults

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "step"}  # a scheduler's wrapper

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"LARC(trust_coefficient={self.trust_coefficient}, clip={self.clip}, eps={self.eps}, {self.optim!r})"

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the wrapped optimizer's state."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clears gradients as the wrapped optimizer does, with its arguments."""
        self.optim.zero_grad(*args, **kwargs)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the wrapped optimizer."""
        self.optim.add_param_group(param_group)

    def step(self, closure: Any = None) -> Any:
        """Scales the gradients in place and steps the wrapped optimizer.

        Args:
            closure: reevaluates the model and returns the loss, once; optional.

        Returns:
            What the closure returned, or what the wrapped optimizer's step returned.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
        """
        loss = evaluated(closure)
        decays = [group.get("weight_decay", 0) for group in self.param_groups]
        try:
            for group, decay in zip(self.param_groups, decays, strict=True):
                self._scale_gradients(group, decay)
                if "weight_decay" in group:
                    group["weight_decay"] = 0
            result: Any = self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                if "weight_decay" in group:
                    group["weight_decay"] = decay
        return result if closure is None else loss

    @torch.no_grad()
    def _scale_gradients(self, group: dict[str, Any], decay: float) -> None:
        for parameters in _alike(with_gradients(self.optim, group)):
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            norms, gradient_norms = _norms(parameters), _norms(gradients)
            rates = self.trust_coefficient * norms / (gradient_norms + decay * norms + self.eps)
            if self.clip:
                rates = (rates / group["lr"]).clamp(max=1.0)
            adapts = (norms > 0) & (gradient_norms > 0)
            if decay:
                penalties = separated((adapts * decay).to(gradients[0].dtype))
                torch._foreach_add_(gradients, torch._foreach_mul(parameters, penalties))
            torch._foreach_mul_(gradients, separated(torch.where(adapts, rates, 1.0).to(gradients[0].dtype)))


def _alike(parameters: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for parameter in parameters:
        alike.setdefault((parameter.device, parameter.dtype), []).append(parameter)
    return list(alike.values())


def _norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """2-norms, in float32 for half tensors: theirs could overflow."""
    if tensors[0].dtype in HALF_DTYPES:
        return torch.stack([torch.linalg.vector_norm(tensor, dtype=torch.float32) for tensor in tensors])
    return torch.stack(two_norms(tensors))
