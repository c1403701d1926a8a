"""Steps with a closure, as LBFGS takes them: it computes the loss again, and so cannot be unscaled between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_runtime._core.callers import stacklevel
from amp_runtime._core.context import context
from amp_runtime._core.dtensors import any_sharded
from amp_runtime._core.rows import has_rows
from amp_runtime._distributed import averaging, passes, shadow
from amp_runtime._precision import masters
from amp_runtime._scaling.agreement import Ranks
from amp_runtime._scaling.gradients import coalesced_gradients_of, have_gradients, multiply, parameters_of
from amp_runtime._scaling.records import Record, stamps
from amp_runtime._scaling.skips import known


class Abandoned(Exception):
    """Thrown through an optimizer's step when a gradient in it was not finite; the scaler catches it."""


@dataclass
class ClosureStep:
    """One step of an optimizer that calls its closure, once or several times.

    Where a gradient is not finite, at whichever call, parameters and optimizer state are put back as they were.

    Attributes:
        optimizer: what the script steps; it may be an object around ``inner``.
        inner: the torch optimizer.
        closure: the script's closure. Its losses are not scaled.
        check: whether gradients are checked.
        ranks: the ranks that decide together; the mean of their losses is what the optimizer gets to see, so that
            their line searches take the same turns.
    """

    optimizer: Any
    inner: torch.optim.Optimizer
    closure: Callable[[], Any]
    check: bool
    ranks: Ranks | None
    _halves: list[list[torch.Tensor]] = field(default_factory=list)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Steps with these arguments, of which the closure is replaced; returns what the optimizer does.

        Raises:
            Abandoned: a gradient was not finite; nothing has changed.
        """
        if args:
            args = (self._evaluate, *args[1:])
        else:
            kwargs = {**kwargs, "closure": self._evaluate}
        if not masters.has_masters(self.inner):
            return self._step(args, kwargs)
        with self._masters_in_place():
            return self._step(args, kwargs)

    def _step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = _Snapshot(self.inner) if self.check else None
        try:
            return self.optimizer.step(*args, **kwargs)
        except Abandoned:
            if before is not None:
                before.restore()
            raise

    @contextmanager
    def _masters_in_place(self) -> Iterator[None]:
        """Puts masters into the very lists of the groups, to which LBFGS keeps a reference."""
        lists = [group["params"] for group in self.inner.param_groups]
        self._halves = [list(parameters) for parameters in lists]
        try:
            with masters.exchanged(self.inner):
                for group, parameters in zip(self.inner.param_groups, lists, strict=True):
                    parameters[:] = group["params"]
                    group["params"] = parameters
                yield
        finally:
            for group, parameters, halves in zip(self.inner.param_groups, lists, self._halves, strict=True):
                parameters[:] = halves
                group["params"] = parameters
            self._halves = []

    def _evaluate(self) -> Any:
        loss = self._evaluate_on_halves() if self._halves else self.closure()
        parameters = parameters_of(self.inner)
        if not self._halves:
            _average(parameters)
        found = 0.0
        if self.check:
            found = multiply(coalesced_gradients_of(parameters), None).item()
        loss, found = self._agree(loss, found)
        if found:
            raise Abandoned
        return loss

    def _evaluate_on_halves(self) -> Any:
        """Runs the closure on the model's own half parameters, and hands its gradients to their masters."""
        lists = [group["params"] for group in self.inner.param_groups]
        full = [list(parameters) for parameters in lists]
        pairs = [
            (half, master)
            for halves, chosen in zip(self._halves, full, strict=True)
            for half, master in zip(halves, chosen, strict=True)
            if half is not master
        ]
        with torch.no_grad():
            torch._foreach_copy_([half for half, _ in pairs], [master for _, master in pairs])
        for parameters, halves in zip(lists, self._halves, strict=True):
            parameters[:] = halves
        try:
            loss = self.closure()
            _average(parameters_of(self.inner))
            for half, master in pairs:
                if half.grad is None:
                    master.grad = None
            masters.take_gradients(self.inner)
        finally:
            for parameters, chosen in zip(lists, full, strict=True):
                parameters[:] = chosen
        return loss

    def _agree(self, loss: Any, found: float) -> tuple[Any, float]:
        if self.ranks is None or self.ranks.joining():
            return loss, found
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss
        number = isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
        weight = shadow.weight()
        weighed = float(value) * weight if number and weight else 0.0
        numbers = torch.tensor([found, weighed], dtype=torch.float64)
        found, total = self.ranks.total(numbers).tolist()
        mean = total / self.ranks.size()
        if isinstance(value, torch.Tensor) and number:
            return torch.full_like(value, mean), found
        return (mean if number else loss), found


def step_with_closure(
    scaler: Any, step: ClosureStep, record: Record, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What ``amp.scaler.step`` does where the script gives it a closure."""
    inner = step.inner
    if context.distributed and (any_sharded(parameters_of(inner)) or has_rows(parameters_of(inner))):
        raise RuntimeError(
            f"amp.scaler.step got a closure for a {type(inner).__name__} of sharded parameters; allowed: an optimizer "
            "without a closure, or amp.prepare_model(model, shard=False)"
        )
    if scaler.is_enabled():
        if not scaler._warned_of_closure:
            scaler._warned_of_closure = True
            warnings.warn(
                f"amp.scaler.step got a closure for {type(inner).__name__}: the losses that it computes are not "
                "scaled, so small float16 gradients vanish; dtype='bf16' needs no scale",
                stacklevel=stacklevel(),
            )
        if record.unit is not None and not record.ready:  # SAM uses the gradients from before its closure
            scaler._make_ready(inner, record, parameters_of(inner))
    ready, record.ready = record.ready, False
    finding = scaler._taken(record, parameters_of(inner)) if ready else None
    if finding is not None and finding:
        scaler._skip(inner)
        scaler._note(record, False, finding)
        return None
    step.ranks = record.ranks(parameters_of(inner), scaler.process_group)
    scaler._in_closure = True
    finding = None
    try:
        result = step.run(args, kwargs)
    except Abandoned:
        finding = known(True)
        scaler._overflow_ranks = step.ranks
    finally:
        scaler._in_closure = False
        record.unit = None
        record.losses = scaler._losses
        record.stamps = stamps(averaging.delayed(parameters_of(inner)))
    if finding is not None:
        scaler._findings.append(finding)
        scaler._skip(inner)
        scaler._note(record, False, finding)
        return None
    if step.check:
        scaler._findings.append(known(False))
    scaler._note(record, have_gradients(parameters_of(inner)))
    return result


def _average(parameters: list[torch.Tensor]) -> None:
    passes.end_passes()
    delayed = averaging.delayed(parameters)
    if delayed:
        averaging.average_gradients(delayed)


class _Snapshot:
    """Parameters and optimizer state before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [(parameter, parameter.detach().clone()) for parameter in parameters_of(optimizer)]
        self._state = {key: _copied(value) for key, value in optimizer.state.items()}

    def restore(self) -> None:
        with torch.no_grad():
            for parameter, value in self._parameters:
                parameter.copy_(value)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


def _copied(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {key: _copied(value) for key, value in entry.items()}
    if isinstance(entry, torch.Tensor):
        return entry.detach().clone()
    return list(entry) if isinstance(entry, list) else entry
