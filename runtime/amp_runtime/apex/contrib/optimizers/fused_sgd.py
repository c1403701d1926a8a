"""``apex.contrib.optimizers.fused_sgd``: momentum SGD whose step takes gradients."""

from __future__ import annotations

from typing import Any

import torch

from amp_runtime.optim import fused_sgd
from amp_runtime.optim._base import evaluated
from amp_runtime.optim._old_adam import by_group


class FusedSGD(fused_sgd.FusedSGD):
    """:class:`amp_runtime.optim.FusedSGD` whose ``step`` also takes gradients and tensors to copy parameters to.

    Arguments are those of :class:`amp_runtime.optim.FusedSGD`.
    """

    def step(
        self,
        closure: Any = None,
        grads: Any = None,
        output_params: Any = None,
        scale: float = 1.0,
        grad_norms: Any = None,
    ) -> Any:
        """Updates the parameters.

        Args:
            closure: reevaluates the model and returns the loss; optional.
            grads: gradients to use instead of the parameters' own: a list, or a list for each group.
            output_params: tensors that get a copy of the new parameters, in the same form.
            scale: what to divide the gradients by.
            grad_norms: accepted; not used.

        Returns:
            What the closure returned, or ``None``.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
        """
        loss = evaluated(closure)
        count = len(self.param_groups)
        self.most_recent_scale = scale
        with torch.no_grad():
            if grads is not None:
                for group, given in zip(self.param_groups, by_group(grads, count), strict=False):
                    for parameter, gradient in zip(group["params"], given, strict=False):
                        parameter.grad = None if gradient is None else gradient.to(parameter)
            self._update()
            for group, outputs in zip(self.param_groups, by_group(output_params, count), strict=False):
                for parameter, output in zip(group["params"], outputs or (), strict=False):
                    output.copy_(parameter)
        return loss
