"""Loops over the batches of an epoch, and the variables that count their rounds."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from amp_rules.plan.training_loops import added_to, counts_up
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import called_name, walk


@dataclass(frozen=True)
class BatchLoop(Site):
    """A loop over the batches of an epoch."""

    loop: ast.For | ast.AsyncFor | ast.While

    @cached_property
    def inner(self) -> list[ast.AST]:
        """The nodes that run in each round."""
        return [node for item in self.loop.body for node in blocks.walk_own(item)]

    @cached_property
    def head(self) -> set[str]:
        """What its head counts: the number that ``enumerate`` gives, the rounds of a ``range``; no part of a batch."""
        if isinstance(self.loop, ast.While):
            return set()
        calls = [called_name(node) for node in walk(self.loop.iter) if isinstance(node, ast.Call)]
        if "enumerate" not in calls:
            return blocks.writes_target(self.loop) if "range" in calls else set()
        first = self.loop.target.elts[0] if isinstance(self.loop.target, ast.Tuple) else None
        path = blocks.path_of(first) if first is not None else None
        return blocks.writes_target(self.loop) if path is None else {path}

    @cached_property
    def counters(self) -> set[str]:
        """Variables that count its rounds, and none that a round begins anew: ``at = 0`` above a loop in it."""
        return self.head | {
            path
            for node in self.inner
            if counts_up(node)
            for path in added_to(node)
            if not self._is_begun_within(path, node)
        }

    def _is_begun_within(self, path: str, node: ast.AST) -> bool:
        """Whether a variable gets a value above the inner loop that counts it, each time that this one begins."""
        inner = blocks.loop_around(self.module, node)
        if inner is None or inner is self.loop or self.loop not in blocks.enclosing(self.module, inner):
            return False
        above = (item for suite, index in blocks.suites_around(self.module, inner) for item in suite[:index])
        return any(
            isinstance(item, ast.Assign) and path in blocks.writes(item) and path not in blocks.reads(item.value)
            for item in above
        ) or self._is_begun_within(path, inner)

    @cached_property
    def of_epoch(self) -> set[str]:
        """Those that begin anew with each epoch."""
        return self.head | (self.begun_before & self.counters)

    @cached_property
    def begun_before(self) -> set[str]:
        """Variables that get a value above the loop, each time that it begins."""
        in_loop = any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(self.module, self.loop))
        if not in_loop and isinstance(self.body, ast.Module):
            return set()
        around = blocks.suites_around(self.module, self.loop)
        return {path for suite, index in around for item in suite[:index] for path in blocks.writes(item)}
