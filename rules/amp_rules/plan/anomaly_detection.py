"""Anomaly detection of autograd, which raises at the first NaN: an overflow of the loss scale gives some."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.notes import OVERFLOWN_RECORD, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source.index import argument_at, literal

_SETTING = frozenset({"torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly"})
_DETECTING = frozenset({"torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly"})


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each place that turns it on for certain, with its test for NaN."""
    for names, at in ((_SETTING, 1), (_DETECTING, 0)):
        for site in program.calls_to(names):
            assert isinstance(site.node, ast.Call)
            mode = argument_at(site.node, "mode", 0) if names is _SETTING else None
            checked = argument_at(site.node, "check_nan", at)
            if (names is _SETTING and (mode is None or literal(mode) is not True)) or checked is not None:
                continue
            text = f"`{site.module.text(site.node)}` raises where an overflow gives NaN in the backward pass, a step "
            text += "that the scaler would skip: leave it out but for debugging at O0"
            yield note(OVERFLOWN_RECORD, site.module, site.node, text)
