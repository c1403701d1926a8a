"""The lines of the project that a process goes through, and those that change weights or gradients or draw numbers.

What several processes do differently shows in numbers long after it was done. The lines tell where: at which one their
ways part, which one changes weights outside of an optimizer or gradients that are still scaled, and which one draws
random numbers. ``AMP_VERIFY_WAYS`` asks for it, because to follow lines takes time: only where processes are compared
with each other and where gradients are scaled, from the first optimizer on, and for so many lines. What fetches samples
is left out, for it goes another way with each sample, and so is what runs in a module, in a backward call and in a step
of an optimizer: their Python would take twice as long. A debugger that is there already stays.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .graphs import nodes
from .orders import taking_orders_of_sets
from .record import calling_first, guarded
from .seeding import Draws
from .steps import Steps

# So many lines of the project are followed, calls of functions looked at, and tensors compared: some seconds at most.
_LINES, _CALLS, _TENSORS = 100_000, 1_000_000, 1_000_000
_BACKWARDS = 1_000
# To look at generators takes longer, and what draws mostly draws early.
_DRAWS = 2_000
_GRAPHS = 20
_LONGEST_WAY = 20_000
_LONGEST_TEXT = 200


def watch(steps: Steps) -> None:
    """Follow the lines of this process, if that is asked for."""
    if not os.environ.get("AMP_VERIFY_WAYS"):
        return
    ways = _Ways(steps)
    steps.followers.append(ways)
    steps.record.finishers.append(ways.facts)
    optimizer = sys.modules["torch.optim.optimizer"]
    optimizer.register_optimizer_step_pre_hook(ways.before_update)
    optimizer.register_optimizer_step_post_hook(ways.after_update)
    module = steps.torch.nn.Module
    module.__call__ = ways.pausing(module.__call__)
    # It rewrites functions by their bytecode, and they are not to be rewritten for being followed.
    steps.torch.compile = calling_first(ways.stop, steps.torch.compile)


class _Ways:
    """The lines since the last backward call, by the numbers of their places.

    ``here`` is the last line begun: what changed since is its doing.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self._is_on = self._is_over = False
        self._depth = 0
        self._lines = self._calls = self._tensors = self._graphs = 0
        self._numbers: dict[tuple[Any, int], int] = {}
        self._new_places: list[tuple[str, str]] = []
        self._is_own: dict[Any, bool] = {}
        self._way: list[int] = []
        self._known_ways: dict[tuple[int, ...], int] = {}
        self._here: int | None = None
        self._places: list[str] = []
        self._parameters: list[Any] = []
        self._weights: list[int] = []
        self._gradients: list[Any] = []
        self._changed: set[str] = set()
        self._on_gradients: list[str] = []
        self._between = False
        self._draws: Draws | None = None
        self._drew: set[str] = set()

    # ---- from outside ------------------------------------------------------------------------------------------------

    @guarded
    def made(self) -> None:
        """An optimizer was made: the training is about to begin."""
        if self._is_on or self._is_over or not self.steps.record.active or sys.gettrace() is not None:
            return
        self._is_on = True
        self._draws = Draws(self.steps.torch)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_projects(frame):
                frame.f_trace = self._lined
            frame = frame.f_back
        self._go_on()

    def pausing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A module's call, in which no line is followed."""

        @functools.wraps(call)
        def paused(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth or not self._is_on:
                return call(module, *args, **kwargs)
            self._depth += 1
            self._pause()
            try:
                return call(module, *args, **kwargs)
            finally:
                self._depth -= 1
                self._go_on()

        return paused

    def _pause(self) -> None:
        # What the script itself has put there stays.
        if self._is_on and sys.gettrace() == self._called:
            sys.settrace(None)

    def _go_on(self) -> None:
        if self._is_on and sys.gettrace() is None:
            sys.settrace(self._called)

    @guarded
    def begins(self, tensors: Any) -> None:
        """A backward call is about to begin."""
        if self._is_on and self._graphs < _GRAPHS:
            self._graphs += 1
            self._note_reached([tensors] if isinstance(tensors, self.steps.torch.Tensor) else list(tensors))
        # Which is counted already.
        self._flush(self.steps.record.backwards)
        if self.steps.record.backwards >= _BACKWARDS:
            self.stop()
        self._on_gradients.clear()
        self._between = False
        self._pause()

    def _note_reached(self, tensors: list[Any]) -> None:
        """Note which parameters a loss leads back to, by their numbers."""
        numbers = {id(parameter): number for number, parameter in enumerate(self._all_parameters())}
        reached = {id(getattr(node, "variable", None)) for node in nodes(tensors)}
        found = [number for parameter, number in numbers.items() if parameter in reached]
        digest = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
        self.steps.record.add(reached=digest, parameters_reached=len(found), call=self.steps.record.backwards)

    def _all_parameters(self) -> list[Any]:
        return [
            parameter
            for optimizer in self.steps.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    @guarded
    def ends(self) -> None:
        """It has ended: from here on gradients are only to be changed by who unscales them."""
        if self._is_on:
            self._parameters = self._all_parameters()
            self._look()
            self._between = True
            self._go_on()

    @guarded
    def before_update(self, *_: Any) -> None:
        """An optimizer is about to step, in a line that may well unscale first."""
        if not self._is_on:
            return
        if self._on_gradients:
            places = list(dict.fromkeys(self._on_gradients))
            self.steps.record.add(changed="gradients", places=places, before=self.steps.record.backwards)
            self._on_gradients.clear()
        self._between = False
        self._pause()

    @guarded
    def after_update(self, *_: Any) -> None:
        """It has."""
        if self._is_on:
            self._look()
            self._go_on()

    @guarded
    def fetches(self) -> None:
        """A loader is about to fetch samples."""
        self._pause()

    @guarded
    def fetched(self) -> None:
        """It has: what was drawn for them no line drew."""
        if self._draws is not None:
            self._draws.mark()
        self._go_on()

    def facts(self) -> Iterator[tuple[str, Any]]:
        """What is known at the end: the way since the last backward call, too."""
        self.stop()
        yield "unordered", list(taking_orders_of_sets(self.steps.record.sites))

    @guarded
    def stop(self) -> None:
        """Follow no line any more."""
        self._flush(self.steps.record.backwards + 1)
        self._pause()
        self._is_on, self._is_over = False, True

    # ---- lines -------------------------------------------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Called by the interpreter for each function that begins or goes on; returns what its lines are told to."""
        self._calls += 1
        if not self._is_on or self._calls > _CALLS or not self.steps.record.active:
            self.stop()
            return None
        try:
            return self._lined if self._is_projects(frame) else None
        except (OSError, ValueError):  # of a file with a name that is none
            return None

    def _lined(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self._is_on:
            return None
        if event == "line":
            self._visit(frame)
        return self._lined

    @guarded
    def _visit(self, frame: FrameType) -> None:
        self._lines += 1
        if self._lines > _LINES:
            self.stop()
            return
        self._compare()
        key = (frame.f_code.co_filename, frame.f_lineno)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._places)
            site = self.steps.record.sites.of(frame)
            self._places.append(site)
            text = linecache.getline(*key, frame.f_globals).strip()[:_LONGEST_TEXT]
            if "seed" in text or (text.startswith("for ") and "rand" not in text):
                # Which changes generators, too, and draws nothing that counts: a prepared loader seeds.
                self._drew.add(site)
            self._new_places.append((site, text))
        if len(self._way) < _LONGEST_WAY:
            self._way.append(number)
        self._here = number

    def _is_projects(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        known = self._is_own.get(name)
        if known is None:
            known = self._is_own[name] = self.steps.record.sites.is_own(name)
        return known

    def _flush(self, call: int) -> None:
        """Write down the way to a backward call, once in full and then by its number."""
        if not self._way:
            return
        way = tuple(self._way)
        self._way.clear()
        number = self._known_ways.get(way)
        facts: dict[str, Any] = {"way": number, "leads_to": call}
        if number is None:
            facts["way"] = self._known_ways[way] = len(self._known_ways)
            facts["lines"] = list(way)
        if self._new_places:
            facts["new_places"] = self._new_places
            self._new_places = []
        self.steps.record.add(**facts)

    # ---- what a line did ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take weights and gradients as they are now."""
        self._tensors += 2 * len(self._parameters)
        if self._tensors > _TENSORS:
            self._parameters = []
        self._weights = [parameter._version for parameter in self._parameters]
        self._gradients = [_mark(parameter.grad) for parameter in self._parameters]

    def _compare(self) -> None:
        """Put down to the last line what has changed since it began."""
        if self._here is None:
            return
        here = self._places[self._here]
        self._compare_draws(here)
        if not self._parameters:
            return
        weights, gradients = self._weights, self._gradients
        self._look()
        if weights != self._weights and here not in self._changed:
            self._changed.add(here)
            self.steps.record.add(changed="weights", places=[here], before=self.steps.record.backwards)
        if self._between and any(
            now is not None and before != now for before, now in zip(gradients, self._gradients, strict=False)
        ):
            self._on_gradients.append(here)

    def _compare_draws(self, here: str) -> None:
        if self._draws is None or self._lines > _DRAWS:
            return
        if (moved := self._draws.moved()) and here not in self._drew:
            self._drew.add(here)
            self.steps.record.add(drawn=here, states=moved, before=self.steps.record.backwards)
        if moved:
            self._draws.mark()


def _mark(gradient: Any) -> tuple[int, int] | None:
    return None if gradient is None else (id(gradient), gradient._version)
