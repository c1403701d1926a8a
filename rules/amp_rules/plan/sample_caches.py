"""Caches that have a file for each sample of a batch: no process waits for the files of another one's samples."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from amp_rules.plan.statement_order import comes_after
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, walk

LOOKED = frozenset({"exists", "isfile", "is_file", "lexists"})
"""Functions and methods that look whether a file is there."""


def _of_none(node: ast.expr, scope: Scope) -> bool:
    return False


class SampleCaches:
    """Tells reads of such caches.

    Attributes:
        reads: those that were told so far, with the bodies that they stand in.
    """

    def __init__(self, program: Program, is_of_batch: Callable[[ast.expr, Scope], bool] | None) -> None:
        """Take the program.

        Args:
            program: the program.
            is_of_batch: whether a value follows from the batches of one process; None where no process has a share.
        """
        self._program = program
        self._is_of_batch = is_of_batch or _of_none
        self.reads: dict[ast.AST, ast.AST] = {}

    def keeps(self, site: Site, path: ast.expr, written: Iterable[Site]) -> bool:
        """Whether a read is one of such a cache: behind a look for the file, which is made anew where it is not there.

        Processes have other samples, and as many waits as samples would differ. Each works without the files of others.

        Args:
            site: the read.
            path: what it reads.
            written: the statements of its function that may write the file.
        """
        place = next((item for item in blocks.enclosing(site.module, site.node) if isinstance(item, ast.If)), None)
        if place is None or not _looks(place.test):
            return False
        if not self._is_of_batch(path, site.scope) or not self._is_told_batches(site):
            return False
        if not any(comes_after(site.module, item.statement, place) for item in written):
            return False
        self.reads[site.node] = site.body
        return True

    def is_beside(self, site: Site, path: ast.expr) -> bool:
        """Whether a read is one of such a cache, or of the sample itself in the function that looks into the cache."""
        if site.node in self.reads:
            return True
        return site.body in self.reads.values() and self._is_of_batch(path, site.scope)

    def _is_told_batches(self, site: Site, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether all that calls a function, up to a loop over batches that trains, gives it something of them."""
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None and site.body not in seen else []
        for caller in callers:
            above = calling(caller)
            given = [*caller.call.args, *(item.value for item in caller.call.keywords)]
            if not any(self._is_of_batch(item, above.scope) for item in given):
                return False
            loops = [item for item in blocks.enclosing(above.module, above.node) if isinstance(item, ast.For)]
            if any(self._takes_batches(item, above.scope) and self._program.runs_backward(item) for item in loops):
                continue
            if not self._is_told_batches(above, seen | {site.body}):
                return False
        return bool(callers)

    def _takes_batches(self, loop: ast.For, scope: Scope) -> bool:
        names = [node for node in walk(loop.target) if isinstance(node, ast.Name)]
        return any(value.kind == "batch" for name in names for value in self._program.flow.values(name, scope))


def _looks(test: ast.expr) -> bool:
    return any(isinstance(item, ast.Call) and called_name(item) in LOOKED for item in walk(test))
