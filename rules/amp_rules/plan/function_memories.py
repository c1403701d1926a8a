"""Memories that the backward pass of a function fills with what a batch gave: each process has its own share of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.function_writes import function_writes
from amp_rules.plan.sample_tables import SampleTable
from amp_rules.roles.batches import TrainingData
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.syntax import last_name, walk


def function_memories(program: Program, data: TrainingData) -> Iterator[SampleTable]:
    """Yield where functions that a training loop applies write rows of what they are given: ``ctx.memory[y] = x``.

    A function that gathers may be given the rows of all processes.
    """
    inside = {node for loop in data.loops for node in walk(loop.node)}
    inside |= {node for body in program.called_from(inside) for node in program.nodes_of(body)}
    applied = {
        value.ref
        for node in inside
        if isinstance(node, ast.Attribute) and node.attr == "apply"
        if (located := program.locate(node)) is not None
        for value in program.flow.values(node.value, located[1])
        if value.kind == "class"
    }
    for info in sorted(applied, key=lambda info: info.facts.name):
        if any("gather" in last_name(node) for method in info.facts.methods.values() for node in method.nodes):
            continue
        for write in function_writes(info):
            scope = program.flow.scopes.get(write.method.node)
            target = write.target
            if not isinstance(target, ast.Subscript) or isinstance(target.slice, (ast.Constant, ast.Slice)):
                continue
            path = blocks.path_of(target.value)
            if scope is None or path is None:
                continue
            statement = blocks.statement_of(scope.module, write.node)
            yield SampleTable(scope.module, scope, write.method.node, statement, path)
            break
