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
    """Note modules when they get a buffer, and describe what is left at the end."""
    left = _Left(steps)
    module = steps.torch.nn.Module
    module.register_buffer = left.noting(module.register_buffer)
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
        yield "buffers", sorted({fact for module in self._modules for fact in self._buffers(module)})
        yield (
            "rates",
            [float(group["lr"]) for made in self.steps.optimizers for group in made.param_groups if "lr" in group],
        )
        yield "generators", self.steps.draws.digest()

    def _buffers(self, module: Any) -> Iterator[str]:
        torch = self.steps.torch
        for name, buffer in module._buffers.items():
            if type(buffer) is torch.Tensor and not buffer.is_sparse:
                yield f"{name} {tuple(buffer.shape)} {hashlib.sha256(bytes_of(torch, buffer)).hexdigest()[:16]}"
