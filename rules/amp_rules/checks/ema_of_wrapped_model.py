"""Averages of weights that are taken of the wrong model."""

from __future__ import annotations

import ast
import re

from amp_rules.evidence.wrapping import (
    Event,
    first_model,
    is_assigned_between,
    models_in,
    parameters_of,
    replacements,
    wrapped_models,
)  # fmt: skip
from amp_rules.lint.check import Check
from amp_rules.lint.index import last_name, path_of
from amp_rules.lint.module import ClassFacts, ModuleFacts

_AVERAGES = re.compile(
    r"^(Model)?(EMA|Ema)(V\d)?$|^(Model|Weight|Param|Parameter)?_?(EMA|Ema)(Model|Helper|Wrapper)?$"
    r"|ExponentialMovingAverage|^AveragedModel$|^SWA\w*Model$"
)
_COPIES = re.compile(r"ema|teacher|shadow|average|avg|momentum|polyak", re.IGNORECASE)
_KNOWN = ("torch.", "timm.", "torch_ema.")
_UNWRAPS = re.compile(r"\bmodule\b|unwrap|de_parallel|is_parallel|without_ddp|strip", re.IGNORECASE)


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

    When the average is given `model.module`, when its class deals with wrappers itself, when that class is in code
    that is not part of the project and not of torch, timm or torch_ema, and when wrapping and averaging stand in
    different functions or branches.

    ## Source

    https://github.com/huggingface/pytorch-image-models/blob/main/timm/utils/model_ema.py
    """

    code = "AMP905"
    name = "ema-of-wrapped-model"
    severity = "warning"
    message = "An average of weights is taken of the wrapper, or before the parameters are replaced."
    advice = "Take the average of the model itself, after it has its final parameters and before it is wrapped."
    triggers = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "convert_syncbn_model")

    def visit_module(self, module: ModuleFacts) -> None:
        """Compare the averages with what happens to their models."""
        averages = _averages(module)
        if not averages:
            return
        wrapped = list(wrapped_models(module))
        replaced = list(replacements(module))
        for average in averages:
            self._judge(module, average, wrapped, replaced)

    def _judge(self, module: ModuleFacts, average: Event, wrapped: list[Event], replaced: list[Event]) -> None:
        index = module.index
        for event in wrapped:
            if event.model == average.model and index.precedes(event.node, average.node):
                if not is_assigned_between(index, event.model, event.node, index.statement(average.node)):
                    text = (
                        f"{average.what} is given `{average.model}`, which is wrapped in DistributedDataParallel here"
                    )
                    module.found(self, average.node, text)
                    return
        for event in replaced:
            if event.model != average.model or not index.precedes(average.node, event.node):
                continue
            # Copies are brought up to date by name: those that were handed the tensors are left behind.
            if average.model in models_in(index, average.node):  # type: ignore[arg-type]
                text = f"{average.what} holds the parameters that `{average.model}` has now, and {event.what} later"
                module.found(self, average.node, text)
                return


def _averages(module: ModuleFacts) -> list[Event]:
    """The places where an average of a model is made."""
    found = []
    for call in module.index.calls:
        name = last_name(call.func)
        if _AVERAGES.search(name) and _takes_wrappers_as_they_are(module, call):
            found += [Event(call, model, f"`{name}`") for model in sorted(_given_models(call))]
    for target, value, _ in module.index.assignments:
        held = path_of(target)
        if held is not None and _COPIES.search(held.rpartition(".")[2]) and isinstance(value, ast.Call):
            model = first_model(value)
            if last_name(value.func) == "deepcopy" and model is not None:
                found.append(Event(value, model, f"The copy `{held}`"))
    return found


def _given_models(call: ast.Call) -> set[str]:
    """The paths of what a call is given, itself or by its parameters."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return {path for item in given for path in (path_of(item), parameters_of(item)) if path is not None}


def _takes_wrappers_as_they_are(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether the average's class is known not to look inside of wrappers."""
    dotted = module.dotted(call.func) or ""
    if dotted.startswith(_KNOWN):
        return True
    cls = module.class_named(call.func)
    if not isinstance(cls, ClassFacts):
        return False
    text = ast.get_source_segment(cls.module.module.source.text, cls.node) or ""
    return not _UNWRAPS.search(text)
