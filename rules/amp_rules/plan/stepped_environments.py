"""Training on shares of what each process gets from an environment of its own.

The processes step their environments apart: a share of what one has stored is no share of what all have.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan.distribution import Distribution
from amp_rules.ranks.origins import Kind, Origin
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
from amp_rules.source.syntax import last_name
from amp_rules.torch.replication import STORED_EXPERIENCE


def passes_on_own_steps(processes: Distribution) -> Iterator[tuple[Backward, Origin]]:
    """Yield the backward passes whose batches a loader would share out, each with the environment that gave them."""
    program, data = processes.program, processes.data
    decided = (origin.kind for sink in processes.agreed.left for origin in sink.origins)
    if _reads_stored(program) or Kind.ENVIRONMENT in decided:
        return  # a decision by an environment is told, and what follows from it may reach any loss
    unshared = {site.node for site in data.unfed}
    for site in program.backwards:
        if site.node in unshared:
            continue
        found = [item for item in processes.agreed.ranks.origins(site.loss) if item.kind is Kind.ENVIRONMENT]
        origin = min((item for item in found if not item.of_shape), key=_place, default=None)
        if origin is not None:
            yield site, origin


def _reads_stored(program: Program) -> bool:
    """Whether steps of others are read from files, which an environment may be asked for by its name."""
    return any(last_name(call.func) in STORED_EXPERIENCE for call, _, _ in program.calls())


def _place(origin: Origin) -> tuple[str, int]:
    return str(origin.module.path), getattr(origin.node, "lineno", 0)
