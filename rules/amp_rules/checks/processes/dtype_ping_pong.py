"""Conversions that the next conversion undoes."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import F32, F64, LOW, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.dtypes import HALF_TYPES

_CASTS = frozenset("to type float double half bfloat16 type_as".split())
_MOVES = frozenset(
    "view reshape flatten squeeze unsqueeze expand permute transpose t contiguous detach alias cpu cuda clone".split()
)


class DtypePingPong(Check):
    """Conversions that the next conversion undoes.

    ## What it does

    Finds a tensor that is converted from half to float32 and back, with nothing computed in between.

    ## Why

    Each conversion reads and writes the whole tensor: `x.float().half()` moves 12 bytes per element to give the 2
    that were there, bit for bit. That is as much traffic as 3 additions of half tensors.

    ## Example

        x = x.half()
        y = x.float().transpose(0, 1)
        return y.half()

    ## Use instead

        x = x.half()
        return x.transpose(0, 1)

    ## When it is silent

    When the type before is not known to be the half type, when anything is computed in float32, and when the first
    conversion rounds, as `x.half().float()` does of a float32 tensor.

    ## Source

    https://pytorch.org/docs/stable/amp.html
    """

    code = "AMP955"
    name = "dtype-ping-pong"
    severity = "performance"
    message = "A tensor is converted and converted back with nothing in between."
    advice = "Leave both conversions out."
    triggers = (".half()", ".bfloat16()", "torch.float16", "torch.bfloat16", "torch.half")
    operations = tuple(_CASTS)

    def visit(self, op: Value, frame: Frame) -> None:
        """Look for a conversion behind a conversion."""
        if op.dtypes != LOW or op.node is None or not op.args:
            return
        held = op.args[0].through(_MOVES)
        if held.op not in _CASTS or held.dtypes not in (F32, F64) or not held.args or held.node is None:
            return
        before = held.args[0].through(_MOVES)
        if before.low and before.op in _CASTS and _is_back_at(op, before):
            message = f"`{frame.text(op.node)}` undoes `{frame.text(held.node)}`: nothing is computed in between"
            self.report(frame, op.node, message, culprit=op)


def _is_back_at(op: Value, before: Value) -> bool:
    """Whether a conversion gives the very type that there was: float16 and bfloat16 are different ones."""
    given = op.args[1] if len(op.args) > 1 else (op.kwargs or {}).get("dtype")
    if given is not None and given.op == "dtype" and given.args:
        return given.args[0].root is before.root
    named = _type_of(op)
    return named is not None and named == _type_of(before)


def _type_of(cast: Value) -> str | None:
    """The half type that a conversion names."""
    if cast.op in ("half", "bfloat16"):
        return "bfloat16" if cast.op == "bfloat16" else "float16"
    given = cast.args[1] if len(cast.args) > 1 else (cast.kwargs or {}).get("dtype")
    name = given.sym if given is not None else None
    return HALF_TYPES.get(name or "")
