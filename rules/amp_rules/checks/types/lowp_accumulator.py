"""Averages of weights that are kept in half precision."""

from __future__ import annotations

import ast
import re

from amp_rules.checks.common.averaged_models import HALVES, LONG, averaged_in_half
from amp_rules.lattice.abstract_values import (
    IN_A_FEW_LINES,
    IN_AN_OPERAND,
    LOW,
    PARAMETER,
    Value,
    alternatives,
    source_of,
)
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ClassFacts, ModuleFacts
from amp_rules.source.resolver import root_of
from amp_rules.torch.idioms import NAMED_RUNNING_AVERAGE

_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
_SUMS = frozenset({"matmul", "mm", "bmm", "einsum", "sum"})


class LowpAccumulator(Check):
    """Averages of weights that are kept in half precision.

    ## What it does

    Looks for classes and functions that keep a moving average of weights and convert the average to half, for loops
    over `zip(average.parameters(), model.parameters())` that update such an average or the copy of a half model, and
    for moving averages with a decay of 0.99 or more whose tensors are half in the mode. For `ema.half()` in a loop that
    goes on updating it: a module is converted in place (in what is saved that is AMP828). Also for sums in half that a
    loop over slices of a batch adds its products to, as gradients computed in chunks are.

    ## Why

    A step of an average with decay 0.9999 changes it by 1e-4 of the difference, and float16 has steps of 5e-4
    relative to the value: 1000 steps from 1.0 towards 2.0 leave a float16 or bfloat16 average at exactly 1.0, where a
    float32 one is at 1.095.

    ## Example

        self.ema = copy.deepcopy(model).half()

        def update(self, model):
            for average, weight in zip(self.ema.parameters(), model.parameters()):
                average.mul_(0.9999).add_(weight.detach(), alpha=0.0001)

    ## Use instead

        self.ema = copy.deepcopy(model).float()

    ## When it is silent

    Where nothing is updated (a copy for inference may be half), and with shorter averages or unknown decays.

    ## Source

    https://arxiv.org/abs/1710.03740
    """

    code = "AMP716"
    name = "lowp-accumulator"
    severity = "warning"
    message = "A moving average is kept in half precision."
    advice = "Keep the average in float32, and convert a copy of it where half is wanted."
    triggers = ("lerp_", ".mul_(", "zeros_like(", "new_zeros(", re.compile(r"zeros\(.*(half|float16)"))
    file_triggers = tuple(f".{name}(" for name in sorted(HALVES))
    operations = ("add", "lerp", "augment")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an update in place."""
        if op.node is None or len(op.args) < 2:
            return
        if op.op == "augment" or (op.op == "add" and op.inplace and not isinstance(op.node, ast.AugAssign)):
            self._chunks(op, frame)
        self._average(op, frame)

    def _chunks(self, op: Value, frame: Frame) -> None:
        """A sum over parts of a batch, as of the gradients that are computed one chunk at a time."""
        starts = [item for item in alternatives(op.args[0]) if item.op in _ZEROS and item.dtypes == LOW and item.node]
        if not starts or not frame.loops or op.node is None:
            return
        loop = next(iter(frame.module.index.loops_around(op.node)), None)
        if loop is None or not _is_contraction(op.args[1], loop):
            return
        for start in starts:
            if start.node is None or start.node not in frame.module.index.parents or _is_within(start.node, loop):
                continue
            text = frame.text(op.args[1].node)
            message = f"`{frame.text(start.node)}` sums `{text}` over the iterations of a loop in {frame.mode.dtype}"
            advice = "Make it with dtype=torch.float32, and convert the sum after the loop."
            self.report(frame, start.node, message, advice=advice)

    def _average(self, op: Value, frame: Frame) -> None:
        """A moving average with a known decay."""
        if not op.inplace or op.dtypes != LOW or op.node is None or op.op == "augment":
            return
        held = op.args[0]
        if op.op == "lerp":
            weight = op.arg(2, "weight")
            decay = 1 - weight.number if weight is not None and weight.number is not None else None
        else:
            decay = held.args[1].number if held.op == "mul" and held.inplace and len(held.args) > 1 else None
            held = held.args[0] if held.op == "mul" else held
        if decay is None or not LONG <= decay < 1 or not _is_state(held):
            return
        self.report(
            frame, op.node, f"`{frame.text(held.node)}` is averaged with a decay of {decay:g} in half precision"
        )

    def visit_module(self, file: LintedFile) -> None:
        """Judge ``ema.half()`` in a loop that goes on updating it: a module is converted in place."""
        module = file.module
        for place in averaged_in_half(module):
            if not _is_told_in_class(place, module):
                text = module.module.text(place)
                self.report_in(
                    file, place, f"`{text}` keeps an average in half precision, where small updates are lost"
                )
        for node in ast.walk(module.module.tree):
            if not (isinstance(node, ast.Call) and _converts(node) and isinstance(node.func, ast.Attribute)):
                continue
            held = node.func.value
            name = held.attr if isinstance(held, ast.Attribute) else held.id if isinstance(held, ast.Name) else ""
            if NAMED_RUNNING_AVERAGE.search(name) and _goes_on(node, held, module) and not _is_packed(node, module):
                text = module.module.text(node)
                self.report_in(file, node, f"`{text}` makes the average itself half, which is updated again afterwards")

    def visit_class(self, cls: ClassFacts, file: LintedFile) -> None:
        """Judge what a class makes half."""
        module = file.module
        rows = module.module.lines[cls.node.lineno - 1 : cls.node.end_lineno]
        if not any(f".{name}(" in row for row in rows for name in HALVES):
            return
        if not _keeps_average(cls):
            return
        for method in cls.methods.values():
            for node in ast.walk(method.node):
                if isinstance(node, ast.Call) and _converts(node) and _is_average(node, module):
                    text = module.module.text(node)
                    message = f"`{text}` keeps the average in half precision, where small updates are lost"
                    self.report_in(file, node, message)


def _is_contraction(value: Value, loop: ast.AST) -> bool:
    """Whether a value is a sum of products, or a sum, of a slice that moves on with the turns of the loop."""
    value = source_of(value)
    if value.op not in _SUMS:
        return False
    bound = {item.id for item in ast.walk(loop) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
    for item in value.behind(IN_A_FEW_LINES):
        node = item.node
        if item.op == "getitem" and isinstance(node, ast.Subscript) and _is_within(node, loop):
            parts = [part for part in ast.walk(node.slice) if isinstance(part, ast.Slice)]
            if any(isinstance(name, ast.Name) and name.id in bound for part in parts for name in ast.walk(part)):
                return True
    return False


def _is_within(node: ast.AST | None, outer: ast.AST) -> bool:
    return any(item is node for item in ast.walk(outer))


def _is_state(value: Value) -> bool:
    """Whether a value is kept from one step to the next."""
    return any(
        item.op in ("buffer", "attr", "parameter") or item.bits & PARAMETER for item in value.behind(IN_AN_OPERAND)
    )


def _keeps_average(cls: ClassFacts) -> bool:
    return any(_updates(item.node) for item in cls.methods.values())


def _is_told_in_class(node: ast.expr, module: ModuleFacts) -> bool:
    """Whether a conversion is one that the class around it is judged for."""
    if not (isinstance(node, ast.Call) and _converts(node) and _is_average(node, module)):
        return False
    around = [item for item in module.module.ancestors(node) if isinstance(item, ast.ClassDef)]
    return any(_keeps_average(module.class_facts(item)) for item in around)


def _updates(function: ast.AST) -> bool:
    """Whether a function mixes a little of something new into something old."""
    scaled = added = False
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            scaled |= node.func.attr in ("mul_", "lerp_")
            added |= node.func.attr in ("add_", "lerp_")
        elif isinstance(node, ast.AugAssign):
            scaled |= isinstance(node.op, ast.Mult)
            added |= isinstance(node.op, ast.Add)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = [item for item in (node.left, node.right) if isinstance(item, ast.BinOp)]
            if len(both) == 2 and any("decay" in ast.dump(item) or "momentum" in ast.dump(item) for item in both):
                scaled = added = True
    return scaled and added


def _converts(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr in HALVES and not node.args


def _goes_on(node: ast.Call, held: ast.expr, module: ModuleFacts) -> bool:
    """Whether a loop around a conversion updates the object that is converted, or that holds it."""
    root = root_of(held)
    if not isinstance(root, ast.Name) or root.id == "self":
        return False
    loops = [item for item in module.module.ancestors(node) if isinstance(item, (ast.For, ast.While))]
    return any(
        isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in ("update", "step")
        and isinstance(item.func.value, ast.Name) and item.func.value.id == root.id
        for loop in loops[-1:] for item in ast.walk(loop)
    )  # fmt: skip


def _is_packed(node: ast.Call, module: ModuleFacts) -> bool:
    """Whether a conversion stands in what a loop saves, which is AMP828's."""
    for item in module.module.ancestors(node):
        if isinstance(item, ast.Dict):
            return True
        if isinstance(item, ast.stmt):
            return False
    return False


def _is_average(node: ast.Call, module: ModuleFacts) -> bool:
    """Whether what is converted is the average itself, or becomes it."""
    assert isinstance(node.func, ast.Attribute)
    target: ast.AST = node.func.value
    if isinstance(target, ast.Attribute) and NAMED_RUNNING_AVERAGE.search(target.attr):
        return True
    for parent in module.module.ancestors(node):
        if isinstance(parent, ast.Assign):
            names = [item.attr for item in parent.targets if isinstance(item, ast.Attribute)]
            names += [item.id for item in parent.targets if isinstance(item, ast.Name)]
            if any(NAMED_RUNNING_AVERAGE.search(name) for name in names):
                return True
        if isinstance(parent, ast.If) and node in ast.walk(parent.test):
            return False
        if isinstance(parent, ast.stmt):
            break
    function = next((item for item in module.module.ancestors(node) if isinstance(item, ast.FunctionDef)), None)
    return function is not None and bool(NAMED_RUNNING_AVERAGE.search(function.name)) and _updates(function)
