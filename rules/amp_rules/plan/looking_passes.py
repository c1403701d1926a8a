"""Backward passes that look at the model and train nothing: what stops them from staying, and what is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.notes import IN_FULL_PRECISION, note
from amp_rules.plan.report import Note
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source import blocks


def reasons(program: Program, runs: Sequence[StatementRun]) -> Iterator[Declined]:
    """Yield what stops passes that look at the model from staying as they are.

    Args:
        program: the program.
        runs: the statements that the training runs under autocast.
    """
    looks = program.looks
    for run in runs if looks.backwards else ():
        if blocks.body_of(run.module, run.first) in looks.bodies:
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                run.module,
                run.first,
                f"`{run.module.text(run.first).partition(chr(10))[0]}` computes what the training differentiates, and "
                f"what `{_text(looks.backwards[0])}` does, whose gradients are not scaled",
                "compute the two in two functions",
            )
    for access in gradient_accesses(program) if looks.backwards else ():
        if access.node not in looks.rounds or access.body in looks.bodies:
            yield declining.decline(
                declining.GRADIENT_ACCESS,
                access.module,
                access.node,
                f"`{access.what}` may read gradients that the training left, or those of "
                f"`{_text(looks.backwards[0])}`, which are not scaled",
                "read them in the round of the training, between the backward pass and the step",
            )


def reasons_in_processes(program: Program) -> Iterator[Declined]:
    """Yield passes that look at a model: through one that averages gradients, they would do so as well."""
    for backward in program.looks.backwards:
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            backward.module,
            backward.node,
            f"`{_text(backward)}` looks at gradients outside of the training: with several processes each backward "
            "pass through a prepared model averages its gradients, and waits for all of them",
            "compute them with `torch.autograd.grad(loss, tensors)`, which averages nothing",
        )


def notes(program: Program) -> Iterator[Note]:
    """Yield the passes that stay as they are."""
    for backward in program.looks.backwards:
        text = f"`{_text(backward)}` stays as it is, without a loss scale and autocast: it looks at gradients outside "
        text += "of the training, which clears what it leaves"
        yield note(IN_FULL_PRECISION, backward.module, backward.node, text)


def _text(backward: Backward) -> str:
    return backward.module.text(backward.call)
