"""Large float32 values that autocast lowers for a matrix product."""

from __future__ import annotations

import ast

from amp_rules.checks.common.mixed_types import MATRIX_PRODUCTS, operands
from amp_rules.lattice.abstract_values import F32, IN_A_FEW_LINES, INF, LOW, PASSING, PROBABILITY, Value, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts

_PRODUCTS = MATRIX_PRODUCTS | {"linear"}
_LARGE = frozenset({"pow", "square", "exp", "cumsum", "cumprod", "prod"})
_SPECTRA = frozenset({"stft", "rfft", "fft", "fft2", "rfft2", "fftn", "rfftn"})
_MEL = frozenset({"MelSpectrogram", "MFCC", "MelScale"})
"""Layers of torchaudio that multiply the squares of a spectrum by a bank of filters."""
_UNNORMALISED = frozenset({"matmul", "bmm", "einsum", "mm"})


class AutocastLowersLargeValues(Check):
    """Large float32 values that autocast lowers for a matrix product.

    ## What it does

    Looks for matrix products of squared values or spectra, which autocast casts to float16, also those inside of
    torchaudio's `MelSpectrogram`, `MFCC` and `MelScale`, and for attention that is normalised only after two matrix
    products: `q @ (k.T @ v)` divided by a part of itself.

    ## Why

    float16 ends at 65504. Autocast runs `pow` in float32 because its results are large, and then casts them to
    float16 for `matmul`: the power of a waveform's frame, 2 ** 20, becomes inf, and `log` keeps it. Linear attention
    sums `k.T @ v` over all positions: 4096 positions of 5 * 5 are 102400, inf, and inf / inf is NaN.

    ## Example

        power = spectrum.abs().pow(2)
        mel = torch.matmul(self.filters, power)

    ## Use instead

        power = spectrum.abs().pow(2)
        with torch.autocast(device_type="cuda", enabled=False):
            mel = torch.matmul(self.filters, power)

    ## When it is silent

    Where autocast is off, with bfloat16, when the values are known to be small, were normalised or are probabilities.

    ## Source

    https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float16
    """

    code = "AMP710"
    name = "autocast-lowers-large-values"
    severity = "warning"
    message = "Large values are cast to float16 for a matrix product."
    advice = "Turn autocast off around the product, with its operands in float32."
    triggers = (
        "pow(",
        "** ",
        "**2",
        "**3",
        "**4",
        "**(",
        "square(",
        "stft",
        "fft",
        "matmul",
        " @ ",
        "bmm",
        "einsum",
    )
    file_triggers = tuple(f"{name}(" for name in sorted(_MEL))
    operations = (*sorted(_PRODUCTS), "div")

    def applies(self, mode: Mode) -> bool:
        """Only float16 has a narrow range."""
        return mode.fp16

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a product or a quotient."""
        if op.node is None:
            return
        if op.op == "div":
            self._normalised(op, frame)
        elif frame.autocast and op.op in frame.machine.table.lower:
            for item in operands(op):
                large = item.through(PASSING)
                if item.dtypes == F32 and _is_large(large, frame):
                    message = f"`{frame.text(item.node)}` is cast to float16 for `{op.op}`, though `{large.op}` made it"
                    self.report(frame, op.node, message)
                    return

    def visit_class(self, cls: ClassFacts, file: LintedFile) -> None:
        """Judge the calls of layers that hold such a product."""
        module = file.module
        init = cls.methods.get("__init__")
        if not (cls.is_module and file.mode.autocast and init is not None):
            return
        made = [item for item in ast.walk(init.node) if isinstance(item, ast.Assign)]
        held = [(target.attr, item) for item in made for target in item.targets if isinstance(target, ast.Attribute)]
        names = {name for name, item in held if _makes_mel(module, item.value)}
        # What holds another layer as well: which of them a call means, the settings say.
        calls = [(name, item.value) for name, item in held if isinstance(item.value, ast.Call)]
        names -= {name for name, call in calls if not _makes_mel(module, call)}
        for method in cls.methods.values() if names else ():
            for node in ast.walk(method.node):
                called = node.func if isinstance(node, ast.Call) else None
                if not (isinstance(called, ast.Attribute) and called.attr in names):
                    continue
                if not isinstance(called.value, ast.Name) or called.value.id != "self":
                    continue
                if not _turned_off(module, method, node):
                    text = module.module.text(called)
                    message = f"`{text}` multiplies powers of a spectrum by its filters in float16 under autocast"
                    self.report_in(file, node, message)

    def _normalised(self, op: Value, frame: Frame) -> None:
        product, divisor = source_of(op.args[0]), op.args[1]
        while divisor.op in ("add", "clamp", "clamp_min") and divisor.args:
            divisor = divisor.args[0]
        if product.dtypes != LOW or product.op not in _UNNORMALISED or divisor.op != "getitem":
            return
        if source_of(divisor) is not product or op.node is None:
            return
        inner = next((item for item in operands(product) if source_of(item).op in _UNNORMALISED), None)
        if (
            inner is not None
            and inner.dtypes == LOW
            and not any(_is_small(item) for item in operands(source_of(inner)))
        ):
            text = frame.text(product.node)
            self.report(frame, op.node, f"`{text}` sums over all positions in float16 before it is normalised")


def _makes_mel(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether an expression makes a layer that multiplies powers of a spectrum, or a sequence that holds one."""
    if not isinstance(node, ast.Call):
        return False
    name = module.dotted(node.func) or ""
    if name.startswith("torchaudio.transforms.") and name.rpartition(".")[2] in _MEL:
        power = next((item.value for item in node.keywords if item.arg == "power"), None)
        return power is None or (isinstance(power, ast.Constant) and power.value == 2)
    return name == "torch.nn.Sequential" and any(_makes_mel(module, item) for item in node.args)


def _turned_off(module: ModuleFacts, function: FunctionFacts, node: ast.AST) -> bool:
    """Whether a test or a region around a place, or the decorator of its function, turns autocast off."""
    around = [item for item in module.index.ancestors(node) if isinstance(item, ast.With)]
    regions = [part.context_expr for item in around for part in item.items]
    texts = [ast.unparse(item) for item in (*regions, *function.decorator_list)]
    return any("autocast" in text and ("False" in text or "float32" in text) for text in texts)


def _is_large(value: Value, frame: Frame) -> bool:
    """Whether a value is a power that nothing keeps small."""
    if value.op not in _LARGE or value.hi < frame.mode.largest or (value.lo > -INF and value.hi < INF):
        return False
    if value.op in ("pow", "square"):
        base = value.args[0]
        power = value.args[1].number if value.op == "pow" and len(value.args) > 1 else 2.0
        return (power is None or power >= 2) and any(
            item.op in _SPECTRA or _is_called_spectrum(item) for item in base.behind(IN_A_FEW_LINES)
        )
    return False


def _is_called_spectrum(value: Value) -> bool:
    name = value.data if isinstance(value.data, str) else ""
    return any(part in name for part in ("spec", "stft", "fft"))


def _is_small(value: Value) -> bool:
    return bool(value.bits & PROBABILITY) or (value.lo > -INF and value.hi < INF)
