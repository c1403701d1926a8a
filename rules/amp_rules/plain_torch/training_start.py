"""Where training begins: the outermost loop of the training steps, and what runs within it alone."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.data import RUN_FOR_SAMPLES

_RUN_FOR_BATCHES = RUN_FOR_SAMPLES | {"forward"}
"""Methods that models and data sets run for each batch, which nothing calls by name."""

_MAX_CALLS = 8
"""Calls from the entry to where a script starts; ``cli``, ``run`` and ``main`` are three. Circles of calls end."""


def may_repeat(program: Program, module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether the script may come to a node more than once."""
    if any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(module, node)):
        return True
    info = program.function_of(blocks.body_of(module, node))
    callers = program.flow.callers(info) if info is not None else []
    if len(callers) > 1 or depth > _MAX_CALLS:
        return True
    return any(may_repeat(program, item.scope.module, item.call, depth + 1) for item in callers)


class TrainingStart:
    """The beginning of a program's training.

    Attributes:
        loop: the outermost loop around the training steps, the first one where several follow each other. None where
            the program may come there more than once, or makes its models within.
    """

    def __init__(self, translation: Translation) -> None:
        self._program = translation.program
        self._loops = self._outermost_loops()
        prepared = list(translation.uses_of("prepare_model"))
        is_sound = self._loops and not any(self.is_within(use.node) for use in prepared)
        self.loop = self._loops[0] if is_sound else None

    def is_within(self, node: ast.AST) -> bool:
        """Whether a node runs in training, or for the batches of it, and nowhere else."""
        return node in self._within

    def _outermost_loops(self) -> list[Site]:
        """The outermost loops around the backward passes, one after the other in one block; else none."""
        found: dict[ast.AST, Site] = {}
        for backward in self._program.backwards:
            sites = self._tops(backward)
            if not sites:
                return []
            found |= sites
        sites = {node: site for node, site in found.items() if not may_repeat(self._program, site.module, node)}
        if len(sites) != len(found) or len({site.module.parents[node] for node, site in sites.items()}) != 1:
            return []
        return sorted(sites.values(), key=lambda site: site.line)

    def _tops(self, site: Site, depth: int = 0) -> dict[ast.AST, Site] | None:
        """The outermost loops around a place through all callers; None where a way to it is not known or has none."""
        loops = [item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS)]
        own: dict[ast.AST, Site] = {loops[-1]: Site(site.module, site.scope, site.body, loops[-1])} if loops else {}
        info = self._program.function_of(site.body)
        if info is None:
            return own if site.module.is_entry else None
        callers = self._program.flow.callers(info)
        if depth > _MAX_CALLS:
            return None
        if not callers:  # a console script may begin there
            return own if site.module.is_entry and isinstance(site.module.parents[info.node], ast.Module) else None
        found: dict[ast.AST, Site] = {}
        for caller in callers:
            further = self._tops(calling(caller), depth + 1)
            if further is None:
                return None
            found |= further or own
        return found

    @cached_property
    def _within(self) -> set[ast.AST]:
        """The nodes of the loops, and of the functions that are called from there and nowhere else."""
        nodes = {node for loop in self._loops for node in walk(loop.node)}
        for body, _ in self._program.bodies:
            info = self._program.function_of(body)
            if info is not None and info.name in _RUN_FOR_BATCHES and self._program.flow.class_of(info) is not None:
                nodes |= set(blocks.walk_body(body))
        bodies = self._program.called_from(nodes)
        while True:
            inside = nodes.union(*map(blocks.walk_body, bodies))
            kept = {body for body in bodies if self._is_called_from(inside, body)}
            if kept == bodies:
                return inside
            bodies = kept

    def _is_called_from(self, nodes: set[ast.AST], body: ast.AST) -> bool:
        info = self._program.function_of(body)
        return info is not None and all(caller.call in nodes for caller in self._program.flow.callers(info))
