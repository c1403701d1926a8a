"""Run binary cross entropy on probabilities in FP32.

## What it does
`nn.BCELoss()` becomes `amp.float_function(nn.BCELoss())`, and a call of `F.binary_cross_entropy` likewise:
inputs are cast to FP32 and autocast is off inside.

A sigmoid at the end of a model is kept in FP32 too where such a loss or a logarithm takes its output, and so is any
whose output a logarithm within a region takes, as that of a focal loss does: `log(1 - p)`, `log(p.clamp(...))`. It is
followed through calls, quotients, lists and keys of dictionaries, also where the model gives it back beside others or
joins it with them (`torch.cat`). So is what such a loss takes within a forward pass. Where a variable holds its class,
and other classes elsewhere, `act()` becomes `amp.float_function(act()) if act is nn.Sigmoid else act()`.

## Why
On CUDA, autocast refuses binary cross entropy on probabilities with an error; in half, a probability of
0.9999 is 1.0 and its logarithm infinite.

## Before
    criterion = nn.BCELoss()

## After
    criterion = amp.float_function(nn.BCELoss())

## When it declines
Only where it has FP32 already, in a function under `@amp.float_function`. `BCEWithLogitsLoss` without the sigmoid would
be better still, but its losses differ from the original's in the last bits, and at O0 a migrated script gives exactly
the losses of the original.

## Leaving it out
No: autocast refuses the loss on CUDA with an error. Write it with logits by hand first.

## Source
https://pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.operation_names import function_named, layer_named
from amp_rules.plan.context import Change, Context
from amp_rules.plan.inputs_of_models import only_feeds_models
from amp_rules.plan.own_refused_losses import is_refused
from amp_rules.plan.rule import Rule
from amp_rules.plan.sigmoids import SIGMOID, Endings, Logged
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.unread import is_never_read
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of

RULE = Rule("AMP106", "probability-loss", "Binary cross entropy on probabilities runs in FP32.", "precision")

_WITHOUT_PARENTHESES = (ast.Assign, ast.Call, ast.List, ast.Return, ast.Tuple, ast.keyword)
"""In what a conditional expression needs no parentheses."""


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each constructor and each call of the function."""
    losses = _probability_losses(context.program)
    for site in losses:
        text = _called(site)
        message = (
            f"`{text}` of probabilities runs in FP32: autocast refuses it on CUDA; with logits it would be safe in half"
        )
        yield from _in_float32(context, site, message)
    for site in _probabilities(context, losses):
        message = f"`{_called(site)}` runs in FP32: in half a probability is 1.0 long before its logarithm is 0"
        yield from _in_float32(context, site, message)


def _called(site: Site) -> str:
    assert isinstance(site.node, ast.Call)
    return site.module.text(site.node.func)


def _in_float32(context: Context, site: Site, message: str) -> Iterator[Change]:
    """Around the module that a class makes, or around a function; ``x.sigmoid()`` becomes a function."""
    call = site.node
    assert isinstance(call, ast.Call)
    if _is_method(site):
        torch = names_of(site.module).name_of("torch")
        if torch is not None:
            written = context.vocabulary.called_in_float32(site.module, call, f"{torch}.Tensor.sigmoid")
            yield Change.written(RULE, site.module, call, message, written)
        return
    vocabulary = context.vocabulary
    if _makes_others(context.program, site) and (test := _is_sigmoid(site)):
        written = vocabulary.in_float32_if(site.module, call, test)
    else:
        written = vocabulary.in_float32(site.module, call if _is_class(context.program, site) else call.func)
    yield Change.written(RULE, site.module, call, message, written)


def _is_method(site: Site) -> bool:
    """Whether a tensor's own ``sigmoid`` is called, and no library's."""
    func = site.node.func if isinstance(site.node, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "sigmoid" and not _is_library(site.module, func.value)


def _is_library(module: Module, node: ast.expr) -> bool:
    """Whether a name is one that the file imports: ``torch``, ``F``."""
    root = (blocks.path_of(node) or "").split(".")[0]
    return any(
        root == (item.asname or item.name.split(".")[0])
        for statement in module.nodes
        if isinstance(statement, (ast.Import, ast.ImportFrom))
        for item in statement.names
    )


def _is_class(program: Program, site: Site) -> bool:
    """Whether a call makes a layer, also by a variable that holds its class: ``nn.Sigmoid()``, ``act()``."""
    call = site.node
    assert isinstance(call, ast.Call)
    if any(map(layer_named, program.callee_names(call, site.scope))):
        return True
    return any(value.site is call and layer_named(value.name) for value in program.flow.values(call, site.scope))


def _makes_others(program: Program, site: Site) -> bool:
    """Whether a call makes a sigmoid and other layers: ``act()`` in a block that is given ``nn.ReLU`` elsewhere."""
    assert isinstance(site.node, ast.expr)
    names = {value.name for value in program.flow.values(site.node, site.scope)}
    return SIGMOID in names and len(names) > 1


def _is_sigmoid(site: Site) -> str:
    """The condition that a call makes a sigmoid: ``act is nn.Sigmoid``; empty where that cannot be written."""
    call, names = site.node, names_of(site.module)
    assert isinstance(call, ast.Call)
    parent = site.module.parents[call]
    if not isinstance(parent, _WITHOUT_PARENTHESES) or (isinstance(parent, ast.Call) and parent.func is call):
        return ""
    if blocks.path_of(call.func) is None:
        return ""
    for package in ("torch.nn.Sigmoid", "torch.nn", "torch"):
        name = names.name_of(package)
        if name is not None:
            return f"{site.module.text(call.func)} is {name}{SIGMOID.removeprefix(package)}"
    return ""


def _probability_losses(program: Program) -> list[Site]:
    """Constructors and calls of binary cross entropy on probabilities."""
    found = []
    for call, body, scope in program.calls():
        site = Site(scope.module, scope, body, call)
        names = program.callee_names(call, scope)
        if isinstance(call.func, (ast.Call, ast.Subscript)):  # ``LOSSES[name]()``
            names = {value.name for value in program.flow.values(call, scope) if value.site is call}
        if any(map(is_refused, names)) and not _is_left_over(program, site):
            found.append(site)
    return found


def _is_left_over(program: Program, site: Site) -> bool:
    """Whether a loss is made for a variable that nothing reads."""
    statement = site.statement
    return isinstance(statement, ast.Assign) and statement.value is site.node and is_never_read(program, site)


def _probabilities(context: Context, losses: list[Site]) -> list[Site]:
    """Sigmoids whose output is taken for a probability: at a trained model's end, or by a logarithm in a region."""
    program = context.program
    found: dict[ast.AST, Site] = {}
    if losses or program.calls_to(frozenset({"torch.log"})):
        endings = Endings(program)
        endings.follow(model for model in program.trained if not only_feeds_models(program, model))
        found |= endings.sigmoids
    logged = list(_logarithms(context)) if any(map(_has_logarithm, program.flow.modules)) else []
    logged += _given_to_losses(context, losses)
    if logged:
        behind = Logged(program)
        behind.follow_into(logged)
        inside = {site.node for site in nodes_in(program, context.precision.runs, apart=context.precision.in_float32)}
        found |= {node: site for node, site in behind.sigmoids.items() if node in inside or _is_class(program, site)}
    return sorted(found.values(), key=lambda site: (str(site.module.path), site.line))


_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p", "logit"})


def _has_logarithm(module: Module) -> bool:
    return any(f"{name}(" in module.source.text for name in _LOGARITHMS)


def _logarithms(context: Context) -> Iterator[Site]:
    """Yield what logarithms within regions of autocast are taken of."""
    for site in nodes_in(context.program, context.precision.runs, apart=context.precision.in_float32):
        if not isinstance(site.node, ast.Call):
            continue
        taken: ast.expr | None = None
        if any(function_named(name) in _LOGARITHMS for name in context.program.callee_names(site.node, site.scope)):
            taken = site.node.args[0] if site.node.args else None
        elif isinstance(site.node.func, ast.Attribute) and site.node.func.attr in _LOGARITHMS and not site.node.args:
            taken = site.node.func.value
        if taken is not None:
            yield Site(site.module, site.scope, site.body, taken)


def _given_to_losses(context: Context, losses: list[Site]) -> Iterator[Site]:
    """Yield what binary cross entropy takes for probabilities within regions of autocast."""
    modules = {site.node for site in losses if _is_class(context.program, site)}
    functions = {site.node for site in losses} - modules
    for site in nodes_in(context.program, context.precision.runs, apart=context.precision.in_float32) if losses else ():
        call = site.node
        if not isinstance(call, ast.Call):
            continue
        if call in functions or (
            modules and any(value.site in modules for value in context.program.flow.values(call.func, site.scope))
        ):
            given = argument_at(call, "input", 0)
            if given is not None and not isinstance(given, ast.Starred):
                yield Site(site.module, site.scope, site.body, given)
