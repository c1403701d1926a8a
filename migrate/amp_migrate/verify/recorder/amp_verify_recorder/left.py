"""What a run leaves besides parameters: buffers of its modules, learning rates, states of the random generators."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .digests import bytes_of
from .steps import Steps

# Modules with buffers that are kept until the end. A script that makes a model for each fold or trial makes more of
# them; the last ones are those that it ends with.
_KEPT = 1000


def watch(steps: Steps) -> None:
    """Note modules when they get a buffer or are copied, and describe what is left at the end."""
    left = _Left(steps)
    module = steps.torch.nn.Module
    module.register_buffer = left.noting(module.register_buffer)
    # Called for each module of a copy, such as an average of the weights.
    module.__setstate__ = left.noting(module.__setstate__)
    steps.record.finishers.append(left.facts)


class _Left:
    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        # Strong references: a model that is local to main() must still be there at the end.
        self._modules: deque[Any] = deque(maxlen=_KEPT)

    def noting(self, register: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(register)
        def registered(module: Any, *args: Any, **kwargs: Any) -> None:
            if not self._modules or self._modules[-1] is not module:
                self._modules.append(module)
            register(module, *args, **kwargs)

        return registered

    def facts(self) -> Iterator[tuple[str, Any]]:
        """What is known at the end."""
        modules = {id(module): module for module in self._modules if module not in self.steps.aside}.values()
        yield "buffers", sorted({fact for module in modules for fact in self._described(module._buffers)})
        held = {id(p) for made in self.steps.optimizers for group in made.param_groups for p in group["params"]}
        free = ({name: p for name, p in module._parameters.items() if id(p) not in held} for module in modules)
        yield "unheld", sorted({fact for parameters in free for fact in self._described(parameters)})
        yield (
            "rates",
            [float(group["lr"]) for made in self.steps.optimizers for group in made.param_groups if "lr" in group],
        )
        yield "generators", self.steps.draws.digest()

    def _described(self, tensors: dict[str, Any]) -> Iterator[str]:
        torch = self.steps.torch
        for name, tensor in tensors.items():
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_sparse:
                yield f"{name} {tuple(tensor.shape)} {hashlib.sha256(bytes_of(torch, tensor)).hexdigest()[:16]}"
