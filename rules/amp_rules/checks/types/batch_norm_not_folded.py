"""Int8 models in which batch norm stays a layer of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from amp_rules.checks.common.origins import origins
from amp_rules.checks.common.prepared_models import model_given
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.blocks import suites
from amp_rules.source.facts import ClassFacts, ModuleFacts
from amp_rules.source.syntax import walk
from amp_rules.torch.models import CHAINS, RETURNS_RECEIVER
from amp_rules.torch.quantizing import OBSERVED_LAYERS

_BEFORE = tuple(f"torch.nn.{name}" for name in ("Conv1d", "Conv2d", "Conv3d", "Linear"))
_NORMS = tuple(f"torch.nn.BatchNorm{size}d" for size in (1, 2, 3))
_FOLDS = "fuse"
"""In the name of every function that folds, torch's and those that models have for it (``fuse_model``)."""


class BatchNormNotFolded(Check):
    """A model is prepared for int8 layer by layer, and its batch norm is not folded.

    ## What it does

    Finds `torch.ao.quantization.prepare` and `prepare_qat` of a model in whose class batch norm follows a convolution
    or a linear layer, where nothing is fused.

    ## Why

    In evaluation batch norm is a scale and a shift, which `fuse_modules` folds into the weights before it. Left alone,
    the output of the convolution is rounded to int8 before the norm spreads it out, and once more behind it: errors
    add up where the channels differ much, and the layer costs a pass over memory that float32 models do not
    have either. `BatchNorm1d` has no int8 form by itself, and raises an error when the converted model is called.
    Graph modes (`prepare_fx`, `prepare_pt2e`) fold by themselves.

    ## Example

        model = Net().eval()
        model.qconfig = get_default_qconfig("x86")
        prepared = prepare(model)

    ## Use instead

        model = Net().eval()
        model.qconfig = get_default_qconfig("x86")
        prepared = prepare(fuse_modules(model, [["conv", "norm"]]))

    ## When it is silent

    Where the file, or the one that defines the class, has anything with `fuse` in its name; where the class of the
    model is not known, and where its layers are not seen to follow each other: in `nn.Sequential(...)`, or in
    `self.norm(self.conv(x))` and `x = self.conv(x); x = self.norm(x)`.

    ## Source

    https://docs.pytorch.org/docs/stable/generated/torch.ao.quantization.fuse_modules.fuse_modules.html
    """

    code = "AMP762"
    name = "batch-norm-not-folded"
    severity = "warning"
    message = "A model is prepared for int8, and its batch norm is not folded."
    advice = "Fold it with `fuse_modules` (`fuse_modules_qat` before `prepare_qat`)."
    triggers = ("quantization",)

    def visit_module(self, file: LintedFile) -> None:
        """Look at the models that are prepared."""
        module = file.module
        if _fuses(module):
            return
        for call in module.index.calls:
            model = model_given(call) if (module.dotted(call.func) or "") in OBSERVED_LAYERS else None
            norm = _norm_of(model, module) if model is not None else None
            if model is not None and norm is not None:
                text = module.module.text(model)
                message = f"`{norm}` of `{text}` is not folded into the layer before it: `fuse_modules` does that"
                self.report_in(file, call, message)


def _fuses(module: ModuleFacts) -> bool:
    return any(_FOLDS in word.lower() for word in module.index.words)


def _norm_of(model: ast.expr, module: ModuleFacts, names: int = 4) -> str | None:
    """The batch norm that stands behind another layer in every class that a model may be of.

    ``names`` is how many names are followed, each made of the one before: ``model = model.to(device)``.
    """
    while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in RETURNS_RECEIVER:
        model = model.func.value
    if isinstance(model, ast.Name) and names:
        found = [_norm_of(item.node, item.module, names - 1) for item in origins(module, model)]
        return found[0] if found and all(found) else None
    if not isinstance(model, ast.Call) or _fuses(module):
        return None
    if (module.dotted(model.func) or "") in CHAINS:
        return _norm_in_chain(model, module)
    cls = module.class_named(model.func)
    return next(_norms_in(cls), None) if cls is not None and cls.is_module and not _fuses(cls.module) else None


def _norms_in(cls: ClassFacts) -> Iterator[str]:
    """The batch norms of a class that it is sure to run behind another layer."""
    layers: dict[str, str] = {}
    for item in cls.lineage:
        init = item.methods.get("__init__")
        for node in walk(init.node) if init is not None else ():
            if isinstance(node, ast.Call) and (item.module.dotted(node.func) or "") in CHAINS:
                norm = _norm_in_chain(node, item.module)
                if norm is not None:
                    yield norm
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                kind = item.module.dotted(node.value.func) or ""
                layers.update({path: kind for target in node.targets if (path := _own(target)) is not None})
    forward = cls.method("forward")
    for first, second in _in_order(forward.node) if forward is not None else ():
        if layers.get(first, "") in _BEFORE and layers.get(second, "") in _NORMS:
            yield f"self.{second}"


def _norm_in_chain(chain: ast.Call, module: ModuleFacts) -> str | None:
    """The batch norm that stands behind another layer in ``nn.Sequential(...)``."""
    kinds = [(module.dotted(item.func) or "") if isinstance(item, ast.Call) else "" for item in chain.args]
    for place, (first, second) in enumerate(pairwise(kinds)):
        if first in _BEFORE and second in _NORMS:
            return module.module.text(chain.args[place + 1])
    return None


def _in_order(function: ast.AST) -> Iterator[tuple[str, str]]:
    """The layers of a forward pass of which one is given what the other one gave."""
    for node in walk(function):
        if not isinstance(node, ast.Call) or len(node.args) != 1:
            continue
        layer, inner = _own(node.func), node.args[0]
        first = _own(inner.func) if isinstance(inner, ast.Call) else None
        if layer is not None and first is not None:
            yield first, layer
    for suite in (suite for node in walk(function) for suite in suites(node)):
        yield from _in_order_of(suite)


def _in_order_of(suite: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The same of the statements of a suite, by the variables between them."""
    holds: dict[str, str] = {}
    for statement in suite:
        value = getattr(statement, "value", None)
        layer = _own(value.func) if isinstance(value, ast.Call) and len(value.args) == 1 else None
        given = value.args[0] if isinstance(value, ast.Call) and layer is not None else None
        if layer is not None and isinstance(given, ast.Name) and given.id in holds:
            yield holds[given.id], layer
        written = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if isinstance(written, ast.Name):
            holds.pop(written.id, None)
            if layer is not None:
                holds[written.id] = layer
        elif not isinstance(statement, ast.Expr):
            holds.clear()


def _own(node: ast.AST) -> str | None:
    """The name of what an attribute of ``self`` is."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None
