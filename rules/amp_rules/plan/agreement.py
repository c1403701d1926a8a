"""How the ranks come to agree where they have to: what is reduced, and what cannot be.

Remedies are tried on the analysis before anything is written: with each one assumed, the program is run abstractly
again, until nothing local decides over training any more, or a place is left that no remedy mends.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

from amp_rules.plan.definitions import Definitions
from amp_rules.plan.draws import Draws
from amp_rules.plan.remedies import Reduction, Remedies
from amp_rules.plan.sinks import Need, Sink, Sinks
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.world import Setting
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module

_MAX_ROUNDS = 10
"""Rounds of remedies. One that mends a number may show the next place that it flows into; programs take one to four."""

_MAX_TRIED = 12
"""Reductions that are each left out once to see whether they are needed; each costs a run over the program."""

_MAX_TAKEN = 3
"""Decisions that are each taken as alike once; each costs a run over the program."""


@dataclass(frozen=True)
class Agreed:
    """What is done for all ranks to agree.

    Attributes:
        reductions: numbers that are reduced over the ranks.
        alike: calls that draw the same random numbers on all ranks.
        left: places that no remedy mends.
        ranks: what differs between ranks once all of this is done.
    """

    reductions: tuple[Reduction, ...]
    alike: dict[ast.Call, Module]
    left: tuple[Sink, ...]
    ranks: Ranks


class Agreement:
    """Finds what makes the ranks of a program agree."""

    def __init__(
        self,
        program: Program,
        setting: Setting,
        draws: Draws,
        definitions: Definitions,
        *,
        forwards: bool,
        waits: frozenset[ast.AST] = frozenset(),
        left_out: Collection[ast.AST] = frozenset(),
        own_reads: Collection[ast.AST] = frozenset(),
    ) -> None:
        """Take the program.

        Args:
            program: the program.
            setting: what the ranks share.
            draws: what they may draw alike.
            definitions: where variables get their values.
            forwards: whether ranks wait for each other in forward passes.
            waits: statements before which they do so, and calls in which they do.
            left_out: what not all of them run.
            own_reads: reads of files of a process's own samples.
        """
        self._program = program
        self._setting = setting
        self._draws = draws
        self._waits = waits
        self._places = Sinks(program, forwards=forwards, left_out=left_out, own_reads=own_reads)
        self._definitions = definitions

    @cached_property
    def found(self) -> Agreed:
        """The remedies, and what is left."""
        made: dict[Reduction, None] = {}
        alike: dict[ast.Call, Module] = {}
        ranks = Ranks(self._program, self._setting)
        for _ in range(_MAX_ROUNDS):
            sinks = self._sinks(ranks, tuple(made), alike)
            drawn = {call: module for call, module in self._draws.alike(ranks, sinks).items() if call not in alike}
            if drawn:
                alike.update(drawn)
                ranks = Ranks(self._program, self._with(tuple(made), alike))
                continue
            remedies = Remedies(self._program, ranks, self._definitions)
            times = [item for item in remedies.of_times(sinks) if not any(item.is_same(other) for other in made)]
            if times:
                made.update(dict.fromkeys(times))
                ranks = Ranks(self._program, self._with(tuple(made), alike))
                continue
            # What is read from a file of one path is the same on all ranks.
            sinks = [sink for sink in sinks if sink.need is Need.PATH] or sinks
            known = len(made)
            left = [sink for sink in sinks if not self._mend(remedies, sink, made)]
            has_progressed = len(made) > known
            if not has_progressed:
                # What no remedy mends may only follow from what one did: it is asked again on the mended program.
                found = Agreed(tuple(made), alike, tuple(_to_blame(left, sinks)), ranks)
                if not found.left:
                    return self._without_needless(found)
                following = self._around(list(found.left), made, alike)
                return replace(found, left=tuple(sink for sink in found.left if sink not in following))
            ranks = Ranks(self._program, self._with(tuple(made), alike))
        return Agreed(tuple(made), alike, tuple(self._sinks(ranks, tuple(made), alike)), ranks)

    def _around(self, sinks: list[Sink], made: dict[Reduction, None], alike: dict[ast.Call, Module]) -> list[Sink]:
        """The places of a circle that only follow from another: ``step % 100 == 0`` where ranks leave the loop apart.

        Such a test differs if another decision does, behind it, and that one differs however the test comes out. So
        does the number of rounds of a loop that nothing but such a decision makes differ.
        """
        decisions = [sink for sink in sinks if sink.need is Need.DECISION][:_MAX_TAKEN]
        rounds = [sink for sink in sinks if sink.need is Need.ROUNDS]
        left: dict[ast.AST, set[ast.AST]] = {}
        for taken in decisions if len(decisions) + len(rounds) > 1 else ():
            setting = self._with(tuple(made), alike)
            ranks = Ranks(self._program, replace(setting, reduced=setting.reduced | {taken.node}))
            left[taken.node] = {sink.node for sink in self._sinks(ranks, tuple(made), alike)}
        following = [
            sink
            for sink in decisions
            if any(sink.node not in nodes and taken in left[sink.node] for taken, nodes in left.items())
        ]
        following = following if len(following) < len(decisions) else []
        return [*following, *(sink for sink in rounds if any(sink.node not in nodes for nodes in left.values()))]

    def _without_needless(self, agreed: Agreed) -> Agreed:
        """Without what followed from a place that is mended itself: a reduction costs every rank a wait."""
        if not 1 < len(agreed.reductions) <= _MAX_TRIED:
            return agreed
        for item in agreed.reductions:
            fewer = tuple(other for other in agreed.reductions if other != item)
            setting = self._with(fewer, agreed.alike)
            ranks = Ranks(self._program, setting, is_enough=partial(self._has_lasting, made=fewer, alike=agreed.alike))
            if not self._sinks(ranks, fewer, agreed.alike):
                agreed = replace(agreed, reductions=fewer, ranks=ranks)
        return agreed

    def _mend(self, remedies: Remedies, sink: Sink, made: dict[Reduction, None]) -> bool:
        """Add what makes a place right; whether anything does."""
        found = remedies.of(sink)
        if found is None:
            return False
        for item in found:
            # One number may be needed for a decision and for the weights.
            if not any(item.is_same(other) for other in made):
                made[item] = None
        return True

    def _sinks(self, ranks: Ranks, made: tuple[Reduction, ...], alike: Iterable[ast.Call]) -> list[Sink]:
        # A reduction is met by all ranks, or none, and so is a draw from what they share.
        known = (self._setting.reduced, (statement for statement, _ in self._setting.reduced_before))
        places = frozenset(item.node for item in made).union(self._waits, alike, *known)
        return self._places.find(ranks, places)

    def _has_lasting(self, ranks: Ranks, made: tuple[Reduction, ...], alike: Iterable[ast.Call]) -> bool:
        """Whether there are places already that stay, whatever else is found out."""
        # What a schedule has taken up counts as long as nothing else is known of it.
        return any(sink.need is not Need.RATE for sink in self._sinks(ranks, made, alike))

    def _with(self, made: tuple[Reduction, ...], alike: Iterable[ast.Call]) -> Setting:
        return replace(
            self._setting,
            alike=self._setting.alike.union(alike),
            reduced=self._setting.reduced | {item.node for item in made if item.variable is None},
            reduced_before=(
                *self._setting.reduced_before,
                *((item.node, item.variable) for item in made if item.variable and isinstance(item.node, ast.stmt)),
            ),
        )


def _to_blame(left: list[Sink], sinks: list[Sink]) -> list[Sink]:
    """The places that nothing mends: for a schedule that took up a decision, the decision before it."""
    blamed: list[Sink] = []
    for sink in left or sinks:
        taken_up = sink.need is Need.RATE and isinstance(sink.what, ast.Call) and sink.node not in sink.what.args
        decisions = [other for other in sinks if other.need in (Need.DECISION, Need.ROUNDS)]
        causes = [other for other in decisions if taken_up and other.origins & sink.origins]
        blamed.extend(item for item in causes or [sink] if item not in blamed)
    return blamed
