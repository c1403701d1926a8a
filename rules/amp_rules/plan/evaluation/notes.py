"""What is to be known of evaluations, where they are to be shared out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.report import Note

_TOLD = 3
"""Loops that stay whole, told one by one; the last line says how many more there are."""


def of_evaluations(processes: Distribution, made: set[ast.AST], *, in_torch: bool) -> Iterator[Note]:
    """Yield which evaluations are shared out, and of each other one why it is not.

    Args:
        processes: what several processes take.
        made: what was edited.
        in_torch: whether the script is to use plain PyTorch.
    """
    found = processes.evaluations
    shared_out = [item for item in found.shared if item.loader in made]
    rows = [(item.module, item.unclear, item.loader, item.why) for item in found.whole]
    for loop in processes.loops:
        if loop.evaluates:
            rows.append((loop.module, loop.use.loader, loop.use.loader, "one loop trains and evaluates"))
    why = "plain PyTorch cannot express it" if in_torch else "it is left as it is, as requested"
    rows += [(item.module, item.loader, item.loader, why) for item in found.shared if item not in shared_out]
    rows.sort(key=lambda row: (str(row[0].path), getattr(row[1], "lineno", 0)))
    for index, (module, node, loader, why) in enumerate(rows[:_TOLD]):
        more = f"; so do {len(rows) - _TOLD} more" if index == _TOLD - 1 and len(rows) > _TOLD else ""
        text = f"every process evaluates all of `{module.text(loader)}`: {why}{more}"
        yield notes.note(notes.NOT_SHARED, module, node, text)
    for shared in shared_out[:1]:
        others = len(shared_out) - 1
        more = f"; so {'are' if others > 1 else 'is'} {others} more" if others else ""
        text = (
            f"`{shared.module.text(shared.loader)}` is split across the processes: counts equal those of one "
            f"process, and sums equal them up to the order of addition{more}"
        )
        yield notes.note(notes.EVALUATION, shared.module, shared.loader, text)
    for shared in shared_out:
        for path, node in shared.found.synchronised.items():
            text = f"`{path}` combines the states of all processes itself when it is computed"
            yield notes.note(notes.EVALUATION, shared.module, node, text)
            return
