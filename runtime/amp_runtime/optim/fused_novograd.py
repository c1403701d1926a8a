"""Apex's FusedNovoGrad (Ginsburg et al., 2019, https://arxiv.org/abs/1905.11286)."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.versions import separated
from amp_runtime.optim import _checks
from amp_runtime.optim._base import ApexZeroGrad, Batch, GroupStep
from amp_runtime.optim.novograd import NORM_TYPES, NovoGrad, gradient_norms


class FusedNovoGrad(ApexZeroGrad, GroupStep, NovoGrad):
    """``apex.optimizers.FusedNovoGrad``: :class:`amp_runtime.optim.NovoGrad` with Apex's arguments and checkpoints.

    It counts steps in the group. In ``state_dict()`` the norms are in Apex's place: ``exp_avg_sq`` of a group is a
    vector for its tensors with half state and one for those with float32 state. A parameter may miss a gradient in
    some steps, which Apex does not allow.

    Args:
        params: tensors, or dicts of group options; floating, of any shape. Half ones have float32 state.
        lr: the learning rate, at least 0.
        bias_correction: divide the running means by ``1 - beta ** step``.
        betas: decay rates of the running means of the gradient and of its norm, each of [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: at least 0.
        amsgrad: must be false.
        reg_inside_moment: divide by the norm and decay the weights inside the mean of the gradients.
        grad_averaging: weigh a new gradient with ``1 - beta1`` in the mean; otherwise with 1.
        norm_type: 2 for the 2-norm, 0 for the largest element.
        init_zero: begin the mean of the norms with 0 instead of with the first norm.
        set_grad_none: what ``zero_grad()`` does: remove the gradients or fill them with zeros.

    Raises:
        RuntimeError: ``amsgrad``.
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Any,
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        _checks.no_amsgrad("FusedNovoGrad", amsgrad)
        _checks.choice("FusedNovoGrad", "norm_type", norm_type, NORM_TYPES)
        self.moment_mode = 0 if reg_inside_moment else 1
        self.set_grad_none = set_grad_none
        NovoGrad.__init__(
            self, params, lr, betas, eps, weight_decay, grad_averaging=grad_averaging,
            bias_correction=bias_correction, reg_inside_moment=reg_inside_moment, init_zero=init_zero,
            norm_type=norm_type,
        )  # fmt: skip

    def _running_norms(self, batch: Batch, group: dict[str, Any]) -> torch.Tensor:
        # Apex keeps the norm itself, not its square; kept so, a checkpoint restores it exactly.
        fresh = gradient_norms(batch.gradients, group["norm_type"])
        first = torch.zeros_like(fresh) if group["init_zero"] else fresh
        held = torch.stack([
            state["norm"].to(fresh) if "norm" in state else start
            for state, start in zip(batch.states, separated(first), strict=True)
        ])  # fmt: skip
        beta2: float = group["betas"][1]
        blended: torch.Tensor
        if group["norm_type"] == 2:
            blended = (beta2 * held.square() + (1 - beta2) * fresh.square()).sqrt()
        else:
            blended = beta2 * held + (1 - beta2) * fresh
        for state, one in zip(batch.states, separated(blended), strict=True):
            state["norm"] = one.clone()
        return blended

    def state_dict(self) -> dict[str, Any]:
        """The state in Apex's layout."""
        packed = super().state_dict()
        packed["state"] = {key: dict(state) for key, state in packed["state"].items()}
        for group in packed["param_groups"]:
            states = [packed["state"][key] for key in group["params"] if "norm" in packed["state"].get(key, {})]
            norms: list[list[torch.Tensor]] = [[], []]
            for state in states:
                norms[_place(state)].append(state.pop("norm"))
            if states:
                group["exp_avg_sq"] = [torch.stack(each) if each else torch.zeros(0) for each in norms]
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of this class or of Apex's."""
        states = {key: dict(state) for key, state in state_dict["state"].items()}
        groups = [dict(group) for group in state_dict["param_groups"]]
        for group in groups:
            norms = group.pop("exp_avg_sq", None)
            if norms is None:
                continue
            left = [separated(norms[0].float()), separated(norms[1].float())]
            for key in group["params"]:
                state = states.get(key, {})
                if "exp_avg" in state and left[_place(state)]:
                    state["norm"] = left[_place(state)].pop(0)
        super().load_state_dict({**state_dict, "state": states, "param_groups": groups})


def _place(state: dict[str, Any]) -> int:
    """Where Apex has a tensor's norm: first half ones, then float32 ones."""
    return 0 if state["exp_avg"].dtype in HALF_DTYPES else 1
