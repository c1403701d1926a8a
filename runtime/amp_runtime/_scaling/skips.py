"""What was found in gradients, read as late as possible; skips in a row, and the error that ends them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch

from amp_runtime._core.device import is_capturing
from amp_runtime._core.models import prepared_models
from amp_runtime._scaling.agreement import Ranks
from amp_runtime._scaling.explaining import explained
from amp_runtime._scaling.overflow import Observer, OverflowLocation

_log = logging.getLogger("amp_runtime")


class Finding:
    """Whether a gradient was not finite: a number on the device, until somebody asks.

    Args:
        flag: float32 of shape ``()``, not 0 if one was not finite.

    Attributes:
        is_captured: whether it belongs to a CUDA graph that is being captured.
    """

    def __init__(self, flag: torch.Tensor) -> None:
        self.flag = flag
        self._known: bool | None = None
        self.is_captured = flag.is_cuda and is_capturing()  # each replay of the graph writes another answer

    def is_known(self) -> bool:
        """Whether the answer can be had without waiting for the device."""
        return self._known is not None

    def answer(self, found: bool) -> None:
        """Takes the answer from somebody who has read the flag."""
        self._known = found

    def __bool__(self) -> bool:
        if self._known is None or self.is_captured:
            self._known = bool(self.flag.item())
        return self._known


def known(answer: bool) -> Finding:
    """A finding that needs no device."""
    finding = Finding(torch.full((), float(answer)))
    finding.answer(answer)
    return finding


def strongest(flags: list[torch.Tensor]) -> torch.Tensor:
    """The largest of some flags, on the device of the first."""
    first, *others = flags
    for other in others:
        first = torch.maximum(first, other.to(first.device))
    return first


def read(findings: Sequence[Finding]) -> None:
    """Finds the answers of several findings; waits for the device once."""
    unknown = [finding for finding in findings if finding._known is None]
    if unknown:
        device = unknown[0].flag.device
        answers = torch.stack([finding.flag.to(device) for finding in unknown]).tolist()
        for finding, answer in zip(unknown, answers, strict=True):
            finding.answer(bool(answer))


class GradientOverflowError(RuntimeError):
    """Too many steps in a row were skipped, because gradients were infinite or NaN.

    Attributes:
        location: the first module whose output or gradient was not finite in the last of these steps, as an
            :class:`OverflowLocation`; ``None`` if no prepared model shows one.
    """

    def __init__(self, message: str, location: OverflowLocation | None = None) -> None:
        super().__init__(message)
        self.location = location


class Skips:
    """Counts skips; the one before the last allowed makes the next step an observed one.

    The device is not waited for at each step. What was found is kept, and read when the number of skips in a row may
    have reached what is allowed, or when somebody asks. Steps of a CUDA graph are not counted: replaying it runs no
    Python.

    Attributes:
        total: how many optimizer steps were skipped, as far as it was read.
        in_a_row: how many iterations in a row had a skip, likewise.
        observer: what watches the prepared models, during the one step before the error.
    """

    def __init__(self) -> None:
        self.total = 0
        self.in_a_row = 0
        self.observer: Observer | None = None
        self._steps: list[Finding] = []
        self._iterations: list[list[Finding]] = []
        self._in_a_row_before = 0
        self._watched: Observer | None = None

    def stop_watching(self) -> None:
        """Takes the observer off the models."""
        observer, self.observer = self.observer, None
        if observer is not None:
            observer.remove()

    def add_step(self, finding: Finding) -> None:
        """Notes an optimizer's step that was made, or skipped, by what was found in its gradients."""
        if not finding.is_captured:
            self._steps.append(finding)

    def end_iteration(
        self, findings: list[Finding], allowed: int, *, continues: bool = False
    ) -> OverflowLocation | None:
        """Notes how an iteration ended.

        Args:
            findings: what was found in it.
            allowed: the number of skips in a row that is an error.
            continues: whether it is the same iteration as before, of which another optimizer has stepped.

        Returns:
            Where the overflow happened, if this step was observed.
        """
        if findings[0].is_captured:
            return None
        if continues:
            observer = self._watched
            self._add_to_last(findings)
        else:
            self._iterations.append(findings)
            observer = self._watched = self.observer
            if observer is not None:
                self.stop_watching()
        due = self.in_a_row + len(self._iterations) >= allowed - 1
        if due or all(finding.is_known() for finding in findings):
            self.read()
            if self.in_a_row == allowed - 1:
                self.observer = Observer(prepared_models())
        return None if observer is None or self.in_a_row == 0 else observer.location()

    def _add_to_last(self, findings: list[Finding]) -> None:
        """Adds findings to the last iteration, which may be counted already."""
        if self._iterations:
            self._iterations[-1] = [*self._iterations[-1], *findings]
            return
        read(findings)
        if self.in_a_row == 0 and any(findings):
            self.in_a_row = self._in_a_row_before + 1

    def read(self) -> None:
        """Brings the counts up to date; waits for the device if it must."""
        iterations, self._iterations = self._iterations, []
        steps, self._steps = self._steps, []
        if len(iterations) > 1 or len(steps) > 1:
            read([*steps, *(finding for findings in iterations for finding in findings)])
        skipped = sum(map(bool, steps))
        if skipped:
            self.total += skipped
            _log.info("%d step(s) skipped: a gradient was not finite", skipped)
        for findings in iterations:
            self._in_a_row_before = self.in_a_row
            self.in_a_row = self.in_a_row + 1 if any(findings) else 0

    def error(
        self,
        scale: float,
        own: OverflowLocation | None,
        ranks: Ranks | None,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> GradientOverflowError:
        """The error to raise. A collective of ``ranks``, since the overflow may be on another one.

        Args:
            scale: the loss scale.
            own: where it happened on this rank.
            ranks: who decided to skip.
            optimizers: those whose gradients may be bad.
        """
        where, location = explained(own, ranks, optimizers)
        return GradientOverflowError(
            f"{self.in_a_row} steps in a row were skipped because gradients were infinite or NaN; the loss scale is "
            f"{scale:g}. {where}If the loss is NaN with AMP_OPT_LEVEL=O0 too, it is not the precision; otherwise put "
            "the part that overflows under amp.autocast(enabled=False)",
            location,
        )
