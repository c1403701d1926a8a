"""Behind which statement a model is complete, with its weights where they belong."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import Value
from amp_rules.plan.model_homes.home import Home, made_at
from amp_rules.plan.model_homes.variables import HoldingVariable, Variables, exact_path, holds, is_function
from amp_rules.plan.step_conditions import may_be_none
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import ends_process
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope, arguments_of
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.devices import MOVING
from amp_rules.torch.wrappers import DATA_PARALLEL

_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_INITIALISING = frozenset({"apply", "load_state_dict", "init_weights", "reset_parameters", "load_weights"})

_GIVING_STATE = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "state_dict"})
"""Methods that give tensors of a model, and no part that could be called past its wrapper."""

_FUNCTIONS = "torch.nn.functional."


class Placement:
    """Says where the model of a variable is prepared."""

    def __init__(self, program: Program, variables: Variables) -> None:
        self.program = program
        self.flow = program.flow
        self._variables = variables

    def of(self, item: HoldingVariable, value: Value) -> Home:
        """Behind the last statement that makes the model complete, above its training."""
        first = item.assignments[0]
        suite = self._suite_of(item, value)
        start = next(index for index, statement in enumerate(suite) if holds(statement, first))
        limit = next(
            (
                index
                for index, statement in enumerate(suite)
                if index >= start and self.program.runs_backward(statement) and not holds(statement, first)
            ),
            len(suite),
        )
        moved = self._moved_by_main_guard(suite, limit, item)
        if moved is not None:
            suite, start, limit = moved
        last = start
        for index in range(start, limit):
            inner = [
                node
                for node in walk(suite[index])
                if isinstance(node, ast.stmt)
                and not (isinstance(node, ast.Expr) and _leaves_with(node, suite[index], item.module))
            ]
            if not isinstance(suite[index], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and any(
                self._variables.is_placing(node, item.path) or self._initialises(node, item, value) for node in inner
            ):
                last = index
        built = self._variables.optimizer_statement(item) or self._made_by_function(suite[last + 1 : limit], item)
        for index in range(last + 1, limit):
            if built is None or any(holds(statement, built) for statement in suite[last : index + 1]):
                break
            if self._completes(suite[index], item):
                last = index
        made = _made_last(suite[: last + 1], item.path, start)
        fence = next((part for part in suite[made + 1 : last] if self._leaks(part, item.path)), None)
        statement = suite[last]
        inline = None
        none_before = [] if _always_gives([suite[start]], item.path) else _emptied_by(suite[:start], item.path)
        is_optional = any(
            may_be_none(self.program, given) and not _is_asked_behind(given, suite[:limit], item.path)
            for given in [*none_before, *_until(suite, limit, item), *_emptied(suite[start], item.path)]
        )
        # What the statement itself assigns is all that the variable holds behind it.
        lasting = [given for given in item.assignments if given is statement] or item.assignments
        may_be_function = any(
            self._may_give_function(given, item.scope) and not _is_asked_behind(given, suite[start:limit], item.path)
            for given in lasting
        )
        is_model = not is_optional and not may_be_function
        value_node = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if isinstance(value_node, (ast.Call, ast.Name, ast.Attribute)) and not self._is_parallel(
            value_node, item.scope
        ):
            assert isinstance(statement, ast.Assign)
            single = statement.lineno == statement.end_lineno
            if single and exact_path(statement.targets[0]) == item.path and last == start:
                inline = value_node if is_model else None
        also = self._moved_under_another_name(suite[last + 1 : limit], item) if is_model else None
        if also is not None:
            statement, inline = suite[last + 1], None
        behind = _under_its_condition(suite[start : limit + 1], last - start, item) if is_model else None
        if behind is not None:
            statement = behind
        return Home(
            item.module,
            item.scope,
            item.body,
            statement,
            item.path,
            item.key,
            inline,
            also=also,
            rebinds=fence is None,
            made=made_at(value),
            is_optional=is_optional,
            before=behind is not None,
            may_be_function=may_be_function,
        )

    def _moved_under_another_name(self, below: Sequence[ast.stmt], item: HoldingVariable) -> str | None:
        """The name that the line right below gives the model where it moves it: ``moved = model.to(device)``."""
        node = below[0] if below else None
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return None
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in MOVING:
            return None
        return node.targets[0].id if exact_path(call.func.value) == item.path else None

    def _moved_by_main_guard(
        self, suite: Sequence[ast.stmt], limit: int, item: HoldingVariable
    ) -> tuple[Sequence[ast.stmt], int, int] | None:
        """The suite of the guard below, from where it moves the model until it trains: ``net = net.cuda()``."""
        guard = suite[limit] if limit < len(suite) else None
        built = self._variables.optimizer_statement(item)
        if not isinstance(guard, ast.If) or not is_main_guard(guard) or (built and not holds(guard, built)):
            return None
        end = next((i for i, part in enumerate(guard.body) if self.program.runs_backward(part)), len(guard.body))
        moving = (i for i in range(end) if self._variables.is_placing(guard.body[i], item.path))
        first = next(moving, None)
        return (guard.body, first, end) if first is not None else None

    def _made_by_function(self, suite: Sequence[ast.stmt], item: HoldingVariable) -> ast.stmt | None:
        """The first statement whose function makes an optimizer of what it is given of the model."""
        for statement in suite:
            for node in blocks.walk_own(statement):
                if not isinstance(node, ast.Call) or not blocks.touches({item.path}, blocks.reads(node)):
                    continue
                if self.flow.callees(node) and any(map(is_optimizer, self.flow.values(node, item.scope))):
                    return statement
        return None

    def _may_give_function(self, assignment: ast.stmt, scope: Scope) -> bool:
        """Whether an assignment may give its variable a function, as ``loss = build(name)`` does for some names."""
        value = _assigned(assignment)
        found = self.flow.values(value, scope) if value is not None else set()
        return any(
            item.kind == "function" or (item.kind == "external" and item.name.startswith(_FUNCTIONS)) for item in found
        )

    def _suite_of(self, item: HoldingVariable, value: Value) -> Sequence[ast.stmt]:
        """The suite that holds every assignment, outside of conditions without which the model stays in the variable.

        ``if gpus > 1: self.net = nn.DataParallel(self.net)`` only wraps what another function has made.
        """
        suite: Sequence[ast.stmt] = self._variables.common_suite(item)
        suite = self._only_made_under(suite, item) or suite
        if not all(_reads(given, item.path) for node in item.assignments if (given := _assigned(node))):
            return suite
        for parent in blocks.enclosing(item.module, item.assignments[0]):
            inner = [node for node in blocks.walk_own(parent) if isinstance(node, ast.stmt)]
            if not isinstance(parent, ast.If) or any(map(_may_end, inner)) or self.program.runs_backward(parent):
                break
            if not all(holds(parent, given) for given in item.assignments):
                continue
            if not self._is_held_without(parent, item, value):
                break
            suite = blocks.place(item.module, parent).suite
        return suite

    def _only_made_under(self, suite: Sequence[ast.stmt], item: HoldingVariable) -> Sequence[ast.stmt] | None:
        """The suite of a condition without which no model is made, and where others only wrap it in DataParallel.

        ``if posed: nets["pose"] = Pose()``, and below ``if gpus > 1: nets["pose"] = nn.DataParallel(nets["pose"])``.
        """
        start = next(index for index, statement in enumerate(suite) if holds(statement, item.assignments[0]))
        made = suite[start]
        if not isinstance(made, ast.If) or made.orelse:
            return None
        within = [given for given in item.assignments if holds(made, given)]
        others = [given for given in item.assignments if given not in within]
        wrapped = [value for given in others if (value := _assigned(given)) and self._is_parallel(value, item.scope)]
        end = next((i for i in range(start + 1, len(suite)) if self.program.runs_backward(suite[i])), len(suite))
        below = suite[start + 1 : end]
        is_asked = any(not isinstance(node, (ast.If, *blocks.BODIES)) and _reads(node, item.path) for node in below)
        if not others or len(wrapped) < len(others) or is_asked:
            return None
        if any(_is_under(node, made.test) for node in below):
            return None  # that line follows them
        return self._variables.common_suite(replace(item, assignments=within))

    def _is_held_without(self, condition: ast.If, item: HoldingVariable, value: Value) -> bool:
        """Whether a variable has its model where a condition does not hold: another branch uses it, or all make it."""
        if _reads(condition.test, item.path):
            return False  # it may be asked for None
        above = blocks.place(item.module, condition)
        if any(
            isinstance(node, ast.Assign) and isinstance(value.site, ast.AST) and value.site in set(walk(node))
            for node in above.suite[: above.index]
        ):
            return True  # ``nets = {"depth": Net()}``
        if any(_reads(node, item.path) for node in condition.orelse):
            return True
        if is_function(item.body) and item.path in {argument.arg for argument in arguments_of(item.body)}:
            return True
        return any(
            key == item.key and body is not item.body and _always_gives(getattr(body, "body", ()), path)
            for _, path, key, body, _ in self._variables.given.get(value, ())
        )

    def of_parameter(self, item: HoldingVariable, value: Value) -> Home | None:
        """Behind what places the model or sets its weights in the function, else before its first use."""
        suite: list[ast.stmt] = item.body.body  # type: ignore[attr-defined]
        limit = next((i for i, part in enumerate(suite) if self.program.runs_backward(part)), len(suite))
        used = [i for i, part in enumerate(suite) if blocks.touches({item.path}, blocks.reads(part))]
        placed = [
            i
            for i, part in enumerate(suite[:limit])
            if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and any(
                self._variables.is_placing(node, item.path) or self._initialises(node, item, value)
                for node in walk(part)
                if isinstance(node, ast.stmt)
            )
        ]
        if not used or used[0] > limit:
            return None
        last = placed[-1] if placed else used[0]
        return Home(
            item.module,
            item.scope,
            item.body,
            suite[last],
            item.path,
            item.key,
            inline=None,
            rebinds=not any(self._leaks(part, item.path) for part in suite[:last]),
            made=made_at(value),
            before=not placed,
        )

    def _initialises(self, statement: ast.stmt, item: HoldingVariable, value: Value) -> bool:
        """Whether a call sets weights of a part of the model, or of the model under another name."""
        # ``missing = model.load_state_dict(state)``
        if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(statement.value, ast.Call):
            return False
        call = statement.value
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            return False
        if isinstance(call.func, ast.Attribute) and (call.func.attr in _INITIALISING or self._loads_itself(call)):
            part: ast.expr = call.func.value
        elif call.args and any(name.startswith("torch.nn.init.") for name in self.program.names(call.func, item.scope)):
            part = call.args[0]
        else:
            return False
        while isinstance(part, (ast.Attribute, ast.Subscript)):
            if value in self.flow.values(part, item.scope):
                return True
            part = part.value
        return isinstance(part, ast.Name) and value in self.flow.values(part, item.scope)

    def _loads_itself(self, call: ast.Call) -> bool:
        """Whether a method of the script's own loads weights into its object, or a part: ``trainer.load(path)``."""
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load_state_dict"
            and (blocks.path_of(node.func.value) or "").partition(".")[0] == info.receiver
            and (located := self.program.locate(node)) is not None
            and bool(self.program.roles.modules(node.func.value, located[1]))
            for info in self.flow.callees(call)
            for node in self.program.nodes_of(info.node)
        )

    def _completes(self, statement: ast.stmt, item: HoldingVariable) -> bool:
        """Whether the statement exchanges a part of the model, freezes some of it, or has a function load it."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return False
        nodes = list(blocks.walk_own(statement))
        if any(path.startswith(f"{item.path}.") for path in blocks.writes(statement)):
            return True
        if blocks.touches({item.path}, blocks.reads(statement)) and any(_freezes(node) for node in nodes):
            return True
        for call in nodes:
            if not isinstance(call, ast.Call) or not any(blocks.path_of(given) == item.path for given in call.args):
                continue
            for info in self.flow.callees(call):
                inner = self.program.nodes_of(info.node)
                if any(_freezes(node) or _loads(node, info.parameters) for node in inner):
                    return True
        return False

    def _is_parallel(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is a ``DataParallel``, which another rewrite takes out."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            return False
        return bool(self.program.names(node.func, scope) & DATA_PARALLEL)

    def _leaks(self, statement: ast.stmt, path: str) -> bool:
        """Whether the statement keeps the model elsewhere: in a list, an attribute, another object."""
        for node in blocks.walk_own(statement):
            if isinstance(node, ast.Call):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                if not any(exact_path(argument) == path for argument in arguments):
                    continue
                inner = [item for item in walk(statement) if isinstance(item, ast.stmt) and node in set(walk(item))]
                if any(self._variables.is_placing(item, path) for item in inner):
                    continue
                if self._only_uses(node, path) or self._copies(node):
                    continue
                # A library's function that gives nothing back (``print``) keeps nothing either.
                if self.flow.callees(node) or not any(isinstance(item, ast.Expr) for item in inner):
                    return True
            elif isinstance(node, (ast.List, ast.Tuple, ast.Dict)):
                parts = node.values if isinstance(node, ast.Dict) else node.elts
                if any(part is not None and exact_path(part) == path for part in parts):
                    if isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                        return True
        return False

    def _only_uses(self, call: ast.Call, path: str) -> bool:
        """Whether the functions of the project that get the model ask it for things, and keep it nowhere."""
        callees = self.flow.callees(call)
        for info in callees:
            given = {name for name, argument in info.bound(call) if blocks.path_of(argument) == path}
            if not given or info.yields:
                return False
            parents = info.module.module.parents
            for node in walk(info.node):
                if not isinstance(node, ast.Name) or node.id not in given:
                    continue
                parent = parents.get(node)
                if isinstance(parent, ast.Call) and node in parent.args and self._copies(parent):
                    continue
                if not isinstance(parent, ast.Attribute):
                    return False
                # What an object is made with it may keep parts of.
                if info.name == "__init__" and not (parent.attr in _GIVING_STATE and _is_called(parent, parents)):
                    return False
        return bool(callees)

    def _copies(self, call: ast.Call) -> bool:
        """Whether a call makes a copy of what it is given, which is an object of its own."""
        located = self.program.locate(call)
        return located is not None and "copy.deepcopy" in self.program.callee_names(call, located[1])


def _is_called(node: ast.Attribute, parents: Mapping[ast.AST, ast.AST]) -> bool:
    parent = parents.get(node)
    return isinstance(parent, ast.Call) and parent.func is node


def _reads(node: ast.AST, path: str) -> bool:
    """Whether a node reads a variable, or the one item of a container that a path names."""
    return path in blocks.reads(node) or any(
        isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load) and exact_path(part) == path
        for part in walk(node)
    )


def _assigned(statement: ast.stmt) -> ast.expr | None:
    return statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None


def _made_last(suite: Sequence[ast.stmt], path: str, start: int) -> int:
    """Where a suite makes the last model of a variable: what was kept of one before it is no part of this one."""
    for index in range(len(suite) - 1, start, -1):
        statement = suite[index]
        if isinstance(statement, ast.Assign) and path not in blocks.reads(statement.value):
            if any(exact_path(target) == path for target in statement.targets):
                return index
    return start


def _always_gives(suite: object, path: str) -> bool:
    """Whether running a suite assigns a variable, whatever conditions in it hold."""
    for statement in suite if isinstance(suite, list) else ():
        if isinstance(statement, ast.Assign) and any(exact_path(target) == path for target in statement.targets):
            return True
        if isinstance(statement, ast.With) and _always_gives(statement.body, path):
            return True
        if (
            isinstance(statement, ast.If)
            and _branch_gives(statement.body, path)
            and _branch_gives(statement.orelse, path)
        ):
            return True
    return False


def _branch_gives(suite: list[ast.stmt], path: str) -> bool:
    return _always_gives(suite, path) or (bool(suite) and isinstance(suite[-1], ast.Raise))


def _freezes(node: ast.AST) -> bool:
    """``param.requires_grad = False``, ``module.requires_grad_(False)``."""
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute) and target.attr == "requires_grad" for target in node.targets)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_"


def _loads(node: ast.AST, names: Collection[str]) -> bool:
    """``model.load_state_dict(...)`` for one of the names."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load_state_dict"
        and blocks.path_of(node.func.value) in names
    )


def _emptied(statement: ast.stmt, path: str) -> list[ast.stmt]:
    """The assignments of None within a statement, one of whose branches makes the model."""
    return [
        node
        for node in walk(statement)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and node.value.value is None
        and any(exact_path(target) == path for target in node.targets)
    ]


def _emptied_by(suite: Sequence[ast.stmt], path: str) -> list[ast.stmt]:
    """The last line of a suite that assigns a variable, where it gives it None: ``net = None``."""
    last = next((node for node in reversed(suite) if path in blocks.writes(node)), None)
    return [last] if isinstance(last, ast.Assign) and is_none(last.value) else []


def _until(suite: Sequence[ast.stmt], limit: int, item: HoldingVariable) -> list[ast.stmt]:
    """The assignments of a variable but for those below its training, which no loop comes back from."""
    if any(isinstance(parent, blocks.LOOPS) for parent in blocks.enclosing(item.module, suite[0])):
        return list(item.assignments)
    return [given for given in item.assignments if not any(holds(below, given) for below in suite[limit:])]


def _is_asked_behind(given: ast.stmt, suite: Sequence[ast.stmt], path: str) -> bool:
    """Whether a variable is asked for an attribute behind an assignment, whatever happens: the script fails on None."""
    place = next((index for index, statement in enumerate(suite) if holds(statement, given)), len(suite))
    for statement in suite[place + 1 :]:
        if _asks_for_attribute(statement, path):
            return True
        if path in blocks.writes(statement) or any(map(_may_end, blocks.walk_own(statement))):
            return False
        if isinstance(statement, ast.If) and path in blocks.reads(statement.test):
            return False  # it may be asked for None
    return False


def _under_its_condition(suite: Sequence[ast.stmt], last: int, item: HoldingVariable) -> ast.stmt | None:
    """The next line under the condition that a model is made under, where other statements stand behind that one.

    ``if kind == "net": net = Net()``, and below ``if resume: ...`` for any kind: there the variable may not be bound.
    """
    made = suite[0]
    if last == 0 or not isinstance(made, ast.If) or made.orelse:
        return None
    if _is_under(suite[last], made.test):
        return None
    for node in suite[last + 1 :]:
        if isinstance(node, ast.If) and _is_under(node, made.test):
            return node.body[0]
        if _reads(node, item.path):
            return None
    return None


def _is_under(statement: ast.stmt, condition: ast.expr) -> bool:
    """Whether a statement runs under a condition that another one has, in the same words."""
    return isinstance(statement, ast.If) and ast.dump(statement.test) == ast.dump(condition)


def _may_end(node: ast.AST) -> bool:
    return isinstance(node, _ENDS) or (isinstance(node, ast.Expr) and ends_process(node.value))


def _leaves_with(node: ast.stmt, statement: ast.stmt, module: Module) -> bool:
    """Whether no training comes behind a part of a statement: ``if args.evaluate: model.load_state_dict(...); return``.

    What places the model or sets its weights for another use does not complete the one that is trained.
    """
    while node is not statement:
        place = blocks.place(module, node)
        end = place.suite[-1]
        if isinstance(end, (ast.Return, ast.Raise)) or (isinstance(end, ast.Expr) and ends_process(end.value)):
            return True
        parent = module.parents[node]
        if not isinstance(parent, ast.stmt):
            return False
        node = parent
    return False


def _asks_for_attribute(statement: ast.stmt, path: str) -> bool:
    """``model.to(device)``: whether running the statement is sure to fail where the variable is None."""
    pending: list[ast.expr] = [statement.value] if isinstance(statement, ast.Expr | ast.Assign) else []
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Attribute) and blocks.path_of(part.value) == path:
            return True
        pending += _computed_first(part)
    return False


def _computed_first(node: ast.expr) -> list[ast.expr]:
    """The parts of an expression that are computed whatever the others give."""
    if isinstance(node, ast.Call):
        return [node.func, *node.args, *(item.value for item in node.keywords)]
    if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        return [node.generators[0].iter]
    if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        return [node.value]
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [*node.elts] if isinstance(node, ast.Tuple | ast.List) else []
