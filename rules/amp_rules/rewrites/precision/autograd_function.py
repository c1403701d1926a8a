"""Run functions with a backward pass of their own in FP32.

## What it does
`@amp.float_function` above `forward` of a `torch.autograd.Function`: its half arguments become FP32 there, and
autocast is off inside. Where `forward` has no `ctx` (`setup_context` does the rest), what is called is wrapped instead:
`amp.float_function(Product.apply)`. So is the `apply` of a function that a package brings, where a model gives it its
weight. Functions that only compute element by element, by helpers too, as activations of
their own, straight-through estimators and reversed gradients do, or exchange tensors with other processes, stay: these
operations take any types.

## Why
Under autocast a layer's output is half and a parameter FP32. `forward` may still run, since autocast casts the
operands of a product. `backward` runs without autocast, and `grad @ weight` raises "expected m1 and m2 to have the
same dtype". Kernels and NumPy see the mixture at once.

## Before
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

## After
    @staticmethod
    @amp.float_function
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

## When it declines
Never. A script for Apex that may train at O2 or O3 keeps Apex's interface where such a function writes into what it is
given, as a memory of features (AMP480): there a buffer is half, and the function would write into a copy of it. What is
decorated with `custom_fwd` already stays, and so does what is called in functions that are
`@amp.float_function` already, as those around custom kernels in scripts for Apex.

## Leaving it out
No: the backward pass raises where half and FP32 meet.

## Source
https://pytorch.org/docs/stable/notes/amp_examples.html#functions-that-need-a-particular-dtype
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import DEVICES, Mode
from amp_rules.lattice.operation_names import (
    BOOLEANS,
    ELEMENTWISE,
    FACTORIES,
    INTEGERS,
    LIKES,
    NEWS,
    PAIRS,
    REDUCTIONS,
    SPLITS,
    VIEWS,
    function_named,
    layer_named,
)
from amp_rules.plan.context import Change, Context
from amp_rules.plan.precision import casts_to_float32
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given
from amp_rules.torch.autograd_functions import CONTEXT_METHODS, PLAIN_DECORATORS

RULE = Rule(
    "AMP111", "autograd-function-in-fp32", "Functions with a backward pass of their own run in FP32.", "precision"
)

_BY_ELEMENT = VIEWS | SPLITS | PAIRS | INTEGERS | BOOLEANS | LIKES | NEWS | FACTORIES
_KNOWN = ("torch.", "torchvision.", "apex.", "builtins.")
"""Packages whose functions take what autocast gives them, or are looked at elsewhere."""
_OF_ANY_TYPES = ("builtins.", "torch.distributed.")
"""What computes nothing, or exchanges tensors as they are."""
_WEIGHTS = frozenset({"weight", "bias"})
_CONVERTING = frozenset(
    {"to", "type", "type_as", "float", "double", "half", "bfloat16", "size", "dim", "item", "numel"}
)


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each function that is not certain to take any types."""
    program = context.program
    for info in _functions(program):
        forward = info.facts.methods["forward"]
        module = forward.module.module
        name = info.facts.name
        message = f"`{name}` runs in FP32: its backward pass runs without autocast, where half and FP32 do not mix"
        # Of a class method the first argument is the class, which torch's decorator takes for the context.
        if "setup_context" not in info.facts.methods and not forward.is_class_method:
            assert not isinstance(forward.node, ast.Lambda)
            written = context.vocabulary.decorated_in_float32(module, forward.node)
            yield Change.written(RULE, module, forward.node, message, written)
            continue
        for node, scope in _applications(program, info):
            written = context.vocabulary.in_float32(scope.module, node)
            yield Change.written(RULE, scope.module, node, message, written)
    for node, scope in _of_libraries(program):
        message = f"`{scope.module.text(node)}` runs in FP32: its kernels are given a weight, which stays FP32"
        yield Change.written(RULE, scope.module, node, message, context.vocabulary.in_float32(scope.module, node))


def _of_libraries(program: Program) -> Iterator[tuple[ast.Attribute, Scope]]:
    """Where ``apply`` of a function that no file of the project defines is given a weight of the model."""
    for call, body, scope in program.calls():
        func = call.func
        if not (isinstance(func, ast.Attribute) and func.attr == "apply" and _may_be_model_code(program, body)):
            continue
        names = program.callee_names(call, scope)
        if not names or any(name.startswith(_KNOWN) for name in names) or _is_in_float32(program, func, scope):
            continue
        if any(isinstance(item, ast.Attribute) and item.attr in _WEIGHTS for item in values_given(call)):
            yield func, scope


def _may_be_model_code(program: Program, body: ast.AST) -> bool:
    """Whether a body belongs to a class of models, or to one whose base only its package knows."""
    if program.is_model_code(body):
        return True
    info = program.function_of(body)
    owner = info.cls if info is not None else None
    return owner is not None and any(not name.startswith(_KNOWN) for name in owner.base_names)


def _functions(program: Program) -> list[ClassInfo]:
    """The autograd functions of the program that compute more than element by element."""
    found = []
    for info in program.flow.classes.values():
        methods = info.facts.methods
        if not info.facts.is_autograd_function or "forward" not in methods or "backward" not in methods:
            continue
        decorators = {name.rpartition(".")[2] for method in methods.values() for name, _ in method.decorators}
        if decorators - PLAIN_DECORATORS - {"classmethod"}:
            continue
        if all(_is_by_element(program, methods[name]) for name in ("forward", "backward")):
            continue
        if not _called_in_float32(program, info):
            found.append(info)
    return sorted(found, key=lambda info: info.facts.methods["forward"].place)


def _applications(program: Program, info: ClassInfo) -> Iterator[tuple[ast.Attribute, Scope]]:
    """Where ``apply`` of a function is read."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Attribute) and node.attr == "apply":
            if any(value.kind == "class" and value.ref is info for value in program.flow.values(node.value, scope)):
                yield node, scope


def _called_in_float32(program: Program, info: ClassInfo) -> bool:
    """Whether the function is only called where the script has made everything FP32 itself.

    Another name for ``apply`` is looked for by its spelling, in all files: one that means something else can only make
    this false.
    """
    places: list[tuple[ast.expr, Scope]] = [*_applications(program, info)]
    names = set()
    for node, scope in places:
        parent = scope.module.parents[node]
        if isinstance(parent, ast.Assign) and all(isinstance(target, ast.Name) for target in parent.targets):
            names |= {target.id for target in parent.targets if isinstance(target, ast.Name)}
        elif not _is_in_float32(program, node, scope):
            return False
    if not names:
        return bool(places)
    names |= _imported_as(program, names)
    others = [
        (node, scope)
        for node, _, scope in program.nodes()
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr in names)
    ]
    return bool(places) and all(_is_in_float32(program, node, scope) for node, scope in others)


def _imported_as(program: Program, names: set[str]) -> set[str]:
    """The names that other files import some under: ``from operations import group as group_points``."""
    imports = [node for node, _, _ in program.nodes() if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname for node in imports for alias in node.names if alias.asname is not None and alias.name in names
    }


def _is_in_float32(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether this is a call in a function of which the arguments are made FP32."""
    parent = scope.module.parents[node]
    info = program.function_of(blocks.body_of(scope.module, node))
    return isinstance(parent, ast.Call) and parent.func is node and info is not None and casts_to_float32(info)


def _is_by_element(program: Program, method: FunctionFacts, seen: frozenset[FunctionFacts] = frozenset()) -> bool:
    """Whether all that a function calls takes tensors of any types."""
    scope = program.flow.scopes.get(method.node)
    if scope is None or method in seen:
        return False
    for node in blocks.walk_body(method.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return False
        if isinstance(node, ast.Call) and not _takes_any_types(program, node, scope, seen | {method}):
            return False
    return True


def _takes_any_types(program: Program, call: ast.Call, scope: Scope, seen: frozenset[FunctionFacts]) -> bool:
    if isinstance(call.func, ast.Name) and (called := _helpers(program, call, call.func.id, scope)):
        # A helper, scripted or not: what it calls is what is asked for.
        return all(_is_by_element(program, item, seen) for item in called)
    names = program.callee_names(call, scope)
    if names:
        return all(name.startswith(_OF_ANY_TYPES) or _mixes(function_named(name)) for name in names)
    if not isinstance(call.func, ast.Attribute):
        # A layer that the file made: ``sigmoid = nn.Sigmoid()``.
        layers = program.flow.values(call.func, scope)
        return bool(layers) and all(value.kind == "object" and _mixes(layer_named(value.name)) for value in layers)
    method = call.func.attr
    if method == "apply" and _is_function(program, call.func.value, scope):
        return True  # judged by itself
    if program.flow.callees(call):
        return False
    return method in CONTEXT_METHODS or method in _CONVERTING or _mixes(method.removesuffix("_"))


def _helpers(program: Program, call: ast.Call, name: str, scope: Scope) -> list[FunctionFacts]:
    """The functions of the project that a call can run; where none was followed, that of the file with its name."""
    if found := list(program.flow.callees(call)):
        return found
    named = [node for node in scope.module.nodes if isinstance(node, ast.FunctionDef) and node.name == name]
    info = program.function_of(named[0]) if len(named) == 1 else None
    return [info] if info is not None and info.cls is None else []


def _is_function(program: Program, node: ast.expr, scope: Scope) -> bool:
    values = program.flow.values(node, scope)
    return any(value.kind == "class" and value.ref.facts.is_autograd_function for value in values)


def _mixes(operation: str) -> bool:
    """Whether an operation computes with tensors of several types, in half precision too."""
    if operation in _BY_ELEMENT:
        return True
    if operation not in ELEMENTWISE | REDUCTIONS:
        return False
    return all(
        fate(operation, Mode(device=device), autocast=True) not in ("lowered", "refused", "no kernel")
        for device in DEVICES
    )
