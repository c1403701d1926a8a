"""Where the processes of a script can wait for a file that the first of them alone writes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from functools import cached_property

from amp_rules.checks.common.rank_paths import Reach
from amp_rules.plan.file_order import FileOrder
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.shares import Shares
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module

_BARRIER = "torch.distributed.barrier"
_INITIALISED = "torch.distributed.is_initialized"


class Waits:
    """Answers for one program.

    Args:
        own: the program.
        order: which reads of which files have to wait.
    """

    def __init__(self, own: OwnDdp, order: FileOrder) -> None:
        self._own = own
        self._order = order

    def can_wait(self, call: ast.AST, readers: Iterable[Site]) -> bool:
        """Whether all processes can wait for what a call writes, before each of the reads."""
        nodes = {site.node for site in readers}
        places = self._places(call, nodes)
        if call in self._order.unwaited or nodes != {read.node for read, _, _ in self._order.places[call]} & nodes:
            return False
        return bool(places) and all(self._all_come(module, place) for module, place in places)

    def barriers(self, calls: Collection[tuple[ast.AST, list[Site]]]) -> list[tuple[Module, ast.stmt]]:
        """Statements before which all processes wait for what the calls write, once where one wait is enough."""
        found: dict[ast.stmt, Module] = {}
        for call, readers in calls:
            for module, place in self._places(call, {site.node for site in readers}):
                found[place] = module
        return [(module, place) for place, module in found.items() if self._order.covered.get(place) not in found]

    def code(self, module: Module, place: ast.stmt) -> str:
        """The wait, in the words of the file."""
        barrier = f"{self._own.word(module, _BARRIER)}()"
        if module.is_entry and self._own.is_several_always and self._own.is_joined_at(module, place):
            return barrier
        return f"if {self._own.word(module, _INITIALISED)}():\n    {barrier}"

    def _places(self, call: ast.AST, reads: Collection[ast.AST]) -> list[tuple[Module, ast.stmt]]:
        return [(met.module, place) for read, met, place in self._order.places[call] if read.node in reads]

    def _all_come(self, module: Module, place: ast.stmt) -> bool:
        """Whether every process comes to a statement, once, and has joined the others where they do."""
        own = self._own
        if module not in own.modules or own.reach(module, place) is not Reach.EVERY:
            return False
        if not own.only_together(module, place) or own.joins_below(module, place):
            return False
        # In a loop a process may come there more often than others: what ends it is not asked.
        if any(isinstance(item, (*blocks.LOOPS, ast.Try)) for item in blocks.enclosing(module, place)):
            return False
        if own.word(module, _BARRIER) is None or own.word(module, _INITIALISED) is None:
            return False
        return not self._shares.ranks.control_origins(place)

    @cached_property
    def _shares(self) -> Shares:
        return Shares(self._own)
