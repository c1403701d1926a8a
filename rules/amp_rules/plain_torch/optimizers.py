"""Optimizers: torch's own, with their fused kernels where there are any."""

from __future__ import annotations

import ast

import libcst as cst

from amp_rules.plain_torch.file_head import TORCH
from amp_rules.plain_torch.levels import Level
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.kinds import is_optimizer
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.text.expression_edits import add_keyword, substitute

_FUSED = frozenset({"Adam", "AdamW"})
"""Optimizers of torch that have sound fused kernels on the CPU and on CUDA.

That of SGD is left out. Where the scaler skips the first step, its momentum begins with memory that nobody wrote; and
it raises where some parameters had gradients before others.
"""
_EXCLUSIVE = frozenset({"fused", "foreach", "differentiable"})
"""Keywords that choose an implementation, or leave no choice."""
_APEX_DROPPED = {"bias_correction": True, "amsgrad": False, "wd_after_momentum": False, "adagrad_w_mode": False}
"""What Apex's optimizers can be asked for and torch's cannot, with what torch's do."""
_APEX_MEMORY = frozenset({"set_grad_none", "materialize_master_grads", "capturable", "master_weights"})
"""What changes no number."""


def _torch_optimizer(translation: Translation, use: Use) -> None:
    """``amp.optim.AdamW(...)`` becomes ``torch.optim.AdamW(..., fused=True if USE_AMP else None)``."""
    name = use.path.rpartition(".")[2]
    translation.replace(use.module, use.node, substitute(_named(translation, use.module, name)))
    _ask_for_fused(translation, use, name)


def _named(translation: Translation, module: Module, name: str) -> str:
    """An optimizer as the file names it: ``optim.AdamW``, where it imports that."""
    names = names_of(module)
    for local, target in names.imports.items():
        if target == f"torch.optim.{name}" and local not in names.rebound:
            return local
    for local, target in names.imports.items():
        if target == "torch.optim" and local not in names.rebound:
            return f"{local}.{name}"
    return f"{translation.head(module).imported(TORCH)}.optim.{name}"


def _ask_for_fused(translation: Translation, use: Use, name: str) -> None:
    """At O0 the optimizer stays the one that it was: the fused kernel rounds in another order."""
    call = use.call
    if call is None or name not in _FUSED or not translation.part(Level).is_constant:
        return
    if any(item.arg is None or item.arg in _EXCLUSIVE for item in call.keywords):
        return
    if _has_sparse(translation) or _is_loaded(translation):
        return
    translation.replace(
        use.module, call, add_keyword(translation.code(use.module, "fused=True if {USE_AMP} else None"))
    )


def _is_loaded(translation: Translation) -> bool:
    """Whether the state of an optimizer is loaded: an older one says ``fused=None``, and turns it off half-way."""
    program = translation.program
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "load_state_dict"
        and any(map(is_optimizer, program.flow.values(call.func.value, scope)))
        for call, _, scope in program.calls()
    )


def _has_sparse(translation: Translation) -> bool:
    """Whether something asks for sparse gradients, which fused kernels refuse."""
    return any(
        isinstance(node, ast.keyword)
        and node.arg == "sparse"
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
        for module in translation.program.flow.modules
        for node in module.nodes
    )


def _apex_optimizer(translation: Translation, use: Use) -> None:
    """``amp.optim.FusedAdam(...)`` becomes ``torch.optim.AdamW(..., weight_decay=0.0, fused=...)``."""
    call = use.call
    name = use.path.rpartition(".")[2]
    if call is None:
        _decline(translation, use, f"`{use.module.text(use.node)}` is handed on: what it is given is not known")
        return
    kept: list[str] = []
    given = {item.arg: item.value for item in call.keywords if item.arg is not None}
    if len(call.args) > 2 or len(given) < len(call.keywords):
        _decline(translation, use, f"what `{use.module.text(use.node)}` is given is not known")
        return
    for key, value in _APEX_DROPPED.items():
        if key in given and not (isinstance(given[key], ast.Constant) and given[key].value == value):  # type: ignore[attr-defined]
            _decline(translation, use, f"torch has no `{key}={ast.unparse(given[key])}`")
            return
        kept.append(key)
    counterpart = {"FusedAdam": "AdamW", "FusedSGD": "SGD", "FusedAdagrad": "Adagrad"}[name]
    more = []
    if name == "FusedAdam":
        mode = given.get("adam_w_mode", ast.Constant(True))
        if not isinstance(mode, ast.Constant):
            _decline(translation, use, f"whether `adam_w_mode={ast.unparse(mode)}` is known only when the script runs")
            return
        counterpart = "AdamW" if mode.value else "Adam"
        if mode.value and "weight_decay" not in given:
            more.append("weight_decay=0.0")  # torch's own is 0.01
    translation.replace(use.module, use.node, substitute(_named(translation, use.module, counterpart)))
    if given.keys() & {*kept, "adam_w_mode", *_APEX_MEMORY}:
        translation.replace(use.module, call, _without(frozenset({*kept, "adam_w_mode", *_APEX_MEMORY})))
    for code in more:
        translation.replace(use.module, call, add_keyword(code))
    _ask_for_fused(translation, use, counterpart)


def _without(names: frozenset[str]):  # type: ignore[no-untyped-def]
    """``f(a, name=b)`` becomes ``f(a)``."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        args = [item for item in call.args if item.keyword is None or item.keyword.value not in names]
        if args and args[-1] is not call.args[-1]:
            args[-1] = args[-1].with_changes(comma=call.args[-1].comma)
        return call.with_changes(args=args)

    return edit


def _of_apex_alone(translation: Translation, use: Use) -> None:
    """What torch has nothing like."""
    _decline(translation, use, f"torch has no optimizer like `{use.path.rpartition('.')[2]}`")


def _decline(translation: Translation, use: Use, message: str) -> None:
    recipe = "take an optimizer of torch, or keep the runtime here (--target runtime)"
    translation.decline(use.module, use.node, message, recipe, "precision")


def _master_params(translation: Translation, use: Use) -> None:
    """``amp.master_params(optimizer)`` becomes ``(p for group in optimizer.param_groups for p in group["params"])``."""
    if use.call is None or len(use.call.args) != 1:
        _decline(translation, use, f"`{use.module.text(use.node)}` is handed on")
        return
    translation.replace(use.module, use.whole, _parameters_of)


def _parameters_of(node: cst.BaseExpression) -> cst.BaseExpression:
    given = cst.ensure_type(node, cst.Call).args[0].value
    owner = cst.Module([]).code_for_node(given)
    if not isinstance(given, (cst.Name, cst.Attribute, cst.Subscript, cst.Call)):
        owner = f"({owner})"
    return cst.parse_expression(f'(p for group in {owner}.param_groups for p in group["params"])')


_LAYERWISE = ("FusedLAMB", "FusedNovoGrad", "FusedMixedPrecisionLamb", "LARC", "LAMB", "NovoGrad", "LARS")

WORDS: dict[str, Translate] = {
    **{f"optim.{name}": _torch_optimizer for name in ("Adam", "AdamW", "SGD", "Adagrad")},
    **{f"optim.{name}": _apex_optimizer for name in ("FusedAdam", "FusedSGD", "FusedAdagrad")},
    **{f"optim.{name}": _of_apex_alone for name in _LAYERWISE},
    "master_params": _master_params,
}
