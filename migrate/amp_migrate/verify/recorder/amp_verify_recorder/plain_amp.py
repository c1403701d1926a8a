"""A script under torch's own autocast and loss scaling, by interception: what half precision does to it by itself.

Asked for by ``AMP_VERIFY_PLAIN_AMP``, which names the half type. This is the one part that changes what is computed:
no line of the script is edited, but the run is another one, which others are held against.

Autocast is on from the first call of a model in a step until the backward pass begins, so that the loss lies in it as
well. It is off where data are made, gradients computed and weights changed. On a CPU it computes in float32 what it
does on a GPU, as the runtime does: see :mod:`.like_a_gpu`. In float16 the loss is scaled as ``torch.amp.GradScaler``
does it, by the same rules for steps that are skipped and for the next scale; but gradients are unscaled at the end of
every backward pass, so that a script may clip or read them wherever it does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import imports, like_a_gpu
from .record import guarded
from .steps import Steps

_MARK = "_amp_verify_plain"
# Those of torch.amp.GradScaler.
_FIRST_SCALE, _GROWTH_INTERVAL = 2.0**16, 2000


def watch(steps: Steps) -> None:
    """Put what the script computes under autocast, where that is asked for."""
    half = os.environ.get("AMP_VERIFY_PLAIN_AMP")
    if half:
        torch = steps.torch
        _PlainAmp(steps, torch.float16 if half == "fp16" else torch.bfloat16).watch()


class _PlainAmp:
    """Autocast and the loss scale of this process."""

    def __init__(self, steps: Steps, dtype: Any) -> None:
        self.steps = steps
        self.torch = steps.torch
        self.dtype = dtype
        self.scaling = dtype is steps.torch.float16
        self.scale = _FIRST_SCALE
        self.skipped = 0
        self._kind: str | None = None  # the device type that autocast was turned on for
        self._depth = 0
        self._in_backward = False
        self._good_steps = 0
        self._lowered_at = -1

    def watch(self) -> None:
        """Stand between the script and torch."""
        torch = self.torch
        torch.nn.Module.__call__ = self._calling(torch.nn.Module.__call__)
        torch.Tensor.backward = self._backward(torch.Tensor.backward)
        torch.autograd.backward = self._backward(torch.autograd.backward)
        torch.autograd.grad = self._outside(torch.autograd.grad)
        functional = torch.nn.functional
        functional.binary_cross_entropy = self._in_float32(functional.binary_cross_entropy)
        # A version that does without the runtime computes on a CPU in the types that torch chooses there.
        if "AMP_VERIFY_NATIVE" not in os.environ:
            like_a_gpu.watch(torch, self._run_in_float32, self._is_on_for_a_cpu)
        # numpy has no bfloat16, and what a script draws or counts with it is no part of its training.
        torch.Tensor.numpy = self._in_float32(torch.Tensor.numpy)
        optimizer = torch.optim.Optimizer
        optimizer.__init__ = self._making(optimizer.__init__)
        optimizer.zero_grad = self._ending(optimizer.zero_grad)
        imports.after("torch.utils.data.dataloader", self._watch_loaders)
        self.steps.record.finishers.append(self._facts)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "plain_skipped", self.skipped

    def _watch_loaders(self, module: Any) -> None:
        iterator = module._BaseDataLoaderIter
        iterator.__next__ = self._ending(iterator.__next__)
        iterator.next = iterator.__next__

    # ---- autocast

    def _is_on_for_a_cpu(self) -> bool:
        return self._kind == "cpu" and bool(self.torch.is_autocast_enabled("cpu"))

    def _calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A module's call, under autocast where it is a model's and no other's part."""

        @functools.wraps(call)
        def called(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or self._in_backward or self.torch.compiler.is_compiling() or not self.steps.record.active:
                return call(module, *args, **kwargs)
            self._on(module)
            self._depth += 1
            learns = self.torch.is_grad_enabled()
            was_cached = self.torch.is_autocast_cache_enabled()
            # A weight that was cast without gradients must not be taken in a pass with them.
            self.torch.set_autocast_cache_enabled(was_cached and learns)
            try:
                return call(module, *args, **kwargs)
            finally:
                self.torch.set_autocast_cache_enabled(was_cached)
                self._depth -= 1
                # Nothing that is learnt from comes of it.
                if not learns:
                    self._off()

        return called

    @guarded
    def _on(self, module: Any) -> None:
        torch = self.torch
        weight = next(module.parameters(), None)
        if weight is None or torch.is_autocast_enabled(weight.device.type):
            return
        self._kind = weight.device.type
        torch.set_autocast_dtype(self._kind, self.dtype)
        torch.set_autocast_enabled(self._kind, True)

    @guarded
    def _off(self) -> None:
        if self._kind is not None and not self._depth:
            self.torch.set_autocast_enabled(self._kind, False)
            # Weights are about to change.
            self.torch.clear_autocast_cache()
            self._kind = None

    def _ending(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of which the script's loss is no part any more."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._off()
            return function(*args, **kwargs)

        return call

    def _outside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that autocast is off for, and then as it was."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._paused():
                return function(*args, **kwargs)

        return call

    @contextmanager
    def _paused(self) -> Iterator[None]:
        kind = self._kind
        if kind is None:
            yield
            return
        was_on = self.torch.is_autocast_enabled(kind)
        self.torch.set_autocast_enabled(kind, False)
        try:
            yield
        finally:
            self.torch.set_autocast_enabled(kind, was_on)

    def _in_float32(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that torch refuses under autocast; what an evaluation gives it may be in half as well."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._run_in_float32(function, args, kwargs)

        return call

    def _run_in_float32(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self._paused():
            return function(*map(self._widened, args), **{k: self._widened(v) for k, v in kwargs.items()})

    def _widened(self, value: Any) -> Any:
        is_half = isinstance(value, self.torch.Tensor) and value.dtype is self.dtype
        return value.float() if is_half else value

    # ---- the loss scale

    def _backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def called(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # Tensor.backward calls autograd.backward, and so does checkpointing.
            if self._in_backward or not self.steps.record.active:
                return backward(tensors, *args, **kwargs)
            self._off()
            self._in_backward = True
            try:
                if not self.scaling:
                    return backward(tensors, *args, **kwargs)
                leaves, scale = self._leaves(tensors), self.scale
                # What was accumulated before is unscaled.
                self._multiply(leaves, scale)
                try:
                    return backward(self._scaled(tensors, scale), *args, **kwargs)
                finally:
                    self._multiply(leaves, 1 / scale)
            finally:
                self._in_backward = False

        return called

    def _scaled(self, tensors: Any, scale: float) -> Any:
        if not isinstance(tensors, self.torch.Tensor):
            return [self._scaled(tensor, scale) for tensor in tensors]
        return tensors * self.torch.full((), scale, device=tensors.device)

    def _leaves(self, tensors: Any) -> list[Any]:
        """All that this pass may leave a gradient in; what is computed again on the way is in an optimizer."""
        found = {
            id(parameter): parameter
            for optimizer in self.steps.optimizers
            for group in getattr(optimizer, "param_groups", ())
            for parameter in group["params"]
        }
        pending = [tensor.grad_fn for tensor in ([tensors] if hasattr(tensors, "grad_fn") else tensors)]
        seen = set(pending)
        while pending:
            node = pending.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                found[id(leaf)] = leaf
            for following, _ in getattr(node, "next_functions", ()):
                if following is not None and following not in seen:
                    seen.add(following)
                    pending.append(following)
        return list(found.values())

    @guarded
    def _multiply(self, leaves: list[Any], factor: float) -> None:
        with self.torch.no_grad():
            for leaf in leaves:
                if leaf.grad is not None:
                    leaf.grad.mul_(factor)

    # ---- steps

    def _making(self, init: Callable[..., None]) -> Callable[..., None]:
        """An optimizer's constructor, after which the steps of its class are looked at."""

        @functools.wraps(init)
        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            step = type(optimizer).step
            if not getattr(step, _MARK, False):
                type(optimizer).step = self._stepping(step)

        return made

    def _stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def stepped(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._off()
            # A closure computes gradients only now, and GradScaler knows nothing of those either.
            has_closure = bool(args and args[0] is not None) or kwargs.get("closure") is not None
            if self.scaling and not has_closure and self._overflowed(optimizer):
                return None
            return step(optimizer, *args, **kwargs)

        setattr(stepped, _MARK, True)
        return stepped

    def _overflowed(self, optimizer: Any) -> bool:
        """Whether a step is skipped, and the scale with that."""
        torch = self.torch
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        if all(bool(torch.isfinite(value).all()) for value in values):
            self._good_steps += 1
            if self._good_steps >= _GROWTH_INTERVAL:
                self.scale, self._good_steps = 2 * self.scale, 0
            return False
        self.skipped += 1
        self._good_steps = 0
        if self._lowered_at != self.steps.record.backwards:  # once, where several optimizers follow one pass
            self._lowered_at = self.steps.record.backwards
            self.scale /= 2
        return True
