"""Files that a function writes by a path which it is given: what reads one of them in that function waits there.

``def score(model, path):`` may dump what a model gives and load it at once. A wait above the call of such a function
would come before the file is written.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from amp_rules.plan.statement_order import comes_after
from amp_rules.roles.file_effects import FileEffect
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.scopes import FunctionNode, arguments_of

_MAX_PLACES = 500
"""Calls through which paths are followed; a file beyond is waited for where its path is no parameter any more."""


class WrittenParameters:
    """Answers for the files that the main process alone changes."""

    def __init__(self, program: Program, effects: Iterable[FileEffect]) -> None:
        """Take the program.

        Args:
            program: the program.
            effects: what changes files.
        """
        self._program = program
        self._effects = effects

    def before(self, read: Site, name: str) -> bool:
        """Whether the function of a read may have written the file of a parameter, itself or by another, above it."""
        return any(
            site.node is not read.node
            and comes_after(read.module, read.statement, site.statement)
            and not blocks.exclude_each_other(read.module, read.statement, site.statement)
            for site in self._writes.get((read.body, name), ())
        )

    @cached_property
    def _writes(self) -> dict[tuple[ast.AST, str], list[Site]]:
        """What writes a file, or calls what does, by its function and the parameter that is the path."""
        found: defaultdict[tuple[ast.AST, str], list[Site]] = defaultdict(list)
        pending: list[tuple[Site, ast.expr]] = [
            (item, path) for item in self._effects if not item.removes for path in item.paths
        ]
        seen: set[tuple[ast.AST, str]] = set()
        while pending and len(seen) < _MAX_PLACES:
            site, path = pending.pop()
            if not isinstance(path, ast.Name) or not isinstance(site.body, FunctionNode):
                continue
            info = self._program.function_of(site.body)
            is_given = path.id in {item.arg for item in arguments_of(site.body)}
            if info is None or not is_given or (site.node, path.id) in seen:
                continue
            seen.add((site.node, path.id))
            found[site.body, path.id].append(site)
            for caller in self._program.flow.callers(info):
                given = info.argument(caller.call, path.id)
                if given is not None:
                    pending.append((calling(caller), given))
        return found
