"""Apex's FusedMixedPrecisionLamb (You et al., 2019, https://arxiv.org/abs/1904.00962)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import _checks
from amp_runtime.optim._base import evaluated, total_norm
from amp_runtime.optim._scaled import scale_and_overflow
from amp_runtime.optim.lamb import LAMB


class FusedMixedPrecisionLamb(LAMB):
    """``apex.optimizers.FusedMixedPrecisionLamb``: LAMB that can unscale gradients and keep float32 weights itself.

    The groups hold ``lr`` and ``step`` as tensors on the parameters' device.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. State is float32 for half ones.
        lr: the learning rate, at least 0.
        step: the number of steps already taken.
        bias_correction: divide the running means by ``1 - beta ** step``.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        amsgrad: must be false.
        adam_w_mode: add the weight decay to the update; otherwise to the gradient, as an L2 penalty.
        grad_averaging: weigh a new gradient with ``1 - beta1`` in the mean; otherwise with 1.
        max_grad_norm: scale all true gradients of all groups down to this 2-norm; 0 or ``None`` does not.
        use_nvlamb: scale tensors without weight decay too.
        reduced_precision_dtype: the half type of parameters whose float32 values are kept, as ``master_param`` in
            the state; ``None`` keeps none.

    Raises:
        RuntimeError: ``amsgrad``.
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float | None = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        name = "FusedMixedPrecisionLamb"
        _checks.no_amsgrad(name, amsgrad)
        _checks.number(name, "step", step)
        _checks.choice(name, "reduced_precision_dtype", reduced_precision_dtype, (None, torch.float16, torch.bfloat16))
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.use_nvlamb = use_nvlamb
        self.reduced_precision_dtype = reduced_precision_dtype
        self._first_step = int(step)
        self._step_supports_amp_scaling = True
        self._inverse_scale: torch.Tensor | None = None
        super().__init__(
            params, lr, betas, eps, weight_decay, bias_correction=bias_correction, adam_w_mode=adam_w_mode,
            grad_averaging=grad_averaging, max_grad_norm=max_grad_norm, always_adapt=use_nvlamb,
            master_weights=reduced_precision_dtype is not None,
        )  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as in torch."""
        super().add_param_group(param_group)
        self._onto_device(self.param_groups[-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            self._onto_device(group)

    def _onto_device(self, group: dict[str, Any]) -> None:
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        step = torch.as_tensor(group.get("step", self._first_step), dtype=torch.int32)
        group["step"] = step.detach().clone().reshape(1).to(device)
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).detach().clone().to(device)

    def step(self, closure: Any = None, grad_scaler: Any = None) -> Any:
        """Updates the parameters; an overflow that ``grad_scaler`` finds leaves everything as it is.

        Args:
            closure: reevaluates the model and returns the loss; optional.
            grad_scaler: a ``torch.amp.GradScaler`` whose scale the gradients still have; optional.

        Returns:
            What the closure returned, or ``None``.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
        """
        loss = evaluated(closure)
        with torch.no_grad():
            if grad_scaler is None:
                self._update()
                return loss
            scale, found_inf = scale_and_overflow(self, grad_scaler)
            if not found_inf.item():
                self._inverse_scale = scale.double().reciprocal().float()
                self._update()
                self._inverse_scale = None
        return loss

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> Any:
        group["step"] += 1
        return [group["step"].reshape(())] * len(parameters)

    def _clip_factor(self) -> torch.Tensor | None:
        inverse, limit = self._inverse_scale, self.defaults["max_grad_norm"]
        if inverse is None:
            return super()._clip_factor()
        if not limit:
            return inverse
        return inverse * torch.clamp(limit / (total_norm(self).to(inverse.device) * inverse), max=1.0)
