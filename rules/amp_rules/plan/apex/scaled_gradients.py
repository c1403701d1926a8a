"""Gradients that are read within ``amp.scale_loss``, where they are still scaled.

All processes agree on an overflow only if gradients are averaged by hand before they are unscaled, so that is where it
is done. The scaler unscales them behind the average, too (``plan/exchanged_gradients.py``). What else is done with them
there would be done with other numbers.
"""

from __future__ import annotations

import ast

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.scaled_loss import scaled_loss_of
from amp_rules.plan.exchanged_gradients import ExchangedGradients
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import GRADIENT


def require_averages(program: Program, files: list[ApexFile]) -> None:
    """Stop where a context around a backward pass does more with gradients than to average them.

    Raises:
        NotUnderstood: it does.
    """
    read = [
        (file, part)
        for file in files
        for node in file.module.parents
        if isinstance(node, ast.With) and scaled_loss_of(file, node) is not None
        for item in node.body
        for part in walk(item)
        if isinstance(part, ast.Attribute) and part.attr == GRADIENT
    ]
    accesses = gradient_accesses(program) if read else []
    exchanged = ExchangedGradients(program, accesses) if read else None
    for file, part in read:
        if exchanged is None or (part in {item.node for item in accesses} and part not in exchanged.in_any_unit):
            raise file.not_understood(part, "gradients are read within `scale_loss`, where they are still scaled")
