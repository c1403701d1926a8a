"""Wrappers whose names the script takes off what it then loads strictly into the wrapped model: with them it raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.statement_order import comes_after
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import keyword, literal
from amp_rules.source.syntax import last_name, walk

_PREFIX = "module."
_MAX_NAMES = 3
"""Names of a state between the loop that takes the prefix off and the load: ``state = new_state``."""
_MAX_CALLERS = 3
"""Functions around a wrapper and a load: ``set_model``, ``load_model``, ``main``."""


def stripped_of(program: Program, wraps: list[Site]) -> list[Site]:
    """The wrappers of which a model is loaded behind them by names without ``module.``, and all names have to fit.

    No run goes on with them past the load. What is saved without them is loaded as well.
    """
    loads = [site for site in strict_loads(program) if _is_stripped(site)] if wraps else []
    return [
        site for site in wraps if any(_takes(program, site, load) and _follows(program, load, site) for load in loads)
    ]


def strict_loads(program: Program) -> Iterator[Site]:
    """Yield the calls of ``load_state_dict`` that want all names to fit."""
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "load_state_dict" and len(call.args) == 1:
            strict = keyword(call, "strict")
            if strict is None or literal(strict) is True:
                yield Site(scope.module, scope, body, call)


def _takes(program: Program, wrap: Site, load: Site) -> bool:
    """Whether the model that is loaded is the one that is wrapped, or that has the wrapped one for a part."""
    statement, call = wrap.statement, wrap.node
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
    if target is None or not isinstance(load.node, ast.Call) or not isinstance(load.node.func, ast.Attribute):
        return False
    if _is_taken_off(program, target):
        return False
    taker = load.node.func.value
    if not isinstance(target, ast.Attribute) or blocks.path_of(target.value) == "self":
        # The model inside has names without the prefix, and may have a variable of its own.
        return wrap.body is load.body and blocks.path_of(target) == blocks.path_of(taker) is not None
    models = program.roles.modules(target.value, wrap.scope)
    loaded, maker = program.roles.modules(taker, load.scope), program.function_of(wrap.body)
    kinds = {value.ref for value in models if value.kind == "instance"}
    # Of a function that makes models, each call has one of its own.
    made = {
        value
        for value in loaded
        if isinstance(value.site, ast.Call) and maker in program.flow.callees(value.site) and value.ref in kinds
    }
    return bool(made) or not models.isdisjoint(loaded)


def _is_taken_off(program: Program, target: ast.expr) -> bool:
    """Whether something asks the wrapper for the model inside, and may load into that: ``model = model.module``."""
    name = last_name(target)
    return any(
        isinstance(node, ast.Attribute) and node.attr == "module" and last_name(node.value) == name
        for node, _, _ in program.nodes()
    )


# ---- the state that is loaded ------------------------------------------------------------------------------------


def _is_stripped(load: Site) -> bool:
    assert isinstance(load.node, ast.Call)
    given, above = load.node.args[0], [*blocks.statements_above(load.module, load.statement, load.body)]
    for _ in range(_MAX_NAMES):
        if isinstance(given, ast.DictComp):
            return _takes_prefix_off(given.key)
        path = blocks.path_of(given)
        if not isinstance(given, ast.Name) or path is None:
            return False
        if _filled_without_prefix(path, above):
            return True
        written = [item for item in above if path in blocks.writes(item) and isinstance(item, ast.Assign)]
        last = max(written, key=lambda item: item.lineno, default=None)
        if last is None or not isinstance(last, ast.Assign):
            return False
        given = last.value
    return False


def _filled_without_prefix(path: str, above: list[ast.stmt]) -> bool:
    """Whether a loop fills a container with all of another one, by keys without the prefix."""
    for loop in (item for item in above if isinstance(item, ast.For)):
        stores = [
            node.targets[0].slice
            for node in walk(loop)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
            if blocks.path_of(node.targets[0].value) == path
        ]
        names = {
            name
            for node in walk(loop)
            if isinstance(node, ast.Assign) and _takes_prefix_off(node.value)
            for name in blocks.writes(node)
        }
        tests = any(isinstance(node, (ast.If, ast.IfExp)) for node in walk(loop))
        if stores and not tests and all(_takes_prefix_off(key) or blocks.path_of(key) in names for key in stores):
            return True
    return False


def _takes_prefix_off(key: ast.expr) -> bool:
    """``key.replace("module.", "")``, wherever in the name the prefix stands."""
    if not (isinstance(key, ast.Call) and isinstance(key.func, ast.Attribute) and key.func.attr == "replace"):
        return False
    return len(key.args) == 2 and literal(key.args[0]) == _PREFIX and literal(key.args[1]) == ""


def lacks_prefix(program: Program, load: Site) -> bool:
    """Whether no name of the state that is loaded begins with ``module.``; functions of the project may see to it."""
    if _is_stripped(load):
        return True
    assert isinstance(load.node, ast.Call)
    pending = [load.node.args[0]]
    for seen, given in enumerate(pending):
        if isinstance(given, ast.Call):
            called = program.flow.callees(given)
            if not called or not all(_gives_without_prefix(info) for info in called):
                return False
        elif isinstance(given, ast.Name) and seen < _MAX_NAMES:
            values = assigned(program, given, load.scope)
            if not values:
                return False
            pending += values
        else:
            return False
    return True


def _gives_without_prefix(info: FunctionFacts) -> bool:
    """Whether a function gives back a dictionary that a loop of it fills by keys without the prefix."""
    loops = [node for node in walk(info.node) if isinstance(node, ast.For)]
    paths = [blocks.path_of(item) for item in info.returns]
    return bool(paths) and all(path is not None and any(_strips(path, loop) for loop in loops) for path in paths)


def _strips(path: str, loop: ast.For) -> bool:
    """``new[key[7:]] = value``, for all keys, or for those for which a test of the prefix holds."""
    keys = [
        node.targets[0].slice
        for node in walk(loop)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        if blocks.path_of(node.targets[0].value) == path
    ]
    given: dict[str, list[ast.expr]] = {}
    for node in walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    names = {node.id for node in walk(loop.target) if isinstance(node, ast.Name)}
    values = [value for key in keys for value in (given.get(key.id, [key]) if isinstance(key, ast.Name) else [key])]
    values = [
        part for value in values for part in ([value.body, value.orelse] if isinstance(value, ast.IfExp) else [value])
    ]
    others = [value for value in values if not _cuts_prefix_off(value)]
    if not values or len(others) == len(values) or not all(blocks.path_of(value) in names for value in others):
        return False
    tests = [node.test for node in walk(loop) if isinstance(node, (ast.If, ast.IfExp))]
    asks = [any(str(literal(part)) in ("module", _PREFIX) for part in walk(test)) for test in tests]
    return all(asks) and (bool(asks) or not others)


def _cuts_prefix_off(key: ast.expr) -> bool:
    """``key[7:]``, ``key[len("module."):]``, ``key.removeprefix("module.")`` or ``key.replace("module.", "")``."""
    if isinstance(key, ast.Subscript) and isinstance(key.slice, ast.Slice) and key.slice.upper is None:
        lower = key.slice.lower
        if isinstance(lower, ast.Call) and last_name(lower.func) == "len" and lower.args:
            return literal(lower.args[0]) == _PREFIX
        return literal(lower) == len(_PREFIX)
    if isinstance(key, ast.Call) and isinstance(key.func, ast.Attribute) and key.func.attr == "removeprefix":
        return len(key.args) == 1 and literal(key.args[0]) == _PREFIX
    return _takes_prefix_off(key)


# ---- order -------------------------------------------------------------------------------------------------------


def _follows(program: Program, load: Site, wrap: Site) -> bool:
    """Whether the load runs after the wrapper and not before it, in the function of both or that calls both."""
    loads, wraps = _ways(program, load), _ways(program, wrap)
    pairs = [
        (one, other)
        for body in loads.keys() & wraps.keys()
        for one in loads[body]
        for other in wraps[body]
        if one.statement is not other.statement
    ]
    return bool(pairs) and all(
        comes_after(one.module, one.statement, other.statement)
        and not comes_after(one.module, other.statement, one.statement)
        for one, other in pairs
    )


def _ways(program: Program, site: Site) -> dict[ast.AST, list[Site]]:
    found: dict[ast.AST, list[Site]] = {site.body: [site]}
    pending = [site]
    for _ in range(_MAX_CALLERS):
        callers = [
            calling(caller)
            for item in pending
            if (info := program.function_of(item.body)) is not None
            for caller in program.flow.callers(info)
        ]
        for above in callers:
            found.setdefault(above.body, []).append(above)
        pending = callers
    return found
