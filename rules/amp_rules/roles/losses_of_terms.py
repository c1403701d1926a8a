"""Losses that keep their terms: an object is given each of them, and goes backward from their sum itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.values import CallSite, Value
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward
from amp_rules.source import blocks


def callers_with_terms(program: Program, site: Backward, computing: Iterable[ast.stmt]) -> Iterator[CallSite]:
    """Yield the calls that make such an object go backward, where it computes with no model itself.

    ``self.total.backward()`` in a method: the terms are computed where callers make the object and add to it.

    Args:
        program: the program.
        site: the backward pass.
        computing: the statements that compute its loss, as far as is known.
    """
    info = program.function_of(site.body)
    if info is None or info.receiver is None:
        return
    inner = [node for node in computing if blocks.body_of(site.module, node) is site.body]
    read = set().union(*map(blocks.reads, [site.loss, *inner]))
    if not any(path.startswith(f"{info.receiver}.") for path in read):
        return
    owner = program.flow.class_of(info)
    if owner is None or is_module(Value("instance", owner)):
        return
    methods = (item for item in program.flow.functions.values() if program.flow.class_of(item) in owner.mro())
    if any(program.runs_model(statement) for item in methods for statement in item.body):
        return
    for caller in program.flow.callers(info):
        if isinstance(caller.call.func, ast.Attribute):
            yield caller
