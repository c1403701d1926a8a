"""Optimizers of tensors that belong to no model: nothing would average their gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.roles.steps import Program


def reasons(program: Program) -> Iterator[Declined]:
    """Yield each optimizer that is given such tensors, when it is made or later."""
    sites = [
        value.site
        for step in program.steps
        for value in sorted(program.flow.values(step.optimizer, step.scope), key=lambda item: str(item.ref))
    ]
    sites += [site.node for site in program.added_groups]
    for call in dict.fromkeys(sites):
        if isinstance(call, ast.Call):
            located = program.locate(call)
            if located is None or not program.loose_parameters(call):
                continue
            yield declining.decline(
                declining.GRADIENTS_OUTSIDE,
                located[1].module,
                call,
                f"`{located[1].module.text(call.func)}` gets tensors that belong to no model: their gradients "
                "would differ on each rank",
                "make them parameters of a module, and pass that to `amp.prepare_model`",
            )
