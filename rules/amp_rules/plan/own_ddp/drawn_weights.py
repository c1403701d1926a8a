"""Models whose initial weights each process draws itself, where only gradients are exchanged by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.averaging import may_average, may_wrap
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name
from amp_rules.torch.distributed import BROADCASTS
from amp_rules.torch.replication import LIBRARY_SEEDS, SEEDS

_ALIKE = ("seed", "broadcast", "load_", "sync", "average_param", "from_pretrained")
"""What the names of functions say that may make the weights of all processes alike."""


def drawn_weights(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first model of that kind: a wrapper would give all processes the weights of the first."""
    program = own.program
    if (
        own.wraps
        or may_wrap(program)
        or not may_average(program)
        or program.calls_to(BROADCASTS | SEEDS | LIBRARY_SEEDS)
    ):
        return
    if any(word in last_name(call.func).lower() for call, _, _ in program.calls() for word in _ALIKE):
        return
    for value in sorted(program.trained, key=lambda item: getattr(item.site, "lineno", 0)):
        module = program.module_of(value.site) if value.site is not None else None
        if module is None or module not in own.modules or not isinstance(value.site, ast.Call):
            continue
        if own.is_joined_at(module, value.site):
            text = "and only gradients are exchanged: the models of the processes stay different"
            text = f"each process draws the weights of `{module.text(value.site)}` itself, {text}"
            yield module, value.site, f"{text}; `torch.manual_seed` with one seed for all makes them alike"
            return
