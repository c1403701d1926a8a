"""Apex's FusedAdam: Adam (https://arxiv.org/abs/1412.6980) and AdamW (https://arxiv.org/abs/1711.05101)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import _checks
from amp_runtime.optim._base import ApexZeroGrad, GroupStep, evaluated
from amp_runtime.optim._kernels import adam_
from amp_runtime.optim._old_adam import old_adam_step
from amp_runtime.optim._scaled import scale_and_overflow


class FusedAdam(ApexZeroGrad, GroupStep):
    """``apex.optimizers.FusedAdam`` through torch's fused kernels, on CPU and CUDA.

    Unlike ``torch.optim.AdamW`` it decays no weights by default, counts steps in the group, and has float32 state
    for half parameters. State of Apex and of torch's Adam and AdamW can be loaded.

    Args:
        params: tensors, or dicts of group options; floating, of any shape.
        lr: the learning rate, at least 0.
        bias_correction: divide the running means by ``1 - beta ** step``.
        betas: decay rates of the running means of the gradient and of its square, each of [0, 1).
        eps: added to the denominator, at least 0.
        adam_w_mode: decay the weights (AdamW); otherwise an L2 penalty (Adam).
        weight_decay: at least 0.
        amsgrad: must be false.
        set_grad_none: what ``zero_grad()`` does: remove the gradients or fill them with zeros.
        capturable: keep ``lr`` and the step as tensors on the device, and never wait for it.
        master_weights: keep float32 values of half parameters, as ``master_param`` in the state. Apex wants
            ``capturable`` for it; here it works without too.
        eps_inside_sqrt: of Apex before 2019: ``sqrt(v + eps)`` instead of ``sqrt(v) + eps``.
        max_grad_norm: of Apex before 2019: scale each group's gradients down to this 2-norm; 0 does not.
        use_mt: of Apex before 2019, where it made fewer kernel launches.
        amp_scale_adjustment: of Apex before 2019: multiplies the ``scale`` that ``step`` is given.

    With one of the last four, or with more than a closure given to ``step``, the arithmetic is that of Apex before
    2019: ``eps`` is added before the bias correction, and the weight decay is multiplied by that correction.

    Raises:
        RuntimeError: ``amsgrad``.
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    reads_found_inf = True
    _counted: int | torch.Tensor

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
        *,
        eps_inside_sqrt: bool = False,
        max_grad_norm: float = 0.0,
        use_mt: bool = False,
        amp_scale_adjustment: float = 1.0,
    ) -> None:
        _checks.no_amsgrad("FusedAdam", amsgrad)
        _checks.number("FusedAdam", "lr", lr)
        _checks.pair("FusedAdam", "betas", betas)
        _checks.number("FusedAdam", "eps", eps)
        _checks.number("FusedAdam", "weight_decay", weight_decay)
        _checks.number("FusedAdam", "max_grad_norm", max_grad_norm)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none
        self.capturable = capturable
        self.master_weights = master_weights
        self.eps_mode = 0 if eps_inside_sqrt else 1
        self.amp_scale_adjustment = amp_scale_adjustment
        self._old = eps_inside_sqrt or max_grad_norm > 0 or use_mt or amp_scale_adjustment != 1.0
        self._step_supports_amp_scaling = capturable
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "master_weights": master_weights,
        }
        super().__init__(params, defaults)

    @property
    def param_groups_master(self) -> list[dict[str, Any]]:
        """The float32 values of each group's half parameters, where there are some, in Apex's layout."""
        return [
            {"params": [self.state.get(parameter, {}).get("master_param") for parameter in group["params"]]}
            for group in self.param_groups
        ]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, as in torch."""
        super().add_param_group(param_group)
        if self.capturable:
            self._onto_device(self.param_groups[-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.capturable:
            for group in self.param_groups:
                self._onto_device(group)

    def _onto_device(self, group: dict[str, Any]) -> None:
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).detach().clone().to(device)
        step = torch.as_tensor(group.get("step", 0), dtype=torch.int32)
        group["step"] = step.detach().clone().reshape(1).to(device)

    def step(
        self,
        closure: Any = None,
        grads: Any = None,
        output_params: Any = None,
        scale: float | None = None,
        grad_norms: Any = None,
        grad_scaler: Any = None,
    ) -> Any:
        """Updates the parameters.

        Args:
            closure: reevaluates the model and returns the loss; optional.
            grads: gradients to use instead of the parameters' own: a list, or a list for each group. This and the
                next three are those of Apex before 2019.
            output_params: tensors that get a copy of the new parameters, in the same form.
            scale: what to divide the gradients by.
            grad_norms: for each group the 2-norm of its scaled gradients; computed where it is wanted and missing.
            grad_scaler: a ``torch.amp.GradScaler`` whose scale the gradients still have; only with
                ``capturable``, where an overflow leaves everything as it is without waiting for the device. The
                gradients are divided by it, and stay so.

        Returns:
            What the closure returned, or ``None``.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
            ValueError: ``grad_scaler`` without ``capturable``.
        """
        loss = evaluated(closure)
        with torch.no_grad():
            if self._old or any(given is not None for given in (grads, output_params, scale, grad_norms)):
                adjusted = (1.0 if scale is None else scale) * self.amp_scale_adjustment
                old_adam_step(self, grads, output_params, adjusted, grad_norms, eps_inside_sqrt=not self.eps_mode)
            elif self.capturable:
                self._update_captured(grad_scaler)
            elif grad_scaler is not None:
                raise ValueError(f"FusedAdam.step got grad_scaler={grad_scaler!r} and capturable=False; allowed: None")
            else:
                self._update()
        return loss

    def _update(self, grad_scale: torch.Tensor | None = None, found_inf: torch.Tensor | None = None) -> None:
        for group in self.param_groups:
            for batch in self._batches(group):
                device = batch.values[0].device
                adam_(
                    batch.values, batch.gradients, batch.buffers("exp_avg"), batch.buffers("exp_avg_sq"), batch.step,
                    lr=group["lr"], betas=group["betas"], eps=group["eps"], weight_decay=group["weight_decay"],
                    decoupled=bool(self.adam_w_mode), bias_correction=group["bias_correction"],
                    grad_scale=None if grad_scale is None else grad_scale.to(device),
                    found_inf=None if found_inf is None else found_inf.to(device),
                )  # fmt: skip
                if grad_scale is not None:  # which has divided the gradients; as with Apex they stay so
                    for parameter, gradient in zip(batch.parameters, batch.gradients, strict=True):
                        if parameter.grad is not None and gradient is not parameter.grad:
                            parameter.grad.copy_(gradient)

    def _update_captured(self, grad_scaler: Any) -> None:
        if grad_scaler is None:  # amp.scaler tells what it found by torch's own way
            scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        else:
            scale, found_inf = scale_and_overflow(self, grad_scaler)
        self._counted = 1 if found_inf is None else (found_inf != 1).to(torch.int32)
        self._update(scale, found_inf)

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> Any:
        if not self.capturable:
            return super()._steps(group, parameters)
        group["step"] += self._counted
        return [group["step"].reshape(())] * len(parameters)
