"""Models with observers: which call prepared one for int8, and in which mode it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.origins import origins, reaching
from amp_rules.source.facts import ClassFacts, ModuleFacts
from amp_rules.source.index import before, keyword, literal
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.models import CHAINS, MODEL_FACTORIES, RETURNS_RECEIVER
from amp_rules.torch.quantizing import EXPORTS, OBSERVED

_WITH_MODES = tuple(f"torch.nn.{name}" for name in ("Dropout", "AlphaDropout", "BatchNorm", "Transformer"))
"""Beginnings of names of layers that compute something else in training."""
_GIVES_MODEL = RETURNS_RECEIVER - {"train", "eval", "apply"} | {"module"}
_OF_NO_MODE = frozenset({"load_state_dict", "parameters", "named_parameters", "state_dict", "zero_grad"})
_COPIES = frozenset({"copy.deepcopy", "copy.copy"})
_LOOKS = frozenset({"print", "len", "repr", "str", "id", "isinstance", "torch.save"})
_STEPS = 8
"""Names that a model has one after the other; a model that is handed on more often is not judged."""


def observed_calls(module: ModuleFacts) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Yield the calls of models that have observers, each with the call that gave them; both are sure."""
    index = module.index
    preparing = [call for call in index.calls if _observes(call, module)]
    for call in index.calls if preparing else ():
        if isinstance(call.func, ast.Name):
            prepared = _prepared_by(call, call.func, preparing, module)
            if prepared is not None:
                yield call, prepared


def _prepared_by(call: ast.Call, name: ast.Name, preparing: list[ast.Call], module: ModuleFacts) -> ast.Call | None:
    made = _made(name, module)
    if made and all(value in preparing for value in made):
        return next(other for other in preparing if other is made[-1])
    for other in preparing:
        given = model_given(other)
        in_place = literal(keyword(other, "inplace")) is True
        if in_place and isinstance(given, ast.Name) and given.id == name.id and _is_sure(other, call, module):
            return other
    return None


def _made(name: ast.Name, module: ModuleFacts, steps: int = _STEPS) -> list[ast.expr]:
    """What a variable may hold, whatever names it had before."""
    index = module.index
    found: list[ast.expr] = []
    for value in [value for _, value in reaching(index, name, index.scope(name))] or index.values_of(name):
        found += _made(value, module, steps - 1) if isinstance(value, ast.Name) and steps else [value]
    return found


def model_given(call: ast.Call) -> ast.expr | None:
    """The model that a call prepares."""
    return call.args[0] if call.args else keyword(call, "model")


def trains(model: ast.expr, place: ast.AST, module: ModuleFacts, steps: int = _STEPS) -> bool:
    """Whether a model is sure to be in training mode at a place, and computes something else in it.

    It was put into it, or was just made, in the function of the place, and nothing since could have changed that.
    """
    if steps == 0:
        return False
    if isinstance(model, ast.Call):
        mode = _mode_set_by(model)
        if mode is not None:
            return mode
        if isinstance(model.func, ast.Attribute) and model.func.attr in _GIVES_MODEL:
            return trains(model.func.value, place, module, steps - 1)
        name = module.dotted(model.func) or ""
        if name in OBSERVED | EXPORTS | _COPIES:
            given = model_given(model)
            return given is not None and trains(given, model, module, steps - 1)
        return has_modes(model, module)
    if not isinstance(model, ast.Name):
        return False
    return _name_trains(model.id, place, module, steps, frozenset())


def _name_trains(name: str, place: ast.AST, module: ModuleFacts, steps: int, others: frozenset[str]) -> bool:
    """The same of a variable: its uses backwards from the place, until one tells. ``others`` hold the same model."""
    index = module.index
    scope = index.scope(place)
    for use in reversed(index.uses(name)):
        if not isinstance(use, ast.Name) or not before(use, place):
            continue
        if index.scope(use) is not scope:
            if scope is None and not _binds(index.scope(use), name):
                return False  # a function that may be called meanwhile
            continue
        if not index.precedes(use, place):
            continue
        if isinstance(use.ctx, ast.Store):
            value = _value_of(use, module)
            if value is None or not _is_sure(use, place, module):
                return False
            if isinstance(value, ast.Name):
                return steps > 0 and _name_trains(value.id, place, module, steps - 1, others | {name})
            return trains(value, use, module, steps - 1)
        mode = _mode_after(use, module, others)
        if mode is not None:
            return mode and _is_sure(use, place, module) and _may_have_modes(use, module)
    return False


def _mode_after(use: ast.Name, module: ModuleFacts, others: frozenset[str]) -> bool | None:
    """Whether a use of a model leaves it in training mode, or may change that (False); None if it is about no mode."""
    parents = module.index.parents
    node: ast.expr = use
    while isinstance(method := parents[node], ast.Attribute):
        call = parents[method]
        if not isinstance(call, ast.Call) or call.func is not method:
            return None if isinstance(method.ctx, ast.Store) else False
        mode = _mode_set_by(call)
        if mode is not None:
            return mode
        if method.attr not in _GIVES_MODEL:
            return None if method.attr in _OF_NO_MODE else False
        node = call
    parent = parents[node]
    if isinstance(parent, ast.Call):
        name = module.dotted(parent.func) or last_name(parent.func)
        return None if parent.func is node or name in OBSERVED | EXPORTS | _COPIES | _LOOKS else False
    if isinstance(parent, ast.Assign):
        # ``model = model.to(device)``
        return None if all(getattr(item, "id", None) in others | {use.id} for item in parent.targets) else False
    return None if isinstance(parent, ast.Expr) else False


def _mode_set_by(call: ast.Call) -> bool | None:
    """Whether a call puts into training mode; None where it is about no mode."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("train", "eval"):
        return None
    given = [*call.args, *(item.value for item in call.keywords)]
    return call.func.attr == "train" and all(literal(item) is True for item in given)


def has_modes(call: ast.Call, module: ModuleFacts, depth: int = _STEPS) -> bool:
    """Whether a call makes a model that is sure to compute something else in training mode."""
    name = module.dotted(call.func) or ""
    if name.startswith(_WITH_MODES):
        return True
    if name in CHAINS:
        return any(isinstance(item, ast.Call) and has_modes(item, module, depth) for item in call.args)
    cls = module.class_named(call.func)
    return cls is not None and cls.is_module and _class_has_modes(cls, depth)


def _class_has_modes(cls: ClassFacts, depth: int) -> bool:
    """The same of a class: what any of its methods makes."""
    return depth > 0 and any(
        isinstance(node, ast.Call) and has_modes(node, item.module, depth - 1)
        for item in cls.lineage
        for method in item.methods.values()
        for node in walk(method.node)
    )


def _may_have_modes(use: ast.Name, module: ModuleFacts) -> bool:
    """False of a model of known classes none of which computes something else in training mode."""
    made = origins(module, use)
    return not made or any(
        not isinstance(item.node, ast.Call)
        or (item.module.dotted(item.node.func) or "").startswith(MODEL_FACTORIES)
        or not _is_known(item.node, item.module)
        or has_modes(item.node, item.module)
        for item in made
    )


def _is_known(call: ast.Call, module: ModuleFacts) -> bool:
    return module.class_named(call.func) is not None or (module.dotted(call.func) or "").startswith("torch.nn.")


def _observes(call: ast.Call, module: ModuleFacts) -> bool:
    return (module.dotted(call.func) or "") in OBSERVED


def _value_of(target: ast.Name, module: ModuleFacts) -> ast.expr | None:
    """What an assignment puts into a name, where it puts a whole value there."""
    statement = module.index.parents[target]
    return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None


def _is_sure(node: ast.AST, place: ast.AST, module: ModuleFacts) -> bool:
    """Whether a node is sure to have run when a place is reached: its statement stands in a suite around the place."""
    index = module.index
    if index.scope(node) is not index.scope(place) or not before(node, place):
        return False
    suite = index.parents[index.statement(node)]
    return suite in set(index.ancestors(place)) and index.precedes(node, place)


def _binds(function: ast.AST | None, name: str) -> bool:
    """Whether a function has a variable of its own of that name."""
    if function is None:
        return False
    return any(
        (isinstance(item, ast.arg) and item.arg == name)
        or (isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, ast.Store))
        for item in walk(function)
    )
