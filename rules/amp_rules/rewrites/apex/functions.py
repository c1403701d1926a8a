"""Call the runtime's functions in place of Apex's.

## What it does
`amp.master_params`, `amp.state_dict`, `amp.load_state_dict`, `amp.register_float_function` and their like become the
runtime's, with the same arguments. `amp._amp_state.loss_scalers[0]` becomes `amp.scaler`, and `to_python_float(loss)`
becomes `loss.item()`; so does the scale out of the state, `amp.state_dict()["loss_scaler0"]["loss_scale"]`, become
`amp.scaler.get_scale()`. Where the module itself is handed to what loads and saves checkpoints, as in `load(path,
model=model, amp=amp)`, that gets `amp.scaler`. `optimizer.clip_optimizer_grad_norm_fused(1.0)` of Ascend's Apex becomes
`torch.nn.utils.clip_grad_norm_` over `amp.master_params(optimizer)`.

## Why
The scaler holds what Apex kept in its own state, and reads the `amp` entry of checkpoints that Apex wrote.

## Before
    checkpoint["amp"] = amp.state_dict()

## After
    checkpoint["amp"] = amp.scaler.state_dict()

## When it declines
Where the flat buffers of Ascend's Apex are asked for (`get_optimizer_combined_grads` and its like), or a part of Apex's
state by its name (`checkpoint["amp"]["loss_scaler0"]`), which the scaler's state has not. What else is not in
the list makes the file keep Apex's interface.

## Leaving it out
No: Apex's functions know nothing of the runtime's scaler.

## Source
https://nvidia.github.io/apex/amp.html#checkpointing
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.handed_on import AMP, or_none
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Insert, Remove, Replace
from amp_rules.text.expression_edits import substitute
from amp_rules.torch import apex as api

RULE = Rule(
    "AMP405",
    "apex-functions",
    "Functions of the same use take the place of Apex's.",
    "precision",
    ways=("idiom",),
    after=("AMP402",),
)

_SCALERS = "apex.amp._amp_state.loss_scalers"
_STATE = "apex.amp.state_dict"
_PART_OF_STATE = "loss_scaler"
"""How the names of the parts begin: `loss_scaler0`."""
_NUMBER = "apex.fp16_utils.to_python_float"
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each use."""
    scales = dict(_scales_of_states(file))
    for use in file.references.uses:
        if use.node in scales:
            continue
        code = file.vocabulary.counterpart(file.module, use.target) if use.target in api.RENAMED else None
        if code is not None:
            yield Change(
                RULE, file.module, use.node, f"`{code}` takes the same arguments", [Replace(use.node, substitute(code))]
            )
        elif use.target == _NUMBER:
            yield from _number(file, use.node)
        elif use.target == _SCALERS:
            yield _of_first_scaler(file, use.node)
        elif use.target == AMP and _is_handed_on(file, use.node):
            code = (file.vocabulary.counterpart(file.module, _STATE) or "").removesuffix(".state_dict")
            message = f"`{code}` has the state that is loaded and saved"
            yield Change(RULE, file.module, use.node, message, [Replace(use.node, substitute(code))])
    for whole in scales.values():
        code = file.vocabulary.scale(file.module)
        yield Change(RULE, file.module, whole, "the scaler holds the scale", [Replace(whole, substitute(code))])
    _check_parts_of_state(file, set(scales.values()))
    file.check_buffers()
    yield from _clipping(file)


def _scales_of_states(file: ApexFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``amp.state_dict`` in ``amp.state_dict()["loss_scaler0"]["loss_scale"]``, each with the whole."""
    parents = file.module.parents
    for use in file.references.uses:
        call = parents[use.node]
        if use.target == _STATE and isinstance(call, ast.Call) and call.func is use.node and not call.args:
            part = parents[call]
            whole = parents[part]
            if _has_key(part, f"{_PART_OF_STATE}0") and _has_key(whole, "loss_scale"):
                assert isinstance(whole, ast.Subscript)
                if isinstance(whole.ctx, ast.Load):
                    yield use.node, whole


def _has_key(node: ast.AST, key: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == key


def _check_parts_of_state(file: ApexFile, known: set[ast.expr]) -> None:
    """What names a part of Apex's state beside what is known: a key, or a pattern of keys."""
    inside = {part for item in known for part in walk(item)}
    for node in file.module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            is_pattern = isinstance(file.module.parents[node], ast.JoinedStr)
            number = node.value.removeprefix(_PART_OF_STATE)
            if number != node.value and (number.isdecimal() or (is_pattern and not number)):
                raise file.not_understood(node, f"`{node.value}` names a part of Apex's own state")


def _clipping(file: ApexFile) -> Iterator[Change]:
    """``optimizer.clip_optimizer_grad_norm_fused(max_norm)``, by its name: what else would have such a method?"""
    for node in file.module.nodes:
        if not isinstance(node, ast.Attribute) or node.attr != api.CLIP_OF_ASCEND:
            continue
        call = file.module.parents[node]
        master = file.vocabulary.counterpart(file.module, "apex.amp.master_params")
        clip = _written(file, "torch.nn.utils.clip_grad_norm_")
        if not isinstance(call, ast.Call) or call.func is not node or master is None or clip is None:
            raise file.not_understood(node, f"`{node.attr}` is a method of Ascend's Apex")
        given = [f"{master}({file.source(node.value)})", *map(file.source, (*call.args, *call.keywords))]
        code = f"{clip}({', '.join(given)})"
        message = "torch clips the same gradients, those of the FP32 masters"
        yield Change(RULE, file.module, call, message, [Replace(call, substitute(code))])


def _written(file: ApexFile, target: str) -> str | None:
    """A name of torch as the file can write it, by one of its imports; None where it has none for it."""
    for item in file.names.bindings:
        if item.scope.parent is None and (item.target == target or target.startswith(f"{item.target}.")):
            return item.name + target.removeprefix(item.target)
    return None


def _is_handed_on(file: ApexFile, node: ast.expr) -> bool:
    """Whether the module is an argument by name, or stands in a dictionary: of what is saved, as nothing else calls it.

    ``load(path, model=model, amp=amp)`` asks each of its arguments to load its own part, and so does
    ``amp=amp if fp16 else None``.
    """
    value = or_none(file.module, node)
    parent = file.module.parents[value]
    return not file.handed_on.is_used_elsewhere and (
        (isinstance(parent, ast.keyword) and parent.arg is not None)
        or (isinstance(parent, ast.Dict) and value in parent.values)
    )


def _number(file: ApexFile, node: ast.expr) -> Iterator[Change]:
    """``to_python_float(loss)``; where the function is handed on instead, its import stays."""
    call = file.module.parents[node]
    if not isinstance(call, ast.Call) or call.func is not node or len(call.args) != 1 or call.keywords:
        return
    (value,) = call.args
    if isinstance(value, ast.Starred):
        return
    text = file.source(value)
    code = f"{text}.item()" if isinstance(value, _ATOMS) else f"({text}).item()"
    message = f"`{text}` is a tensor, which gives its number itself"
    yield Change(RULE, file.module, call, message, [Replace(call, substitute(code))])


def _of_first_scaler(file: ApexFile, node: ast.expr) -> Change:
    """``loss_scalers[0]._loss_scale``, read or set."""
    element = file.module.parents[node]
    attribute = file.module.parents[element]
    first = isinstance(element, ast.Subscript) and isinstance(element.slice, ast.Constant) and element.slice.value == 0
    if not first or not isinstance(attribute, ast.Attribute) or attribute.attr not in ("_loss_scale", "loss_scale"):
        raise file.not_understood(node, "the script reaches into Apex's own state")
    statement = blocks.statement_of(file.module, attribute)
    message = "the scaler holds the scale"
    if isinstance(attribute.ctx, ast.Load):
        whole: ast.expr = attribute
        if attribute.attr == "loss_scale":
            parent = file.module.parents[attribute]
            if not isinstance(parent, ast.Call):
                raise file.not_understood(node, "the script reaches into Apex's own state")
            whole = parent
        return Change(
            RULE, file.module, whole, message, [Replace(whole, substitute(file.vocabulary.scale(file.module)))]
        )
    if not isinstance(statement, ast.Assign) or statement.targets != [attribute]:
        raise file.not_understood(node, "the script reaches into Apex's own state")
    code = file.vocabulary.set_scale(file.module, file.source(statement.value))
    return Change(RULE, file.module, statement, message, [Insert(statement, code), Remove(statement)])
