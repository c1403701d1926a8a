"""Models that a script gives which is not part of the program: it made them before the processes had their devices."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.program import Program


def reasons(program: Program) -> Iterator[Declined]:
    """Yield each of them that is trained."""
    for value in sorted(program.trained, key=lambda item: getattr(item.site, "lineno", 0)):
        module = program.module_of(value.site) if value.is_given_model and value.site is not None else None
        if module is None or value.site is None:
            continue
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            module,
            value.site,
            f"`{module.text(value.site)}` comes from a script that is not part of this program: it may be moved to a "
            "device before each process has its own device",
            "migrate the script that makes the model with `--ddp`; it takes this file with it",
        )
