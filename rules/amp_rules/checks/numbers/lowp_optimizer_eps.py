"""Optimizers whose epsilon vanishes beside half weights."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.number_limits import vanishes
from amp_rules.lattice.abstract_values import F32, F64, Value, is_true
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.operation_names import DTYPES
from amp_rules.lint.check import Check, replacement
from amp_rules.lint.finding import Fix
from amp_rules.torch.idioms import NAMED_TRIAL

_DEFAULTS = {
    "Adam": 1e-8, "AdamW": 1e-8, "NAdam": 1e-8, "RAdam": 1e-8, "Adamax": 1e-8, "RMSprop": 1e-8, "Adagrad": 1e-10,
}  # fmt: skip
_HALF = frozenset({"torch.float16", "torch.half"})
_KEEPING = frozenset({"cuda", "cpu", "to", "train", "eval", "apply", "requires_grad_"})
"""Methods of a model that leave its type as it is: ``model = model.cuda()``."""


class LowpOptimizerEps(Check):
    """Optimizers whose epsilon vanishes beside half weights.

    ## What it does
    Finds `Adam`, `AdamW`, `NAdam`, `RAdam`, `Adamax`, `RMSprop` and `Adagrad` over half weights, with the default
    epsilon or one that is 0 in float16: in O3, where all weights are half, and in any mode where the model was
    converted by `.half()` just before.

    ## Why
    The moments have the type of the weights. `eps=1e-8` is 0 in float16, so a gradient of 0 gives 0 / 0, which is NaN
    after a single step, and a gradient of 1e-4, whose square is 0, gives -inf.

    ## Example
        model = Net().half()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    ## Use instead
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler()

    ## When it is silent
    The epsilon is large enough (1e-4 is usual), `fused=True` computes in float32, the file keeps float32 master
    weights, the mode is bfloat16, or the weights are float32, as tensors are
    that no model holds.

    ## Source
    https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    """

    code = "AMP606"
    name = "lowp-optimizer-eps"
    severity = "error"
    message = "The epsilon of an optimizer over half weights is zero in half precision."
    advice = "Keep the weights in float32 and use autocast, or give an epsilon of about 1e-4."
    fix_title = "Give an epsilon that half precision holds"
    fix_safety = "unsafe"
    triggers = tuple(f"{name}(" for name in _DEFAULTS)
    operations = ("call",)

    def applies(self, mode: Mode) -> bool:
        """Only float16 is that narrow."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge an optimizer."""
        name = op.data if isinstance(op.data, str) and op.data.startswith("torch.optim.") else ""
        kind = name.rpartition(".")[2]
        node = op.node
        if kind not in _DEFAULTS or not isinstance(node, ast.Call) or not op.args:
            return
        kwargs = op.kwargs or {}
        eps = kwargs.get("eps")
        if len(op.args) > 3 or any(item.arg is None for item in node.keywords) or is_true(kwargs.get("fused")):
            return
        number = _DEFAULTS[kind] if eps is None else vanishes(eps, frame.mode)
        if number is None or _are_in_float32(op.args[0]) or not self._has_half_weights(node, frame):
            return
        if frame.mode.opt_level == "O3" and _tries_out(frame) and not _was_halved(node, frame):
            return
        written = f"`eps` ({number:g})" if eps is None else f"`eps={frame.text(eps.node)}`"
        place = eps.node if eps is not None and isinstance(eps.node, ast.Constant) else None
        fix: Fix | None = None
        if place is not None:
            fix = replacement(frame, self.fix_title, "unsafe", (place, "1e-4"))
        message = f"{written} of `{kind}` is 0 in fp16: half weights become NaN in the first step"
        self.report(frame, node, message, fix=fix)

    def _has_half_weights(self, node: ast.Call, frame: Frame) -> bool:
        text = frame.module.module.source.text
        if any(word in text for word in ("master", "FP16_Optimizer", "amp.initialize", "deepspeed", "GradScaler")):
            return False
        return frame.mode.opt_level == "O3" or _was_halved(node, frame)


def _tries_out(frame: Frame) -> bool:
    """Whether the code tests other code, by the name of its function or file: its models are run as they are made."""
    names = [frame.module.module.path.stem, *([frame.function.name] if frame.function is not None else [])]
    return any(name.startswith(NAMED_TRIAL[0]) for name in names)


def _are_in_float32(given: Value) -> bool:
    """Whether tensors were made for the optimizer alone, ``Adam([log_alpha])``: they are no weights of a model."""
    if given.op not in ("list", "tuple") or not given.args:
        return False
    return all(item.tensor == 2 and item.dtypes & ~(F32 | F64) == 0 for item in given.args)


def _was_halved(node: ast.Call, frame: Frame) -> bool:
    """Whether the model whose parameters are given was converted before, and not back."""
    given = node.args[0]
    if not (isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr == "parameters"):
        return False
    model = ast.dump(given.func.value)
    scope = frame.function.node if frame.function else frame.module.module.tree
    found = sorted((line, half) for line, half in _conversions(scope, model, frame) if line < node.lineno)
    return bool(found) and found[-1][1]


def _conversions(scope: ast.AST, model: str, frame: Frame) -> Iterator[tuple[int, bool]]:
    """Yield the lines that convert a model, and whether they make it half."""
    for item in ast.walk(scope):
        if not isinstance(item, (ast.Assign, ast.Expr)) or not isinstance(item.value, ast.Call):
            continue
        call = item.value
        if not isinstance(call.func, ast.Attribute):
            continue
        if isinstance(item, ast.Assign):
            target = ast.dump(item.targets[0]).replace("Store()", "Load()")
        else:
            target = ast.dump(call.func.value)
        if target != model:
            continue
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        to_half = call.func.attr == "to" and any(frame.module.dotted(value) in _HALF for value in given)
        if call.func.attr == "half" or to_half:
            yield item.lineno, True
        elif call.func.attr not in _KEEPING or any(frame.module.dotted(value) in DTYPES for value in given):
            yield item.lineno, False
