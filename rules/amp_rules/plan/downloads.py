"""Statements that may download: one process goes first, the others find the files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from amp_rules.plan.cached_data import builds_cache, run_by_constructors
from amp_rules.plan.given_flags import may_be_true
from amp_rules.plan.precision import Precision
from amp_rules.plan.sample_files import bodies_of_samples
from amp_rules.roles.file_effects import opens_to_write
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import finds_any_by_text
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.data import FETCHERS, WITHOUT_LOCKS
from amp_rules.torch.file_access import COMMANDS, LOADERS, LOOKING_METHODS, LOOKS, OPENERS, TRAINS_INTO_FILES

_READERS = LOADERS | OPENERS.keys()


def downloads(program: Program, precision: Precision) -> list[tuple[Module, ast.stmt]]:
    """Statements that may download or run a command for a file that is missing; the outermost of those that call.

    A statement that computes with a model as well, as an evaluation does, would keep the other ranks waiting for it.
    """
    fetches = program.closure(lambda node: _gets(program, node))
    # Preparing a model is a meeting of all ranks: it is not done in turns, but behind the statement that makes it.
    homes = {home.statement for home in precision.homes}
    followed: dict[ast.stmt, ast.AST] = {
        home.statement: home.statement.value
        for home in precision.homes
        if isinstance(home.statement, ast.Assign) and not home.in_place and not home.before
    }
    meets = program.closure(lambda node: node in homes)
    for_samples = _run_for_samples(program)

    def can_take_turns(statement: ast.stmt) -> bool:
        if program.runs_backward(statement) or program.runs_model(statement):
            return False
        return not meets(followed.get(statement, statement))

    found: dict[ast.stmt, Module] = {}
    for node, body, scope in program.nodes():
        if not isinstance(node, (ast.Assign, ast.Expr, ast.Return, ast.AnnAssign)) or not fetches(node):
            continue
        if not program.is_called(body) or body in for_samples:
            continue  # who calls it, and whether all processes do, is not known
        whole = _asked_before(program, scope, node, can_take_turns)
        if can_take_turns(whole):
            found[whole] = scope.module
    _join_branches(found, homes, can_take_turns)
    candidates = [(module, statement) for statement, module in found.items()]
    inner = program.called_from(nodes_of(candidates))
    return [item for item in candidates if not _is_run_by_import(*item) and blocks.body_of(*item) not in inner]


def _join_branches(
    found: dict[ast.stmt, Module], homes: set[ast.stmt], can_take_turns: Callable[[ast.stmt], bool]
) -> None:
    """Take the whole of a condition, each branch of which downloads and does nothing else, or ends the script."""
    for statement, module in list(found.items()):
        chain = module.parents.get(statement)
        while isinstance(chain, ast.If) and blocks.is_elif(module, chain):
            chain = module.parents[chain]
        if not isinstance(chain, ast.If) or statement not in found:
            continue
        branches = list(_branches(chain))
        inside = [branch[0] for branch in branches if len(branch) == 1 and branch[0] in found]
        ends = [branch for branch in branches if len(branch) == 1 and isinstance(branch[0], ast.Raise)]
        if len(inside) < 2 or len(inside) + len(ends) < len(branches) or not homes.isdisjoint(inside):
            continue
        if can_take_turns(chain):
            for item in inside:
                del found[item]
            found[chain] = module


def _branches(chain: ast.If) -> Iterator[list[ast.stmt]]:
    """The suites of a condition, of which one runs."""
    yield chain.body
    if len(chain.orelse) == 1 and isinstance(chain.orelse[0], ast.If):
        yield from _branches(chain.orelse[0])
    elif chain.orelse:
        yield chain.orelse


def _is_run_by_import(module: Module, statement: ast.stmt) -> bool:
    """Whether a statement runs before the processes can wait for each other."""
    return isinstance(blocks.body_of(module, statement), ast.Module) and not module.is_entry


def bodies_in_turns(program: Program, statements: Iterable[tuple[Module, ast.stmt]]) -> set[ast.AST]:
    """The bodies of functions that statements run; with them those that a library runs to make a data set."""
    found = program.called_from(nodes_of(statements))
    pending: list[Iterable[ast.AST]] = [nodes_of(statements), *(program.nodes_of(body) for body in found)]
    while pending:
        for node in pending.pop():
            located = program.locate(node) if isinstance(node, ast.Call) else None
            if located is None or not isinstance(node, ast.Call):
                continue
            for method in run_by_constructors(program, node, located[1]):
                new = ({method} | program.called_from(program.nodes_of(method))) - found
                found |= new
                pending += [program.nodes_of(body) for body in new]
    return found


def bodies_only_in_turns(program: Program, statements: list[tuple[Module, ast.stmt]]) -> set[ast.AST]:
    """The same without those that are called from elsewhere too, as a logger's method is, and what they call."""
    found, inside = bodies_in_turns(program, statements), set(nodes_of(statements))
    elsewhere = {body for body in found if _is_called_elsewhere(program, body, found, inside)}
    return found - elsewhere - program.called_from(node for body in elsewhere for node in program.nodes_of(body))


def _is_called_elsewhere(program: Program, body: ast.AST, found: set[ast.AST], inside: set[ast.AST]) -> bool:
    info = program.function_of(body)
    if info is None:
        return False
    calls = [(caller.call, blocks.body_of(caller.scope.module, caller.call)) for caller in program.flow.callers(info)]
    return any(call not in inside and caller not in found and program.runs(caller) for call, caller in calls)


def _gets(program: Program, node: ast.AST) -> bool:
    """Whether a node makes files that are missing, which the next process then finds."""
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is None or not isinstance(node, ast.Call):
        return False
    if _fetches(program, node):
        return not _is_switched_off(program, node, located[1])
    return _gets_what_is_missing(program, node) or builds_cache(program, node, located[1])


def _is_switched_off(program: Program, node: ast.Call, scope: Scope) -> bool:
    """Whether a switch that is off in every call keeps from a download: ``if pretrained: load_url(...)``."""
    return any(
        isinstance(parent, ast.If)
        and any(part is node for item in parent.body for part in walk(item))
        and not may_be_true(program, parent.test, scope, idle=_without_callers(program))
        for parent in blocks.enclosing(scope.module, node)
    )


def _without_callers(program: Program) -> frozenset[ast.AST]:
    """The functions that no call is known of: ``resnet18`` beside the ``resnet50`` that the script makes."""
    if finds_any_by_text(program):
        return frozenset()
    return frozenset(
        body for body, _ in program.bodies if (info := program.function_of(body)) and not program.flow.callers(info)
    )


def _run_for_samples(program: Program) -> set[ast.AST]:
    """Bodies that data sets run for a sample: in workers, and as often as a rank's share asks for."""
    methods = bodies_of_samples(program)
    return methods | program.called_from({node for method in methods for node in program.nodes_of(method)})


def _asked_before(
    program: Program, scope: Scope, statement: ast.stmt, can_take_turns: Callable[[ast.stmt], bool]
) -> ast.stmt:
    """The statement with what asks for the files before it: a process that comes later finds them, and goes past it.

    A ``try`` around the training as well asks for no file, unless the statement is what one of its handlers does.
    """
    found = child = statement
    for parent in blocks.enclosing(scope.module, statement):
        if isinstance(parent, ast.Try):
            if can_take_turns(parent) or child not in parent.body:
                found = parent
        elif isinstance(parent, (ast.If, ast.While)) and _looks(program, parent.test, scope):
            found = parent
        child = parent
    return found


def _looks(program: Program, test: ast.expr, scope: Scope) -> bool:
    """Whether a test asks which files there are: by itself, by a function, or by a variable that holds the answer."""
    asks = program.closure(lambda node: _asks(program, node))
    if asks(test):
        return True
    keys = {program.flow.key(part, scope) for part in walk(test) if isinstance(part, (ast.Name, ast.Attribute))}
    keys.discard(None)
    return bool(keys) and any(
        isinstance(node, ast.Assign)
        and any(program.flow.key(blocks.reading(target), where) in keys for target in node.targets)
        and asks(node.value)
        for node, _, where in program.nodes()
    )


def _asks(program: Program, node: ast.AST) -> bool:
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is None or not isinstance(node, ast.Call):
        return False
    names = program.callee_names(node, located[1])
    return bool(names & LOOKS) or (isinstance(node.func, ast.Attribute) and node.func.attr in LOOKING_METHODS)


def _fetches(program: Program, node: ast.AST) -> bool:
    """Whether a call may download by itself."""
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is None or not isinstance(node, ast.Call):
        return False
    # ``datasets.__dict__[name](download=True)`` and ``getattr(datasets, name)(...)`` say it without a name.
    names = program.names(node.func, located[1])
    if any(name.endswith(fetcher) for name in names for fetcher in FETCHERS):
        return True
    if any(name.startswith(WITHOUT_LOCKS) and name.endswith(".from_pretrained") for name in names):
        return True
    is_model = any(name.startswith("torchvision.models.") for name in names)
    return any(
        (item.arg == "download" or (is_model and item.arg in ("pretrained", "weights")))
        and may_be_true(program, item.value, located[1])
        for item in node.keywords
    )


def _gets_what_is_missing(program: Program, node: ast.AST) -> bool:
    """``if not os.path.exists(path): subprocess.call(["./get.sh"])``, where the function reads that file below.

    Of what trains a vocabulary it is known that it makes files, whoever reads them.
    """
    located = program.locate(node) if isinstance(node, ast.Call) else None
    if located is None or not isinstance(node, ast.Call):
        return False
    body, scope = located
    module = scope.module
    names = program.callee_names(node, scope)
    if not names & (COMMANDS | TRAINS_INTO_FILES) or not isinstance(module.parents[node], ast.Expr):
        return False
    for parent in blocks.enclosing(module, node):
        test = parent.test if isinstance(parent, ast.If) else None
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _asks(program, test.operand):
            if names & TRAINS_INTO_FILES:
                return True
            asked = test.operand
            assert isinstance(asked, ast.Call)
            paths = asked.args or ([asked.func.value] if isinstance(asked.func, ast.Attribute) else [])
            return any(_is_read_below(program, body, parent, ast.unparse(path)) for path in paths)
    return False


def _is_read_below(program: Program, body: ast.AST, above: ast.stmt, path: str) -> bool:
    """Whether a file is read by what a function does after a statement."""
    for node in program.nodes_of(body):
        located = program.locate(node) if isinstance(node, ast.Call) else None
        if located is None or not isinstance(node, ast.Call) or node.lineno <= (above.end_lineno or above.lineno):
            continue
        if program.callee_names(node, located[1]) & _READERS and node.args and ast.unparse(node.args[0]) == path:
            return not opens_to_write(node)
    return False


def nodes_of(statements: Iterable[tuple[Module, ast.stmt]]) -> list[ast.AST]:
    """The nodes that statements run themselves."""
    return [node for _, statement in statements for node in blocks.walk_own(statement)]
