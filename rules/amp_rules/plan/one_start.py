"""One start of the runtime: where the level that the script gives to Apex is known when the processes join."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from amp_rules.plan.prepared_always import Ways
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import last_name, walk

_SETTERS = frozenset({"builtins.setattr", "builtins.vars", "builtins.locals", "builtins.globals", "builtins.exec"})
_ENDING = (ast.Return, ast.Break, ast.Continue)


def movable(
    program: Program, starting: frozenset[str], module: Module, statement: ast.stmt, after: bool
) -> tuple[list[ast.stmt], ast.Call] | None:
    """The script's only start, if it can stand at a place further up just as well: its statements and a call.

    Several that say the same are one start, where no training step is reached without them.

    Args:
        program: the program, without Apex by now.
        starting: the names of what starts the runtime.
        module: the file of the place.
        statement: the place.
        after: whether it is after that statement.
    """
    sites = program.calls_to(starting)
    if not sites or any(site.module is not module for site in sites) or statement not in module.parents:
        return None
    if len(sites) > 1:
        return _alike(program, sites)
    found, call = sites[0].statement, sites[0].node
    suite = blocks.place(module, statement).suite
    if not isinstance(found, ast.Expr) or found.value is not call:
        return None
    assert isinstance(call, ast.Call)
    read = {path for item in call.keywords for path in blocks.reads(item.value)}
    if found not in suite:
        where = (suite, statement, after)
        known = _says_by_names(call) and (
            _reads_what_is_set(program, module, found, call, where)
            or _reads_what_it_is_given(program, module, found, call, read, where)
        )
        return ([found], call) if known and not _may_change(program, read) else None
    between = suite[suite.index(statement) + after : suite.index(found)]
    is_below = suite.index(found) >= suite.index(statement) + after
    if not is_below or call.args or any(item.arg is None for item in call.keywords):
        return None
    parts = [node for item in call.keywords for node in walk(item.value)]
    if any(isinstance(node, (ast.Call, ast.Await, ast.NamedExpr)) for node in parts):
        return None
    if any(blocks.touches(read, blocks.writes(item)) or _binds(item, read) for item in between):
        return None
    owners = {path.split(".")[0] for path in read}
    handed_on = any(
        isinstance(node, ast.Name) and node.id in owners and _leaves(module, node)
        for item in between
        for node in walk(item)
    )
    if handed_on and (_may_change(program, read) or any(isinstance(node, ast.Subscript) for node in walk(call))):
        return None
    return [found], call


def _alike(program: Program, sites: list[Site]) -> tuple[list[ast.stmt], ast.Call] | None:
    """The starts, where all say the same in constants, and each way to a training step leads past one of them."""
    statements: list[ast.stmt] = []
    for site in sites:
        call, statement = site.node, site.statement
        assert isinstance(call, ast.Call)
        if call.args or not all(item.arg and isinstance(item.value, ast.Constant) for item in call.keywords):
            return None
        is_alone = len(blocks.place(site.module, statement).suite) == 1
        if not isinstance(statement, ast.Expr) or statement.value is not call or is_alone:
            return None
        statements.append(statement)
    if len({ast.dump(site.node) for site in sites}) > 1:
        return None
    ways = Ways(program, [site.node for site in sites])
    if not all(map(ways.lead_past, program.backwards)):
        return None
    first = sites[0].node
    assert isinstance(first, ast.Call)
    return statements, first


def _says_by_names(call: ast.Call) -> bool:
    """Whether a start is given by names alone what variables, their attributes and constants hold."""
    parts = (node for item in call.keywords for node in walk(item.value))
    return (
        not call.args
        and all(item.arg is not None for item in call.keywords)
        and not any(isinstance(node, (ast.Call, ast.Await, ast.NamedExpr, ast.Subscript)) for node in parts)
    )


def _names_in(call: ast.Call) -> set[str]:
    """The variables that a start is given, or attributes of."""
    return {node.id for item in call.keywords for node in walk(item.value) if isinstance(node, ast.Name)}


def _reads_what_is_set(
    program: Program, module: Module, found: ast.Expr, call: ast.Call, where: tuple[Sequence[ast.stmt], ast.stmt, bool]
) -> bool:
    """Whether a function starts the runtime by variables of the file that one statement above a place sets for good.

    A function that is called where a flag asks for it would start the runtime without the flag at that place.
    """
    if not all(map(Ways(program, [call]).lead_past, program.backwards)):
        return False
    function = module.parents[found]
    if not isinstance(function, ast.FunctionDef) or module.parents[function] is not module.tree:
        return False
    names = names_of(module)
    top = names.scopes[module.tree]
    suite, statement, after = where
    above = set(suite[: suite.index(statement) + after])
    for name in _names_in(call):
        if names.scope_of(found).owner(name) is not top:
            return False
        sets = [node for node in module.nodes if isinstance(node, ast.Name) and node.id == name]
        sets = [node for node in sets if _is_stored(node) and names.scope_of(node).owner(name) is top]
        if len(sets) != 1 or blocks.statement_of(module, sets[0]) not in above:
            return False
        if any(_binds(item, {name}) for item in module.tree.body if item is not function):
            return False
    return True


def _reads_what_it_is_given(
    program: Program,
    module: Module,
    found: ast.Expr,
    call: ast.Call,
    read: set[str],
    where: tuple[Sequence[ast.stmt], ast.stmt, bool],
) -> bool:
    """Whether a function starts the runtime by parameters that its only call, below a place, gives it by these names.

    The call stands under no condition, and nothing ends the run above it or above the start: an evaluation that does
    without the start would have it.
    """
    function = module.parents[found]
    if not isinstance(function, ast.FunctionDef) or len(function.body) == 1:
        return False
    info = program.flow.functions.get(function)
    callers = program.flow.callers(info) if info is not None else []
    if info is None or len(callers) != 1 or callers[0].scope.module is not module:
        return False
    suite, statement, after = where
    below = suite[suite.index(statement) + after :]
    calling = blocks.statement_of(module, callers[0].call)
    if calling not in below or blocks.body_of(module, callers[0].call) is not blocks.body_of(module, statement):
        return False
    names = _names_in(call)
    given = {name: info.argument(callers[0].call, name) for name in names if name in info.parameters}
    if any(not isinstance(value := given.get(name), ast.Name) or value.id != name for name in names):
        return False
    if any(isinstance(node, ast.Name) and node.id in names and _is_stored(node) for node in walk(function)):
        return False
    named = [node for item in program.flow.modules for node in item.nodes if last_name(node) == function.name]
    if len(named) != 1:
        return False
    between = below[: below.index(calling)]
    if any(blocks.touches(read, blocks.writes(item)) or _binds(item, read) for item in between):
        return False
    earlier = [*between, *function.body[: function.body.index(found)]]
    if any(isinstance(node, _ENDING) for item in earlier for node in walk(item)):
        return False
    return not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk(function))


def _is_stored(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _binds(statement: ast.stmt, read: set[str]) -> bool:
    """Whether a definition or an import gives one of the names its value."""
    names = {path.split(".")[0] for path in read}
    for node in walk(statement):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name in names:
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name.split(".")[0]) in names:
            return True
        if isinstance(node, ast.ExceptHandler) and node.name in names:
            return True
        if isinstance(node, (ast.Delete, ast.Global, ast.Nonlocal, ast.Match)):
            return True
    return False


def _leaves(module: Module, name: ast.Name) -> bool:
    """Whether the object itself goes somewhere, and not only one of its attributes."""
    parent = module.parents[name]
    if not isinstance(parent, ast.Attribute):
        return True
    return isinstance(module.parents[parent], ast.Call)  # a method of it: ``args.update(...)``


def _may_change(program: Program, read: set[str]) -> bool:
    """Whether some code of the program sets an attribute of one of these names, or any."""
    names = {path.split(".")[0] for path in read}
    attributes = {path.rpartition(".")[2] for path in read if "." in path}
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in attributes:
            return True
        if isinstance(node, ast.Global) and names & set(node.names):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "__dict__" and attributes:
            return True
        if isinstance(node, ast.Call) and attributes and program.callee_names(node, scope) & _SETTERS:
            return True
    return False
