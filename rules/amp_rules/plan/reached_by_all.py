"""Places that not all processes come to, or that they come to before they join."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plan.file_guards import is_guarded
from amp_rules.plan.sample_files import bodies_of_samples
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.threads import bodies_of_threads


class ReachedByAll:
    """Whether the processes can tell each other something at a place.

    Args:
        program: the program.
        left_out: nodes and bodies that not all processes run at once.
    """

    def __init__(self, program: Program, left_out: set[ast.AST]) -> None:
        self._program = program
        self._left_out = left_out

    def is_alone(self, site: Site) -> bool:
        """Whether a process may come to a place without the others; what decides on the way is not asked."""
        return bool({site.node, site.body} & self._alone) or is_guarded(site.module, site.node)

    @cached_property
    def _alone(self) -> set[ast.AST]:
        """Bodies that not all processes run, or that run before they join, and what these call.

        Workers of a loader and threads join no others, and what a file does when it is imported comes before the start.
        """
        program = self._program
        apart = bodies_of_samples(program) | {item.tree for item in program.flow.modules if item is not program.entry}
        apart |= bodies_of_threads(program)
        calls = [call for call, body, scope in program.calls() if body in apart or is_guarded(scope.module, call)]
        return self._left_out | apart | program.called_from(calls)
