"""The variables that hold a model, and what a program does with each."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Cell, ClassInfo, Value
from amp_rules.roles.kinds import is_loader_value, is_optimizer
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.models import OF_TENSORS_ALONE, PUTS_PART, RETURNS_RECEIVER, TELLS_OF_MODEL

PLACING = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "float",
        "double",
        "half",
        "apply",
        "load_state_dict",
        "init_weights",
        "reset_parameters",
        "npu",
        "requires_grad_",
        "initialize",
        "load_weights",
        "share_memory",
        "weight_init",
        "init_parameters",
    ]
)
"""Methods of a model that move it or set its weights."""

NOTHING = Cell()

_RUNS_NOTHING = TELLS_OF_MODEL | {"apply"}


@dataclass
class HoldingVariable:
    """A variable that holds a model in one body, with the assignments that give it one."""

    key: CellKey
    path: str
    module: Module
    scope: Scope
    body: ast.AST
    assignments: list[ast.stmt]


_LISTING = frozenset(
    {"list", "tuple", "set", "dict", "sorted", "filter", "map", "zip", "enumerate", "iter", "reversed"}
)


class Variables:
    """Finds the variables that hold a model."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = program.flow
        self._makes_optimizer: dict[ast.Call, bool] = {}

    def of(self, value: Value) -> list[HoldingVariable]:
        """The variables that a model may be prepared through."""
        found: dict[tuple[CellKey, ast.AST], HoldingVariable] = {}
        for node, path, key, body, scope in self.given.get(value, ()):
            entry = found.setdefault((key, body), HoldingVariable(key, path, scope.module, scope, body, []))
            entry.assignments.append(blocks.statement_of(scope.module, node))
        for entry in found.values():
            # Where the variable holds None until something makes the model, the model is made there: under a condition
            # of the same body, or in another one, such as a property that makes it when it is first asked for.
            entry.assignments = [item for item in entry.assignments if not _empties(item)]
        return [
            item
            for item in found.values()
            if item.assignments and not self._only_builds(item) and not self._is_tensor(item, value)
        ]

    @cached_property
    def given(self) -> dict[Value, list[tuple[ast.AST, str, CellKey, ast.AST, Scope]]]:
        """The assignments that may give a variable a model, by what the variable holds: gone through once for all."""
        found: dict[Value, list[tuple[ast.AST, str, CellKey, ast.AST, Scope]]] = {}
        for node, body, scope in self.program.nodes():
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target, given in (pair for item in targets for pair in blocks.unpacked(item, node.value)):
                path = exact_path(target)
                if path is None or _is_no_model(given):
                    continue
                key = self._key(target, scope)
                if key is None:
                    continue
                values = self.flow.values(blocks.reading(target), scope)
                if any(map(is_loader_value, values)):
                    continue  # calls of a base class's method may be taken for those of another one of that name
                for value in values:
                    found.setdefault(value, []).append((node, path, key, body, scope))
        return found

    def _only_builds(self, item: HoldingVariable) -> bool:
        """Whether a class of models makes a part there and trains none, as one that fits a head does."""
        return self.program.is_model_code(item.body) and (
            "." in item.path or item.path.endswith("]") or self.optimizer_statement(item) is None
        )

    def _is_tensor(self, item: HoldingVariable, value: Value) -> bool:
        """Whether a body does with a variable what no model can: ``pose.detach()``, ``pose[..., :3]``.

        What a container of anything seems to hold may be taken for a model. A variable that the model is made for holds
        it, whatever becomes of its name later.
        """
        if value.site is not None and any(holds(statement, value.site) for statement in item.assignments):
            return False
        return any(
            _asks_tensor(node, value)
            and blocks.path_of(node.value) == item.path
            and self.flow.key(node.value, item.scope) == item.key
            for node in self.program.nodes_of(item.body)
            if isinstance(node, (ast.Attribute, ast.Subscript))
        )

    def _key(self, target: ast.expr, scope: Scope) -> CellKey | None:
        """The cell that a variable stands for, an item of a dictionary of models included."""
        if isinstance(target, ast.Subscript):
            key = self.flow.key(target.value, scope)
            return ((key, "item"), exact_path(target) or "") if key is not None else None
        return self.flow.key(target, scope)

    def of_its_class(self, items: list[HoldingVariable], value: Value) -> list[HoldingVariable]:
        """Without an attribute as other classes assign it, where a method gives its own object the model.

        Classes with a common base have one variable for all their objects. A base gives it a model of its own, which a
        derived class replaces by this one.
        """
        owners = [self._class_around(item) for item in items]
        makers = {
            owner
            for item, owner in zip(items, owners, strict=True)
            if owner is not None and any(holds(statement, value.site) for statement in item.assignments if value.site)
        }
        if not makers:
            return items
        return [
            item
            for item, owner in zip(items, owners, strict=True)
            if owner is None
            or owner in makers
            or (
                any(owner in maker.mro() or maker in owner.mro() for maker in makers)
                and not self.gives_another(item, value)
            )
        ]

    def gives_another(self, item: HoldingVariable, value: Value) -> bool:
        """Whether each assignment of a body gives the variable models that are known, and this one to none."""
        sources = [_given(statement, item.path) for statement in item.assignments]
        held = [self.program.roles.modules(source, item.scope) if source is not None else set() for source in sources]
        return all(models and value not in models for models in held)

    def _class_around(self, item: HoldingVariable) -> ClassInfo | None:
        """The class in one of whose methods an attribute of ``self`` gets a model."""
        info = self.program.function_of(item.body)
        if info is None or item.path.partition(".")[0] != info.receiver or "." not in item.path:
            return None
        return self.flow.class_of(info)

    def makes_anew(self, item: HoldingVariable, value: Value) -> bool:
        """Whether the variable gets its model of a function that makes one in each call."""
        located = self.program.locate(value.site) if value.site is not None else None
        calls = [getattr(statement, "value", None) for statement in item.assignments]
        made = [call for call in calls if isinstance(call, ast.Call) and call is not value.site]
        return located is not None and located[0] in self.program.called_from(made)

    def is_read(self, item: HoldingVariable) -> bool:
        """Whether anything reads the variable: ``_, name = make()`` throws a model away."""
        reads = self.program.reads_named(item.path.rpartition(".")[2])
        if any(self.flow.key(node, scope) in (item.key, None) for node, scope in reads):
            return True
        return isinstance(item.key[0], tuple)  # an item of a container, which is read as a whole

    def is_run(self, item: HoldingVariable) -> bool:
        """Whether the model is run by the variable: ``self.model(x)``, whatever other name it was made under."""
        return item.key in self._run

    @cached_property
    def _run(self) -> set[CellKey | None]:
        return {
            self.flow.key(call.func, scope)
            for call, _, scope in self.program.calls()
            if isinstance(call.func, (ast.Name, ast.Attribute)) and self.program.called_models(call, scope)
        }

    def only_tells(self, item: HoldingVariable) -> bool:
        """Whether an attribute keeps a model that it is given, and nothing runs the model through it.

        It logs or saves the model, or sets the momentum of its batch norm.
        """
        owner, _, name = item.path.rpartition(".")
        given = {argument.arg for argument in arguments_of(item.body)} if is_function(item.body) else set()
        if not owner or not all(_assigned_name(statement) in given for statement in item.assignments):
            return False
        for node, scope in self.program.reads_named(name):
            if isinstance(node, ast.Attribute):
                parent = scope.module.parents[node]
                told = isinstance(parent, ast.Attribute) and parent.attr in _RUNS_NOTHING
                if not told and self._may_be(node, scope, item):
                    return False
        return True

    def _may_be(self, node: ast.Attribute, scope: Scope, item: HoldingVariable) -> bool:
        """Whether an attribute of the name may be that of the object: ``config.model`` that nothing runs is none."""
        key = self.flow.key(node, scope)
        if key is not None:
            return key == item.key
        parent = scope.module.parents[node]
        is_run = isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node)
        return is_run or bool(self.program.roles.modules(node, scope))

    def only_unwraps(self, item: HoldingVariable) -> bool:
        """Whether a function takes the wrapper off the model that it is given.

        ``model = model.module``, ``net = ddp_net.module``, ``net = self.get_bare_model(net)``.
        """
        values = [getattr(statement, "value", None) for statement in item.assignments]
        return all(
            (blocks.path_of(value) or "").startswith(f"{item.path}.")
            or (isinstance(value, ast.Attribute) and value.attr == "module")
            or self._takes_off(value, item.path)
            for value in values
            if value is not None
        )

    def _takes_off(self, value: ast.expr, path: str) -> bool:
        """Whether a call gives the model back that it is given, what is in its wrapper, or its weights alone."""
        if not isinstance(value, ast.Call):
            return False
        if isinstance(value.func, ast.Attribute) and value.func.attr in TELLS_OF_MODEL - {"eval", "train"}:
            return exact_path(value.func.value) == path
        if [exact_path(item) for item in value.args] != [path] or value.keywords:
            return False
        infos = self.flow.callees(value)
        return bool(infos) and all(map(_gives_what_is_wrapped, infos))

    def comes_too_late(self, item: HoldingVariable) -> bool:
        """Whether the training is over when the variable gets its model."""
        first = item.assignments[0]
        suite = self.common_suite(item)
        start = next(index for index, statement in enumerate(suite) if holds(statement, first))
        return self.program.runs_backward(first) or (
            any(self.program.runs_backward(statement) for statement in suite[:start])
            and not any(self.program.runs_backward(statement) for statement in suite[start + 1 :])
        )

    def only_returned(self, item: HoldingVariable) -> bool:
        """Whether the variable belongs to a factory that returns the model, and does not train it."""
        info = self.program.function_of(item.body)
        if info is None or "." in item.path or any(map(self.program.runs_backward, self._own_statements(item))):
            return False
        return any(item.path in blocks.reads(value) for value in info.returns)

    def turns(self, item: HoldingVariable) -> list[HoldingVariable]:
        """The assignments by model, where a variable gets another one after the first was trained."""
        found = [turn for branch in self._by_branch(item) for turn in self._turns_of(branch)]
        if len(found) < 2:
            return found
        # A branch that is one turn among others may train several models itself, one after another.
        return [one for turn in found for one in self.turns(turn)]

    def _by_branch(self, item: HoldingVariable) -> list[HoldingVariable]:
        """One for each branch of a condition, where the branches make their models and train them themselves."""
        around = [statement for statement in self.common_suite(item) if holds(statement, item.assignments[0])]
        if len(item.assignments) < 2 or not any(map(self.program.runs_backward, around)):
            return [item]
        branches: list[list[ast.stmt]] = []
        for given in item.assignments:
            own = next((b for b in branches if not blocks.exclude_each_other(item.module, b[0], given)), None)
            if own is None:
                branches.append([given])
            else:
                own.append(given)
        return [replace(item, assignments=branch) for branch in branches]

    def _turns_of(self, item: HoldingVariable) -> list[HoldingVariable]:
        turns: list[list[ast.stmt]] = []
        trained = True
        for statement in self.common_suite(item):
            inside = [given for given in item.assignments if holds(statement, given)]
            if inside:
                if trained and (not turns or any(self._is_new(given, item) for given in inside)):
                    turns.append([])
                elif not trained and (fresh := [one for one in inside if self._begins(one, turns[-1], item)]):
                    if any(self._is_certain(one, item) for one in fresh) and not self._trains_beside(statement, item):
                        turns.pop()  # only looked at: the loop makes the model that it trains
                    turns.append([])
                later = [given for given in inside if self._replaces(given, turns[0], statement, item)]
                turns[-1].extend(given for given in inside if given not in later)
                turns.extend([given] for given in later)
                # A loop or a branch may make its model and train it; ``model = train(model)`` trains what it has.
                is_given = isinstance(statement, ast.Assign) and item.path in blocks.reads(statement.value)
                trained = (is_given or statement not in inside) and self.program.runs_backward(statement)
            elif turns and self.program.runs_backward(statement):
                trained = True
        return [replace(item, assignments=turn) for turn in turns]

    def _begins(self, given: ast.stmt, first: list[ast.stmt], item: HoldingVariable) -> bool:
        """Whether each round of a loop makes another model and trains it: ``model = Net()`` above the steps."""
        if blocks.loop_around(item.module, given) is None or not self._is_another(given, first, item):
            return False
        trains = False
        for suite, index in blocks.suites_around(item.module, given):
            if any(map(self.program.runs_backward, suite[:index])):
                return False
            trains = trains or any(map(self.program.runs_backward, suite[index + 1 :]))
        return trains

    def _is_certain(self, given: ast.stmt, item: HoldingVariable) -> bool:
        """Whether a loop makes its model in each round."""
        around = next(iter(blocks.enclosing(item.module, given)), None)
        return isinstance(around, blocks.LOOPS)

    def _trains_beside(self, statement: ast.stmt, item: HoldingVariable) -> bool:
        """Whether anything but one statement of the suite trains."""
        return any(other is not statement and self.program.runs_backward(other) for other in self.common_suite(item))

    def _replaces(self, given: ast.stmt, first: list[ast.stmt], around: ast.stmt, item: HoldingVariable) -> bool:
        """Whether a loop that trains a model puts another one in its place: ``net = widen(net)`` below the steps."""
        if not any(isinstance(node, blocks.LOOPS) and holds(around, node) for node in item.module.ancestors(given)):
            return False
        where = blocks.place(item.module, given)
        trained = any(map(self.program.runs_backward, where.suite[: where.index]))
        return trained and self._is_another(given, first, item)

    def _is_another(self, given: ast.stmt, first: list[ast.stmt], item: HoldingVariable) -> bool:
        """Whether a statement gives the variable a model that it did not get before."""
        source = _given(given, item.path)
        if given in first or source is None or _gives_itself(source, item.path):
            return False
        others = [one for one in (_given(one, item.path) for one in first) if one is not None]
        others = [one for one in others if item.path not in blocks.reads(one)] or others  # not ``model.to(device)``
        known = {model for one in others for model in self.program.roles.modules(one, item.scope)}
        made = self.program.roles.modules(source, item.scope)
        return bool(known and made) and not known & made

    def _is_new(self, statement: ast.stmt, item: HoldingVariable) -> bool:
        """Whether a model is assigned that the variable did not hold."""
        source = getattr(statement, "value", None)
        if not isinstance(source, ast.expr) or item.path in blocks.reads(source):
            return False
        return bool(self.program.roles.modules(source, item.scope))

    def places(self, item: HoldingVariable) -> bool:
        """Whether the body of the variable moves its model or sets its weights."""
        return any(self.is_placing(statement, item.path) for statement in self._own_statements(item))

    def _own_statements(self, item: HoldingVariable) -> list[ast.stmt]:
        return [node for node in self.program.nodes_of(item.body) if isinstance(node, ast.stmt)]

    def is_placing(self, statement: ast.stmt, path: str) -> bool:
        """Whether a simple statement moves the model, sets its weights, adds a part, or assigns the variable."""
        if isinstance(statement, ast.Assign):
            if any(path in _flat_paths(target) or _puts_item(target, path) for target in statement.targets):
                return True
        call = _thrown_away(statement)
        if not isinstance(call, ast.Call):
            return False
        # The last of a chain counts, ``model.half().float()``.
        if isinstance(call.func, ast.Attribute) and exact_path(without_placing(call.func.value)) == path:
            if call.func.attr in PLACING or call.func.attr in PUTS_PART:
                return True
        # ``init_weights(model)``: a function that is given nothing but the model.
        return (
            len(call.args) == 1
            and not call.keywords
            and exact_path(call.args[0]) == path
            and isinstance(call.func, (ast.Name, ast.Attribute))
            and "init" in (call.func.id if isinstance(call.func, ast.Name) else call.func.attr).lower()
        )

    def optimizer_statement(self, item: HoldingVariable) -> ast.stmt | None:
        """The first statement of the body that builds an optimizer from the variable's parameters.

        A factory that returns model and optimizer may sort the parameters into groups first.
        """
        indirect = None
        for node in self.program.nodes_of(item.body):
            if not isinstance(node, ast.Call):
                continue
            models = self.program.models_of_optimizer(node) if self.makes_optimizer(node, item.scope) else set()
            if models and any(path == item.path or path.startswith(item.path + ".") for path in blocks.reads(node)):
                return blocks.statement_of(item.module, node)
            if indirect is None and models & self.flow.cells.get(item.key, NOTHING).values:
                indirect = blocks.statement_of(item.module, node)
        return indirect if indirect is not None and self.only_returned(item) else None

    def makes_optimizer(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call gives an optimizer that it makes itself."""
        known = self._makes_optimizer.get(call)
        if known is None:
            values = self.flow.values(call, scope)
            known = self._makes_optimizer[call] = any(is_optimizer(item) and item.site is call for item in values)
        return known

    def common_suite(self, item: HoldingVariable) -> tuple[ast.stmt, ...]:
        """The innermost suite that holds every assignment of the variable in its body."""
        chains = []
        for statement in item.assignments:
            chain = [blocks.place(item.module, statement).suite]
            for parent in blocks.enclosing(item.module, statement):
                chain.append(blocks.place(item.module, parent).suite)
            chains.append(chain)
        for suite in chains[0]:
            if all(any(other and other[0] is suite[0] for other in chain) for chain in chains):
                return suite
        return chains[0][-1]


def _gives_what_is_wrapped(info: FunctionFacts) -> bool:
    """``if isinstance(net, Wrapper): net = net.module`` and ``return net``."""
    names = {item.arg for item in arguments_of(info.node)}
    given = [node.value for node in walk(info.node) if isinstance(node, ast.Assign)]
    return bool(info.returns) and all(
        (blocks.path_of(value) or "").removesuffix(".module") in names for value in [*info.returns, *given]
    )


def is_function(body: ast.AST) -> TypeGuard[FunctionNode]:
    """Whether a body is that of a function with a name."""
    return isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef))


def _assigned_name(statement: ast.stmt) -> str:
    """``model`` of ``self.model = model``; empty for anything else."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return value.id if isinstance(value, ast.Name) else ""


def _is_no_model(value: ast.expr) -> bool:
    """Whether a variable gets a tensor, a number, a text or a list, whatever else it may hold: ``x = x * scale``."""
    if isinstance(value, ast.Constant):
        return value.value is not None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _LISTING:
        return True  # ``modules = list(model.modules())``
    if isinstance(value, (ast.List, ast.ListComp, ast.Dict, ast.DictComp, ast.Set, ast.SetComp, ast.GeneratorExp)):
        return True
    return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr))


def _asks_tensor(node: ast.Attribute | ast.Subscript, value: Value) -> bool:
    """Whether an expression asks what is to the left of it for what only a tensor gives, and no model of a class."""
    if isinstance(node, ast.Attribute):
        is_own = value.kind == "instance" and value.ref.find_method(node.attr) is not None
        return node.attr in OF_TENSORS_ALONE and not is_own
    places = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    return any(
        isinstance(place, ast.Slice) or (isinstance(place, ast.Constant) and place.value is ...) for place in places
    )


def _empties(statement: ast.stmt) -> bool:
    """``model = None``."""
    value = getattr(statement, "value", None)
    return is_none(value)


def _given(statement: ast.stmt, path: str) -> ast.expr | None:
    """What a statement assigns to a variable, beside others too: ``Net()`` of ``new, old = Net(), new``."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    value = getattr(statement, "value", None)
    pairs = [pair for item in targets if item is not None and value for pair in blocks.unpacked(item, value)]
    return next((given for target, given in pairs if exact_path(target) == path), None)


def _gives_itself(source: ast.expr, path: str) -> bool:
    """Whether a variable is given what it holds: ``model.train()``, ``model.to(device).eval()``."""
    return exact_path(without_placing(source)) == path


def without_placing(node: ast.expr) -> ast.expr:
    """``Net()`` of ``Net().to(device)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER:
        node = node.func.value
    return node


def _flat_paths(target: ast.expr) -> set[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return {path for element in target.elts for path in _flat_paths(element)}
    path = exact_path(target)
    return {path} if path is not None else set()


def exact_path(node: ast.AST) -> str | None:
    """``self.model``, and ``self.models["encoder"]`` for an item of its own; other items count as their whole."""
    if isinstance(node, ast.Subscript):
        base = blocks.path_of(node.value) if not isinstance(node.value, ast.Subscript) else None
        is_item = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return f'{base}["{node.slice.value}"]' if base is not None and is_item else None  # type: ignore[attr-defined]
    return blocks.path_of(node)


def holds(statement: ast.stmt, node: ast.AST) -> bool:
    """Whether a node is a part of a statement."""
    return any(child is node for child in walk(statement))


def _puts_item(target: ast.expr, path: str) -> bool:
    """``nets["head"] = head``: a container of models gets one more."""
    return isinstance(target, ast.Subscript) and exact_path(target.value) == path


def _thrown_away(statement: ast.stmt) -> ast.expr | None:
    """What a statement computes for nothing to hold it; notebooks write ``_ = model.to(device)`` to show none of it."""
    if isinstance(statement, ast.Assign):
        is_held = any(not isinstance(target, ast.Name) or target.id != "_" for target in statement.targets)
        return statement.value if not is_held else None
    return statement.value if isinstance(statement, ast.Expr) else None
