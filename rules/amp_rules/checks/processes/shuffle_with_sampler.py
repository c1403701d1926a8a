"""Loaders that are asked to shuffle and given a sampler as well."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import Value, alternatives, is_true
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, replacement
from amp_rules.source.syntax import spelling

_LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
_POSITIONS = {"batch_size": 1, "shuffle": 2, "sampler": 3, "batch_sampler": 4, "drop_last": 8}


class ShuffleWithSampler(Check):
    """Loaders that are asked to shuffle and given a sampler as well.

    ## What it does

    Finds `DataLoader(..., shuffle=True, sampler=s)` where `s` is a sampler, or may be one on some path, and a
    `batch_sampler` beside `shuffle=True`, `drop_last=True` or a batch size.

    ## Why

    `DataLoader` raises `ValueError: sampler option is mutually exclusive with shuffle` when it is built. Where the
    sampler is None in one process and a `DistributedSampler` in several, this happens only once the script is run
    by several processes: 1 process trains, 2 stop at the first line that builds a loader.

    ## Example

        sampler = DistributedSampler(dataset) if distributed else None
        loader = DataLoader(dataset, batch_size=32, shuffle=True, sampler=sampler)

    ## Use instead

        loader = DataLoader(dataset, batch_size=32, shuffle=sampler is None, sampler=sampler)

    ## When it is silent

    When `shuffle` depends on anything that is not known, such as `sampler is None` or a setting, and when nothing
    says that the sampler can be other than None.

    ## Source

    https://pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
    """

    code = "AMP902"
    name = "shuffle-with-sampler"
    severity = "error"
    message = "A loader is asked to shuffle and given a sampler as well."
    advice = "Leave the order to the sampler: pass `shuffle=True` only where it is None."
    fix_title = "Shuffle only where there is no sampler"
    fix_safety = "safe"
    triggers = ("sampler=",)
    operations = ("call",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the construction of a loader."""
        if op.data not in _LOADERS:
            return
        sampler, shuffle = _given(op, "sampler"), _given(op, "shuffle")
        if sampler is not None and is_true(shuffle) and _can_be_sampler(sampler):
            assert shuffle is not None
            text = frame.text(sampler.node)
            fix = None
            keyword = _node_of(op, "sampler")
            name = spelling(keyword) if keyword is not None else None
            if name is not None and shuffle.node is not None:
                fix = replacement(frame, self.fix_title, "safe", (shuffle.node, f"{name} is None"))
            message = f"`shuffle=True` beside the sampler `{name or text}` raises when the loader is built"
            self.report(frame, shuffle.node or op.node, message, fix=fix)  # type: ignore[arg-type]
            return
        batches = _given(op, "batch_sampler")
        if batches is not None and _can_be_sampler(batches):
            self._beside_batches(op, frame)

    def _beside_batches(self, op: Value, frame: Frame) -> None:
        for name in ("shuffle", "drop_last", "batch_size"):
            value = _given(op, name)
            if value is None or value.node is None:
                continue
            if is_true(value) if name != "batch_size" else (value.number or 1) != 1:
                message = f"`{name}={frame.text(value.node)}` beside a batch sampler raises when the loader is built"
                self.report(frame, value.node, message, advice=f"Leave `{name}` to the batch sampler.")
                return


def _given(op: Value, name: str) -> Value | None:
    return op.arg(_POSITIONS[name], name)


def _node_of(op: Value, name: str) -> ast.expr | None:
    return next((item.value for item in getattr(op.node, "keywords", ()) if item.arg == name), None)


def _can_be_sampler(value: Value) -> bool:
    """Whether one of the values that are possible is an object that was just made."""
    return any(
        (item.op == "call" and isinstance(item.data, str) and item.data.endswith("Sampler")) or _is_own(item)
        for item in alternatives(value)
    )


def _is_own(value: Value) -> bool:
    """A sampler of the project, or of another library."""
    if value.op == "instance":
        return "Sampler" in value.data.name or value.data.inherits(lambda name: name.endswith("Sampler"))
    target = value.args[0] if value.op == "call" and value.args else None
    return target is not None and target.sym is not None and target.sym.endswith("Sampler")
