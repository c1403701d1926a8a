"""Attacks beside the training: the sign of an input's gradient, of a pass that no step follows.

A sign is the same in any unit, unless the scaled gradient overflows: then it is the sign of what is no number. Where a
step follows, as in adversarial training, it is skipped and the scale comes down. Where none does, as in an evaluation,
the scale that the training reached stays, and all of the attack's samples are lost.
"""

from __future__ import annotations

import ast

from amp_rules.plan import declining
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.roles.gradient_accesses import GradientAccess
from amp_rules.roles.loaders import Loaders
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks

_MAX_CALLERS = 4
"""Functions around an attack: one for a step, one for the attack, the evaluation, the loop over epochs."""


class Attacks:
    """Finds them in one program."""

    def __init__(self, program: Program, owners: GradientOwners) -> None:
        self._program = program
        self._owners = owners
        self._loaders = Loaders(program)

    def reason(self, access: GradientAccess) -> declining.Declined | None:
        """Why a gradient whose sign is read must not be scaled; None for those of weights, and where a step follows."""
        owners = self._owners.of(access.owner, access.scope)
        if owners.optimizers or self._is_followed(access, 0):
            return None
        return declining.decline(
            declining.GRADIENT_ACCESS,
            access.module,
            access.node,
            f"`{access.what}` reads a gradient that may have overflowed, and no step follows that would lower the "
            "loss scale",
            "compute it with `torch.autograd.grad(loss, inputs)`, which does not scale it",
        )

    def _is_followed(self, site: Site, depth: int) -> bool:
        """Whether a step is made with what is computed there, before the next batch, wherever that runs."""
        statement = site.statement
        while True:
            where = blocks.place(site.module, statement)
            if any(map(self._program.runs_step, where.suite[where.index + 1 :])):
                return True
            parent = where.parent
            if isinstance(parent, ast.ExceptHandler):
                parent = site.module.parents[parent]
            if not isinstance(parent, ast.stmt) or isinstance(parent, (*blocks.BODIES, ast.ClassDef)):
                break
            if isinstance(parent, (ast.For, ast.AsyncFor)) and self._loaders.iterated(parent.iter, site):
                return self._program.runs_step(parent)
            statement = parent
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None else []
        if info is not None and (not callers or depth >= _MAX_CALLERS):
            return True
        return bool(callers) and all(self._is_followed(calling(caller), depth + 1) for caller in callers)
