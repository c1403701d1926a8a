"""Where the script's main path begins: the place of ``amp.init``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from amp_rules.flow.statements import is_main_guard
from amp_rules.roles.program import Program
from amp_rules.roles.workers import calls_one_of, of_first_process, training_workers
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.head import import_place_in_notebook, is_torch_import
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_IMPORTS = (ast.Import, ast.ImportFrom)
# Names of one main function, each of which only calls the next: `cli`, `run`, `main`. Circles of calls end here too.
_MAX_NAMES = 3
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def anchor(
    program: Program, used: Sequence[tuple[Module, ast.stmt]], earlier: Sequence[ast.stmt] = ()
) -> tuple[Module, ast.stmt, bool]:
    """The statement that ``init`` follows, or precedes, with its file, and whether it follows.

    The file is the entry, or that of the function which trains in a process of its own.

    Args:
        program: the program.
        used: statements that use the runtime; ``init`` comes before those that run on the entry's module level.
        earlier: statements of the entry that choose what devices there are: they come before, unless something above
            them uses the runtime.
    """
    users = {statement for _, statement in used}
    uses_runtime = program.closure(lambda node: node in users)
    module, spawned = _spawned(program)
    if spawned is not None:
        statement, after = _in_suite(program, spawned.body, None, earlier)
    elif program.entry.cells:
        statement, after = _in_notebook(program, used, uses_runtime)
    else:
        statement, after = _place(program, used, earlier, uses_runtime)
        statement, after = _above_uses(module, statement, after, uses_runtime)
    if after and uses_runtime(statement):
        # The command line is parsed by code that uses the runtime itself.
        return module, statement, False
    return module, statement, after


def anchor_of_first_process(
    program: Program, used: Sequence[tuple[Module, ast.stmt]], earlier: Sequence[ast.stmt] = ()
) -> tuple[Module, ast.stmt, bool] | None:
    """Where the process that the script is started in starts the runtime too, see :func:`anchor`.

    None, unless it trains itself where it starts no others: ``if args.ddp: spawn(worker) else: train()``. A worker that
    it calls starts the runtime for it, unless it uses the runtime itself: where it prepares what it gives the worker.
    """
    _, spawned = _spawned(program)
    if spawned is None or program.entry.cells:
        return None
    apart = {spawned, *(info.node for _, info in training_workers(program))}
    runs_apart = program.called_from(node for body in apart for node in blocks.walk_body(body))
    reached = of_first_process(program, apart)
    users = {statement for where, statement in used if blocks.body_of(where, statement) in reached}
    if not any(site.body in reached for site in program.backwards):
        if not users or not calls_one_of(program, reached, apart):
            return None
    uses_runtime = program.closure(lambda node: node in users)
    statement, after = _place(program, used, earlier, uses_runtime)
    statement, after = _above_uses(program.entry, statement, after, uses_runtime)
    body = blocks.body_of(program.entry, statement)
    if body in apart or (body in runs_apart and body is not program.entry.tree):
        return None
    return program.entry, statement, after and not uses_runtime(statement)


def _place(
    program: Program,
    used: Sequence[tuple[Module, ast.stmt]],
    earlier: Sequence[ast.stmt],
    uses_runtime: Callable[[ast.AST], bool],
) -> tuple[ast.stmt, bool]:
    module = program.entry
    top = [
        blocks.top_statement(module, statement)
        for where, statement in used
        if where is module and _on_module_level(module, statement)
    ]
    guard = next((item for item in module.tree.body if isinstance(item, ast.If) and is_main_guard(item)), None)
    first_used = min((module.tree.body.index(item) for item in top if item is not guard), default=None)
    callers = [item for item in module.tree.body if not isinstance(item, _DEFINITIONS) and uses_runtime(item)]
    if first_used is not None:
        return _in_suite(program, module.tree.body, module.tree.body.index(callers[0]), earlier)
    users = {statement for _, statement in used}

    def is_early(call: ast.Expr) -> bool:
        """Whether what a call is given uses the runtime, before the function runs."""
        assert isinstance(call.value, ast.Call)
        given = [*call.value.args, *(item.value for item in call.value.keywords)]
        return call in users or any(map(uses_runtime, given))

    if guard is not None and guard in callers[:1]:
        return _in_guard(program, guard, earlier, is_early)
    function = _called_main(program, module.tree.body, is_early)
    if function is not None and (not callers or isinstance(callers[0], ast.Expr)):
        return _in_suite(program, function.body, None, earlier)
    if callers:
        return _in_suite(program, module.tree.body, module.tree.body.index(callers[0]), earlier)
    if guard is not None:
        return _in_guard(program, guard, earlier, is_early)
    outer = _training_function(program) or _training_class(program)
    if outer is not None:
        return _in_suite(program, outer.body, None, earlier)
    return _in_suite(program, module.tree.body, None, earlier)


def _above_uses(
    module: Module, statement: ast.stmt, after: bool, uses_runtime: Callable[[ast.AST], bool]
) -> tuple[ast.stmt, bool]:
    """The first statement above that uses the runtime already: some scripts make their writer, then parse arguments.

    What chooses the devices may come below it: the start of one process asks for none, and a launcher chooses those of
    several.
    """
    where = blocks.place(module, statement)
    for item in where.suite[: where.index]:
        if not isinstance(item, (*_DEFINITIONS, *_IMPORTS)) and uses_runtime(item):
            return item, False
    return statement, after


def _in_notebook(
    program: Program, used: Sequence[tuple[Module, ast.stmt]], uses_runtime: Callable[[ast.AST], bool]
) -> tuple[ast.stmt, bool]:
    """After the command line is parsed if that comes early enough, else below the imports in their cell."""
    module = program.entry
    suite = module.tree.body
    users = [item for item in suite if not isinstance(item, _DEFINITIONS) and uses_runtime(item)]
    end = suite.index(users[0]) if users else len(suite)
    for statement in suite[:end]:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and parses_arguments(program, statement):
            return statement, True
    named = {blocks.top_statement(module, statement) for where, statement in used if where is module}
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


def _spawned(program: Program) -> tuple[Module, ast.FunctionDef | None]:
    """The function that trains in processes which the script starts itself: each of them starts the runtime."""
    for _, info in training_workers(program):
        given = _called_alone_too(program, info)
        if given is not None and isinstance(given.node, ast.FunctionDef):
            return given.module.module, given.node
        if isinstance(info.node, ast.FunctionDef):
            return info.module.module, info.node
    return program.entry, None


def _called_alone_too(program: Program, worker: FunctionFacts) -> FunctionFacts | None:
    """The one training that a worker is given and calls, where one process calls it without the worker."""
    found = {
        info.node: info
        for call in program.nodes_of(worker.node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in worker.parameters
        for info in program.flow.callees(call)
        if isinstance(info.node, ast.FunctionDef) and any(map(program.runs_backward, info.node.body))
    }
    if len(found) != 1:
        return None
    (info,) = found.values()
    is_alone = any(
        blocks.body_of(item.scope.module, item.call) is not worker.node for item in program.flow.callers(info)
    )
    return info if is_alone else None


def _on_module_level(module: Module, statement: ast.stmt) -> bool:
    return isinstance(blocks.body_of(module, statement), ast.Module)


def _in_guard(
    program: Program, guard: ast.If, earlier: Sequence[ast.stmt], is_early: Callable[[ast.Expr], bool]
) -> tuple[ast.stmt, bool]:
    if len(guard.body) == 1:
        function = _called_main(program, guard.body, is_early)
        if function is not None:
            return _in_suite(program, function.body, None, earlier)
        called = guard.body[0]
        if not isinstance(called, ast.Expr):
            return _in_suite(program, guard.body, None, earlier)
    if _is_dispatcher(guard.body):
        outer = _training_function(program)
        if outer is not None and len(_training_commands(program, guard.body)) <= 1:
            return _in_suite(program, outer.body, None, earlier)
    return _in_suite(program, guard.body, None, earlier)


def _is_dispatcher(suite: list[ast.stmt]) -> bool:
    """Whether a library chooses the function that is called (``fire.Fire()``)."""
    return any(
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Call)
        and blocks.path_of(item.value.func) in ("fire.Fire", "Fire")
        for item in suite
    )


def _training_commands(program: Program, suite: list[ast.stmt]) -> set[ast.AST]:
    """The functions named in a suite that train: any of them may be chosen, ``Fire({"run": run, "train": train})``."""
    scope = program.flow.scopes[program.entry.tree]
    named = [node for item in suite for node in walk(item) if isinstance(node, ast.Name)]
    found = {value.ref for node in named for value in program.flow.values(node, scope) if value.kind == "function"}
    nodes = {info.node for info in found if isinstance(info, FunctionFacts)}
    return {node for node in nodes if isinstance(node, ast.FunctionDef) and any(map(program.runs_backward, node.body))}


def _called_main(
    program: Program, suite: list[ast.stmt], is_early: Callable[[ast.Expr], bool], depth: int = 0
) -> ast.FunctionDef | None:
    """The function of the entry that the suite does nothing but call; of one that does nothing but that, the inner.

    None where what the function is given uses the runtime already.
    """
    calls = [item for item in suite if isinstance(item, ast.Expr) and isinstance(item.value, ast.Call)]
    others = [
        item
        for item in suite
        if item not in calls
        and not isinstance(item, (*_IMPORTS, ast.FunctionDef, ast.ClassDef, ast.Assign))
        and not is_text(item)
    ]
    if len(calls) != 1 or others or is_early(calls[0]):
        return None
    call = calls[0].value
    assert isinstance(call, ast.Call)
    found = [
        info.node for info in program.flow.callees(call) if info.cls is None and info.module.module is program.entry
    ]
    if len(found) == 1 and isinstance(found[0], ast.FunctionDef):
        body = [item for item in found[0].body if not is_text(item)]
        # `def cli(): main()` is a second name of `main`, which other scripts may call.
        inner = _called_main(program, body, is_early, depth + 1) if len(body) == 1 and depth < _MAX_NAMES else None
        return inner or found[0]
    return None


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone, as a docstring is."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _training_function(program: Program) -> ast.FunctionDef | None:
    """The function of the entry that trains and that nothing in the program calls."""
    for node in program.entry.tree.body:
        if isinstance(node, ast.FunctionDef):
            info = program.flow.functions[node]
            if not program.flow.callers(info) and any(program.runs_backward(item) for item in node.body):
                return node
    return None


def _training_class(program: Program) -> ast.FunctionDef | None:
    """The constructor of the one class of the entry whose methods train and that nothing in the program makes."""
    found = []
    for node in program.entry.tree.body:
        methods = (
            [item for item in node.body if isinstance(item, ast.FunctionDef)] if isinstance(node, ast.ClassDef) else []
        )
        if any(program.runs_backward(item) for method in methods for item in method.body):
            found.append(next((method for method in methods if method.name == "__init__"), None))
    if len(found) != 1 or found[0] is None or program.flow.callers(program.flow.functions[found[0]]):
        return None
    return found[0]


def _in_suite(
    program: Program, suite: list[ast.stmt], limit: int | None, earlier: Sequence[ast.stmt] = ()
) -> tuple[ast.stmt, bool]:
    """After the command line is parsed if that comes early enough, else before what comes first."""
    end = len(suite) if limit is None else limit
    for index, statement in enumerate(suite[:end]):
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and parses_arguments(program, statement):
            return _after_choices(program, suite[index:end], earlier), True
    start = 0
    for index, statement in enumerate(suite[:end]):
        if any(node in earlier for node in walk(statement)):
            start = index + 1
        if isinstance(statement, (*_IMPORTS, ast.Global, ast.Nonlocal)) or (
            is_text(statement) and not _is_heading(program, suite, index)
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
    if start == len(suite):
        return suite[-1], True  # nothing but a docstring: that of a group of commands
    return suite[start], False


def _is_heading(program: Program, suite: Sequence[ast.stmt], index: int) -> bool:
    """Whether a text stands right above other code, which it names, and is no docstring: that code follows it."""
    statement = suite[index]
    if index + 1 == len(suite) or suite[index + 1].lineno != (statement.end_lineno or 0) + 1:
        return False
    return index > 0 or isinstance(program.entry.parents.get(statement), ast.If)


def _after_choices(program: Program, suite: Sequence[ast.stmt], earlier: Sequence[ast.stmt]) -> ast.stmt:
    """The statement after which the runtime can start, among those from where the command line is parsed.

    That is where it is parsed, or what chooses the devices after that, or the imports where torch comes late.
    """
    found = suite[0]
    body = program.entry.tree.body
    above = body[: body.index(blocks.top_statement(program.entry, found))] if found in program.entry.parents else body
    is_late = not any(map(is_torch_import, above)) and any(map(is_torch_import, body))
    for statement in suite[1:]:
        chooses = any(node in earlier for node in walk(statement))
        follows = isinstance(found, _IMPORTS) and isinstance(statement, _IMPORTS)
        if chooses or (is_late and (is_torch_import(statement) or follows)):
            found = statement
        elif program.runs_model(statement):
            break
    return found


def parses_arguments(program: Program, statement: ast.stmt) -> bool:
    """Whether a statement parses the command line, in a function of the project too, and trains nothing."""
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
