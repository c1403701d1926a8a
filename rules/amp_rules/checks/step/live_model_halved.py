"""Models that are converted to half to be saved, and trained on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.checkpoints import is_saving
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.syntax import last_name, spelling, walk

_OF_MODELS = ("parameters", "named_parameters", "state_dict", "train", "eval", "float", "zero_grad")
_COPIES = ("deepcopy", "copy", "clone", "state_dict", "cpu")
_TRAINS = ("step", "backward", "train_one_epoch", "set_epoch")


class LiveModelHalved(Check):
    """A model is converted to half in place for a checkpoint, and training goes on with it.

    ## What it does

    Finds `model.half()` in what a training loop saves, where the model is not copied first.

    ## Why

    `Module.half` changes the module itself. After `model.float()` the types are right again, and the weights are those
    of float16: 1 + 1e-4 has become 1, and what is below 3e-8 has become 0. Each checkpoint throws away what the small
    steps since the last one have added; an average of weights, which moves by less, stands still.

    ## Example

        for epoch in range(epochs):
            train(model)
            torch.save({"model": model.half(), "epoch": epoch}, path)
            model.float()

    ## Use instead

        for epoch in range(epochs):
            train(model)
            torch.save({"model": copy.deepcopy(model).half(), "epoch": epoch}, path)

    ## When it is silent

    Outside of training loops, where a copy is converted, and where only tensors are.

    ## Source

    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.half
    """

    code = "AMP828"
    name = "live-model-halved"
    severity = "warning"
    message = "A model that is trained on is converted to half to be saved."
    advice = "Convert a copy: `copy.deepcopy(model).half()`."
    triggers = (".half()",)

    def visit_module(self, file: LintedFile) -> None:
        """Look at the conversions in what is saved."""
        module = file.module
        for call in module.index.named.get("half", ()):
            if not isinstance(call.func, ast.Attribute) or call.args or not _is_saved(call, module):
                continue
            model = call.func.value
            if _is_model(model, module) and _trains_around(call, module):
                text = module.module.text(model)
                message = f"`{text}` itself becomes half here, and training goes on with the rounded weights"
                self.report_in(file, call, message)


def _is_saved(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a conversion stands in a call that saves, or in a dictionary that the function saves by its name."""
    child: ast.AST = call
    for item in module.index.ancestors(call):
        if isinstance(item, (ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)):
            return False
        if isinstance(item, ast.Call) and child is not item.func and is_saving(item, module):
            return True
        if isinstance(item, ast.Assign):
            names = {item.id for target in item.targets for item in walk(target) if isinstance(item, ast.Name)}
            return isinstance(item.value, ast.Dict) and any(
                _gives(other, names, module) for other in module.index.calls
            )
        if isinstance(item, ast.stmt):
            return False
        child = item
    return False


def _gives(call: ast.Call, names: set[str], module: ModuleFacts) -> bool:
    return is_saving(call, module) and any(isinstance(item, ast.Name) and item.id in names for item in call.args)


def _is_model(node: ast.expr, module: ModuleFacts) -> bool:
    """Whether something is a model and no copy of one, by what the file does with it elsewhere."""
    if any(isinstance(item, ast.Call) and last_name(item.func) in _COPIES for item in walk(node)):
        return False
    for item in _meant(node):
        text = spelling(item)
        for name in _OF_MODELS:
            for call in module.index.named.get(name, ()):
                if text and isinstance(call.func, ast.Attribute) and spelling(call.func.value) == text:
                    return True
    return False


def _meant(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression may be: ``model.module if wrapped else model``."""
    if isinstance(node, ast.IfExp):
        yield from _meant(node.body)
        yield from _meant(node.orelse)
    elif isinstance(node, ast.Attribute) and node.attr == "module":
        yield from _meant(node.value)
    else:
        yield node


def _trains_around(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a loop around a place trains."""
    return any(
        isinstance(item, ast.Call) and last_name(item.func) in _TRAINS
        for loop in module.index.loops_around(call)
        for item in walk(loop)
    )
