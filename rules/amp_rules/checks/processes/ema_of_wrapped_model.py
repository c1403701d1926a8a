"""Averages of weights that are taken of the wrong model."""

from __future__ import annotations

import ast

from amp_rules.checks.common.calls import own_name_of
from amp_rules.checks.common.wrapping import (
    WrapEvent,
    comes_first,
    first_model,
    is_assigned_between,
    models_in,
    parameters_of,
    replacements,
    wrapped_models,
)  # fmt: skip
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ClassFacts, ModuleFacts
from amp_rules.source.syntax import last_name, spelling, walk
from amp_rules.torch.idioms import NAMED_AVERAGED_COPY, NAMED_AVERAGING_CLASS, NAMED_UNWRAP

_KNOWN = ("torch.", "timm.", "torch_ema.", "diffusers.")


class EmaOfWrappedModel(Check):
    """Averages of weights that are taken of the wrong model.

    ## What it does

    Finds an average of a model's weights (`AveragedModel`, `ModelEma`, a class called EMA, `ema = deepcopy(model)`)
    that is made of the DistributedDataParallel wrapper instead of the model within, or before something puts other
    parameters into the model.

    ## Why

    A copy of the wrapper is a second wrapper: it has hooks and buckets of its own, cannot be copied or unpickled
    where there is no process group, and each of its keys begins with `module.`: of the 2 keys of a linear layer, 0
    are those of the model. An average that was taken before the parameters were replaced follows tensors that no
    step changes any more.

    ## Example

        model = DistributedDataParallel(model)
        ema = AveragedModel(model)

    ## Use instead

        ema = AveragedModel(model)
        model = DistributedDataParallel(model)

    ## When it is silent

    When the average is given `model.module`, or the wrapper's parameters, which are the model's; when its class deals
    with wrappers itself, or is in code that is not part of the project and not of torch, timm, torch_ema or diffusers;
    and when wrapping and averaging stand in different branches, or in different functions that are not methods which
    one method of their class calls.

    ## Source

    https://github.com/huggingface/pytorch-image-models/blob/main/timm/utils/model_ema.py
    """

    code = "AMP905"
    name = "ema-of-wrapped-model"
    severity = "warning"
    message = "An average of weights is taken of the wrapper, or before the parameters are replaced."
    advice = "Take the average of the model itself, after it has its final parameters and before it is wrapped."
    triggers = (
        "DistributedDataParallel",
        ".prepare(",
        "FullyShardedDataParallel",
        "fully_shard",
        "convert_syncbn_model",
    )

    def visit_module(self, file: LintedFile) -> None:
        """Compare the averages with what happens to their models."""
        module = file.module
        averages = _averages(module)
        if not averages:
            return
        wrapped = list(wrapped_models(module))
        replaced = list(replacements(module))
        for average in averages:
            self._judge(file, average, wrapped, replaced)

    def _judge(self, file: LintedFile, average: WrapEvent, wrapped: list[WrapEvent], replaced: list[WrapEvent]) -> None:
        module = file.module
        index = module.index
        whole = {spelling(item) for item in [*average.node.args, *(part.value for part in average.node.keywords)]}  # type: ignore[attr-defined]
        for event in wrapped:
            # The parameters of the wrapper are those of the model.
            if event.model == average.model and event.model in whole and comes_first(module, event, average.node):
                if not is_assigned_between(index, event.model, event.node, index.statement(average.node)):
                    text = f"{average.what} is given `{average.model}`, which is {event.what} here"
                    self.report_in(file, average.node, text)
                    return
        for event in replaced:
            if event.model != average.model or not comes_first(module, average, event.node):
                continue
            # Copies are brought up to date by name: those that were handed the tensors are left behind.
            if average.model in models_in(index, average.node):  # type: ignore[arg-type]
                text = f"{average.what} holds the parameters that `{average.model}` has now, and {event.what} later"
                self.report_in(file, average.node, text)
                return


def _averages(module: ModuleFacts) -> list[WrapEvent]:
    """The places where an average of a model is made."""
    found = []
    for call in module.index.calls:
        name = own_name_of(module, call)
        if NAMED_AVERAGING_CLASS.search(name) and _takes_wrappers_as_they_are(module, call):
            found += [WrapEvent(call, model, f"`{name}`") for model in sorted(_given_models(call))]
    for target, value, _ in module.index.assignments:
        held = spelling(target)
        if held is not None and NAMED_AVERAGED_COPY.search(held.rpartition(".")[2]) and isinstance(value, ast.Call):
            model = first_model(value)
            if own_name_of(module, value) == "deepcopy" and model is not None:
                found.append(WrapEvent(value, model, f"The copy `{held}`"))
    return found


def _given_models(call: ast.Call) -> set[str]:
    """The paths of what a call is given, itself or by its parameters."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return {path for item in given for path in (spelling(item), parameters_of(item)) if path is not None}


def _takes_wrappers_as_they_are(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether the average's class is known not to look inside of wrappers."""
    dotted = module.dotted(call.func) or ""
    if dotted.startswith(_KNOWN):
        return True
    cls = module.class_named(call.func)
    if not isinstance(cls, ClassFacts):
        return False
    return not any(map(_looks_inside, walk(cls.node)))


def _looks_inside(node: ast.AST) -> bool:
    """Whether an expression asks for the model in a wrapper; ``self.module`` is what the average keeps itself."""
    if isinstance(node, ast.Attribute) and node.attr == "module":
        return spelling(node.value) != "self"
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("module") and " " not in node.value
    return bool(NAMED_UNWRAP.search(last_name(node)))
