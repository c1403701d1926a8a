"""Weights that adversarial training moves along the gradients of one process, as they are averaged at the step only."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.distribution import Distribution


def reasons(distribution: Distribution) -> Iterator[Declined]:
    """Yield the first move that is made before the gradients are those of all processes."""
    moves = distribution.precision.perturbations
    if not moves or not distribution.averaging.delayed:
        return
    yield declining.decline(
        declining.LOCAL_DECISION,
        moves[0].module,
        moves[0].guard,
        f"weights are moved along `{moves[0].module.text(moves[0].measured)}` before the step, and gradients are "
        f"averaged over the processes at the step only: {distribution.averaging.reason}",
        "follow each forward pass by its own backward pass in the training loop, on one model that is prepared before; "
        "then they are averaged in each backward pass",
    )
