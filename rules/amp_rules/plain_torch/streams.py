"""What has to be drawn alike once training has begun.

In torch's own words there is one stream of random numbers. The processes begin with the same, and each leads its own on
while it works on its batches: dropout, augmentation and rejected samples may take more numbers on one than on another.
What decides over training after that is the first process's draw, or declines.
"""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plain_torch.generators import drawn_from, same_states
from amp_rules.plain_torch.translation import Translation
from amp_rules.plan.sinks import Sinks
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind, Origin
from amp_rules.ranks.world import Setting
from amp_rules.torch.replication import DRAWING_METHODS, DRAWS, NOT_DRAWN

_NOISE = "all processes draw the same dropout masks and noise"


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

    def same_again(self) -> str:
        """The lines with which all processes go on with the numbers of the first."""
        return "if {WORLD_SIZE} > 1:\n" + same_states(self.drawn_from)

    # ---- what is drawn after training has begun --------------------------------------------------------------------

    def _judge(self) -> None:
        if not self._translation.is_distributed or not self._draws:
            return
        for need, origin in self._needed().items():
            assert isinstance(origin, Origin)
            self._translation.decline(
                origin.module,
                origin.node,
                f"`{origin.module.text(origin.node)}` draws what has to be the same in all processes, whose random "
                f"numbers have parted by then: {need}",
                "draw it before the training, or from a generator of its own with one seed on all processes",
                "distribution",
            )

    @cached_property
    def _draws(self) -> list[ast.Call]:
        """The calls of the program that draw from the generators of the process."""
        found = []
        for call, _, scope in self._program.calls():
            names = {name for name in self._program.callee_names(call, scope) if name not in NOT_DRAWN}
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr in DRAWING_METHODS
            if is_method or any(name.startswith(DRAWS) for name in names):
                found.append(call)
        return found

    def _needed(self) -> dict[str, Origin]:
        ranks = Ranks(self._program, self._setting)
        places = self._setting.reduced
        found: dict[str, Origin] = {}
        for sink in Sinks(self._program, ranks, places, forwards=True).find():
            drawn = [origin for origin in sink.origins if origin.kind is Kind.DRAW]
            if drawn and len(drawn) == len(sink.origins):
                found.setdefault(sink.need.value, drawn[0])
        for use in self._translation.uses_of("prepare_loader"):
            for given in (*use.call.args, *(item.value for item in use.call.keywords)) if use.call else ():
                drawn = [origin for origin in ranks.origins(given) if origin.kind is Kind.DRAW]
                if drawn:
                    found.setdefault("it makes the data of a loader that is shared out", drawn[0])
        return found

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


_REDUCED = ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "from_main_process", "sum_of_shares", "gather")
_PATHS = ("prepare_loader", "drawn_alike", *_REDUCED)
