"""Questions on the console: the main process asks, and tells the others what the answer was."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.failing_files import follows_failed_training
from amp_rules.plan.file_guards import is_guarded
from amp_rules.plan.reached_by_all import ReachedByAll
from amp_rules.roles.file_effects import try_that_expects
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.torch.questions import ASKS, INPUT_ERRORS


class Questions:
    """Calls that ask whoever started the program: each process would, and one alone has a terminal.

    Args:
        program: the program.
        left_out: nodes and bodies that not all processes run at once.
    """

    def __init__(self, program: Program, left_out: set[ast.AST]) -> None:
        self._program = program
        self._left_out = left_out
        self._reached = ReachedByAll(program, left_out)

    @cached_property
    def told(self) -> list[Site]:
        """Calls whose answer all processes go on with."""
        return [site for site in self._asked if _is_used(site) and self._hindrance(site) is None]

    @cached_property
    def unheard(self) -> list[Site]:
        """Calls that only wait for somebody."""
        return [site for site in self._asked if not _is_used(site)]

    def reasons(self) -> list[Declined]:
        """What speaks against telling all processes an answer."""
        found = []
        for site in self._asked:
            hindrance = self._hindrance(site) if _is_used(site) else None
            if hindrance is not None:
                text = site.module.text(site.node)
                found.append(
                    declining.decline(
                        declining.LOCAL_DECISION,
                        site.module,
                        site.node,
                        f"`{text}` would be asked by each process, and {hindrance}",
                        "take the answer from the command line, or let the main process ask where all come by: "
                        "`amp.from_main_process(amp.on_main(input)(...))`",
                    )
                )
        return found

    @cached_property
    def _asked(self) -> list[Site]:
        """Questions that more than the main process would ask."""
        return [site for site in self._program.calls_to(ASKS) if not self._is_of_main(site)]

    def _is_of_main(self, site: Site) -> bool:
        """Whether the main process alone comes there: the statement is left to it, or all that calls its function."""
        if site.node in self._left_out or is_guarded(site.module, site.node):
            return True
        info = self._program.function_of(site.body)
        if info is None or site.body not in self._left_out:
            return False
        callers = self._program.flow.callers(info)
        return bool(callers) and all(item.call in self._left_out for item in callers)

    def _hindrance(self, site: Site) -> str | None:
        """Why the processes cannot tell each other the answer at this place."""
        assert isinstance(site.node, ast.Call)
        if self._reached.is_alone(site):
            return "not all processes reach this place after they have joined"
        if follows_failed_training(self._program, site.module, site.node):
            return "one process may reach this place alone, after an error"
        if try_that_expects(site.module, site.node, INPUT_ERRORS) is not None:
            return "the others would wait for the answer where the main process has none"
        return None


def _is_used(site: Site) -> bool:
    """Whether anything goes on with the answer."""
    return not isinstance(site.module.parents[site.node], ast.Expr)
