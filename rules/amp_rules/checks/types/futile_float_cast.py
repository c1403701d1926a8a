"""Casts to float32 that autocast undoes at once."""

from __future__ import annotations

import ast

from amp_rules.checks.common.device_places import stays_as_it_is
from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS, is_cast, is_mask, operands
from amp_rules.checks.common.position_counts import is_position
from amp_rules.lattice.abstract_values import BOOL, INT, PARAMETER, Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check
from amp_rules.source.index import Function
from amp_rules.source.syntax import last_name

_ACTIVATIONS = frozenset({"param", "module", "element"})
_VIEWS = frozenset("view reshape transpose permute t unsqueeze squeeze contiguous flatten expand alias".split())


class FutileFloatCast(Check):
    """Casts to float32 that autocast undoes at once.

    ## What it does

    Looks, where autocast is on, for matrix products of activations of which every one was cast to float32 just before.

    ## Why

    Autocast casts the operands of `matmul`, `bmm` and `einsum` to half, whatever they are: under autocast
    `(q.float() @ k.float()).dtype` is float16. Whoever wrote the casts wanted float32 and does not get it. A product of
    activations is a score or a sum over positions that no weight keeps small: 64 products of 40 with 40 are 102400,
    which is infinite in float16.

    ## Example

        scores = torch.matmul(query.float(), key.float().transpose(-1, -2))

    ## Use instead

        with torch.autocast(device_type="cuda", enabled=False):
            scores = torch.matmul(query.float(), key.float().transpose(-1, -2))

    ## When it is silent

    Where weights take part (`linear`, convolutions): an ordinary projection loses nothing but a little precision. When
    only one operand is cast, which may be there to match the other; when masks or integers are cast, which have no
    product otherwise; where the product is only compared, as `(adjacency.float() @ adjacency.float()) > 0` is; where
    the code turns autocast off, around the product or around a call of the function. Where the product is written into
    `out=`, and on the CPU, both of which autocast on CUDA leaves as they are.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float16
    """

    code = "AMP712"
    name = "futile-float-cast"
    severity = "warning"
    message = "Autocast undoes a cast to float32."
    advice = "Turn autocast off around the product with `torch.autocast(device_type=..., enabled=False)`."
    triggers = (".float()", "float32")
    operations = tuple(sorted(MATRIX_PRODUCTS))

    def applies(self, mode: Mode) -> bool:
        """Only autocast undoes casts."""
        return mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the operands of a product."""
        if not frame.autocast or op.node is None or op.op not in frame.machine.table.lower:
            return
        given = [item for item in operands(op) if item.tensor]
        if len(given) < 2 or not all(_is_cast_float(item) and not item.bits & PARAMETER for item in given):
            return
        if stays_as_it_is(op, frame) or isinstance(frame.module.index.parents.get(op.node), ast.Compare):
            return
        if not any(item.op in _ACTIVATIONS for value in given for item in value.behind()):
            return
        if "enabled=False" in frame.module.module.source.text and _called_without(frame):
            return
        if any(is_position(item, frame.mode.largest_exact_integer) for item in given):
            return  # AMP711 says more about it.
        names = " and ".join(f"`{frame.text(item.node)}`" for item in given[:2])
        self.report(frame, op.node, f"autocast casts {names} to {frame.mode.dtype} again for `{op.op}`")


def _is_cast_float(value: Value) -> bool:
    cast = value.through(_VIEWS)
    if not is_cast(cast) or not cast.args:
        return False
    before = cast.args[0]
    return before.tensor > 0 and not is_mask(before) and not before.dtypes & (INT | BOOL)


def _called_without(frame: Frame) -> bool:
    """Whether the file turns autocast off somewhere and calls the function by name there, or a module of its own."""
    function, index = frame.function, frame.module.index
    if function is None:
        return True
    for call in index.calls:
        of_self = isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "self"
        if (last_name(call.func) == function.name or (function.is_forward and of_self)) and any(
            _turns_off(item) for item in index.ancestors(call)
        ):
            return True
    return False


def _turns_off(block: ast.AST) -> bool:
    """Whether a block or a decorated function is without autocast."""
    heads: list[ast.expr] = []
    if isinstance(block, (ast.With, ast.AsyncWith)):
        heads = [item.context_expr for item in block.items]
    elif isinstance(block, Function):
        heads = block.decorator_list
    return any("enabled=False" in ast.unparse(head) for head in heads)
