"""Which functions run to make a sample or a batch: in a worker, or as often as a rank's share asks for."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.torch.data import RUN_FOR_SAMPLES

_GIVEN = frozenset({"collate_fn", "worker_init_fn"})


def bodies_of_samples(program: Program) -> set[ast.AST]:
    """The bodies of such functions: methods of data sets, and what a loader is given."""
    found: set[ast.AST] = set()
    for info in program.flow.functions.values():
        owner = program.flow.class_of(info) if info.cls is not None else None
        if info.cls is not None and info.name in RUN_FOR_SAMPLES:
            found.add(info.node)
        elif owner is not None and info.name == "__iter__":
            if any(name.rpartition(".")[2] == "IterableDataset" for name in owner.external_bases()):
                found.add(info.node)
    for call, _, scope in program.calls():
        for item in call.keywords:
            if item.arg in _GIVEN:
                found |= {
                    value.ref.node for value in program.flow.values(item.value, scope) if value.kind == "function"
                }
    return found
