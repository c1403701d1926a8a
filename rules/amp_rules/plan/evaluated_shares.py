"""Evaluations that take their batches by ``next`` from a loader that the training shares out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.report import Note
from amp_rules.roles.loaders import LoaderUse
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks


def evaluated_shares(program: Program, processes: Distribution) -> Iterator[Note]:
    """Yield a note for each loop of the kind: its batches are those of a rank, unlike those of a loop over a loader."""
    for node, body, scope in program.nodes():
        if not isinstance(node, (ast.For, ast.While)) or body in uncalled(program):
            continue
        loop = Site(scope.module, scope, body, node)
        use = _taken(processes, loop) if _only_evaluates(program, loop) else None
        if use is not None and _is_shared(processes, use):
            text = use.module.text(use.loader)
            yield notes.note(
                notes.EVALUATION,
                use.module,
                node,
                f"this evaluation takes its batches from `{text}`, of which each process has a share for the training: "
                "what it measures covers that of one process",
            )


def _only_evaluates(program: Program, loop: Site) -> bool:
    node = loop.node
    assert isinstance(node, (ast.For, ast.While))
    return (
        program.without_gradients(loop.module, node, loop.body)
        and any(map(program.runs_model, node.body))
        and not any(map(program.runs_backward, node.body))
    )


def _taken(processes: Distribution, loop: Site) -> LoaderUse | None:
    """The loader that the loop's own rounds take a batch from."""
    node = loop.node
    assert isinstance(node, (ast.For, ast.While))
    inner = [child for item in node.body for child in blocks.walk_own(item)]
    calls = (item for item in inner if isinstance(item, ast.Call) and blocks.loop_around(loop.module, item) is node)
    return next((use for call in calls for use in processes.batches.loaders.taken(call, loop)), None)


def _is_shared(processes: Distribution, use: LoaderUse) -> bool:
    """Whether the loader is prepared where it is made, or in its variable."""
    setting = processes.setting
    rebound = {
        (blocks.body_of(module, statement), variable)
        for statement, variable in (*setting.rebound, *setting.rebound_after)
        if (module := processes.program.module_of(statement)) is not None
    }
    if (use.body, blocks.path_of(use.loader)) in rebound:
        return True
    return any(value.site in setting.prepared for value in use.values if value.site is not None)
