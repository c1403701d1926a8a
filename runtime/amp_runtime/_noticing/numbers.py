"""What a rank's training has come to, in few numbers that the ranks can compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from amp_runtime._core.models import numbered_models
from amp_runtime._core.rows import table_of

_SAMPLES = 8
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


class Trained(NamedTuple):
    """One optimizer.

    Attributes:
        name: its class.
        steps: how many it has made.
        rates: the learning rates of its groups.
    """

    name: str
    steps: int
    rates: tuple[float, ...]


class Weights(NamedTuple):
    """One parameter.

    Attributes:
        bits: the sum of its elements, taken for integers.
        samples: some of its elements.
        tolerance: how far elements may differ that the same operations gave, for a parameter of size 1.
        writes: how often it was written since the numbers before these.
    """

    bits: int
    samples: tuple[float, ...]
    tolerance: float
    writes: int


class Numbers(NamedTuple):
    """One rank.

    Attributes:
        optimizers: in the order of their first steps.
        parameters: those of prepared models, by the number of the model and their name.
    """

    optimizers: tuple[Trained, ...]
    parameters: dict[str, Weights]


def rates_of(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    """The learning rates of its groups, where there are any."""
    return tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)


def named_parameters() -> Iterator[tuple[str, torch.Tensor]]:
    """The whole parameters of all prepared models; shards are each rank's own."""
    for number, model in numbered_models():
        for name, parameter in model.named_parameters():
            plain = type(parameter.data) is torch.Tensor and parameter.layout is torch.strided
            if table_of(parameter) is None and plain and not parameter.is_meta and parameter.numel():
                yield f"{number}:{type(model).__name__}.{name}", parameter


def weights(versions: dict[str, int]) -> dict[str, Weights]:
    """The parameters now. It reads each device once.

    Args:
        versions: those of the time before; they are brought up to date.
    """
    found = dict(named_parameters())
    by_device: dict[torch.device, list[str]] = {}
    for name, parameter in found.items():
        by_device.setdefault(parameter.device, []).append(name)
    result = {}
    with torch.no_grad():
        for names in by_device.values():
            bits = torch.stack([_bits(found[name]) for name in names]).tolist()
            samples = torch.stack([_samples(found[name]) for name in names]).tolist()
            for name, of_bits, of_samples in zip(names, bits, samples, strict=True):
                parameter = found[name]
                tolerance = max(1e-3, 4 * torch.finfo(parameter.dtype).eps) if parameter.is_floating_point() else 1e-3
                writes = parameter._version - versions.get(name, parameter._version)
                result[name] = Weights(of_bits, tuple(of_samples), tolerance, writes)
    versions.clear()
    versions.update((name, parameter._version) for name, parameter in found.items())
    return {name: result[name] for name in found}


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().reshape(-1)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = _flat(tensor).contiguous()
    return flat.view(_INTEGERS.get(flat.element_size(), torch.int64)).sum(dtype=torch.int64)


def _samples(tensor: torch.Tensor) -> torch.Tensor:
    flat = _flat(tensor)
    places = torch.arange(_SAMPLES, device=flat.device) * max(flat.numel() - 1, 0) // (_SAMPLES - 1)
    return flat[places].double()


def difference(own: Numbers, other: Numbers, rank: int, other_rank: int) -> str | None:
    """What differs between two ranks, for people; ``None`` if nothing does, but for rounding."""
    here, there = f"on rank {rank}", f"on rank {other_rank}"
    for mine, its in zip(own.optimizers, other.optimizers, strict=False):
        if mine.steps != its.steps:
            return f"{mine.name} has made {mine.steps} steps {here} and {its.steps} {there}"
        for group, (rate, its_rate) in enumerate(zip(mine.rates, its.rates, strict=False)):
            if abs(rate - its_rate) > 1e-6 * max(abs(rate), abs(its_rate)):
                return f"the learning rate of {mine.name}, group {group}, is {rate:g} {here} and {its_rate:g} {there}"
    if len(own.optimizers) != len(other.optimizers):
        return f"{len(own.optimizers)} optimizers have stepped {here} and {len(other.optimizers)} {there}"
    for name, weight in own.parameters.items():
        its_weight = other.parameters.get(name)
        if its_weight is None or its_weight.bits == weight.bits or _close(weight, its_weight):
            continue
        pairs = zip(weight.samples, its_weight.samples, strict=True)
        value, its_value = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
        text = f"parameter {name.partition(':')[2]} has an element {value:.6g} {here} and {its_value:.6g} {there}"
        if weight.writes != its_weight.writes:
            text += f"; since the ranks were compared last it was written {weight.writes} and {its_weight.writes} times"
        return text
    return None


def _close(weight: Weights, other: Weights) -> bool:
    """Whether all samples differ by rounding alone."""
    size = max(map(abs, (*weight.samples, *other.samples)))
    return all(_same(*pair, weight.tolerance * size) for pair in zip(weight.samples, other.samples, strict=True))


def _same(value: float, other: float, tolerance: float) -> bool:
    return value == other or abs(value - other) <= tolerance or (value != value and other != other)


def first_difference(numbers: Sequence[Any]) -> str | None:
    """What differs between rank 0 and the first rank that differs, of the numbers of all ranks."""
    told = (difference(own, numbers[0], rank, 0) for rank, own in enumerate(numbers))
    return next((text for text in told if text is not None), None)
