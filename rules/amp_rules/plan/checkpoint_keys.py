"""The keys that a program has in checkpoints, or asks of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.definitions import Definitions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope
from amp_rules.torch.checkpoints import KEY_METHODS, SAVES

_LOAD = "load_state_dict"
_HARMLESS = frozenset({"builtins.isinstance", "builtins.type", "builtins.id", "builtins.bool"})


def written_values(program: Program) -> Iterator[Value]:
    """What is given to ``torch.save``, itself: not what containers among it hold."""
    for site in program.calls_to(SAVES):
        assert isinstance(site.node, ast.Call)
        given = site.node.args[:1] or [item.value for item in site.node.keywords if item.arg == "obj"]
        for item in given:
            if isinstance(item, ast.Starred):
                yield from _handed_on(program, site, item)
            else:
                yield from program.flow.values(item, site.scope)


def _handed_on(program: Program, site: Site, given: ast.Starred) -> Iterator[Value]:
    """What callers give first to ``save_on_master(*args, **kwargs)``, which hands all of it on to ``torch.save``."""
    info = program.function_of(site.body)
    rest = info.node.args.vararg if info is not None else None
    if info is None or info.by_place or rest is None or not isinstance(given.value, ast.Name):
        return
    if given.value.id != rest.arg:
        return
    for caller in program.flow.callers(info):
        if caller.call.args:
            yield from program.flow.values(caller.call.args[0], caller.scope)


def stepped_optimizers(program: Program) -> set[Value]:
    """The optimizers that the program steps."""
    return {value for step in program.steps for value in program.flow.values(step.optimizer, step.scope)}


def asked_for_state(program: Program) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what is asked for its state, or given one."""
    for call, _, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("state_dict", _LOAD):
            yield call.func.value, scope


def is_key(node: ast.expr | None) -> bool:
    """Whether it is a string that stands there, in one piece or in several: ``"model" + "_optimizer"``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return is_key(node.left) and is_key(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def key_of(node: ast.expr) -> str:
    """That string."""
    if isinstance(node, ast.BinOp):
        return key_of(node.left) + key_of(node.right)
    assert isinstance(node, ast.Constant)
    return str(node.value)


def items_of(node: ast.Dict | ast.Call) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The keys and values of a dictionary, none where not all keys stand there."""
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None and is_key(key)]
        if len(keys) == len(node.values):
            yield from zip(keys, node.values, strict=True)
    elif not node.args and all(item.arg is not None for item in node.keywords):
        for item in node.keywords:
            yield ast.copy_location(ast.Constant(item.arg), item), item.value


def keys_of(program: Program, values: set[Value]) -> set[str] | None:
    """The keys that a program has in checkpoints or asks of them; None where it does anything else with one."""
    found: set[str] = set()
    for value in values:
        if isinstance(value.site, (ast.Dict, ast.Call)) and value.kind == "sequence":
            keys = _all_keys(value.site)
            if keys is None:
                return None
            found |= keys
    for node, _, scope in program.nodes():
        if not isinstance(node, ast.expr) or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            continue
        if program.flow.values(node, scope) & values:
            asked = _asked_keys(program, node, scope)
            if asked is None:
                return None
            found |= asked
    return found


def _asked_keys(program: Program, node: ast.expr, scope: Scope) -> set[str] | None:
    """The keys that an expression around a checkpoint asks for; None where it may ask for all."""
    parents = scope.module.parents
    parent = parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return {key_of(parent.slice)} if is_key(parent.slice) else None
    if isinstance(parent, ast.Attribute):
        call = parents[parent]
        if isinstance(call, ast.Call) and call.func is parent and parent.attr == "update":
            return _added_keys(program, call, scope)
        if isinstance(call, ast.Call) and call.func is parent and parent.attr == "keys":
            return _looked_for(call, parents[call])
        is_asked = isinstance(call, ast.Call) and call.func is parent and parent.attr in KEY_METHODS
        return {key_of(call.args[0])} if is_asked and call.args and is_key(call.args[0]) else None  # type: ignore[attr-defined]
    if isinstance(parent, ast.Compare) and len(parent.ops) == 1:
        if isinstance(parent.ops[0], (ast.Is, ast.IsNot)):
            return set()
        return _looked_for(node, parent)
    return set() if _goes_on(program, node, parent, scope) else None


def _looked_for(node: ast.expr, parent: ast.AST) -> set[str] | None:
    """The key that is looked for in a checkpoint, or in its keys: ``"ema" in checkpoint``."""
    if not isinstance(parent, ast.Compare) or len(parent.ops) != 1 or parent.left is node:
        return None
    is_looked_for = isinstance(parent.ops[0], (ast.In, ast.NotIn)) and is_key(parent.left)
    return {key_of(parent.left)} if is_looked_for else None


def _added_keys(program: Program, call: ast.Call, scope: Scope) -> set[str] | None:
    """The keys that ``checkpoint.update(meta)`` adds; None where not all of them stand in the program."""
    found = {item.arg for item in call.keywords if item.arg is not None}
    if len(found) != len(call.keywords) or len(call.args) > 1:
        return None
    for given in call.args:
        added = program.flow.values(given, scope)
        if not added and not Definitions(program).is_none(given, scope):
            return None  # an argument that every call leaves out adds nothing
        for value in added:
            keys = _all_keys(value.site) if value.kind == "sequence" else None
            if keys is None:
                return None
            found |= keys
    return found


def _all_keys(node: ast.AST | None) -> set[str] | None:
    """The keys of a dictionary; None where others may be among them."""
    if not isinstance(node, (ast.Dict, ast.Call)) or (isinstance(node, ast.Call) and node.args):
        return None
    keys = [key_of(key) for key, _ in items_of(node)]
    return set(keys) if len(keys) == len(node.values if isinstance(node, ast.Dict) else node.keywords) else None


def _goes_on(program: Program, node: ast.expr, parent: ast.AST, scope: Scope) -> bool:
    """Whether what an expression gives is only kept, tested or handed to what the flow follows."""
    if isinstance(parent, ast.Tuple):  # `return model, checkpoint`
        parent = scope.module.parents[parent]
        return isinstance(parent, (ast.Return, ast.Assign))
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return not any(isinstance(target, (ast.Tuple, ast.List)) for target in targets)
    if isinstance(parent, ast.keyword):
        call = scope.module.parents[parent]
        is_named = parent.arg is not None
        return is_named and isinstance(call, ast.Call) and (_is_followed(program, call) or _saves(program, call, scope))
    if isinstance(parent, ast.Call):
        if parent.func is node:
            return False
        # A model that loads all of it would not take the state of an optimizer, either.
        loads = isinstance(parent.func, ast.Attribute) and parent.func.attr == _LOAD
        return (
            loads
            or _is_followed(program, parent)
            or _saves(program, parent, scope)
            or bool(program.callee_names(parent, scope) & _HARMLESS)
        )
    kept = (ast.Return, ast.Expr, ast.NamedExpr, ast.IfExp, ast.BoolOp, ast.UnaryOp, ast.If, ast.While, ast.Assert)
    return isinstance(parent, kept)


def _is_followed(program: Program, call: ast.Call) -> bool:
    return bool(program.flow.callees(call))


def _saves(program: Program, call: ast.Call, scope: Scope) -> bool:
    return bool(program.callee_names(call, scope) & SAVES)
