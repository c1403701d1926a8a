"""Half types on hardware that does not compute in them."""

from __future__ import annotations

import ast
import re

from amp_rules.lint.check import Check, LintedFile, replacement
from amp_rules.source.index import FileIndex, keyword, literal
from amp_rules.source.syntax import last_name, spelling

_BF16 = re.compile(r"bf16|bfloat16", re.IGNORECASE)
_FP16 = re.compile(r"\bfp16|\bfloat16|\bhalf\b", re.IGNORECASE)
_COLLECTS = re.compile(r"append|\+=|raise|skip|\btest")
_MAXWELL, _AMPERE = 5, 8


class HardwareWithoutHalf(Check):
    """Half types on hardware that does not compute in them.

    ## What it does

    Finds three ways to choose a half type for hardware that emulates it: `torch.cuda.is_bf16_supported()` as it is,
    which says yes to emulation; a compute capability below 8 as the condition for bfloat16; and `.half()` on
    something that was put on the CPU in the same expression.

    ## Why

    Tensor Cores compute in float16 from capability 7.0 (Volta) and in bfloat16 from 8.0 (Ampere). Below, bfloat16 is
    emulated by converting each operand to float32, which is slower than float32 itself. The default of
    `is_bf16_supported` is `including_emulation=True`: capability 7.5 (T4) is supported with it and not without it.
    On CPUs without half instructions float16 runs the same way, and before torch 2.1 a matrix product raised.

    ## Example

        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16

    ## Use instead

        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        dtype = torch.bfloat16 if fast else torch.float16

    ## When it is silent

    When `including_emulation` is given, when the answer is only printed or asserted, when the test of the capability
    is about other things than bfloat16, and when the device is not named in the expression.

    ## Source

    https://pytorch.org/docs/stable/generated/torch.cuda.is_bf16_supported.html
    """

    code = "AMP954"
    name = "hardware-without-half"
    severity = "performance"
    message = "A half type is chosen for hardware that emulates it."
    advice = "Use bfloat16 from capability 8.0, float16 from 7.0, and float32 or bfloat16 on CPUs."
    fix_title = "Do not count emulation"
    fix_safety = "unsafe"
    preview = "only some GPUs emulate a type, and the code does not show on which the script runs"
    triggers = ("is_bf16_supported()", "get_device_capability", ".half()", ".major")

    def visit_module(self, file: LintedFile) -> None:
        """Judge the questions about hardware and the conversions on the CPU."""
        module = file.module
        index = module.index
        for call in index.named.get("is_bf16_supported", ()):
            if (module.dotted(call.func) or "") == "torch.cuda.is_bf16_supported" and _decides(index, call):
                if not call.args and not call.keywords:
                    edit = (call, f"{ast.unparse(call.func)}(including_emulation=False)")
                    message = f"`{module.module.text(call)}` says yes to GPUs that emulate bfloat16"
                    self.report_in(file, call, message, fix=replacement(file, self.fix_title, "unsafe", edit))
        for node in index.parents:
            if isinstance(node, ast.Compare):
                self._judge_capability(file, node)
        for call in index.named.get("half", ()):
            if _is_on_cpu(call):
                self.report_in(file, call, f"`{module.module.text(call)}` computes in float16 on the CPU")

    def _judge_capability(self, file: LintedFile, test: ast.Compare) -> None:
        """``capability[0] >= 7`` in front of bfloat16."""
        module = file.module
        required = _required(module.index, test)
        if required is None or not _MAXWELL <= required < _AMPERE:
            return
        chosen = _chosen(module.index, test)
        if chosen is not None and _BF16.search(chosen) and not _FP16.search(chosen):
            text = f"`{module.module.text(test)}` lets GPUs use bfloat16 that emulate it: they need capability 8.0"
            self.report_in(file, test, text)


def _decides(index: FileIndex, call: ast.Call) -> bool:
    """Whether a type is chosen by the answer."""
    for item in index.ancestors(call):
        if isinstance(item, (ast.IfExp, ast.If)):
            text = ast.unparse(item)
            return bool(_BF16.search(text.replace("is_bf16_supported", ""))) and not _COLLECTS.search(text)
        if isinstance(item, ast.stmt):
            return isinstance(item, ast.Assign) and not isinstance(item.value, ast.Dict)
    return False


def _required(index: FileIndex, test: ast.Compare) -> float | None:
    """The capability that a comparison asks for."""
    if len(test.ops) != 1 or not isinstance(test.ops[0], (ast.GtE, ast.Gt)):
        return None
    left, right = test.left, test.comparators[0]
    if not _is_capability(index, left):
        return None
    if isinstance(right, ast.Tuple) and right.elts:
        right = right.elts[0]
    value = literal(right)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value + 1 if isinstance(test.ops[0], ast.Gt) and isinstance(value, int) and value < 10 else value


def _is_capability(index: FileIndex, node: ast.expr) -> bool:
    """``torch.cuda.get_device_capability()``, its first part, ``properties.major``, or a name of one of them."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        return last_name(node.func) == "get_device_capability"
    if isinstance(node, ast.Attribute) and node.attr == "major":
        return "version" not in (spelling(node) or "version").lower()
    if not isinstance(node, ast.Name):
        return False
    values = index.values_of(node)
    for target, value, _ in index.assignments:
        if isinstance(target, ast.Tuple) and target.elts and isinstance(target.elts[0], ast.Name):
            if target.elts[0].id == node.id:
                values.append(value)
    return any("get_device_capability" in ast.unparse(item) for item in values)


def _chosen(index: FileIndex, test: ast.expr) -> str | None:
    """What is done where a test holds."""
    parent = index.parents[test]
    while isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
        parent = index.parents[parent]
    if isinstance(parent, ast.IfExp):
        return ast.unparse(parent.body)
    if isinstance(parent, ast.If):
        return "\n".join(ast.unparse(item) for item in parent.body)
    if isinstance(parent, ast.Assign):
        return " ".join(ast.unparse(item) for item in parent.targets)
    return None


def _is_on_cpu(call: ast.Call) -> bool:
    """``model.cpu().half()``, ``x.to("cpu").half()``."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(value, ast.Call) or call.args:
        return False
    name = last_name(value.func)
    if name == "to":
        return literal(value.args[0] if value.args else keyword(value, "device")) == "cpu"
    return False
