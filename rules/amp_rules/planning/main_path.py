"""Where the script's main path begins: the place of ``amp.init``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from amp_rules.program import blocks
from amp_rules.program.flow import is_main_guard
from amp_rules.program.head import import_place_in_notebook
from amp_rules.program.modules import Module
from amp_rules.program.steps import Program
from amp_rules.program.syntax import walk

_IMPORTS = (ast.Import, ast.ImportFrom)


def anchor(
    program: Program, used: Sequence[tuple[Module, ast.stmt]], earlier: Sequence[ast.stmt] = ()
) -> tuple[ast.stmt, bool]:
    """The statement of the entry that ``init`` follows, or precedes, and whether it follows.

    Args:
        program: the program.
        used: statements that use the runtime; ``init`` comes before those that run on the entry's module level.
        earlier: statements of the entry that must come before, because they choose what devices there are.
    """
    users = {statement for _, statement in used}
    uses_runtime = program.closure(lambda node: node in users)
    if program.entry.cells:
        statement, after = _in_notebook(program, used, uses_runtime)
    else:
        statement, after = _place(program, used, earlier)
    if after and uses_runtime(statement):
        # The command line is parsed by code that uses the runtime itself.
        return statement, False
    return statement, after


def _place(
    program: Program, used: Sequence[tuple[Module, ast.stmt]], earlier: Sequence[ast.stmt]
) -> tuple[ast.stmt, bool]:
    module = program.entry
    spawned = _spawned(program)
    if spawned is not None:
        return _in_suite(program, spawned.body, None)
    top = [
        _top(module, statement) for where, statement in used if where is module and _on_module_level(module, statement)
    ]
    guard = next((item for item in module.tree.body if isinstance(item, ast.If) and is_main_guard(item)), None)
    first_used = min((module.tree.body.index(item) for item in top if item is not guard), default=None)
    if first_used is not None:
        return _in_suite(program, module.tree.body, first_used, earlier)
    if guard is not None:
        return _in_guard(program, guard)
    function = _called_main(program, module.tree.body)
    if function is not None:
        return _in_suite(program, function.body, None)
    outer = _training_function(program)
    if outer is not None:
        return _in_suite(program, outer.body, None)
    return _in_suite(program, module.tree.body, None, earlier)


def _in_notebook(
    program: Program, used: Sequence[tuple[Module, ast.stmt]], uses_runtime: Callable[[ast.AST], bool]
) -> tuple[ast.stmt, bool]:
    """After the command line is parsed if that comes early enough, else below the imports in their cell."""
    module = program.entry
    suite = module.tree.body
    users = [
        item
        for item in suite
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and uses_runtime(item)
    ]
    end = suite.index(users[0]) if users else len(suite)
    for statement in suite[:end]:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _parses_arguments(program, statement):
            return statement, True
    named = {_top(module, statement) for where, statement in used if where is module}
    statement, after = import_place_in_notebook(module, {*users, *named})
    if not after:
        return statement, False
    cell = module.cell_of(statement)
    for following in suite[suite.index(statement) + 1 :]:
        if module.cell_of(following) != cell:
            break
        if not isinstance(following, (*_IMPORTS, ast.Pass)):
            return following, False
        statement = following
    return statement, True


def _spawned(program: Program) -> ast.FunctionDef | None:
    """The function that trains in processes which the script starts itself: each of them starts the runtime."""
    for call, _, scope in program.calls():
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            continue
        names = {name.rpartition(".")[2] for name in program.names(call.func, scope) if "multiprocessing" in name}
        if not names & {"spawn", "Process", "start_processes"}:
            continue
        given = [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("target", "fn"))]
        for argument in given:
            for value in program.flow.values(argument, scope):
                node = value.ref.node if value.kind == "function" else None
                if isinstance(node, ast.FunctionDef) and value.ref.module is program.entry:
                    return node
    return None


def _on_module_level(module: Module, statement: ast.stmt) -> bool:
    return isinstance(blocks.body_of(module, statement), ast.Module)


def _top(module: Module, statement: ast.stmt) -> ast.stmt:
    """The statement of the module's own suite that holds ``statement``."""
    found = statement
    for parent in module.ancestors(statement):
        if isinstance(parent, ast.stmt):
            found = parent
    return found


def _in_guard(program: Program, guard: ast.If) -> tuple[ast.stmt, bool]:
    if len(guard.body) == 1:
        function = _called_main(program, guard.body)
        if function is not None:
            return _in_suite(program, function.body, None)
        called = guard.body[0]
        if not isinstance(called, ast.Expr):
            return _in_suite(program, guard.body, None)
    if _is_dispatcher(guard.body):
        outer = _training_function(program)
        if outer is not None:
            return _in_suite(program, outer.body, None)
    return _in_suite(program, guard.body, None)


def _is_dispatcher(suite: list[ast.stmt]) -> bool:
    """Whether a library chooses the function that is called (``fire.Fire()``)."""
    return any(
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Call)
        and blocks.path_of(item.value.func) in ("fire.Fire", "Fire")
        for item in suite
    )


def _called_main(program: Program, suite: list[ast.stmt]) -> ast.FunctionDef | None:
    """The function of the entry that the suite does nothing but call."""
    calls = [item for item in suite if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call)]
    others = [
        item
        for item in suite
        if item not in calls
        and not isinstance(item, (*_IMPORTS, ast.FunctionDef, ast.ClassDef, ast.Assign))
        and not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
    ]
    if len(calls) != 1 or others:
        return None
    call = calls[0].value
    assert isinstance(call, ast.Call)
    found = [info.node for info in program.flow.callees(call) if info.owner is None and info.module is program.entry]
    if len(found) == 1 and isinstance(found[0], ast.FunctionDef):
        return found[0]
    return None


def _training_function(program: Program) -> ast.FunctionDef | None:
    """The function of the entry that trains and that nothing in the program calls."""
    for node in program.entry.tree.body:
        if isinstance(node, ast.FunctionDef):
            info = program.flow.functions[node]
            if not info.callers and any(program.runs_backward(item) for item in node.body):
                return node
    return None


def _in_suite(
    program: Program, suite: list[ast.stmt], limit: int | None, earlier: Sequence[ast.stmt] = ()
) -> tuple[ast.stmt, bool]:
    """After the command line is parsed if that comes early enough, else before what comes first."""
    end = len(suite) if limit is None else limit
    for index, statement in enumerate(suite[:end]):
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _parses_arguments(program, statement):
            return suite[index], True
    start = 0
    for index, statement in enumerate(suite[:end]):
        if any(node in earlier for node in walk(statement)):
            start = index + 1
        if isinstance(statement, (*_IMPORTS, ast.Global, ast.Nonlocal)) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            start = index + 1
        elif not isinstance(statement, (ast.Global, ast.Nonlocal)):
            if suite is not program.entry.tree.body:
                break
    if limit is None and suite is program.entry.tree.body:
        limit = next(
            (
                index
                for index in range(start, len(suite))
                if not isinstance(suite[index], (ast.FunctionDef, ast.ClassDef))
            ),
            len(suite) - 1,
        )
    if suite is program.entry.tree.body:
        assert limit is not None
        start = max(start, 0) if start <= limit else limit
    start = min(start, len(suite) - 1)
    return suite[start], False


def _parses_arguments(program: Program, statement: ast.stmt) -> bool:
    return not program.runs_backward(statement) and _parsing(program)(statement)


def _parsing(program: Program) -> Callable[[ast.AST], bool]:
    """Whether running a node parses the command line, in a function of the project too."""

    def direct(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("parse_args", "parse_known_args", "parse_arguments")
        )

    return program.closure(direct)
