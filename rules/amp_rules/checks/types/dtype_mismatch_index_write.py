"""Writes through a mask or an index tensor that mix floating-point types."""

from __future__ import annotations

import ast
import re

from amp_rules.checks.common.arithmetic import likely_half
from amp_rules.checks.common.mixed_types import float32_origin, float_type, whole_text, written
from amp_rules.lattice.abstract_values import BOOL, F32, INT, LOW, NUM, OTHER, ZERO_DIM, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.operation_names import LIKES, NEWS
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix

SOURCES = {
    "setitem": (2, ""), "scatter": (3, "src"), "scatter_add": (3, "src"), "scatter_reduce": (3, "src"),
    "index_add": (3, "source"), "index_copy": (3, "source"), "index_put": (2, "values"),
    "masked_scatter": (2, "source"), "lerp": (1, "end"),
}  # fmt: skip
"""Where each operation has what it writes: the position, the receiver being the first, and the keyword."""
CONVERTING = "amp_runtime"
"""The runtime, from whose ``init`` on writes of mixed types convert."""
_NAMES = ("mask", "indices", "inds", "idxs")
_PLACES = ("idx", "index")
"""What numbers are called as well, so that something else must say that it is a tensor."""


class DtypeMismatchIndexWrite(Check):
    """Writes through a mask or an index tensor that mix floating-point types.

    ## What it does

    Looks for `x[mask] = y`, `x[index] = y`, `scatter_`, `scatter_add_`, `index_add_`, `index_copy_`, `index_put_`,
    `masked_scatter_` and `lerp` whose destination and source have different floating-point types in the mode.

    ## Why

    These operations do not convert. `torch.zeros(4)[mask] = torch.ones(3).half()` raises "Index put requires the
    source and destination dtypes match", and so does every other operation of the list, while `x[:3] = y` and
    `x.copy_(y)` convert silently. Under autocast the source is half as soon as a matrix product made it, whatever the
    type of the tensor that the destination was made from.

    ## Example

        out = torch.zeros(x.size(0), self.channels, device=x.device)
        out[mask] = self.project(x[mask])

    ## Use instead

        out = torch.zeros(x.size(0), self.channels, device=x.device)
        out[mask] = self.project(x[mask]).to(out.dtype)

    ## When it is silent

    When both types are the same by construction (`zeros_like(y)`, `y.new_zeros(...)`), when one of them is not known,
    when the source is a number or has no dimensions, and when the index holds only integers and slices. Out of place,
    `index_put` and `scatter_add` promote under autocast on CUDA. In a file that imports `amp_runtime`, which converts
    such writes.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-promote-to-the-widest-input-type
    """

    code = "AMP751"
    name = "dtype-mismatch-index-write"
    severity = "error"
    message = "A write through a mask or an index mixes floating-point types."
    advice = "Convert the source to the type of the destination with `.to(destination.dtype)`."
    fix_title = "convert the source to the type of the destination"
    fix_safety = "safe"
    triggers = (
        # Neither a key nor a slice, and no literal behind it.
        re.compile(r"\] = (?!-?\d|None|True|False|[\[{'\"])(?:(?<=[A-Za-z_)\]]\] = )|(?<=[A-Za-z_]\d\] = ))"),
        "scatter",
        "index_add",
        "index_copy",
        "index_put",
        "lerp",
    )
    operations = tuple(SOURCES)

    def visit(self, op: Value, frame: Frame) -> None:
        """Compare the types of destination and source."""
        if CONVERTING in frame.module.imports.values() or (op.op == "setitem" and not is_advanced(op, frame)):
            return
        if frame.autocast and not op.inplace and op.op in frame.machine.table.widest:
            return
        target, source = op.args[0] if op.args else None, op.arg(*SOURCES[op.op])
        if target is None or source is None or source.bits & ZERO_DIM or not source.tensor or op.node is None:
            return
        if target.root is source.root or not _differ(target, source, frame):
            return
        given, held = written(frame, op, *SOURCES[op.op]), written(frame, op, 0)
        message = f"`{frame.text(given or source.node)}` is {_kind(source, frame)}, but "
        message += f"`{frame.text(held or target.node)}` is {_kind(target, frame)}, and this write does not convert"
        self.report(frame, op.node, message, culprit=source, fix=_fix(self.fix_title, held, given, frame))


def _differ(target: Value, source: Value, frame: Frame) -> bool:
    """Whether the types differ for certain, or differ whenever an activation comes in float32."""
    given, held = float_type(source, frame), float_type(target, frame)
    if given and held:
        return given != held
    if given == F32 and not frame.mode.autocast:
        # Made like something that a half model gives.
        made = source_of(target)
        return made.op in LIKES | NEWS and likely_half(target, frame) and float32_origin(source) is not None
    if not (frame.autocast and given == LOW and source.root.op in frame.machine.table.lower):
        return False
    # A buffer made like the input: under autocast an input may be float32, a matrix product never is.
    made, root = source_of(target), target.root
    return made.op in LIKES | NEWS and root.op == "param" and root.dtypes == LOW | F32


def _kind(value: Value, frame: Frame) -> str:
    kind = float_type(value, frame)
    name = "bfloat16" if frame.mode.dtype == "bf16" else "float16"
    return name if kind == LOW else "float32" if kind == F32 else f"of the type of `{frame.text(value.root.node)}`"


def is_advanced(op: Value, frame: Frame) -> bool:
    """Whether an index selects by a mask or by a tensor of places, of which at least one has dimensions."""
    index = op.args[1]
    parts = index.args if index.op in ("tuple", "list") else (index,)
    written = op.node.slice if isinstance(op.node, ast.Subscript) else None
    if isinstance(written, ast.Name) and written.id.endswith(_NAMES) and not index.dtypes & ~(BOOL | INT):
        return index.tensor > 0
    return any(_selects(part, frame) for part in parts)


def _selects(part: Value, frame: Frame) -> bool:
    if part.op in ("slice", "const", "size", "len") or part.dtypes in (NUM, OTHER) or part.bits & ZERO_DIM:
        return False
    if part.tensor == 2 and not part.dtypes & ~(BOOL | INT):
        return True
    name = part.data if isinstance(part.data, str) else ""
    if name.endswith(_PLACES) and part.op == "param" and part.dtypes & INT:
        return frame.is_tensor(part)
    return part.tensor > 0 and name.endswith(_NAMES) and bool(part.dtypes & (BOOL | INT) or part.op == "attr")


def _fix(title: str, target: ast.expr | None, source: ast.expr | None, frame: Frame) -> Fix | None:
    given = whole_text(frame, source)
    if not isinstance(target, ast.Name) or given is None or source is None:
        return None
    return replacement(frame, title, "safe", (source, f"{given}.to({target.id}.dtype)"))
