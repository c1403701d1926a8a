"""A model for deployment in half precision, and the check that it still computes the same."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from amp_runtime._core.context import HALF_DTYPES, DtypeName, context
from amp_runtime._core.dtensors import any_sharded
from amp_runtime._core.rows import has_rows
from amp_runtime._core.trees import map_tensors, tensors_in, to_float, to_half
from amp_runtime._precision.half_models import restore_full_precision
from amp_runtime._precision.properties import half_name
from amp_runtime._prepare import unwrap

_log = logging.getLogger("amp_runtime")

M = TypeVar("M", bound=nn.Module)

NORMS: tuple[type[nn.Module], ...] = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EPSILONS = 8  # the tolerance, in units of the half type's epsilon


class InferenceMismatchError(RuntimeError):
    """A half-precision model's outputs are too far from those of the float32 model.

    Attributes:
        difference: the largest one, relative to the largest float32 value of its output.
        module: the dotted name of the first module whose outputs are too far off; empty if it is the model.
    """

    def __init__(self, message: str, difference: float, module: str) -> None:
        super().__init__(message)
        self.difference = difference
        self.module = module


@dataclass(frozen=True)
class InferenceReport:
    """How far a half-precision model is from the float32 one.

    Attributes:
        difference: the largest difference of an output value, relative to the largest float32 value of that
            output.
        tolerance: what was allowed.
        module: the dotted name of the module whose outputs are farthest off; empty if it is the model.
        module_difference: their difference, measured in the same way.
    """

    difference: float
    tolerance: float
    module: str
    module_difference: float


def inference(
    model: M,
    dtype: DtypeName | torch.dtype = "auto",
    *,
    check_inputs: Any = None,
    tolerance: float | None = None,
    keep_fp32: Iterable[type[nn.Module] | str] = (),
) -> M:
    """A copy of a model for deployment in half precision, as ``model.half()`` with what that lacks.

    Weights and buffers are half; normalisation layers (batch, instance, layer, group and RMS norm) keep float32
    weights and statistics and compute in float32. float32 inputs are cast, and half outputs come back as
    float32, also in nested containers. The copy is in evaluation mode and needs no gradients, no autocast and no
    ``amp.init``; the model itself is left as it is. It may come from ``amp.prepare_model`` at
    any level: weights are rounded from float32, from the masters at O2.

    Args:
        model: the trained model, or the wrapper of several processes around it.
        dtype: the half type: ``"auto"``, ``"fp16"``, ``"bf16"`` or a ``torch.dtype``. ``"auto"`` is the
            one of ``amp.init``; without it bfloat16 on the CPU and on GPUs that compute in it, float16 otherwise.
        check_inputs: example inputs to check the copy with: one batch, as a tensor, a tuple of positional
            arguments or a mapping of keyword arguments; or a list of such batches. See :func:`check_inference`.
        tolerance: the difference that the check allows; by default 8 times the type's epsilon, 0.0078 for
            float16 and 0.0625 for bfloat16.
        keep_fp32: further modules to run in float32 with all that they contain, by class or by dotted name.

    Returns:
        The copy, of the same class.

    Raises:
        TypeError: ``model`` is not a module.
        RuntimeError: it is sharded.
        ValueError: ``dtype`` is not allowed, or ``keep_fp32`` names a module that the model does not have.
        InferenceMismatchError: the outputs differ by more than the tolerance.

    Source:
        Which layers stay in float32: https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/
    """
    source = _bare(model, "amp.inference")
    half = _half_dtype(source, dtype)
    kept = _kept_modules(source, keep_fp32)
    deployed = copy.deepcopy(source)
    restore_full_precision(deployed)
    _deploy(deployed, half, kept)
    if check_inputs is not None:
        report = check_inference(source, deployed, check_inputs, tolerance)
        _log.info("inference in %s differs by %.2g at most", half, report.difference)
    return deployed  # type: ignore[return-value]


def check_inference(
    model: nn.Module, deployed: nn.Module, inputs: Any, tolerance: float | None = None
) -> InferenceReport:
    """Compares the outputs of a half-precision model with those of the float32 model.

    Both run in evaluation mode without gradients and with the same random numbers; their modes and the random
    state are put back. The difference of two outputs is the largest of their values' differences, divided by
    the largest float32 value. A model of O2 or O3 is compared in float32.

    Args:
        model: the model that is right, in float32.
        deployed: what :func:`inference` made of it, or another module of the same structure.
        inputs: one batch or a list of batches, as ``check_inputs`` of :func:`inference`.
        tolerance: the difference that is allowed; by default 8 times the epsilon of the deployed model's type.

    Returns:
        The largest differences.

    Raises:
        TypeError: ``model`` or ``deployed`` is not a module, or their outputs have different structures.
        RuntimeError: one of them is sharded.
        ValueError: ``inputs`` is an empty list, or ``tolerance`` is not positive.
        InferenceMismatchError: the outputs differ by more than the tolerance, or are not finite where they should
            be. It names the first module, in the order of execution, whose own outputs are too far off.
    """
    full, half = _bare(model, "amp.check_inference"), _bare(deployed, "amp.check_inference")
    allowed = _tolerance(half, tolerance)
    if any(p.dtype in HALF_DTYPES for p in full.parameters()):
        full = copy.deepcopy(full)
        restore_full_precision(full)
    batches = inputs if isinstance(inputs, list) else [inputs]
    if not batches:
        raise ValueError("amp.check_inference got inputs=[]; allowed: a batch, or a list with at least one")
    found = [_compare(full, half, batch) for batch in batches]
    names = {name: _largest(trace[name] for trace in found if name in trace) for name in found[0]}
    largest = names.pop("")
    worst = max(names, key=lambda name: names[name], default="")
    report = InferenceReport(largest, allowed, worst, names.get(worst, largest))
    if not largest <= allowed:
        first = next((name for name, difference in names.items() if not difference <= allowed), "")
        raise InferenceMismatchError(_message(half, report, first, names), largest, first)
    return report


def _message(model: nn.Module, report: InferenceReport, first: str, names: dict[str, float]) -> str:
    text = (
        f"the half-precision outputs of {type(model).__name__} differ from float32 by {report.difference:.2g} of their "
        f"largest value; allowed: {report.tolerance:.2g}"
    )
    if not first:
        return f"{text}. No module within it differs as much: the model's own code does"
    kind = type(model.get_submodule(first)).__name__
    return (
        f"{text}. The first module that differs too much is {first} ({kind}), by {names[first]:.2g}: give "
        f"keep_fp32=[{first!r}] to amp.inference, or a larger tolerance"
    )


def _bare(model: Any, caller: str) -> nn.Module:
    model = unwrap(model)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller} got {type(model).__name__}; allowed: a torch.nn.Module")
    if any_sharded(model.parameters()) or has_rows(model.parameters()):
        raise RuntimeError(
            f"{caller} got a {type(model).__name__} that is sharded; allowed: a model made anew that has loaded what "
            "amp.full_state_dict(model) gives"
        )
    return model


def _half_dtype(model: nn.Module, dtype: Any) -> torch.dtype:
    name = half_name("amp.inference", dtype)
    if name != "auto":
        return torch.float16 if name == "fp16" else torch.bfloat16
    first = next(model.parameters(), None)
    return context.half_dtype(None if first is None else first.device.type)


def _tolerance(model: nn.Module, tolerance: float | None) -> float:
    if tolerance is None:
        dtypes = {p.dtype for p in model.parameters() if p.dtype in HALF_DTYPES}
        return max((_EPSILONS * torch.finfo(dtype).eps for dtype in dtypes), default=1e-4)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance > 0:
        raise ValueError(f"amp.check_inference got tolerance={tolerance!r}; allowed: None or a positive number")
    return float(tolerance)


def _kept_modules(model: nn.Module, keep_fp32: Any) -> tuple[set[str], tuple[type[nn.Module], ...]]:
    if isinstance(keep_fp32, (str, type)):
        keep_fp32 = (keep_fp32,)
    names: set[str] = set()
    kinds: list[type[nn.Module]] = []
    known = {name for name, _ in model.named_modules() if name}
    for entry in keep_fp32:
        if isinstance(entry, type) and issubclass(entry, nn.Module):
            kinds.append(entry)
        elif isinstance(entry, str) and entry in known:
            names.add(entry)
        else:
            listed = ", ".join(sorted(known)[:8]) + (", ..." if len(known) > 8 else "")
            raise ValueError(
                f"amp.inference got keep_fp32 with {entry!r}; allowed: module classes, and the dotted names of "
                f"submodules of {type(model).__name__}: {listed}"
            )
    return names, tuple(kinds)


class CastInputs:
    """A forward pre-hook: half or float32 inputs in another of these types."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return _cast(args, self.dtype), _cast(kwargs, self.dtype)


class CastOutputs:
    """A forward hook: the same for outputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        return _cast(output, self.dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return to_float(value) if dtype is torch.float32 else to_half(value, dtype)


def _deploy(model: nn.Module, dtype: torch.dtype, kept: tuple[set[str], tuple[type[nn.Module], ...]]) -> None:
    model.eval().requires_grad_(False)
    names, kinds = kept
    rounding = _Rounding(dtype, names, (*NORMS, *kinds))
    rounding.apply(model, "")
    model.register_forward_pre_hook(CastInputs(dtype), with_kwargs=True)
    model.register_forward_hook(CastOutputs(torch.float32))


class _Rounding:
    """Makes the modules of one model half, down to those that stay in float32 and are given casts instead."""

    def __init__(self, dtype: torch.dtype, names: set[str], kinds: tuple[type[nn.Module], ...]) -> None:
        self.dtype = dtype
        self.names = names
        self.kinds = kinds
        self._rounded: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def apply(self, module: nn.Module, name: str) -> None:
        """Rounds a module, called ``name`` in its model, and its children."""
        if name in self.names or isinstance(module, self.kinds):
            module.register_forward_pre_hook(CastInputs(torch.float32), with_kwargs=True)
            module.register_forward_hook(CastOutputs(self.dtype))
            return
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.dtype is torch.float32:
                setattr(module, key, self._round(tensor))
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
        for key, child in module.named_children():
            self.apply(child, f"{name}.{key}" if name else key)

    def _round(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new half tensor, so that one that is shared with a float32 module stays; the same one each time."""
        if id(tensor) not in self._rounded:
            half = tensor.detach().to(self.dtype)
            new = nn.Parameter(half, False) if isinstance(tensor, nn.Parameter) else half
            self._rounded[id(tensor)] = (tensor, new)
        return self._rounded[id(tensor)][1]


def _compare(full: nn.Module, half: nn.Module, batch: Any) -> dict[str, float]:
    """The differences of all modules' outputs by name, in order of execution; the model's own has no name."""
    expected = _trace(full, batch)
    differences: dict[str, float] = {}
    for (name, wanted), (other, got) in zip(expected, _trace(half, batch), strict=False):
        if name != other:
            break
        if len(wanted) != len(got) or any(w.shape != g.shape for w, g in zip(wanted, got, strict=True)):
            raise TypeError(f"amp.check_inference got outputs of different structure from {name or 'the models'}")
        difference = _largest(_difference(w, g) for w, g in zip(wanted, got, strict=True))
        differences[name] = _largest([difference, differences.get(name, 0.0)])
    if "" not in differences:
        raise TypeError("amp.check_inference got models that call different modules; allowed: the same structure")
    return differences


def _trace(model: nn.Module, batch: Any) -> list[tuple[str, list[torch.Tensor]]]:
    """What every module returned, in order of completion, the model last."""
    found: list[tuple[str, list[torch.Tensor]]] = []

    def record(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            found.append((name, [t.detach().double().cpu() for t in tensors_in(output) if t.is_floating_point()]))

        return hook

    handles = [module.register_forward_hook(record(name)) for name, module in model.named_modules()]
    try:
        with _evaluation(model):
            _call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _call(model: nn.Module, batch: Any) -> Any:
    fresh = map_tensors(torch.clone, batch)  # a forward may write into its inputs
    if isinstance(fresh, Mapping):
        return model(**fresh)
    return model(*fresh) if isinstance(fresh, tuple) else model(fresh)


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    own = random.getstate()
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(0)
            random.seed(0)
            model.eval()
            yield
    finally:
        random.setstate(own)
        for module, mode in modes:
            module.training = mode


def _difference(expected: torch.Tensor, got: torch.Tensor) -> float:
    """The largest difference relative to the largest finite expected value; infinite where only one is finite."""
    if not expected.numel():
        return 0.0
    agree = (expected == got) | (expected.isnan() & got.isnan())  # infinities of one sign, masks
    finite = expected.isfinite()
    if not bool((agree | (finite & got.isfinite())).all()):
        return float("inf")
    distance = (expected - got).abs().masked_fill(agree, 0.0).max()
    size = expected.abs().masked_fill(~finite, 0.0).max()
    return float(distance / size) if size > 0 else float(distance)


def _largest(values: Iterable[float]) -> float:
    return max(values, default=0.0)
