"""Fill masks with a number that the tensor's type can hold.

## What it does
`scores.masked_fill(mask, -1e9)` becomes `scores.masked_fill(mask, max(-1e9, torch.finfo(scores.dtype).min))`. The
number may be a variable, a default, an argument or an attribute. So do `scores[mask] = -1e9`, `torch.where`, `F.pad`,
`fill_`, `fill_diagonal_`, `full_like` and products such as `-1e9 * torch.ones_like(scores)`, where the tensor is half,
and what is written into a mask that is made like the scores, a product of matrices: `mask = torch.zeros_like(scores)`.
What has no name is filled in FP32: `amp.float_function(torch.Tensor.masked_fill)(f(x), mask, -1e9)`. A file that
imports only parts of torch gets `import torch`.

## Why
Under autocast the scores are fp16, whose largest number is 65504: torch raises "value cannot be converted to type Half
without overflow", or writes an infinite number, and rows that are masked altogether are NaN behind a softmax. In FP32
the number stays what it was.

## Before
    scores = scores.masked_fill(mask == 0, -1e9)

## After
    scores = scores.masked_fill(mask == 0, max(-1e9, torch.finfo(scores.dtype).min))

## When it declines
Where the number is not known, the name `torch` means something else in the file, or a tensor without a name is filled
in place. What a data set computes for its samples stays, and what a model's constructor fills: no autocast is on there.

## Leaving it out
No: torch raises where the number does not fit.

## Source
https://pytorch.org/docs/stable/type_info.html#torch.torch.finfo
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from amp_rules.plan.context import Change, Context
from amp_rules.plan.masks_of_scores import masks_of_scores
from amp_rules.plan.numbers import Numbers
from amp_rules.plan.overflowing_numbers import overflows
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.head import import_place, is_torch_import
from amp_rules.source.modules import Module
from amp_rules.source.resolver import free_name, names_of
from amp_rules.text.actions import Insert, Replace
from amp_rules.text.expression_edits import call_with
from amp_rules.torch.functions import OTHER_SHAPE, TENSOR_MAKERS
from amp_rules.torch.half_precision import FLOAT16

RULE = Rule("AMP110", "mask-value", "Masks are filled with a number that fp16 can hold.", "precision")

_FILLING = frozenset({"masked_fill", "masked_fill_"})


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each number outside fp16's range that a half tensor may be given, and imports of torch."""
    bounded = list(_bounds(context))
    yield from bounded
    for module in dict.fromkeys(change.module for change in bounded):
        if names_of(module).name_of("torch") is None:
            place, after = _place_of_import(module)
            yield Change(RULE, module, place, "for torch.finfo", [Insert(place, "import torch", after=after)])


def _bounds(context: Context) -> Iterator[Change]:
    numbers = Numbers(context.program)
    sites = context.precision.nodes(context.program)
    inside = {site.node for site in sites}
    in_full = _in_full(context.program) - {site.body for site in sites}
    done = set()
    for call, receiver, site in _fills(context.program):
        if site.body in in_full:
            continue
        found = numbers.of(site.node, site.scope) if isinstance(site.node, ast.expr) else frozenset()
        if not any(map(_is_too_large, found)):
            continue
        done.add(site.node)
        tensor = _of_same_type(receiver) if receiver is not None else None
        if tensor is not None and all(_is_plain(numbers, item) for item in _choices(site)):
            for item in _choices(site):
                yield from _bounded(context, numbers, item, tensor)
        elif call in inside and isinstance(call.func, ast.Attribute) and call.func.attr == "masked_fill":
            yield from _widened(context, call, site)
    for overflow in overflows(context.program, context.precision, context.options):
        tensor = _of_same_type(_scaled(overflow.tensor))
        if overflow.number.node not in done and tensor is not None and _is_plain(numbers, overflow.number):
            done.add(overflow.number.node)
            yield from _bounded(context, numbers, overflow.number, tensor)
    for number, mask in masks_of_scores(context.program, sites):
        if number.node not in done and number.body not in in_full and _is_plain(numbers, number):
            yield from _bounded(context, numbers, number, mask)


def _in_full(program: Program) -> set[ast.AST]:
    """The functions that give a data set's samples, with what they call, and models' constructors: nothing is half."""
    found: set[ast.AST] = set()
    for info in program.flow.classes.values():
        built = info.facts.methods.get("__init__")
        if built is not None and info.facts.is_module:
            found.add(built.node)
        given = info.find_method("__getitem__")
        if given is not None and info.find_method("__len__") is not None and not info.facts.is_module:
            found |= {given.node} | program.called_from(blocks.walk_body(given.node))
    return found


def _fills(program: Program) -> Iterator[tuple[ast.Call, ast.expr | None, Site]]:
    """The calls of ``masked_fill``, each with the tensor and the number; that in ``torch.tensor(-1e9)``, too."""
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        given = list(call.args)
        if "torch.masked_fill" in names:
            tensor = given.pop(0) if given else None
        elif isinstance(call.func, ast.Attribute) and call.func.attr in _FILLING and not program.flow.callees(call):
            tensor = call.func.value
        else:
            continue
        value = given[1] if len(given) == 2 else next((k.value for k in call.keywords if k.arg == "value"), None)
        if isinstance(value, ast.Call) and value.args and program.callee_names(value, scope) & TENSOR_MAKERS:
            value = value.args[0]
        if value is not None:
            yield call, tensor, Site(scope.module, scope, body, value)


def _bounded(context: Context, numbers: Numbers, site: Site, tensor: ast.expr) -> Iterator[Change]:
    """``-1e9`` becomes ``max(-1e9, torch.finfo(scores.dtype).min)``."""
    torch = _torch(site.module)
    assert isinstance(site.node, ast.expr)
    found = numbers.of(site.node, site.scope)
    if torch is None or not any(map(_is_too_large, found)):
        return
    function, limit = ("max", "min") if min(found) < 0 else ("min", "max")
    edit = call_with(function, f"{torch}.finfo({ast.unparse(tensor)}.dtype).{limit}")
    message = f"`{site.module.text(site.node)}` does not fit in fp16, which ends at {FLOAT16.largest:g}"
    yield Change(RULE, site.module, site.node, message, [Replace(site.node, edit)])


def _widened(context: Context, call: ast.Call, site: Site) -> Iterator[Change]:
    """``f(x).masked_fill(mask, -1e9)`` is filled in FP32."""
    torch = _torch(site.module)
    if torch is None:
        return
    message = f"`{site.module.text(site.node)}` does not fit in fp16, which ends at {FLOAT16.largest:g}"
    if context.program.callee_names(call, site.scope):
        written = context.vocabulary.in_float32(site.module, call.func)
    else:
        written = context.vocabulary.called_in_float32(site.module, call, f"{torch}.Tensor.masked_fill")
    yield Change.written(RULE, site.module, call, message, written)


def _torch(module: Module) -> str | None:
    """The name of torch in a file: that which it has, else that which an import can give it; None where that is not."""
    names = names_of(module)
    found = names.name_of("torch")
    if found is not None or module.cells or "torch" in names.imports or free_name(module, ["torch"]) != "torch":
        return found
    return "torch"


def _place_of_import(module: Module) -> tuple[ast.stmt, bool]:
    """Above the first import of torch at the head of the file, else where a new import goes."""
    place, after = import_place(module.tree)
    body = module.tree.body
    above = next((item for item in body[: body.index(place) + 1] if is_torch_import(item)), None)
    return (place, after) if above is None else (above, False)


def _is_too_large(number: float) -> bool:
    return FLOAT16.largest < abs(number) < math.inf


def _choices(site: Site) -> list[Site]:
    """The two of ``-1e9 if self.training else -inf``; else the expression itself."""
    parts = [site.node.body, site.node.orelse] if isinstance(site.node, ast.IfExp) else [site.node]
    return [Site(site.module, site.scope, site.body, item) for item in parts]


def _is_plain(numbers: Numbers, site: Site) -> bool:
    """Whether an expression can be bounded: it is written as infinite, or is finite and always of one sign."""
    found = numbers.of(site.node, site.scope) if isinstance(site.node, ast.expr) else frozenset()
    if found and not any(map(_is_too_large, found)):
        return True  # nothing is to be done
    return bool(found) and all(map(math.isfinite, found)) and len({item < 0 for item in found}) == 1


def _scaled(node: ast.expr) -> ast.expr:
    """The half tensor in arithmetic with numbers, and whose type it was given: ``1 - mask.to(scores.dtype)``."""
    while isinstance(node, ast.BinOp) and ast.Constant in (type(node.left), type(node.right)):
        node = node.right if isinstance(node.left, ast.Constant) else node.left
    cast = node
    while isinstance(cast, ast.Subscript) or _is_shaped(cast):
        cast = cast.value if isinstance(cast, ast.Subscript) else cast.func.value  # type: ignore[attr-defined]
    if isinstance(cast, ast.Call) and isinstance(cast.func, ast.Attribute) and len(cast.args) == 1:
        given = cast.args[0]
        if cast.func.attr in ("to", "type") and isinstance(given, ast.Attribute) and given.attr == "dtype":
            return given.value
        if cast.func.attr in ("to", "type_as"):
            return given
    return node


def _is_shaped(node: ast.expr) -> bool:
    """``x.unsqueeze(1)``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OTHER_SHAPE


def _of_same_type(node: ast.expr) -> ast.expr | None:
    """An expression for a tensor of a tensor's type that computes nothing; None where there is none."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _of_same_type(node.operand)
    if isinstance(node, ast.Call):
        return _of_same_type(node.func.value) if _is_shaped(node) and isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Subscript):
        base = _of_same_type(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) > 1 or isinstance(parts[0], (ast.Slice, ast.UnaryOp, ast.Compare)):
            return base  # no list is indexed like this
        return node if base is node.value and isinstance(parts[0], (ast.Constant, ast.Name)) else None
    if isinstance(node, ast.Attribute):
        return node if _of_same_type(node.value) is node.value else None
    return node if isinstance(node, ast.Name) else None
