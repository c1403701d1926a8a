"""Checkpoints that training goes on from without its loss scale, in a script that keeps its own scaler."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.checkpoint_keys import asked_for_state, written_values
from amp_rules.plan.file_names import more_places, place_of
from amp_rules.plan.notes import OWN_STEP, note
from amp_rules.plan.plain_scalers import plain_scalers
from amp_rules.plan.report import Note
from amp_rules.plan.saved_scale import saved_scale
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import last_name
from amp_rules.torch.checkpoints import LOADS
from amp_rules.torch.mixed_precision import is_scaler_name


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the first such checkpoint; none where the state of a scaler is asked for anywhere."""
    scalers = plain_scalers(program)
    if not scalers or not any(site.is_scaled for site in program.backwards) or _is_kept(program):
        return
    found = saved_scale(program)
    if found is not None:
        if any("scaler" in ast.unparse(item.site.node).lower() for item in found.saved):
            return
        saved, loaded = [item.site for item in found.saved], found.loaded[0].site
    elif (places := next(_of_one_variable(program), None)) is not None:
        saved, loaded = places
    else:
        return
    made = scalers[0]
    text = (
        f"the state of the scaler ({place_of(program, made.module, made.node)}) is not saved beside that of the "
        f"optimizer, which {place_of(program, loaded.module, loaded.node)} restores: training that goes on "
        "from here begins again with the first loss scale; save its `state_dict()`, too, and load it there"
    )
    others = more_places(program, [(item.module, item.node) for item in saved])
    yield note(OWN_STEP, saved[0].module, saved[0].node, text + others)


def _of_one_variable(program: Program) -> Iterator[tuple[list[Site], Site]]:
    """Yield where a function saves the state of an optimizer that it steps, and where it restores it.

    The optimizer itself may not be known: ``eval(options.optimizer)(parameters)``.
    """
    written = {value.site for value in written_values(program) if value.kind == "sequence"}
    for step in program.steps:
        path = blocks.path_of(step.optimizer)
        if path is None:
            continue
        asked = [
            Site(step.module, step.scope, step.body, node)
            for node in program.nodes_of(step.body)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if blocks.path_of(node.func.value) == path
        ]
        saved = [item for item in asked if _called(item) == "state_dict" and _entry_of(item) in written]
        loaded = [item for item in asked if _called(item) == "load_state_dict" and _is_out_of_a_file(program, item)]
        if saved and loaded and "scaler" not in ast.unparse(_entry_of(saved[0])).lower():
            yield saved, loaded[0]


def _called(site: Site) -> str:
    return last_name(site.node.func) if isinstance(site.node, ast.Call) else ""


def _entry_of(site: Site) -> ast.AST:
    """What a call stands in as a value: ``{"optimizer": optimizer.state_dict()}``, ``dict(optimizer=...)``."""
    parents = site.module.parents
    parent = parents[site.node]
    return parents[parent] if isinstance(parent, ast.keyword) else parent


def _is_out_of_a_file(program: Program, site: Site) -> bool:
    """Whether a state may be an entry of what is loaded."""
    given = argument_at(site.node, "state_dict", 0) if isinstance(site.node, ast.Call) else None
    held = program.flow.values(given.value, site.scope) if isinstance(given, ast.Subscript) else set()
    return any(value.ref in LOADS for value in held)


def _is_kept(program: Program) -> bool:
    """Whether the state of what is, or may be, a scaler is asked for."""
    return any(
        "scaler" in ast.unparse(held).lower()
        or any(is_scaler_name(str(value.name)) for value in program.flow.values(held, scope))
        for held, scope in asked_for_state(program)
    )
