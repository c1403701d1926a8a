"""What the processes run that a call of the script spawns."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.flow.statements import is_under_main_guard
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.workers import training_workers
from amp_rules.source import blocks
from amp_rules.torch.distributed import SPAWNS


class Spawned:
    """Answers for one program.

    Args:
        own: the program.
    """

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._workers = training_workers(own.program)

    def __bool__(self) -> bool:
        """Whether the script starts the processes that train itself."""
        return bool(self._workers)

    @property
    def are_forked(self) -> bool:
        """Whether they may be forked off, and go on with what the first one has, its generators too."""
        spawns = {site.node for site in self._own.program.calls_to(SPAWNS)}
        return any(
            site.node not in spawns or any(item.arg == "start_method" for item in site.node.keywords)  # type: ignore[attr-defined]
            for site, _ in self._workers
        )

    def run(self, site: Site) -> bool:
        """Whether processes that train come to a place; what a file does at import, they do again."""
        if not self._workers:
            return True
        if isinstance(site.body, ast.Module):
            return not is_under_main_guard(site.module, site.node)
        return site.body in self._below

    def is_beside(self, site: Site) -> bool:
        """Whether what torchrun starts comes to a place: its function joins, and trains itself where it spawns nothing.

        ``if args.spawn: mp.spawn(work, nprocs=2) else: work(int(os.environ["LOCAL_RANK"]))``.
        """
        if isinstance(site.body, ast.Module) or not any(item.body is site.body for item in self._own.joins):
            return False
        return any(
            caller.call is not start.node and calling(caller).body is site.body
            for start, info in self._workers
            for caller in self._own.program.flow.callers(info)
        )

    def is_left_to_parent(self, site: Site) -> bool:
        """Whether only the process that starts the others comes to a place, and joins no group itself."""
        return bool(self._workers) and not self.run(site) and all(map(self.run, self._own.joins))

    @cached_property
    def _below(self) -> set[ast.AST]:
        nodes = [node for _, info in self._workers for node in blocks.walk_body(info.node)]
        return {info.node for _, info in self._workers} | self._own.program.called_from(nodes)
