"""Models in int8 that the script makes with the runtime.

``AMP_VERIFY_INT8``: ``follow``, to measure how far each of them is from the model that it was made of; ``off``, to have
none made. Then ``amp.quantize`` gives a copy in float32, and for ``qat`` the model itself, so that the script trains
without rounding; torchao is not needed.

What is followed: whenever the int8 model is called, a copy of the float model is called with the same inputs, the same
random numbers, in evaluation mode and without gradients. The copy has none of the script's hooks, and gets the weights
that the float model is given later, unless it trains on. A model that the script never calls is called at the end,
with batches that it was calibrated with or that the float model has seen.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from . import imports
from .record import complain, guarded
from .steps import Steps

_MAKING = "amp_runtime._quantizing.making"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_KEPT = 4
_LONGEST = 200
# A value that large which both have stands for "none": of a mask, and not of what was computed.
_MASKED = 1e4


def watch(steps: Steps) -> None:
    """Follow what is made, or have nothing made, where that is asked for."""
    mode = os.environ.get("AMP_VERIFY_INT8")
    if mode == "off":
        imports.after(_MAKING, _Off(steps).watch_making)
        imports.after("amp_runtime._quantizing.library", _ask_for_nothing)
    elif mode == "follow":
        followed = _Followed(steps)
        imports.after(_MAKING, followed.watch_making)
        imports.after("amp_runtime._quantizing.models", followed.watch_models)
        imports.after("amp_runtime._prepare", followed.watch_preparing)
        module = steps.torch.nn.Module
        module.load_state_dict = followed.noting(module.load_state_dict)
        # Called for each module of a copy.
        module.__setstate__ = followed.noting(module.__setstate__)
        steps.record.finishers.append(followed.facts)


def _ask_for_nothing(library: Any) -> None:
    library.check = lambda kind: None


def _put(module: Any, **functions: Callable[..., Any]) -> None:
    """Put functions in the places of those of a module, and of the runtime's interface if that is there already."""
    for name, function in functions.items():
        known = getattr(module, name)
        setattr(module, name, functools.wraps(known)(function))
        interface = sys.modules.get("amp_runtime")
        if getattr(interface, name, None) is known:
            setattr(interface, name, getattr(module, name))


def _nothing() -> None:
    """Stands for ``freeze_observers`` of a model that has no observers."""


class _Off:
    """The runtime without int8."""

    def __init__(self, steps: Steps) -> None:
        self._aside = steps.aside

    def watch_making(self, making: Any) -> None:
        """Have float models made in place of others."""

        def in_float(model: Any, kind: str) -> Any:
            own = making.unwrap(model)
            made = making.QuantizedModel(making.float_copy(own), kind, {}, making.size_of(own))
            self._aside.update(made.modules())
            return made

        def quantize(model: Any, kind: str, *_: Any, **__: Any) -> Any:
            if kind != "qat":
                return in_float(model, kind)
            making.unwrap(model).freeze_observers = _nothing
            return model

        _put(making, quantize=quantize, convert_quantized=lambda model: in_float(model, "qat"))


class _Followed:
    """The int8 models of this process, each beside its float model."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._beside: weakref.WeakKeyDictionary[Any, _Beside] = weakref.WeakKeyDictionary()
        self._made: list[_Beside] = []
        self._calls: list[Any] = []
        self._seen: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self._filled: weakref.WeakSet[Any] = weakref.WeakSet()

    def noting(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        """A method of modules that gives them weights, with a note of the module."""

        @functools.wraps(fill)
        def filled(module: Any, *args: Any, **kwargs: Any) -> Any:
            self._filled.add(module)
            return fill(module, *args, **kwargs)

        return filled

    def watch_making(self, making: Any) -> None:
        """Follow what makes models."""
        quantize, convert, calls_of = making.quantize, making.convert_quantized, making.calls_of
        site = self._steps.record.sites.of

        def read(*args: Any, **kwargs: Any) -> Any:
            calls = calls_of(*args, **kwargs)
            self._calls = calls[:_KEPT]
            return calls

        def quantized(model: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
            self._calls = []
            made = quantize(model, kind, *args, **kwargs)
            if kind != "qat":
                self._note(made, making.unwrap(model), making.float_copy, site(sys._getframe(1)))
            return made

        def converted(model: Any) -> Any:
            made = convert(model)
            own = making.unwrap(model)
            self._calls = [own.call]
            self._note(made, own, _evaluating, site(sys._getframe(1)))
            return made

        _put(making, quantize=quantized, convert_quantized=converted, calls_of=read)

    def watch_models(self, models: Any) -> None:
        """Follow the calls of int8 models."""
        quantized = models.QuantizedModel
        forward = quantized.forward

        @functools.wraps(forward)
        def followed(model: Any, *args: Any, **kwargs: Any) -> Any:
            beside = self._beside.get(model) if self._steps.record.active else None
            if beside is None or beside.is_busy or self._steps.torch.compiler.is_compiling():
                return forward(model, *args, **kwargs)
            beside.was_called = True
            call = beside.prepare(args, kwargs)
            found = forward(model, *args, **kwargs)
            beside.compare(call, found)
            return found

        quantized.forward = followed

    def watch_preparing(self, module: Any) -> None:
        """Keep some of what prepared models are called with, by a hook that copies in float32 do not have."""
        from amp_runtime._core.hooks import Hook

        prepare = module.prepare_model

        def prepared(model: Any, *args: Any, **kwargs: Any) -> Any:
            made = prepare(model, *args, **kwargs)
            own = module.unwrap(made)
            if own not in self._seen:
                self._seen[own] = deque(maxlen=_KEPT)
                own.register_forward_pre_hook(Hook(self._see), with_kwargs=True)
            return made

        _put(module, prepare_model=prepared)

    @guarded
    def _see(self, model: Any, args: Any, kwargs: Any) -> None:
        seen = self._seen.get(model)
        # Inputs of an evaluation, and one of training where there are no others.
        if seen is not None and self._steps.record.active and (not model.training or not seen):
            seen.append(_cloned((args, kwargs)))

    @guarded
    def _note(self, made: Any, model: Any, copied: Callable[[Any], Any], site: str) -> None:
        held = {id(p) for one in self._steps.optimizers for group in one.param_groups for p in group["params"]}
        known = any(id(parameter) in held for parameter in model.parameters()) or model in self._filled
        inputs = [*self._calls, *self._seen.get(model, ())]
        beside = _Beside(self._steps, made, model, copied(model), inputs, site, known=known)
        self._beside[made] = beside
        self._made.append(beside)

    def facts(self) -> Iterator[tuple[str, Any]]:
        """What is known at the end."""
        yield "int8", [made.facts() for made in self._made]


class _Beside:
    """An int8 model, and a copy of the float one that it was made of."""

    def __init__(
        self, steps: Steps, made: Any, model: Any, reference: Any, inputs: list[Any], site: str, *, known: bool
    ) -> None:
        self.is_busy = self.was_called = False
        self._torch = steps.torch
        self._record = steps.record
        self._made, self._model, self._reference, self._inputs = made, model, reference, inputs
        self._facts: dict[str, Any] = {
            "kind": made.kind,
            "site": site,
            "known": known,
            "loaded": False,
            "unlike": "",
            "error": "",
        }
        self._calls = self._tensors = 0
        self._apart = self._whole = 0.0
        self._is_finite = True
        # How far training had come: what it changes later is no weight of this int8 model's.
        self._at = self._record.backwards
        for module in reference.modules():
            for hooks in (getattr(module, name, {}) for name in _HOOKS):
                for key in [key for key, hook in hooks.items() if not _is_of_torch(hook)]:
                    del hooks[key]

    def prepare(self, args: Any, kwargs: Any) -> Any:
        """What a call of the copy takes: the inputs before the int8 model has them, and the random numbers."""
        try:
            from amp_runtime._core.randomness import random_state_with_gpu

            return _cloned((args, kwargs)), random_state_with_gpu()
        except Exception as error:
            complain(f"int8: {type(error).__name__}: {error}")
            return None

    def compare(self, call: Any, found: Any) -> None:
        """Call the copy, too, and add up how far the two are apart."""
        if call is None:
            return
        from amp_runtime._core.randomness import random_state_with_gpu, set_random_state_with_gpu

        after = random_state_with_gpu()
        self.is_busy = True
        try:
            (args, kwargs), before = call
            set_random_state_with_gpu(before)
            self._compare(args, kwargs, found)
        except Exception as error:  # of any kind: what the model's own code does with these inputs
            self._facts["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:_LONGEST]
        finally:
            self.is_busy = False
            set_random_state_with_gpu(after)

    def _compare(self, args: Any, kwargs: Any, found: Any) -> None:
        from amp_runtime._core.trees import to_float

        torch = self._torch
        self._keep_up()
        device = next((tensor.device for tensor in self._made.buffers()), None)
        if device is not None:
            self._reference.to(device)
        with torch.no_grad(), torch.autocast("cpu" if device is None else device.type, enabled=False):
            expected = self._reference(*to_float(args), **to_float(kwargs))
        self._calls += 1
        mine, others = _float_tensors(torch, found), _float_tensors(torch, expected)
        if [one.shape for one in mine] != [other.shape for other in others]:
            shapes = (", ".join(str(tuple(one.shape)) for one in part) for part in (mine, others))
            self._facts["unlike"] = self._facts["unlike"] or " in place of ".join(text or "none" for text in shapes)
            return
        for one, other in zip(mine, others, strict=True):
            self._add(one.detach().double(), other.detach().double())

    def _add(self, one: Any, other: Any) -> None:
        torch = self._torch
        finite = torch.isfinite(other)
        counted = finite & ~((one == other) & (other.abs() >= _MASKED))
        apart, whole = (one - other)[counted], other[counted]
        self._is_finite = self._is_finite and bool(torch.isfinite(apart).all())
        self._apart += float(apart.nan_to_num(0.0, 0.0, 0.0).square().sum())
        self._whole += float(whole.square().sum())
        self._tensors += 1

    def _keep_up(self) -> None:
        """Take over the weights that the float model was given since, as by loading its best ones."""
        if self._at != self._record.backwards:
            return
        pairs = zip(self._model.parameters(), self._reference.parameters(), strict=True)
        if all(self._torch.equal(now.detach().to(mine), mine) for now, mine in pairs):
            return
        self._facts["loaded"] = True
        self._reference.load_state_dict(self._model.state_dict())

    def facts(self) -> dict[str, Any]:
        """What is known at the end; a model that was never called is called now."""
        if not self.was_called:
            for args, kwargs in self._inputs:
                call = self.prepare(args, kwargs)
                self._try(args, kwargs, call)
        apart = (self._apart / self._whole) ** 0.5 if self._whole else float(self._apart > 0)
        return {
            **self._facts,
            "called": self.was_called,
            "calls": self._calls,
            "tensors": self._tensors,
            "apart": apart.hex(),
            "finite": self._is_finite,
        }

    @guarded
    def _try(self, args: Any, kwargs: Any, call: Any) -> None:
        self.is_busy = True
        with self._torch.no_grad():
            found = self._made(*args, **kwargs)
        self.compare(call, found)


def _evaluating(model: Any) -> Any:
    """A copy of a model that trains for int8."""
    from amp_runtime._quantizing.library import quietly

    with quietly():
        return copy.deepcopy(model).eval()


def _is_of_torch(hook: Any) -> bool:
    """Whether a hook computes a weight, as that of ``torch.nn.utils.weight_norm``, and is none of the script's."""
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return str(where).partition(".")[0] == "torch"


def _cloned(value: Any) -> Any:
    from amp_runtime._core.trees import map_tensors

    return map_tensors(lambda tensor: tensor.detach().clone(), value)


def _float_tensors(torch: Any, value: Any) -> list[Any]:
    from amp_runtime._core.trees import tensors_in

    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]
