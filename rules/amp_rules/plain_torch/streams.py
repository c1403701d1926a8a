"""What has to be drawn alike once training has begun.

In torch's own words there is one stream of random numbers. The processes begin with the same, and each leads its own on
while it works on its batches: dropout, augmentation and rejected samples may take more numbers on one than on another.
What decides over training after that is the first process's draw, or declines.

Noise is each process's own. Generators that begin alike, as the script seeds them or something before the training has
to be drawn alike, are seeded apart where training begins, unless something in it has to be drawn alike from them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from amp_rules.plain_torch.common_draws import CommonDraws
from amp_rules.plain_torch.generators import (
    DRAW_NOTHING,
    DRAWS_FROM_NUMPY,
    apart,
    drawn_from,
    draws_of,
    is_seeded,
    library_of,
    same_states,
    seeds_of,
)
from amp_rules.plain_torch.training_start import TrainingStart
from amp_rules.plain_torch.translation import Translation
from amp_rules.plan.sinks import Sink, Sinks
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind, Origin
from amp_rules.ranks.world import Setting
from amp_rules.roles.batches import DataFlow
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.replication import AUGMENTS, SEEDS

_NOISE = "noise and dropout masks of each process's own (all draw the same)"


class Streams:
    """The random numbers of a program.

    Attributes:
        seeds: how many generators were given a seed of all processes.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        self.seeds = 0
        translation.at_end(self._judge)

    @cached_property
    def drawn_from(self) -> list[str]:
        """The libraries whose generators the program draws from."""
        return drawn_from(self._program)

    def same_again(self, module: Module) -> str:
        """The lines with which all processes go on with the numbers of the first."""
        return _SEVERAL + same_states(module, self.drawn_from)

    # ---- which generators begin alike, and which part ---------------------------------------------------------------

    @cached_property
    def broadcast(self) -> list[str]:
        """The libraries whose generators begin with the first process's state."""
        is_asked = any(self._translation.uses_of("same_seed"))
        return [
            library
            for library in self.drawn_from
            if ((is_asked and library == "torch") or not is_seeded(self._program, library))
            and (library not in self._own or self._is_common(library))
        ]

    @cached_property
    def alike(self) -> list[str]:
        """The libraries from whose generators all processes draw the same when training begins."""
        return [item for item in self.drawn_from if item in self.broadcast or is_seeded(self._program, item)]

    @cached_property
    def _parting(self) -> list[str]:
        """The libraries whose generators are seeded apart where training begins."""
        if any(self._translation.uses_of("seed_by_rank")):
            return []
        return [item for item in self.alike if item in self._own and item in self._noisy]

    @cached_property
    def _common_draws(self) -> CommonDraws:
        return CommonDraws(self._translation)

    def _is_common(self, library: str) -> bool:
        """Whether a library's generator is alike where training begins, as it is seeded or has to be."""
        return is_seeded(self._program, library) or self._common_draws.has(library)

    @cached_property
    def _own(self) -> frozenset[str]:
        """The libraries from which each process may draw for itself, from where training begins."""
        start = self._translation.part(TrainingStart)
        alike = [use for use in self._translation.uses_of("drawn_alike") if use.call is not None and use.call.args]
        seeds: list[ast.AST] = [use.node for use in alike if self._program.names(use.argument, use.scope) & SEEDS]
        seeds += [site.node for site in seeds_of(self._program)]
        if start.loop is None or any(map(start.is_within, seeds)):
            return frozenset()
        own = {item for item in self.drawn_from if item in self._noisy or not self._is_common(item)}
        if own and self._can_draw:
            setting = replace(self._setting, seeded=self._setting.seeded | {start.loop.statement})
            ranks = Ranks(self._program, setting)
            while needed := own & {self._library(origin) for _, origin in self._needed(ranks, frozenset(own))}:
                own -= needed
        return frozenset(own)

    # ---- what is drawn after training has begun --------------------------------------------------------------------

    def _judge(self) -> None:
        start = self._translation.start
        if start is None or not self._translation.is_distributed:
            return
        is_apart = any(self._translation.uses_of("seed_by_rank"))
        if not is_apart and any(item in self._noisy and item not in self._parting for item in self.alike):
            self._translation.cannot_keep(start.use.module, _NOISE)
        loop = self._translation.part(TrainingStart).loop
        if self._parting and loop is not None:
            self._translation.insert(loop.module, loop.statement, apart(self._parting), order=_LAST)
        if not self._can_draw:
            return
        ranks = Ranks(self._program, self._setting)
        again: dict[ast.stmt, Origin] = {}
        for need, origin in self._needed(ranks, self._own):
            if self._can_draw_again(origin, ranks):
                again[blocks.statement_of(origin.module, origin.node)] = origin
            else:
                self._decline(need, origin)
        for statement, origin in again.items():
            states = same_states(origin.module, [self._library(origin)])
            self._translation.insert(origin.module, statement, _SEVERAL + states)

    def _can_draw_again(self, origin: Origin, ranks: Ranks) -> bool:
        """Whether all processes can go on with the numbers of the first where they draw: no batch is drawn there."""
        if not isinstance(origin.node, ast.Call) or ranks.control_origins(origin.node):
            return False
        is_for_batches = self._is_apart(self._common, origin.node)
        return not is_for_batches and not any(self._translation.uses_of("seed_by_rank"))

    def _decline(self, need: str, origin: Origin) -> None:
        text = origin.text
        self._translation.decline(
            origin.module,
            origin.node,
            f"`{text}` differs between processes whose random numbers have parted: {need}",
            "draw it before the training, or from a generator of its own with one seed on all processes",
            "distribution",
        )

    @cached_property
    def _noisy(self) -> set[str]:
        """The libraries from which noise is drawn: masks of dropout, in models and data sets, or beside a batch."""
        found: set[str] = set()
        if DataFlow(self._program).has_dropout:
            found.add("torch")
        if any(name.startswith(AUGMENTS) for name in self._program.flow.imported):
            found |= {"torch", *self._parted}
        for call in draws_of(self._program):
            located = self._program.locate(call)
            info = self._program.function_of(located[0]) if located is not None else None
            is_of_batch = info is not None and info.name in ("forward", "__getitem__", "__iter__")
            if is_of_batch or (self._is_apart(self._common, call) and call not in self._setting.alike):
                found.add(library_of(self._program, call))
        return found

    @cached_property
    def _can_draw(self) -> bool:
        return bool(draws_of(self._program)) or any(
            item.arg == "shuffle" for call, _, _ in self._program.calls() for item in call.keywords
        )

    def parts(self, library: str) -> bool:
        """Whether one process may take more numbers from a library's generator than another, in training."""
        return library == "torch" or library in self._parted or library in self._own

    @cached_property
    def _parted(self) -> set[str]:
        roots = {name.split(".")[0] for name in self._program.flow.imported}
        if roots - DRAW_NOTHING - sys.stdlib_module_names or self._program.flow.imported & _DRAW_FROM_PYTHON:
            return {"random", "numpy"}
        found = {"numpy"} if roots & DRAWS_FROM_NUMPY else set()
        for call in draws_of(self._program):
            located = self._program.locate(call)
            if located is None or call in self._setting.alike:
                continue
            library = library_of(self._program, call)
            info = self._program.function_of(located[0])
            is_called = self._program.is_called(located[0])
            is_of_batch = info is not None and (info.name.startswith("__") or info.name == "forward")
            if library != "torch" and (not is_called or is_of_batch or self._is_apart(self._common, call)):
                found.add(library)
        return found

    def _library(self, origin: Origin) -> str:
        """The library whose generator something is drawn from; loaders take their orders from torch's."""
        return library_of(self._program, origin.node) if isinstance(origin.node, ast.Call) else "torch"

    @cached_property
    def _common(self) -> Ranks:
        """The program with the runtime's two streams: what is drawn apart there is drawn for a batch."""
        return Ranks(self._program, replace(self._setting, stays_apart=False))

    @staticmethod
    def _is_apart(ranks: Ranks, call: ast.Call) -> bool:
        return any(origin.kind is Kind.DRAW and origin.node is call for origin in ranks.origins(call))

    def _shuffles(self, ranks: Ranks) -> Iterator[Origin]:
        """Yield what puts lists in another order in each process, once training has begun."""
        for site in self._program.calls_to(_SHUFFLES):
            call = site.node
            assert isinstance(call, ast.Call)
            if self._is_apart(ranks, call) and not self._is_apart(self._common, call):
                yield Origin(Kind.DRAW, site.module, call)

    def _is_drawn(self, origin: Origin, own: frozenset[str]) -> bool:
        """Whether a value differs because it is drawn; loaders that are shared out are not shuffled by the process."""
        if origin.kind is not Kind.DRAW:
            return False
        located = self._program.locate(origin.node)
        if located is None or not isinstance(origin.node, ast.expr):
            return True
        if isinstance(origin.node, ast.Call):
            library = self._library(origin)
            return library == "torch" or library in self._parted or library in own
        sites = {value.site for value in self._program.flow.values(origin.node, located[1])}
        return not sites & self._shared

    @cached_property
    def _shared(self) -> set[ast.AST | None]:
        """Where the loaders are made that are shared out."""
        return {
            value.site
            for use in self._translation.uses_of("prepare_loader")
            if use.call is not None
            for value in self._program.flow.values(use.argument, use.scope)
        }

    def _needed(self, ranks: Ranks, own: frozenset[str]) -> Iterator[tuple[str, Origin]]:
        """Yield what is drawn in training and has to be the same on all processes, with the reason.

        What differs with the runtime's two streams already was found to be right.

        Args:
            ranks: the program.
            own: libraries whose generators part, beside those that part by themselves.
        """

        def is_drawn(origin: Origin) -> bool:
            return self._is_drawn(origin, own)

        known = {sink.node for sink in self._sinks(self._common)}
        for sink in self._sinks(ranks):
            drawn = list(filter(is_drawn, sink.origins))
            if sink.node not in known and len(drawn) == len(sink.origins):
                yield from ((sink.need.value, origin) for origin in drawn)
        for use in self._translation.uses_of("prepare_loader"):
            for given in (*use.call.args, *(item.value for item in use.call.keywords)) if use.call else ():
                drawn = list(filter(is_drawn, ranks.origins(given) - self._common.origins(given)))
                yield from (("it makes the data of a loader that is shared out", origin) for origin in drawn)
        for origin in filter(is_drawn, self._shuffles(ranks)):
            yield "it orders samples", origin

    def _sinks(self, ranks: Ranks) -> list[Sink]:
        delayed = any(use.keyword("delay_allreduce") is not None for use in self._translation.uses_of("prepare_model"))
        return Sinks(self._program, forwards=not delayed).find(ranks, self._setting.reduced)

    @cached_property
    def _setting(self) -> Setting:
        """The program as it is in torch's words: what is broadcast is the same, all other draws part."""
        parents = {use.call: use.module.parents[use.call] for use in self._translation.uses if use.call is not None}
        calls = {path: [use.whole for use in self._translation.uses_of(path)] for path in _PATHS}
        outer = {parents[call] for call in calls["drawn_alike"] if isinstance(call, ast.Call)}
        return Setting(
            prepared=frozenset(calls["prepare_loader"]),
            seeded=frozenset(use.statement for use in self._translation.uses_of("seed_by_rank")),
            alike=frozenset(outer),
            ordered=True,
            reduced=frozenset(node for path in _REDUCED for node in calls[path]),
            stays_apart=True,
        )


_LAST = 8
"""Processes part from each other below whatever else is put above the training loop."""

_SEVERAL = "if {WORLD_SIZE} > 1:\n"

_SHUFFLES = frozenset({"random.shuffle", "numpy.random.shuffle"})
"""What puts a list in another order, and gives nothing back."""

_DRAW_FROM_PYTHON = frozenset({"torchvision.transforms.RandomOrder", "torchvision.transforms.RandomChoice"})

_REDUCED = ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "from_main_process", "sum_of_shares", "gather")
_PATHS = ("prepare_loader", "drawn_alike", *_REDUCED)
