"""Checkpoints that training goes on from without its loss scale, in a script that keeps its own scaler."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import place_of
from amp_rules.plan.notes import OWN_STEP, note
from amp_rules.plan.plain_scalers import plain_scalers
from amp_rules.plan.report import Note
from amp_rules.plan.saved_scale import saved_scale
from amp_rules.roles.program import Program
from amp_rules.torch.mixed_precision import is_scaler_name


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the first such checkpoint; none where the state of a scaler is asked for anywhere."""
    scalers = plain_scalers(program)
    if not scalers or not any(site.is_scaled for site in program.backwards) or _is_kept(program):
        return
    found = saved_scale(program)
    if found is None or any("scaler" in ast.unparse(item.site.node).lower() for item in found.saved):
        return
    saved, loaded = found.saved[0], found.loaded[0]
    made = scalers[0]
    text = (
        f"the state of the scaler ({place_of(program, made.module, made.node)}) is not saved beside that of the "
        f"optimizer, which {place_of(program, loaded.site.module, loaded.site.node)} restores: training that goes on "
        "from here begins again with the first loss scale; save its `state_dict()`, too, and load it there"
    )
    yield note(OWN_STEP, saved.site.module, saved.site.node, text)


def _is_kept(program: Program) -> bool:
    """Whether the state of what is, or may be, a scaler is asked for."""
    for call, _, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("state_dict", "load_state_dict"):
            held = call.func.value
            if "scaler" in ast.unparse(held).lower():
                return True
            if any(is_scaler_name(str(value.name)) for value in program.flow.values(held, scope)):
                return True
    return False
