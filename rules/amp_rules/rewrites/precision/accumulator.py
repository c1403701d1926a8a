"""Count and sum up in FP32 what is made in the type of an activation.

## What it does
What a model counts, numbers or sums up in a tensor of an activation's type gets at least FP32:
`x.new_zeros(n, dtype=amp.at_least_float32(x.dtype))`. These are counters and sums (`count += 1`, `index_add_`,
`total = total + part` in a loop), positions (`torch.arange(n, dtype=x.dtype)`), indices
(`x.new_tensor(places).long()`), and whole numbers beyond 256. A sum that is kept in an attribute
may be added to by another method of its class; as old code writes it, `x.data.new(n).zero_()` becomes one of FP32, too.

So is noise of which a logarithm is taken, or by which is divided: `torch.log(torch.rand_like(x))`, and
`torch.empty_like(x).uniform_()`.

A state that goes on by small steps of one function, `z = z + dt * self.drift(z)` in a loop, is added up in FP32, and
a moving average that begins with an activation (`self.mean = h.mean(0)`, and `self.mean.mul_(0.99)` later) is FP32.

A weight that a model sets from an activation (`self.bias.data = -x.mean(0)`) keeps its type: `.to(self.bias.dtype)`.

## Why
Under autocast the activation is half. In bfloat16 256 + 1 is 256: counters stand still, positions beyond are alike,
small parts are lost in sums, as are small steps, all without a word. float16 ends likewise at 2048. Of the numbers that
are drawn in float16 one in 2048 is zero, and in bfloat16 one in 256: its logarithm is infinite in nearly every step.
And a weight that is given a half tensor is a half weight from then on, to which small steps of the optimizer add
nothing.

## Before
    degree = x.new_zeros(nodes).index_add_(0, target, ones)

## After
    degree = x.new_zeros(nodes, dtype=amp.at_least_float32(x.dtype)).index_add_(0, target, ones)

## When it declines
Never. At O0 types are those of the original.

## Leaving it out
No: counts, positions and sums are wrong in half, without a word.

## Source
https://pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.operation_names import FACTORIES, TENSOR_ONLY, VIEWS, function_named
from amp_rules.plan.context import Change, Context
from amp_rules.plan.float32_calls import in_float32
from amp_rules.plan.infinite_noise import is_infinite_at_zero
from amp_rules.plan.integrated_states import integrated_states
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import last_name, walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import add_keyword, in_type, substitute
from amp_rules.torch.accumulation import (
    ACCUMULATING,
    DECAYING,
    DRAWN_LIKE_ANOTHER,
    DRAWN_OF_A_TYPE,
    LIKE_ANOTHER,
    MADE_BY_ANOTHER,
    MADE_OF_A_TYPE,
    NUMBERED,
    OF_SAME_TYPE,
)
from amp_rules.torch.dtypes import FLOAT32_TYPES
from amp_rules.torch.half_precision import BFLOAT16

RULE = Rule("AMP112", "accumulator-in-fp32", "What a model counts or sums up has at least FP32.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each tensor that is made in the type of another one and needs more."""
    program = context.program
    for site in context.precision.nodes(program):
        if not isinstance(site.node, ast.Call):
            continue
        like, is_drawn = _type_of_another(program, site.node, site), False
        if (
            like is None
            or _is_whole(site, like)
            or _is_fresh(program, site, like)
            or not (
                _is_numbered(program, site.node, site)
                or _is_index(site)
                or _accumulates(program, site)
                or (is_drawn := is_infinite_at_zero(program, site))
            )
        ):
            continue
        if _counts_to_its_maximum(site, like):
            continue  # lengths, which are whole numbers already
        module = site.module
        wide = context.vocabulary.at_least_float32(module, f"{ast.unparse(like)}.dtype")
        given = next((item.value for item in site.node.keywords if item.arg == "dtype"), None)
        if given is not None:
            action = Replace(given, substitute(wide))
        elif _filled(site.node) is not None:  # ``new`` takes no type
            action = Replace(site.node, in_type(wide))
        else:
            action = Replace(site.node, add_keyword(f"dtype={wide}"))
        why = "noise in half is 0 once in 2048 times" if is_drawn else "in bfloat16, whole numbers end at 256"
        message = f"`{module.text(site.node)}` has at least FP32: {why}"
        yield Change(RULE, module, site.node, message, [action], needs_import=True)
    yield from _converted(context)
    yield from _set_weights(context)
    yield from _integrated(context)
    yield from _averaged(context)


def _integrated(context: Context) -> Iterator[Change]:
    """``z = z + dt * self.drift(z)`` in a loop."""
    done: set[ast.AST] = set()
    for site in integrated_states(context.program, context.precision):
        message = f"`{site.module.text(site.node)}` runs in FP32: in half most of a small step is lost"
        yield from in_float32(context, RULE, site, message, done)


def _counts_to_its_maximum(site: Site, like: ast.expr) -> bool:
    """Whether positions end at the largest of the tensor whose type they get: ``torch.arange(n.max(), dtype=n.dtype)``.

    The end may be a variable: ``if longest is None: longest = n.max()``.
    """
    assert isinstance(site.node, ast.Call)
    ends = [*site.node.args]
    names = {path for item in ends if (path := blocks.path_of(item)) is not None}
    for node in blocks.walk_body(site.body):
        if isinstance(node, ast.Assign) and not names.isdisjoint(filter(None, map(blocks.path_of, node.targets))):
            ends.append(node.value)
    return any(
        isinstance(part, ast.Call)
        and last_name(part.func) in ("max", "amax")
        and ast.unparse(like) in (ast.unparse(item) for item in [*_receiver(part), *part.args])
        for end in ends
        for part in walk(end)
    )


def _receiver(call: ast.Call) -> list[ast.expr]:
    return [call.func.value] if isinstance(call.func, ast.Attribute) else []


def _type_of_another(program: Program, call: ast.Call, site: Site) -> ast.expr | None:
    """The tensor whose type a new one gets; None for anything else."""
    given = next((item.value for item in call.keywords if item.arg == "dtype"), None)
    if given is not None:
        names = program.callee_names(call, site.scope)
        is_maker = bool(names & (MADE_OF_A_TYPE | DRAWN_OF_A_TYPE | _LIKE)) or _made_by(call) is not None
        return _whose_type(given) if is_maker else None
    if any(item.arg is None for item in call.keywords):
        return None
    maker = _made_by(call)
    if maker is not None:
        return maker if blocks.path_of(maker) is not None else None
    if program.callee_names(call, site.scope) & _LIKE and call.args:
        return call.args[0] if blocks.path_of(call.args[0]) is not None else None
    return None


_LIKE = LIKE_ANOTHER | DRAWN_LIKE_ANOTHER


def _made_by(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.new_zeros(n)`` and of ``x.data.new(n).zero_()``."""
    filled = _filled(call)
    if filled is not None:
        return filled
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in MADE_BY_ANOTHER
    return call.func.value if is_method else None  # type: ignore[attr-defined]


def _filled(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.data.new(n).zero_()``, as code from before ``new_zeros`` makes a tensor."""
    made = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in ("zero_", "fill_") else None
    if not (isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "new"):
        return None
    owner = made.func.value
    return owner.value if isinstance(owner, ast.Attribute) and owner.attr == "data" else owner


def _whose_type(node: ast.expr) -> ast.expr | None:
    """``x`` of ``x.dtype``."""
    return node.value if isinstance(node, ast.Attribute) and node.attr == "dtype" else None


def _is_numbered(program: Program, call: ast.Call, site: Site) -> bool:
    """Whether the tensor holds positions, or a whole number that bfloat16 does not."""
    if program.callee_names(call, site.scope) & NUMBERED:
        return True
    if _is_fill(call, site):
        return False
    return any(
        isinstance(item, ast.Constant)
        and isinstance(item.value, (int, float))
        and abs(item.value) > BFLOAT16.largest_exact_integer
        and float(item.value).is_integer()
        for item in _contents(call)
    )


def _is_fill(call: ast.Call, site: Site) -> bool:
    """``mask * x.new_tensor(-1e4)``: what masks out is far below all scores, and need not be exact."""
    is_made = isinstance(call.func, ast.Attribute) and call.func.attr in ("new_tensor", "tensor")
    given = call.args[0] if is_made and call.args else None
    is_below = isinstance(given, ast.UnaryOp) and isinstance(given.op, ast.USub)
    return is_below and isinstance(site.module.parents.get(call), ast.BinOp)


def _is_whole(site: Site, like: ast.expr) -> bool:
    """Whether a tensor holds whole numbers for certain: all that its variable is given is converted to them."""
    given = _assigned(site, like)
    return isinstance(like, ast.Name) and bool(given) and all(_called(item) in _WHOLE for item in given)


def _assigned(site: Site, like: ast.expr) -> list[ast.expr]:
    path = blocks.path_of(like)
    assigned = [node for node in blocks.walk_body(site.body) if isinstance(node, ast.Assign)]
    return [node.value for node in assigned if any(blocks.path_of(item) == path for item in node.targets)]


def _is_fresh(program: Program, site: Site, like: ast.expr) -> bool:
    """Whether a tensor has FP32 for certain: ``like = torch.full((n,), 1 / n, device=device)``, or whole numbers."""
    info = program.function_of(site.body)
    if not isinstance(like, ast.Name) or (info is not None and like.id in info.parameters):
        return False
    given = _assigned(site, like)
    return bool(given) and all(_makes_float32(program, item, site.scope) for item in given)


def _makes_float32(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a function of torch makes a tensor that has no other one's type."""
    if not isinstance(node, ast.Call):
        return False
    names = program.callee_names(node, scope)
    if not names and isinstance(node.func, ast.Attribute):
        is_kept = node.func.attr in _KEEPING or (node.func.attr == "to" and all(map(_is_device, node.args)))
        return is_kept and not node.keywords and _makes_float32(program, node.func.value, scope)
    types = [item.value for item in node.keywords if item.arg in ("dtype", "out", None)]
    is_made = bool(names) and all(function_named(name) in _FRESH for name in names)
    return is_made and all(_is_float32(program, item, scope) for item in types)


def _is_float32(program: Program, node: ast.expr, scope: Scope) -> bool:
    names = program.names(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else frozenset()
    return bool(names) and names <= FLOAT32_TYPES


def _is_device(node: ast.expr) -> bool:
    return "device" in last_name(node)


_FRESH = FACTORIES - {"as_tensor", "from_numpy", "normal", "tensor"}
_KEEPING = VIEWS | {"cpu", "cuda", "expand", "fill_", "normal_", "repeat", "uniform_", "zero_"}


_WHOLE = frozenset({"long", "int", "argmax", "argsort", "argmin"})


def _called(node: ast.expr) -> str:
    """``long`` of ``x[y].long()``; empty for what is no call."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def _is_index(site: Site) -> bool:
    """``x.new_tensor(places).long()``: whole numbers that pass through the type of an activation."""
    maker = site.node.func if isinstance(site.node, ast.Call) else None
    parent = site.module.parents.get(site.node)
    return (
        isinstance(maker, ast.Attribute)
        and maker.attr == "new_tensor"
        and isinstance(parent, ast.Attribute)
        and parent.attr in ("long", "int")
    )


def _contents(call: ast.Call) -> list[ast.expr]:
    """The arguments that say what a new tensor holds, not how large it is."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in ("new_tensor", "tensor"):
        first = call.args[:1]
        return [part for item in first for part in ast.walk(item) if isinstance(part, ast.expr)]
    return call.args[1:2] if name in ("new_full", "full", "full_like") else []


def _accumulates(program: Program, site: Site) -> bool:
    """Whether the new tensor is added to: at once, under the name that it gets, or by another method of its class."""
    parent = site.module.parents.get(site.node)
    if isinstance(parent, ast.Attribute) and parent.attr in ACCUMULATING:
        return isinstance(site.module.parents.get(parent), ast.Call)
    statement = blocks.statement_of(site.module, site.node)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or _unwrapped(statement.value) is not site.node:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    paths = {path for target in targets if (path := blocks.path_of(target)) is not None}
    if any(_adds_to(site, node, path) for path in paths for node in blocks.walk_body(site.body)):
        return True
    info = program.function_of(site.body)
    if info is None or info.cls is None or not any(path.startswith("self.") for path in paths):
        return False
    kept = {path for path in paths if path.startswith("self.")}
    methods = [method.node for method in info.cls.methods.values() if method is not info]
    return any(_adds_in_place(node, path) for path in kept for body in methods for node in blocks.walk_body(body))


def _unwrapped(value: ast.expr | None) -> ast.expr | None:
    """``x`` of ``Variable(x)``."""
    is_variable = isinstance(value, ast.Call) and last_name(value.func) == "Variable" and len(value.args) == 1
    return value.args[0] if is_variable else value  # type: ignore[union-attr]


def _adds_in_place(node: ast.AST, path: str) -> bool:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
        return blocks.path_of(node.target) == path
    return _calls_method(node, path, ACCUMULATING)


def _calls_method(node: ast.AST, path: str, methods: frozenset[str]) -> bool:
    """Whether one of some methods of a variable is called."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods
    return is_method and blocks.path_of(node.func.value) == path  # type: ignore[attr-defined]


def _adds_to(site: Site, node: ast.AST, path: str) -> bool:
    if _adds_in_place(node, path):
        return True
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        if path in {blocks.path_of(target) for target in node.targets}:
            operands = {blocks.path_of(node.value.left), blocks.path_of(node.value.right)}
            return path in operands and any(isinstance(item, blocks.LOOPS) for item in _around(site, node))
    return False


def _around(site: Site, node: ast.stmt) -> list[ast.stmt]:
    return list(blocks.enclosing(site.module, node))


def _converted(context: Context) -> Iterator[Change]:
    """``torch.arange(n).to(x.dtype)``, ``torch.arange(n).view(2, -1).to(x)`` and ``torch.arange(n).type_as(x)``."""
    for site in context.precision.nodes(context.program):
        call = site.node
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 1):
            continue
        made = call.func.value
        numbers = _without(made, VIEWS)
        if not isinstance(numbers, ast.Call) or not context.program.callee_names(numbers, site.scope) & NUMBERED:
            continue
        module, given = site.module, call.args[0]
        message = f"`{module.text(call)}` has at least FP32: in bfloat16, whole numbers end at 256"
        like = _whose_type(given) if call.func.attr == "to" else None
        if like is not None:
            wide = context.vocabulary.at_least_float32(module, module.text(given))
            yield Change(RULE, module, call, message, [Replace(given, substitute(wide))], needs_import=True)
        elif call.func.attr == "type_as" or (call.func.attr == "to" and _is_used_as_tensor(site, given)):
            if blocks.path_of(given) is None:
                continue
            name = ast.unparse(given)
            wide = context.vocabulary.at_least_float32(module, f"{name}.dtype")
            code = f"{module.code(made)}.to({name}.device, {wide})"
            yield Change(RULE, module, call, message, [Replace(call, substitute(code))], needs_import=True)


def _without(node: ast.expr, methods: frozenset[str]) -> ast.expr:
    """What a chain of some methods is of: ``torch.arange(n)`` of ``torch.arange(n).view(2, -1).contiguous()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
        node = node.func.value
    return node


_OF_TENSORS = TENSOR_ONLY | {"device", "dim", "dtype", "shape", "size"}
"""What neither a type nor a device has."""


def _is_used_as_tensor(site: Site, node: ast.expr) -> bool:
    """Whether a function asks a variable for what neither a type nor a device has: ``x.size()``."""
    path = blocks.path_of(node)
    return path is not None and any(
        item.attr in _OF_TENSORS
        for item in blocks.walk_body(site.body)
        if isinstance(item, ast.Attribute) and blocks.path_of(item.value) == path
    )


def _averaged(context: Context) -> Iterator[Change]:
    """``self.mean = h.mean(0)``, where a method of the class has it decay: ``self.mean.mul_(0.99).add_(...)``."""
    for site, statement, info in _assigned_by_models(context):
        path, like = blocks.path_of(statement.targets[0]), _root(statement.value)
        if like is None or path is None or not _is_of_model(statement.targets[0]) or info.cls is None:
            continue
        bodies = [method.node for method in info.cls.methods.values()]
        if not any(_calls_method(node, path, DECAYING) for body in bodies for node in blocks.walk_body(body)):
            continue
        wide = context.vocabulary.at_least_float32(site.module, f"{like}.dtype")
        message = f"`{path}` has at least FP32: small steps of a moving average are lost in half"
        yield Change(
            RULE, site.module, statement, message, [Replace(statement.value, in_type(wide))], needs_import=True
        )


def _root(value: ast.expr) -> str | None:
    """``h`` of ``h.detach().mean(0)``; None for what is given otherwise."""
    node = _without(value, OF_SAME_TYPE)
    return node.id if isinstance(node, ast.Name) and node is not value else None


_CHOOSES_TYPE = frozenset({"to", "float", "double", "half", "bfloat16", "type", "type_as"})
"""Methods that give a tensor of the type that the script asks for."""


def _set_weights(context: Context) -> Iterator[Change]:
    """``self.bias.data = -x.mean(0)``, in a model's method that is given ``x``."""
    for site, statement, info in _assigned_by_models(context):
        if info.name == "__init__":
            continue  # what makes a model is given settings
        target, value = statement.targets[-1], statement.value
        if not (isinstance(target, ast.Attribute) and target.attr == "data" and _is_of_model(target.value)):
            continue
        is_chosen = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
        if is_chosen and value.func.attr in _CHOOSES_TYPE:  # type: ignore[attr-defined]
            continue
        if not blocks.touches(blocks.reads(value), _given_in(site)):
            continue
        owner = ast.unparse(target.value)
        message = f"`{owner}` keeps its type: set from a half activation it would be half from then on"
        yield Change(RULE, site.module, statement, message, [Replace(value, in_type(f"{owner}.dtype"))])


def _assigned_by_models(context: Context) -> Iterator[tuple[Site, ast.Assign, FunctionFacts]]:
    """Yield the assignments in methods of models, each with its method."""
    program = context.program
    for site in context.precision.nodes(program):
        if isinstance(site.node, ast.Assign) and program.is_model_code(site.body):
            info = program.function_of(site.body)
            assert info is not None
            yield site, site.node, info


def _is_of_model(node: ast.expr) -> bool:
    """``self.bias``."""
    return (blocks.path_of(node) or "").startswith("self.")


def _given_in(site: Site) -> set[str]:
    """The variables of a method that hold what it was given, or what it computed of that."""
    assert isinstance(site.body, FunctionNode)
    found = {item.arg for item in arguments_of(site.body)} - {"self"}
    nodes = [node for node in blocks.walk_body(site.body) if isinstance(node, (ast.Assign, ast.AugAssign))]
    while True:
        before = len(found)
        for node in nodes:
            if blocks.touches(blocks.reads(node.value), found):
                found |= {path for path in blocks.writes(node) if not path.startswith("self.")}
        if len(found) == before:
            return found
