"""What a program does for half precision by hand, each place of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.apex.file import NotUnderstood
from amp_rules.plan.constant_tests import ConstantTests
from amp_rules.plan.own_half.conditions import flag_of, is_under
from amp_rules.plan.own_half.helpers import Helpers, is_copied, is_float_at_once
from amp_rules.plan.own_half.own import OwnHalf, Place
from amp_rules.plan.own_half.own_scale import Scaled, copies_gradient, divided_gradients, own_scales
from amp_rules.plan.own_half.wrappers import find_uses, wrapped
from amp_rules.roles.program import Program
from amp_rules.roles.widened import widened_parts
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch import own_half as names


def understood(program: Program) -> OwnHalf | None:
    """What is to be taken out; None where the program trains no model that it made half itself.

    Raises:
        NotUnderstood: some of it is not known to have a counterpart.
    """
    helpers = Helpers(program)
    off = ConstantTests(program)
    converted = [item for item in _conversions(program, helpers) if not off.keep_out(item.scope.module, item.call)]
    if not converted:
        return None
    found = OwnHalf(program, flag_of(program, [(item.call, item.scope) for item in converted]), converted)
    for item in converted:
        found.plain.replaced[item.call] = _converted(item, helpers)
    for call, body, scope in program.calls():
        if helpers.is_own(body, scope):
            continue
        helper = helpers.called(call, scope)
        if helper == names.WRAPPER:
            found.wrappers.append(Place(call, scope, helpers.parameters(call, scope)))
            found.plain.replaced[call] = wrapped(call, scope)
        elif helper in names.NORMS_TO_FLOAT and len(call.args) == 1:
            found.plain.replaced[call] = call.args[0]
        elif helper == names.MASTERS:
            _master_lists(found, call, scope)
        elif helper in (names.TO_MASTERS, names.TO_MODEL):
            found.plain.removed.add(blocks.statement_of(scope.module, call))
        elif _is_cast(call, scope, program) and (call not in found.plain.replaced) and _casts(found, call, body, scope):
            if program.is_model_code(body):
                found.plain.replaced[call] = _as_weights(call, program, body)
            else:
                found.plain.casts.add(call)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" and not call.keywords:
            found.plain.clearing.add(call)
    find_uses(found, helpers)
    _own_scale(found, helpers)
    _choices(found, helpers)
    _check_parts(found, helpers)
    _check_widened(program)
    _check_copies(found, helpers)
    return found


# ---- models ------------------------------------------------------------------------------------------------


def _conversions(program: Program, helpers: Helpers) -> Iterator[Place]:
    """Calls that make a model half which the program trains."""
    trained = program.trained | _parts_of_trained(program)
    trained |= {value for item in trained for value in _made_for(program, item)}
    for call, body, scope in program.calls():
        if helpers.called(call, scope) in names.CONVERTERS:
            models = program.roles.modules(call.args[0], scope) if call.args else set()
            is_given_back = any(value.site is call for value in trained)
            is_trained = not models or is_given_back or _is_one_of(models, trained)
            if call.args and is_trained and not (helpers.is_own(body, scope) or _only_evaluates(program, body, call)):
                yield Place(call, scope)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "half" and not (call.args or call.keywords):
            # A parameter of a helper that is no model's own is half in the helper alone. What a library makes is known
            # by its value: ``Bert.from_pretrained(name)``.
            models = program.roles.modules(call.func.value, scope) | program.flow.values(call.func.value, scope)
            if is_copied(program, call.func.value, scope) or is_float_at_once(scope.module, call):
                continue
            if _is_one_of(models, trained) and not helpers.is_own(body, scope):
                if not _only_evaluates(program, body, call):
                    yield Place(call, scope)


def _made_for(program: Program, value: Value) -> Iterator[Value]:
    """What a function makes, where a value is what its caller has of it."""
    if value.kind != "object" or not isinstance(value.site, ast.Call):
        return
    for info in program.flow.callees(value.site):
        for returned in info.returns:
            yield from program.flow.values(returned, program.flow.scopes[info.node])


def _is_one_of(models: set[Value], trained: set[Value]) -> bool:
    """Whether a model is trained; what a function makes in several calls is told by its class."""
    classes = {value.ref for value in trained if value.kind == "instance"}
    return bool(models & trained) or any(value.kind == "instance" and value.ref in classes for value in models)


def _parts_of_trained(program: Program) -> set[Value]:
    """What the trained models keep in their attributes."""
    found: set[Value] = set()
    owners: set[ast.ClassDef] = set()
    fresh = {value.ref.facts.node for value in program.trained if value.kind == "instance"}
    while fresh:
        held = {
            value
            for owner in fresh
            for values in program.flow.held_by(owner)
            for value in values
            if value.kind in ("instance", "object")
        }
        found |= held
        owners |= fresh
        fresh = {value.ref.facts.node for value in held if value.kind == "instance"} - owners
    return found


def _only_evaluates(program: Program, body: ast.AST, made_half: ast.Call) -> bool:
    """Whether a function that makes a model half makes it float32 again below, and trains nothing in between."""
    if isinstance(body, ast.Module) or any(map(program.runs_backward, blocks.own_parts(body))):
        return False
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "float"
        and not node.args and node.lineno > made_half.lineno
        and program.roles.modules(node.func.value, program.flow.scopes[body])
        for node in program.nodes_of(body)
    )  # fmt: skip


def _converted(place: Place, helpers: Helpers) -> ast.expr:
    call = place.call
    if helpers.called(call, place.scope) is None:
        assert isinstance(call.func, ast.Attribute)
        return call.func.value
    return call.args[0]


def _check_parts(found: OwnHalf, helpers: Helpers) -> None:
    """``network_to_half`` puts the model behind a part that casts: what takes a part by its number misses it."""
    for node, _, scope in found.program.nodes():
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            if helpers.is_converted(node.value, scope):
                raise NotUnderstood(scope.module, node, "a part of the half model is taken by its number")


def _check_widened(program: Program) -> None:
    """Parts that the forward pass itself makes float32, where the level would compute them in half again."""
    for call, module in widened_parts(program):
        what = ast.unparse(call)
        raise NotUnderstood(module, call, f"the model makes a part of itself float32 as it runs, `{what}`")


# ---- copies of the parameters ------------------------------------------------------------------------------


def _master_lists(found: OwnHalf, call: ast.Call, scope: Scope) -> None:
    """``model_params, master_params = prep_param_lists(model)``, and where these lists are read."""
    statement = blocks.statement_of(scope.module, call)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
    lists = target.elts if isinstance(target, ast.Tuple) else []
    if len(lists) != 2 or not all(isinstance(item, ast.Name) for item in lists) or not call.args:
        raise NotUnderstood(scope.module, call, "the float32 copies of the parameters are kept in other than two names")
    found.plain.removed.add(statement)
    found.plain.instead[statement] = f"{ast.unparse(lists[1])} = list({ast.unparse(call.args[0])}.parameters())"
    keys = {found.program.flow.key(item, scope) for item in lists}
    for node, _, where in found.program.nodes():
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and found.program.flow.key(node, where) in keys
        ):
            found.plain.parameters.add(node)


def _check_copies(found: OwnHalf, helpers: Helpers) -> None:
    """Gradients that the script copies to parameters of its own in float32: the optimizer steps those alone."""
    for node, body, scope in found.program.nodes():
        if not isinstance(node, (ast.Assign, ast.Expr)) or helpers.is_own(body, scope):
            continue
        if node not in found.plain.removed and copies_gradient(node):
            raise NotUnderstood(scope.module, node, "gradients are copied from one parameter to another")


# ---- the script's own loss scale ---------------------------------------------------------------------------


_NOT_MULTIPLIED = "no loss is multiplied by it"


def _own_scale(found: OwnHalf, helpers: Helpers) -> None:
    """The loss times a scale, and the gradients divided by it."""
    divided = [item for item in divided_gradients(found.program) if not _is_own(found, helpers, item[0])]
    given = [
        (value, item.scope)
        for item in found.wrappers
        for value in (_argument(item.call, "static_loss_scale"),)
        if value is not None and blocks.path_of(value) is not None
    ]
    scales = {ast.unparse(value) for _, value, _ in divided} | {ast.unparse(value) for value, _ in given}
    always = set()
    for scaled in own_scales(found.program, scales):
        if _is_own(found, helpers, scaled.node):
            continue
        if not _is_one_without(found, scaled):
            always.add(ast.unparse(scaled.scale))
            continue
        found.plain.removed |= scaled.removed
        found.plain.replaced.update(scaled.replaced)
        multiplied = ast.unparse(scaled.scale)
        for statement, value, scope in divided:
            if ast.unparse(value) == multiplied:
                found.plain.removed.add(statement)
                found.scale = (value, scope)
    for statement, value, scope in divided:
        if statement not in found.plain.removed:
            scale = ast.unparse(value)
            lacking = "a loss is multiplied by it in full precision too" if scale in always else _NOT_MULTIPLIED
            raise NotUnderstood(scope.module, statement, f"gradients are divided by `{scale}`, and {lacking}")


def _is_own(found: OwnHalf, helpers: Helpers, node: ast.AST) -> bool:
    located = found.program.locate(node)
    return located is not None and helpers.is_own(*located)


def _is_one_without(found: OwnHalf, scaled: Scaled) -> bool:
    """Whether the loss is scaled in half precision alone: under the flag, or by what is 1 without it."""
    if found.flag.is_always or is_under(found.flag, scaled.module, scaled.node):
        return True
    path = blocks.path_of(scaled.scale)
    return any(
        isinstance(node, ast.Assign)
        and path in {blocks.path_of(target) for target in node.targets}
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
        for node, _, _ in found.program.nodes()
    )


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    for item in call.keywords:
        if item.arg == name:
            return item.value
    index = names.WRAPPER_ARGUMENTS.index(name)
    return call.args[index] if index < len(call.args) else None


# ---- tensors -----------------------------------------------------------------------------------------------


def _is_cast(call: ast.Call, scope: Scope, program: Program) -> bool:
    """Whether a call makes a tensor half."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "half" or call.args or call.keywords:
        return False
    return all(value.is_result for value in program.roles.modules(call.func.value, scope))


def _as_weights(call: ast.Call, program: Program, body: ast.AST) -> ast.expr:
    """``x.to(next(self.parameters()).dtype)``: a model may be half elsewhere too, to evaluate it."""
    info = program.function_of(body)
    assert isinstance(call.func, ast.Attribute)
    dtype = ast.parse(f"next({info.receiver if info is not None else 'self'}.parameters()).dtype", mode="eval").body
    return ast.Call(ast.Attribute(call.func.value, "to", ast.Load()), [dtype], [])


def _casts(found: OwnHalf, call: ast.Call, body: ast.AST, scope: Scope) -> bool:
    """Whether a tensor is made half for the model: under the flag, or where a model that is always half is called."""
    if not found.flag.is_always:
        return is_under(found.flag, scope.module, call)
    if found.program.is_model_code(body):
        return False
    return any(
        isinstance(node, ast.Call) and any(map(found.program.is_trained, found.program.called_models(node, scope)))
        for node in found.program.nodes_of(body)
    )


def _choices(found: OwnHalf, helpers: Helpers) -> None:
    """``torch.half if args.fp16 else torch.float``, and what asks whether the optimizer is a wrapper."""
    program = found.program
    for node, _, scope in program.nodes():
        if isinstance(node, ast.IfExp) and _asks_for_wrapper(node.test, helpers, scope):
            found.plain.replaced[node] = node.orelse
        elif isinstance(node, ast.IfExp) and found.flag.is_tested_by(node.test):
            half, full = program.names(node.body, scope), program.names(node.orelse, scope)
            if {names.HALF_TYPES.get(name) for name in half} & (full | {_other(name) for name in full}):
                found.plain.replaced[node] = node.orelse
            elif found.plain.has(node.body) and not found.plain.has(node.orelse):
                same = ast.unparse(found.plain.of(node.body, compared=True)) == ast.unparse(
                    found.plain.of(node.orelse, compared=True)
                )
                if same:
                    found.plain.replaced[node] = node.orelse


def _asks_for_wrapper(test: ast.expr, helpers: Helpers, scope: Scope) -> bool:
    """``isinstance(optimizer, FP16_Optimizer)``."""
    if not (isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"):
        return False
    return len(test.args) == 2 and helpers.named(test.args[1], scope) == names.WRAPPER


def _other(name: str) -> str:
    """The other name of a type: ``torch.float`` and ``torch.float32``."""
    return {"torch.float": "torch.float32", "torch.float32": "torch.float"}.get(name, name)


def leftovers(found: OwnHalf, gone: set[ast.AST]) -> Iterator[tuple[Scope, ast.Name]]:
    """Reads of the float32 copies that nothing takes out."""
    inside = {part for node in gone for part in walk(node)}
    for node, _, scope in found.program.nodes():
        if node in found.plain.parameters and isinstance(node, ast.Name) and node not in inside:
            yield scope, node
