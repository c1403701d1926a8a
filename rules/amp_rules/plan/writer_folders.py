"""Folders that writers make up, and that the script asks them for on each process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.plan.reached_by_all import ReachedByAll
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.syntax import is_none
from amp_rules.torch.writers import FILE_WRITERS, FOLDERS_OF_WRITERS, SAVERS, WRITERS, WRITERS_OF_FOLDERS


class WriterFolders:
    """Where a folder is read that only the writer of the main process knows.

    Args:
        program: the program.
        ranks: what differs between ranks.
        left_out: nodes and bodies that not all processes run at once.
    """

    def __init__(self, program: Program, ranks: Ranks, left_out: set[ast.AST]) -> None:
        self._program = program
        self._ranks = ranks
        self._reached = ReachedByAll(program, left_out)

    @cached_property
    def told(self) -> set[ast.AST]:
        """The calls that make a writer where all processes come, so that it can tell them its folder."""
        made = {node for _, writers in self._asked for node in writers}
        return {site.node for site in self._unnamed if site.node in made and self._tells(site)}

    def untold(self) -> Iterator[Site]:
        """Yield reads of the folder of another writer."""
        for site, writers in self._asked:
            if not writers <= self.told:
                yield site

    @cached_property
    def _unnamed(self) -> list[Site]:
        """The calls that give a writer no folder."""
        return [site for site in self._program.calls_to(WRITERS) if not _is_given_folder(site.node)]

    @cached_property
    def _asked(self) -> list[tuple[Site, set[ast.AST]]]:
        """Reads of such folders on each process, with the calls that made the writers."""
        program = self._program
        unnamed = {site.node for site in self._unnamed}
        found: list[tuple[Site, set[ast.AST]]] = []
        for node, body, scope in program.nodes() if unnamed else ():
            if isinstance(node, ast.Attribute) and node.attr in FOLDERS_OF_WRITERS and isinstance(node.ctx, ast.Load):
                made = {value.site for value in program.flow.values(node.value, scope) if value.ref in WRITERS}
                site = Site(scope.module, scope, body, node)
                writers: set[ast.AST] = {item for item in made if item is not None and item in unnamed}
                if writers and not _is_for_main(program, site):
                    found.append((site, writers))
        return found

    def _tells(self, site: Site) -> bool:
        """Whether the writer makes up a folder at a place where all processes come, or none."""
        assert isinstance(site.node, ast.Call)
        is_of_folder = self._program.callee_names(site.node, site.scope) & WRITERS <= WRITERS_OF_FOLDERS
        return is_of_folder and not self._reached.is_alone(site) and not self._ranks.decisions(site.node)


def _is_given_folder(call: ast.AST) -> bool:
    """Whether a writer gets a folder: any argument in the first place, or by its name."""
    assert isinstance(call, ast.Call)
    given = [*call.args[:1], *(item.value for item in call.keywords if item.arg in FOLDERS_OF_WRITERS)]
    return any(not is_none(item) for item in given)


def _is_for_main(program: Program, site: Site) -> bool:
    """Whether the statement only writes a file or a line there, which runs on the main process only or does no harm."""
    statement = site.statement
    calls = [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []
    calls += [statement.value] if isinstance(statement, ast.Expr) else []
    harmless = FILE_WRITERS.keys() | SAVERS | {"builtins.open", "builtins.print"}
    return any(isinstance(item, ast.Call) and program.callee_names(item, site.scope) & harmless for item in calls)
