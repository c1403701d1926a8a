"""What has to be drawn alike once training has begun.

In torch's own words there is one stream of random numbers. The processes begin with the same, and each leads its own on
while it works on its batches: dropout, augmentation and rejected samples may take more numbers on one than on another.
What decides over training after that is the first process's draw, or declines.
"""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plain_torch.generators import drawn_from, draws_of, same_states
from amp_rules.plain_torch.translation import Translation
from amp_rules.plan.sinks import Sinks
from amp_rules.ranks.analysis import Ranks
from amp_rules.ranks.origins import Kind, Origin
from amp_rules.ranks.world import Setting
from amp_rules.roles.batches import DataFlow

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

    def same_again(self) -> str:
        """The lines with which all processes go on with the numbers of the first."""
        return "if {WORLD_SIZE} > 1:\n" + same_states(self.drawn_from)

    # ---- what is drawn after training has begun --------------------------------------------------------------------

    def _judge(self) -> None:
        start = self._translation.start
        if start is None or not self._translation.is_distributed:
            return
        if self._has_noise and not any(self._translation.uses_of("seed_by_rank")):
            self._translation.cannot_keep(start.use.module, _NOISE)
        if not self._can_draw:
            return
        for need, origin in self._needed().items():
            self._translation.decline(
                origin.module,
                origin.node,
                f"`{origin.module.text(origin.node)}` draws what has to be the same in all processes, whose random "
                f"numbers have parted by then: {need}",
                "draw it before the training, or from a generator of its own with one seed on all processes",
                "distribution",
            )

    @property
    def _has_noise(self) -> bool:
        """Whether the program drops out, or draws in its models and data sets."""
        if DataFlow(self._program).has_dropout or any(
            name.startswith(_AUGMENTS) for name in self._program.flow.imported
        ):
            return True
        bodies = {self._program.locate(call) for call in draws_of(self._program)}
        infos = [self._program.function_of(located[0]) for located in bodies if located is not None]
        return any(info is not None and info.name in ("forward", "__getitem__", "__iter__") for info in infos)

    @cached_property
    def _can_draw(self) -> bool:
        return bool(draws_of(self._program)) or any(
            item.arg == "shuffle" for call, _, _ in self._program.calls() for item in call.keywords
        )

    def _is_drawn(self, origin: Origin) -> bool:
        """Whether a value differs because it is drawn; loaders that are shared out are not shuffled by the process."""
        if origin.kind is not Kind.DRAW:
            return False
        located = self._program.locate(origin.node)
        if isinstance(origin.node, ast.Call) or not isinstance(origin.node, ast.expr) or located is None:
            return True
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

    def _needed(self) -> dict[str, Origin]:
        ranks = Ranks(self._program, self._setting)
        places = self._setting.reduced
        found: dict[str, Origin] = {}
        for sink in Sinks(self._program, ranks, places, forwards=True).find():
            drawn = list(filter(self._is_drawn, sink.origins))
            if drawn and len(drawn) == len(sink.origins):
                found.setdefault(sink.need.value, drawn[0])
        for use in self._translation.uses_of("prepare_loader"):
            for given in (*use.call.args, *(item.value for item in use.call.keywords)) if use.call else ():
                drawn = list(filter(self._is_drawn, ranks.origins(given)))
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


_AUGMENTS = (
    "torchvision.transforms.Random",
    "torchvision.transforms.ColorJitter",
    "albumentations",
    "imgaug",
    "kornia",
)
"""What changes samples at random."""

_REDUCED = ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "from_main_process", "sum_of_shares", "gather")
_PATHS = ("prepare_loader", "drawn_alike", *_REDUCED)
