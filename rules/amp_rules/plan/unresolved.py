"""Why it is not known what an expression holds: the call in which the trail ends."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from amp_rules.flow.cells import CellKey
from amp_rules.flow.reflection import IMPORTS_BY_NAME
from amp_rules.flow.values import Value
from amp_rules.plan.file_names import place_of
from amp_rules.plan.model_homes.home import made_at
from amp_rules.plan.undefined_names import is_undefined
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, Step, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.models import NOT_MODULES, RETURNS_RECEIVER
from amp_rules.torch.wrappers import PROGRESS_BARS

_BY_NAME = IMPORTS_BY_NAME | {"builtins.getattr", "builtins.eval"}
_HANDS_ON = PROGRESS_BARS | {"builtins.enumerate", "builtins.iter", "builtins.zip"}
_BY_CONFIG = ("instantiate", "locate", "get_class", "import_string", "load_class")
_MAX_STEPS = 60
_MAX_LOOPS = 3
"""Functions between a backward pass and a loop that runs it."""
_ASSIGNED: WeakKeyDictionary[Program, dict[CellKey, list[Site]]] = WeakKeyDictionary()


def trail_end(program: Program, node: ast.expr, scope: Scope, body: ast.AST) -> str:
    """A clause for a message, as in "which `instantiate(cfg.model)` makes, by a name known at run time only"."""
    clause, advice = _end(program, Site(scope.module, scope, body, node))
    return clause + advice


def given_outside(program: Program, node: ast.expr, scope: Scope, body: ast.AST) -> str:
    """The same where a script that is not part of the program gives it; empty for anything else."""
    clause, advice = _end(program, Site(scope.module, scope, body, node))
    return clause + advice if advice else ""


def _end(program: Program, start: Site) -> tuple[str, str]:
    """The clause, and what to do where a script that is not part of the program gives what is not known."""
    pending = [start]
    seen: set[ast.AST] = set()
    while pending and len(seen) < _MAX_STEPS:
        site = pending.pop(0)
        current = _receiver(site.node)
        if current in seen or not isinstance(current, ast.expr):
            continue
        seen.add(current)
        if isinstance(current, ast.Call):
            why = _why(program, current, site.scope)
            if why:
                where = place_of(program, site.module, current)
                return f", which `{site.module.text(current)}` makes ({where}), {why}", ""
            if isinstance(current.func, ast.Name):  # a variable may hold the class: ``cls()``
                pending.append(Site(site.module, site.scope, site.body, current.func))
            continue
        outside = _from_outside(program, current, site)
        if outside is not None:
            where = place_of(program, outside.module.module, outside.node)
            finding = _finding(program, outside)
            if finding:
                return (
                    f", which `{_called(outside)}` ({where}) is given by no call that names it: {finding} may find it",
                    "",
                )
            which = f", which `{_called(outside)}` ({where}) is given by a script that is not part of this program"
            return which, ": migrate that script"
        pending.extend(_given(program, current, site))
    return "", ""


def loop_trail(program: Program, site: Site) -> str:
    """The same for what the loop goes over that a backward pass stands in, where a script that is not known gives it.

    What is counted in ``range(...)`` is no data.
    """
    loops = [parent for parent in blocks.enclosing(site.module, site.node) if isinstance(parent, ast.For)]
    for loop in loops:
        counted = {node for call in walk(loop.iter) if _counts(call) for node in walk(call)}
        for node in walk(loop.iter):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in counted:
                clause, advice = _end(program, Site(site.module, site.scope, site.body, node))
                if advice:
                    return f"`{node.id}`{clause}"
    return ""


def iterated_for(program: Program, site: Site, depth: int = 0) -> Iterator[Site]:
    """Yield the variables that loops go over which a backward pass stands in, or that run its function."""
    for loop in blocks.enclosing(site.module, site.node):
        for node in walk(loop.iter) if isinstance(loop, ast.For) else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield Site(site.module, site.scope, site.body, node)
    info = program.function_of(site.body)
    for caller in program.flow.callers(info) if info is not None and depth < _MAX_LOOPS else ():
        yield from iterated_for(program, calling(caller), depth + 1)


def comes_of(program: Program, start: Site) -> Iterator[Site]:
    """Yield the variables that an expression may have its value of, nearest first: through calls and attributes."""
    pending = [start]
    seen: set[ast.AST] = set()
    while pending and len(seen) < _MAX_STEPS:
        site = pending.pop(0)
        current = site.node
        while isinstance(current, (ast.Call, ast.Attribute, ast.Subscript)):
            if isinstance(current, ast.Call) and program.callee_names(current, site.scope) & _HANDS_ON:
                pending.extend(Site(site.module, site.scope, site.body, given) for given in current.args)
            current = current.func if isinstance(current, ast.Call) else current.value
        if current in seen or not isinstance(current, ast.Name):
            continue
        seen.add(current)
        found = Site(site.module, site.scope, site.body, current)
        yield found
        pending.extend(_given(program, current, found))


def _counts(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def model_trail(program: Program) -> str:
    """The same for the first model whose parameters are asked for and that is known by its uses at most."""
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("parameters", "named_parameters"):
            known = [item for item in program.roles.modules(call.func.value, scope) if not isinstance(item.ref, tuple)]
            if not program.is_model_code(body) and not known:
                trail = trail_end(program, call.func.value, scope, body)
                if trail:
                    return f": `{scope.module.text(call.func.value)}` is not known{trail}"
    return ""


def _receiver(node: ast.AST) -> ast.AST:
    """Without ``.to(device)`` and the like, and without what is taken out of a container."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in RETURNS_RECEIVER:
                return node
            node = node.func.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return node


def _why(program: Program, call: ast.Call, scope: Scope) -> str:
    """What is not known of what the call makes; empty when it is nothing of this kind."""
    names = program.callee_names(call, scope)
    # ``getattr(models, name)(size)``
    chosen = [call.func] if isinstance(call.func, ast.Call) else []
    reached = [call, *chosen, *(node for body in program.called_from({call}) for node in program.nodes_of(body))]
    for node in reached:
        if not isinstance(node, ast.Call):
            continue
        located = program.locate(node)
        called = program.callee_names(node, located[1]) if located is not None else set()
        if located is None or _finds_no_model(program, node, located[1]):
            continue
        if called and _is_open(node) and any(_finds_by_name(name) for name in called):
            place = f": `{located[1].module.text(node)}`" if node not in (call, call.func) else ""
            return f"by a name that is known only when the script runs{place}"
    if isinstance(call.func, ast.Subscript) and not program.flow.values(call.func, scope):
        return f"and what `{scope.module.text(call.func)}` holds is not known"
    if is_undefined(call.func, scope):
        return f"and that file neither defines nor imports `{scope.module.text(call.func)}`"
    libraries = sorted({name.split(".")[0] for name in names} - {"builtins", "torch"})
    return f"and {libraries[0]} is not part of the project" if libraries else ""


def _finds_no_model(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether something is asked of a part of torch that holds no models: ``getattr(functional, activation)``."""
    owners = program.names(call.args[0], scope) if call.args else set()
    return bool(owners) and all(name.startswith(NOT_MODULES) for name in owners)


def _finds_by_name(function: str) -> bool:
    return function in _BY_NAME or function.rpartition(".")[2] in _BY_CONFIG


def _is_open(call: ast.Call) -> bool:
    return not all(isinstance(argument, ast.Constant) for argument in call.args)


def _from_outside(program: Program, node: ast.expr, site: Site) -> FunctionFacts | None:
    """The function whose parameter a variable is, where nothing in the program calls that function."""
    if not isinstance(node, ast.Name):
        return None
    info = program.function_of(site.scope.owner(node.id).node)
    if info is None or node.id not in info.positional or node.id in info.defaults or program.flow.callers(info):
        return None
    # What is named may be called by a library; ``super(Trainer, self)`` in a class makes none.
    name = _called(info)
    inside = set(walk(info.cls.node)) if info.cls is not None else set()
    is_named = any(
        isinstance(other, ast.Name) and other.id == name and isinstance(other.ctx, ast.Load) and other not in inside
        for other, _, _ in program.nodes()
    )
    return None if is_named else info


def _finding(program: Program, info: FunctionFacts) -> str:
    """What may find a method by a name that is known only when the script runs: ``getattr(callback, event)(self)``."""
    if info.cls is None or info.name == "__init__":
        return ""
    for site in program.calls_to(frozenset({"builtins.getattr"})):
        given = site.node.args if isinstance(site.node, ast.Call) else []
        if len(given) > 1 and not isinstance(given[1], ast.Constant):
            if not any(value.kind == "module" for value in program.flow.values(given[0], site.scope)):
                return f"`{site.module.text(site.node)}`"
    return ""


def _called(info: FunctionFacts) -> str:
    """The name by which a function is called: that of its class where it makes objects."""
    return info.cls.name if info.cls is not None and info.name == "__init__" else info.name


def optimizer_trail(program: Program) -> str:
    """The same for the first optimizer that steps, where it is not known what that is."""
    for step in program.steps:
        trail = trail_end(program, step.optimizer, step.scope, step.body)
        if trail:
            return f": `{step.module.text(step.optimizer)}` is not known{trail}"
    return ""


def _given(program: Program, node: ast.expr, site: Site) -> Iterator[Site]:
    """Where a variable gets what it holds."""
    key = program.flow.key(node, site.scope)
    path = blocks.path_of(node)
    yield from _assigned(program).get(key, ()) if key is not None else ()
    info = program.function_of(site.scope.owner(path).node) if path is not None and "." not in path else None
    if info is None:
        return
    assert path is not None
    if path not in info.positional:
        return
    for caller in program.flow.callers(info):
        outer = calling(caller)
        value = info.argument(caller.call, path)
        if value is not None:
            yield Site(outer.module, outer.scope, outer.body, value)


def _assigned(program: Program) -> dict[CellKey, list[Site]]:
    """What every variable of the program is assigned, whole or as a part of it."""
    known = _ASSIGNED.get(program)
    if known is None:
        known = _ASSIGNED[program] = {}
        for node, body, scope in program.nodes():
            if isinstance(node, ast.Assign):
                for key in {key for target in node.targets for key in _keys(program, target, scope)}:
                    known.setdefault(key, []).append(Site(scope.module, scope, body, node.value))
    return known


def _keys(program: Program, target: ast.expr, scope: Scope) -> Iterator[CellKey]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _keys(program, item, scope)
    elif (key := program.flow.key(blocks.reading(target), scope)) is not None:
        yield key


def owned_unseen(program: Program) -> Iterator[tuple[Step, str]]:
    """Steps of optimizers whose parameters are those of an attribute that nothing in the program assigns.

    It is known no better than by its object, which is no model: ``self.model`` of a trainer whose base class is that
    of a library.
    """
    seen: set[ast.AST] = set()
    for step in program.steps:
        for value in sorted(program.flow.values(step.optimizer, step.scope), key=made_at):
            call = value.site
            located = program.locate(call) if isinstance(call, ast.Call) and call not in seen else None
            if located is None or not isinstance(call, ast.Call) or not is_optimizer(value):
                continue
            seen.add(call)
            models = program.models_of_optimizer(call)
            if models and all(model.kind == "instance" and not is_module(model) for model in models):
                bases = sorted({name for model in models for name in model.ref.external_bases()})
                made = f", and may be made by `{bases[0]}`" if bases else ""
                text = located[1].module.text(call.args[0] if call.args else call)
                yield step, f": what `{text}` belongs to is assigned nowhere{made}"


def given_in_settings(program: Program) -> str:
    """What to say of the first optimizer that gets its parameters by a mapping, which may hold those of any model."""
    for step in program.steps:
        for value in sorted(program.flow.values(step.optimizer, step.scope), key=made_at):
            call = value.site
            located = program.locate(call) if isinstance(call, ast.Call) else None
            if located is None or not isinstance(call, ast.Call) or call.args:
                continue
            if any(map(is_module, program.models_of_optimizer(call))):
                continue
            module = located[1].module
            given = next((item.value for item in call.keywords if item.arg is None), None)
            if given is not None and not any(item.arg == "params" for item in call.keywords):
                where = place_of(program, module, call)
                made = f"`{module.text(call)}` ({where})"
                return f": {made} takes the parameters out of `{module.text(given)}`, and whose they are is not known"
    return ""


_MAX_TOLD = 3
"""Classes of models that one reason names; a name from a configuration can be any of a whole family."""


def unheld(program: Program, models: Iterable[Value]) -> Iterator[tuple[str, str]]:
    """What a reason says of models that no variable holds: their classes, and the list that they stand in, if any."""
    by_list: dict[str, list[str]] = {}
    for model in models:
        names = by_list.setdefault(_list_of(program, model), [])
        if str(model.ref) not in names:
            names.append(str(model.ref))
    for held, names in by_list.items():
        told = sorted(names)
        if len(told) > _MAX_TOLD + 1:
            told = [*told[:_MAX_TOLD], f"{len(told) - _MAX_TOLD} more"]
        classes = " or ".join(filter(None, (", ".join(told[:-1]), told[-1])))
        yield f" ({classes})", f": it is kept in the list `{held}`" if held else ""


def _list_of(program: Program, model: Value) -> str:
    """The text of the list that a model is put into by ``append``; empty where there is none."""
    for call, _, scope in program.calls():
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "append" and len(call.args) == 1:
            if model in program.flow.values(call.args[0], scope):
                return scope.module.text(function.value)
    return ""
