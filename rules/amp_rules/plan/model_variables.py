"""The variable through which a model is prepared, and where in its life."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeGuard

from amp_rules.flow.cells import CellKey
from amp_rules.flow.records import constructor_fields
from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import Cell, ClassInfo, Value
from amp_rules.plan.part_by_part import PartByPart
from amp_rules.plan.step_conditions import may_be_none
from amp_rules.plan.trained_before import TrainedBefore
from amp_rules.roles.kinds import is_chain, is_module, is_optimizer
from amp_rules.roles.steps import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import walk
from amp_rules.torch.models import PUTS_PART, RETURNS_RECEIVER, TELLS_OF_MODEL
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL

_PLACING = frozenset(
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
_NOTHING = Cell()
_INITIALISING = frozenset({"apply", "load_state_dict", "init_weights", "reset_parameters", "load_weights"})


@dataclass(frozen=True)
class Home:
    """Where ``variable = prepare_model(variable)`` goes.

    Attributes:
        statement: the statement that it follows.
        variable: the source text of the variable, as in ``self.model``.
        inline: the constructor's expression when wrapping it reads better than a line of its own.
        in_place: whether the expression must be wrapped where it stands: in a list, or in the script's own DDP.
        made: where the model was made, to put models in order that are prepared at one place.
        rebinds: whether every later use of the model goes through the variable, so that it may hold a wrapper.
        is_optional: whether the variable may hold None there.
        before: whether it goes before the statement: the variable is a parameter, which holds its model from the start.
    """

    module: Module
    scope: Scope
    body: ast.AST
    statement: ast.stmt
    variable: str
    key: CellKey
    inline: ast.expr | None
    rebinds: bool
    in_place: bool = False
    made: tuple[int, int, str] = (0, 0, "")
    is_optional: bool = False
    before: bool = False


@dataclass
class _Candidate:
    key: CellKey
    path: str
    module: Module
    scope: Scope
    body: ast.AST
    assignments: list[ast.stmt]


class Homes:
    """Finds the homes of the models that a program trains."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = program.flow
        self._above: dict[Value, set[Value]] = {}
        self._holders_of: dict[Value, set[Value]] = {}
        self._trained_before = TrainedBefore(program)
        self._part_by_part = PartByPart(program)

    def find(self) -> tuple[list[Home], list[Value]]:
        """The homes of all trained models in the order of the program, and the models without one."""
        # Two classes with a common base may both make what is one attribute of the base.
        homes: dict[tuple[CellKey, ast.AST], Home] = {}
        missing: list[Value] = []
        housed: list[Value] = []
        for value in self.roots():
            candidates = self._candidates(value)
            chosen = self._choose(candidates, value)
            if chosen is None:
                made = self._where_made(value) or self._parameter(value)
                if made is None:
                    missing.append(value)
                else:
                    homes.setdefault((made.key, made.body), made)
                    housed.append(value)
            else:
                housed.append(value)
                turns = [turn for item in self._made_alike(chosen, candidates, value) for turn in self._turns(item)]
                for turn in turns:
                    if (turn.key, turn.assignments[0]) not in homes:
                        homes[turn.key, turn.assignments[0]] = self._home(turn, value)
        found = sorted(
            (one for home in homes.values() for one in _where_bound(self._inside_parallel(home))),
            key=lambda home: (str(home.module.path), home.module.start(home.statement), home.made),
        )
        # What a factory makes in one of several ways is one model, in one variable.
        single = {(home.statement, home.variable, home.inline): home for home in reversed(found)}
        return list(reversed(single.values())), [
            value
            for value in missing
            if not (self._is_part_of(housed, value) or self._is_made_for_parts_of(housed, value))
        ]

    def _is_part_of(self, housed: list[Value], value: Value) -> bool:
        """Whether a model without a variable is kept by one that has a variable.

        After ``model = Trained(model)`` what ``Trained`` wraps its model in seems to hold ``Trained`` as well.
        A library's container is made of what its call says: ``nn.Sequential(nn.Linear(5, 4), ...)``.
        """
        return any(model in self._all_holders(value) or _is_made_within(value, model) for model in housed)

    def _is_made_for_parts_of(self, housed: list[Value], value: Value) -> bool:
        """Whether all that ever holds a model are variables of constructors, which take parts of it for their own.

        ``base = getattr(backbones, name)()`` above ``self.layer1 = base.layer1``.
        """
        bodies = {body for _, path, _, body, _ in self._given.get(value, ()) if "." not in path}
        owners = [self._constructed(body) for body in bodies]
        return bool(owners) and all(owner is not None and self._belongs_to(housed, owner) for owner in owners)

    def _constructed(self, body: ast.AST) -> ClassInfo | None:
        """The class of models whose constructor a body is."""
        info = self.program.function_of(body)
        owner = info.cls if info is not None and info.name == "__init__" else None
        found = self.flow.classes.get(owner.node) if owner is not None else None
        return found if found is not None and is_module(Value("instance", found)) else None

    def _belongs_to(self, housed: list[Value], owner: ClassInfo) -> bool:
        """Whether an object of a class is a model with a variable, or a part of one; one without would be missing."""
        made = [value for value in self._instances if owner in value.ref.mro()]
        return any(value in housed or any(model in self._all_holders(value) for model in housed) for value in made)

    def of(self, value: Value) -> Home | None:
        """Where a single model goes through ``prepare_model``, if a variable or a list holds it."""
        chosen = self._choose(self._candidates(value), value)
        return self._where_made(value) if chosen is None else self._home(chosen, value)

    # ---- models --------------------------------------------------------------------------------------------

    def roots(self) -> list[Value]:
        """Trained models, each replaced by the model that holds it as a part."""
        trained = {value for value in self.program.trained if is_module(value) or value.kind in ("object", "attribute")}
        sited = {value.ref for value in trained if value.kind == "instance" and value.site is not None}
        trained = {
            value
            for value in trained
            if not (value.kind == "instance" and value.site is None and self._has_sited(value, sited))
        }
        roots: set[Value] = set()
        for value in trained:
            if value.kind == "attribute" or value.is_result:
                continue
            roots |= self._outermost(value) or {value}
        roots = self._without_parts(roots)
        return sorted((value for value in roots if not self._gives_parts_to(value, roots)), key=_order)

    def _without_parts(self, roots: set[Value]) -> set[Value]:
        """Without what a function makes that calls itself for each part, where who called it first has the whole."""
        inner = {value for value in roots if self._is_made_part_by_part(value)}
        outer = {value.ref for value in roots - inner}
        return {value for value in roots if value not in inner or value.ref not in outer}

    def _is_made_part_by_part(self, value: Value) -> bool:
        located = self.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        return located is not None and self._part_by_part.is_run(located[0])

    def _gives_parts_to(self, value: Value, roots: set[Value]) -> bool:
        """Whether a model is made for a part that another one keeps, and dropped: ``base = Backbone().features``."""
        made = self._calls_giving(value)
        parts = [self._part_asked_for(call) for call in made]
        if not parts or not all(parts):
            return False
        others = roots - {value}
        return all(any(self._all_holders(part) & others for part in found) for found in parts)

    def _calls_giving(self, value: Value) -> list[ast.Call]:
        """The constructor's call, or the calls of the factory whose variable holds the model until it is returned."""
        candidates = self._candidates(value)
        if not all(self._only_returned(item) for item in candidates):
            return []
        infos = [self.program.function_of(item.body) for item in candidates]
        if infos:
            return [caller.call for info in infos if info is not None for caller in self.flow.callers(info)]
        return [value.site] if isinstance(value.site, ast.Call) else []

    def _part_asked_for(self, call: ast.Call) -> set[Value]:
        """What is taken from a model that a call gives, if that is one attribute and nothing else."""
        located = self.program.locate(call)
        if located is None:
            return set()
        _, scope = located
        parents = scope.module.parents
        part = parents[call]
        while isinstance(part, ast.Attribute) and part.attr in RETURNS_RECEIVER:
            outer = parents[part]
            if not (isinstance(outer, ast.Call) and outer.func is part):
                return set()
            part = parents[outer]
        owner = parents[part]
        if not isinstance(part, ast.Attribute) or (isinstance(owner, ast.Call) and owner.func is part):
            return set()
        return self.flow.values(part, scope)

    @staticmethod
    def _has_sited(value: Value, sited: set[object]) -> bool:
        return any(value.ref is other or value.ref in other.mro() for other in sited)  # type: ignore[attr-defined]

    def _outermost(self, value: Value) -> set[Value]:
        """Instances of project models that keep ``value``, directly or through others, and are parts of nothing else.

        Names hold values regardless of the order of statements, so after ``net = Scale(net)`` and ``net = Shift(net)``
        each of the two wrappers seems to hold the other: models that hold each other are outermost together.
        """
        above = self._all_holders(value)
        found = {item for item in above if all(item in self._all_holders(other) for other in self._all_holders(item))}
        # What a factory made and another model keeps is a part, though the factory's own variable is none.
        return {item for item in found if not any(self._hands_out(other, item) for other in above)}

    def _all_holders(self, value: Value) -> set[Value]:
        """What keeps ``value``, what keeps that, and so on; ``value`` itself among it where it comes round."""
        known = self._above.get(value)
        if known is None:
            known = set()
            pending = [value]
            while pending:
                fresh = self._holders(pending.pop()) - known
                known |= fresh
                pending.extend(fresh)
            self._above[value] = known
        return known

    def _holders(self, value: Value) -> set[Value]:
        """Instances of project models that keep ``value`` as an attribute."""
        if value not in self._holders_of:
            self._holders_of[value] = {
                made
                for info in self._classes_with(value)
                for made in self._instances
                if info in made.ref.mro() and made != value
            } | {chain for chain in self._chains if chain != value and value in self.flow.elements([chain])}
        return self._holders_of[value]

    def _classes_with(self, value: Value) -> set[ClassInfo]:
        """Classes of models one of whose attributes is ``value``, or a container of it."""
        found: set[ClassInfo] = set()
        for (owner, _), cell in self.flow.cells.items():
            info = self.flow.classes.get(owner) if isinstance(owner, ast.ClassDef) else None
            if info is None or info in found or not is_module(Value("instance", info)):
                continue
            if value.kind == "instance" and value.ref is info:
                continue
            if value in cell.values or value in self.flow.elements(cell.values):
                found.add(info)
        return found

    def _hands_out(self, one: Value, other: Value) -> bool:
        """Whether one is the other again, as the caller of a factory has it."""
        if one == other or one.ref is not other.ref or not isinstance(one.site, ast.Call):
            return False
        module = self.program.module_of(other.site) if other.site is not None else None
        if module is None or other.site is None:
            return False
        return blocks.body_of(module, other.site) in self.program.called_from({one.site})

    @cached_property
    def _instances(self) -> set[Value]:
        return {
            value
            for cell in self.flow.cells.values()
            for value in cell.values
            if value.kind == "instance" and value.site is not None
        }

    @cached_property
    def _chains(self) -> set[Value]:
        """Chains that the program makes of its layers: ``nn.Sequential(...)``."""
        return {
            value
            for cell in self.flow.cells.values()
            for value in cell.values
            if value.kind == "object" and value.site is not None and is_chain(value)
        }

    # ---- variables -----------------------------------------------------------------------------------------

    def _candidates(self, value: Value) -> list[_Candidate]:
        found: dict[tuple[CellKey, ast.AST], _Candidate] = {}
        for node, path, key, body, scope in self._given.get(value, ()):
            entry = found.setdefault((key, body), _Candidate(key, path, scope.module, scope, body, []))
            entry.assignments.append(blocks.statement_of(scope.module, node))
        found = {key: item for key, item in found.items() if not self._only_builds(item)}
        for entry in found.values():
            # Where the variable holds None until a condition makes the model, the model is made under that condition.
            entry.assignments = [item for item in entry.assignments if not _empties(item)] or entry.assignments
        return list(found.values())

    @cached_property
    def _given(self) -> dict[Value, list[tuple[ast.AST, str, CellKey, ast.AST, Scope]]]:
        """The assignments that may give a variable a model, by what the variable holds: gone through once for all."""
        found: dict[Value, list[tuple[ast.AST, str, CellKey, ast.AST, Scope]]] = {}
        for node, body, scope in self.program.nodes():
            if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target, given in (pair for item in targets for pair in blocks.unpacked(item, node.value)):
                path = _exact_path(target)
                if path is None or _is_no_model(given):
                    continue
                key = self._key(target, scope)
                if key is None:
                    continue
                for value in self.flow.values(blocks.reading(target), scope):
                    found.setdefault(value, []).append((node, path, key, body, scope))
        return found

    def _only_builds(self, item: _Candidate) -> bool:
        """Whether a class of models makes a part there and trains none, as one that fits a head does."""
        return self.program.is_model_code(item.body) and (
            "." in item.path or item.path.endswith("]") or self._optimizer_statement(item) is None
        )

    def _key(self, target: ast.expr, scope: Scope) -> CellKey | None:
        """The cell that a variable stands for, an item of a dictionary of models included."""
        if isinstance(target, ast.Subscript):
            key = self.flow.key(target.value, scope)
            return ((key, "item"), _exact_path(target) or "") if key is not None else None
        return self.flow.key(target, scope)

    def _inside_parallel(self, home: Home) -> Home:
        """The argument of the script's own DDP, if it has one: a model gets its precision before it is wrapped."""
        for call, body, scope in self.program.calls():
            if not isinstance(call.func, (ast.Name, ast.Attribute)) or not call.args:
                continue
            if not self.program.names(call.func, scope) & DISTRIBUTED_DATA_PARALLEL:
                continue
            argument = call.args[0]
            statement = blocks.statement_of(scope.module, call)
            held = {blocks.path_of(argument)}
            if isinstance(statement, ast.Assign):
                held |= {blocks.path_of(target) for target in statement.targets}
            if body is home.body and blocks.exclude_each_other(home.module, home.statement, statement):
                continue
            if body is home.body and home.variable in held:
                before = self._before_branch(home, statement)
                if before is not None:
                    return replace(home, statement=before, inline=None)
                return replace(
                    home, module=scope.module, scope=scope, statement=statement, inline=argument, in_place=True
                )
        return self._behind_wrapping(home)

    def _behind_wrapping(self, home: Home) -> Home:
        """Behind the condition under which the script spreads a model that it was given: other paths have it too."""
        statement = home.statement
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not (_is_function(home.body) and isinstance(call, ast.Call) and call.args):
            return home
        own = home.variable == blocks.path_of(call.args[0])
        if not own or not self.program.callee_names(call, home.scope) & DATA_PARALLEL:
            return home
        around = [parent for parent in blocks.enclosing(home.module, statement) if isinstance(parent, ast.If)]
        given = {argument.arg for argument in arguments_of(home.body)}
        if not around or home.variable not in given:
            return home
        others = [
            node
            for node in walk(around[-1])
            if isinstance(node, (ast.Name, ast.Attribute)) and blocks.path_of(node) == home.variable
        ]
        # Once assigned and once given to the wrapper: anything else there would use the model before it is prepared.
        return replace(home, statement=around[-1], inline=None) if len(others) == 2 else home

    def _before_branch(self, home: Home, wrapping: ast.stmt) -> ast.stmt | None:
        """The statement before the condition under which the script wraps its model, where other paths do not."""
        around = [
            parent
            for parent in blocks.enclosing(home.module, wrapping)
            if isinstance(parent, ast.If) and not is_main_guard(parent)
        ]
        if not around:
            return None
        outermost = around[-1]
        where = blocks.place(home.module, outermost)
        before = [item for item in where.suite[: where.index] if not self._runs_instead(home, item, wrapping)]
        if not any(home.variable in blocks.writes(item) for item in before):
            return None
        # Weights that are loaded under a condition come before it, too, unless an optimizer has the parameters by then.
        built = next((index for index, item in enumerate(before) if self._builds_optimizer(item, home)), len(before))
        return [
            item
            for index, item in enumerate(before)
            if home.variable in blocks.writes(item)
            or _is_placed_by(item, home.variable)
            or (index < built and any(_is_placed_by(node, home.variable) for node in blocks.walk_own(item)))
        ][-1]

    def _runs_instead(self, home: Home, statement: ast.stmt, other: ast.stmt) -> bool:
        """Whether all that a statement does with the variable is done where another statement does not run."""
        return all(
            blocks.exclude_each_other(home.module, node, other)
            for node in blocks.walk_own(statement)
            if blocks.path_of(node) == home.variable
        )

    def _builds_optimizer(self, statement: ast.stmt, home: Home) -> bool:
        return any(
            isinstance(node, ast.Call) and self._makes_optimizer(node, home.scope)
            for node in blocks.walk_own(statement)
        )

    def _where_made(self, value: Value) -> Home | None:
        """The constructor itself, for models that live in a list only: ``[Net(w) for w in widths]``.

        Or in a field of a record: ``Trainer(model=Net())`` of a dataclass, which assigns the field itself.
        """
        call = value.site
        located = self.program.locate(call) if isinstance(call, ast.Call) else None
        if located is None or not isinstance(call, ast.Call) or self.program.is_model_code(located[0]):
            return None
        body, scope = located
        module = scope.module
        parents = [parent for parent in module.ancestors(call) if not isinstance(parent, ast.stmt)]
        is_listed = any(
            isinstance(parent, (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp)) for parent in parents
        )
        statement = blocks.statement_of(module, call)
        if isinstance(statement, ast.Return):
            return None
        expression: ast.expr = call
        for parent in parents:
            # ``Net().to(device)``: the model is prepared when it is where it belongs.
            if isinstance(parent, ast.Attribute) and parent.attr in _PLACING:
                outer = module.parents[parent]
                if isinstance(outer, ast.Call) and outer.func is parent:
                    expression = outer
                    continue
            if parent is not expression:
                break
        if not is_listed and not self._is_field(expression, scope):
            return None
        return Home(
            module,
            scope,
            body,
            statement,
            module.text(call),
            (call, ""),
            expression,
            rebinds=False,
            in_place=True,
        )

    def _is_field(self, expression: ast.expr, scope: Scope) -> bool:
        """Whether an expression is given to the constructor of a record."""
        outer = scope.module.parents[expression]
        if isinstance(outer, ast.keyword):
            outer = scope.module.parents[outer]
        if not isinstance(outer, ast.Call) or expression is outer.func:
            return False
        made = self.flow.values(outer.func, scope)
        return bool(made) and all(
            constructor_fields(value) and not (value.kind == "class" and is_module(Value("instance", value.ref)))
            for value in made
        )

    def _parameter(self, value: Value) -> Home | None:
        """The parameter that gets the model, where no variable holds it before: ``fit(Net(), loader)``.

        Each call has a model of its own: that of the caller who is not part of the program, or what the argument makes.
        """
        for body, scope in self.program.bodies:
            if not isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)) or self.program.is_model_code(body):
                continue
            for name in (item.arg for item in arguments_of(body)):
                if value in self.flow.cells.get((body, name), _NOTHING).values and self._comes_with(body, name, value):
                    item = _Candidate((body, name), name, scope.module, scope, body, [])
                    return self._home_of_parameter(item, value)
        return None

    def _comes_with(self, body: ast.AST, name: str, value: Value) -> bool:
        """Whether each call of a function makes the model that the parameter gets, which nothing else has."""
        info = self.flow.functions[body]
        if value.is_given_model:
            return value.site in set(arguments_of(info.node))
        given = [info.argument(caller.call, name) for caller in self.flow.callers(info)]
        return any(item is not None and _without_placing(item) is value.site for item in given)

    def _home_of_parameter(self, item: _Candidate, value: Value) -> Home | None:
        """Behind what places the model or sets its weights in the function, else before its first use."""
        suite: list[ast.stmt] = item.body.body  # type: ignore[attr-defined]
        limit = next((i for i, part in enumerate(suite) if self.program.runs_backward(part)), len(suite))
        used = [i for i, part in enumerate(suite) if blocks.touches({item.path}, blocks.reads(part))]
        placed = [
            i
            for i, part in enumerate(suite[:limit])
            if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and any(
                self._is_placing(node, item.path) or self._initialises(node, item, value)
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
            made=_order(value),
            before=not placed,
        )

    def _choose(self, candidates: list[_Candidate], value: Value) -> _Candidate | None:
        candidates = [
            item for item in candidates if not self._comes_too_late(item) and not self._part_by_part.is_run(item.body)
        ]
        # ``trainer.train()`` and then ``net = model``: the first training would run a model that is not prepared.
        candidates = [
            item for item in candidates if not self._trained_before.is_trained(value, item.assignments[0], item.module)
        ]
        if not candidates:
            return None
        if len(candidates) > 1:
            candidates = [item for item in candidates if self._is_read(item)] or candidates
            candidates = [item for item in candidates if not self._only_tells(item)] or candidates
            candidates = [item for item in candidates if not _only_unwraps(item)] or candidates
            candidates = [item for item in candidates if not _is_alias(item, candidates)] or candidates
        order = {body: index for index, (body, _) in enumerate(self.program.bodies)}

        def score(item: _Candidate) -> tuple[int, int, int, int]:
            optimizer_here = self._optimizer_statement(item) is not None
            placed_here = self._places(item)
            made_here = any(
                value.site is not None and value.site in set(walk(statement)) for statement in item.assignments
            )
            returned = self._only_returned(item)
            return (
                0 if optimizer_here else 1,
                1 if returned else 0,
                0 if placed_here or made_here else 1,
                order.get(item.body, 0),
            )

        return min(candidates, key=score)

    def _made_alike(self, chosen: _Candidate, candidates: list[_Candidate], value: Value) -> list[_Candidate]:
        """The variable, and others with a model of their own from the same factory, which an optimizer trains."""
        others = [
            item
            for item in candidates
            if item is not chosen
            and self._optimizer_statement(item) is not None
            and not self._comes_too_late(item)
            and self._makes_anew(item, value)
        ]
        return [chosen, *others] if others and self._makes_anew(chosen, value) else [chosen]

    def _makes_anew(self, item: _Candidate, value: Value) -> bool:
        """Whether the variable gets its model of a function that makes one in each call."""
        located = self.program.locate(value.site) if value.site is not None else None
        calls = [getattr(statement, "value", None) for statement in item.assignments]
        made = [call for call in calls if isinstance(call, ast.Call) and call is not value.site]
        return located is not None and located[0] in self.program.called_from(made)

    def _is_read(self, item: _Candidate) -> bool:
        """Whether anything reads the variable: ``_, name = make()`` throws a model away."""
        name = item.path.rpartition(".")[2]
        for node, _, scope in self.program.nodes():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                own = node.id if isinstance(node, ast.Name) else node.attr
                if own == name and self.flow.key(node, scope) in (item.key, None):
                    return True
        return isinstance(item.key[0], tuple)  # an item of a container, which is read as a whole

    def _only_tells(self, item: _Candidate) -> bool:
        """Whether an attribute keeps a model that it is given to log or save it: nothing runs the model through it."""
        owner, _, name = item.path.rpartition(".")
        given = {argument.arg for argument in arguments_of(item.body)} if _is_function(item.body) else set()
        if not owner or not all(_assigned_name(statement) in given for statement in item.assignments):
            return False
        for node, _, scope in self.program.nodes():
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                parent = scope.module.parents[node]
                told = isinstance(parent, ast.Attribute) and parent.attr in TELLS_OF_MODEL
                if not told and self.flow.key(node, scope) in (item.key, None):
                    return False
        return True

    def _comes_too_late(self, item: _Candidate) -> bool:
        """Whether the training is over when the variable gets its model."""
        first = item.assignments[0]
        suite = self._common_suite(item)
        start = next(index for index, statement in enumerate(suite) if _holds(statement, first))
        return self.program.runs_backward(first) or (
            any(self.program.runs_backward(statement) for statement in suite[:start])
            and not any(self.program.runs_backward(statement) for statement in suite[start + 1 :])
        )

    def _only_returned(self, item: _Candidate) -> bool:
        """Whether the variable belongs to a factory that returns the model, and does not train it."""
        info = self.program.function_of(item.body)
        if info is None or "." in item.path or any(map(self.program.runs_backward, self._own_statements(item))):
            return False
        return any(item.path in blocks.reads(value) for value in info.returns)

    def _turns(self, item: _Candidate) -> list[_Candidate]:
        """The assignments by model, where a variable gets another one after the first was trained."""
        return [turn for branch in self._by_branch(item) for turn in self._turns_of(branch)]

    def _by_branch(self, item: _Candidate) -> list[_Candidate]:
        """One for each branch of a condition, where the branches make their models and train them themselves."""
        around = [statement for statement in self._common_suite(item) if _holds(statement, item.assignments[0])]
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

    def _turns_of(self, item: _Candidate) -> list[_Candidate]:
        turns: list[list[ast.stmt]] = []
        trained = True
        for statement in self._common_suite(item):
            inside = [given for given in item.assignments if _holds(statement, given)]
            if inside:
                if trained and (not turns or any(self._is_new(given, item) for given in inside)):
                    turns.append([])
                turns[-1].extend(inside)
                # A loop or a branch may make its model and train it.
                trained = statement not in inside and self.program.runs_backward(statement)
            elif turns and self.program.runs_backward(statement):
                trained = True
        return [replace(item, assignments=turn) for turn in turns]

    def _is_new(self, statement: ast.stmt, item: _Candidate) -> bool:
        """Whether a model is assigned that the variable did not hold."""
        source = getattr(statement, "value", None)
        if not isinstance(source, ast.expr) or item.path in blocks.reads(source):
            return False
        return bool(self.program.roles.modules(source, item.scope))

    def _places(self, item: _Candidate) -> bool:
        return any(self._is_placing(statement, item.path) for statement in self._own_statements(item))

    def _own_statements(self, item: _Candidate) -> list[ast.stmt]:
        return [node for node in self.program.nodes_of(item.body) if isinstance(node, ast.stmt)]

    def _is_placing(self, statement: ast.stmt, path: str) -> bool:
        """Whether a simple statement moves the model, sets its weights, adds a part, or assigns the variable."""
        if isinstance(statement, ast.Assign):
            if any(path in _flat_paths(target) for target in statement.targets):
                return True
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        call = statement.value
        if isinstance(call.func, ast.Attribute) and _exact_path(call.func.value) == path:
            if call.func.attr in _PLACING or call.func.attr in PUTS_PART:
                return True
        # ``init_weights(model)``: a function that is given nothing but the model.
        return (
            len(call.args) == 1
            and not call.keywords
            and _exact_path(call.args[0]) == path
            and isinstance(call.func, (ast.Name, ast.Attribute))
            and "init" in (call.func.id if isinstance(call.func, ast.Name) else call.func.attr).lower()
        )

    def _optimizer_statement(self, item: _Candidate) -> ast.stmt | None:
        """The first statement of the body that builds an optimizer from the variable's parameters.

        A factory that returns model and optimizer may sort the parameters into groups first.
        """
        indirect = None
        for node in self.program.nodes_of(item.body):
            if not isinstance(node, ast.Call):
                continue
            models = self.program.models_of_optimizer(node) if self._makes_optimizer(node, item.scope) else set()
            if models and any(path == item.path or path.startswith(item.path + ".") for path in blocks.reads(node)):
                return blocks.statement_of(item.module, node)
            if indirect is None and models & self.flow.cells.get(item.key, _NOTHING).values:
                indirect = blocks.statement_of(item.module, node)
        return indirect if indirect is not None and self._only_returned(item) else None

    def _makes_optimizer(self, call: ast.Call, scope: Scope) -> bool:
        return any(is_optimizer(value) and value.site is call for value in self.flow.values(call, scope))

    # ---- placement -----------------------------------------------------------------------------------------

    def _home(self, item: _Candidate, value: Value) -> Home:
        first = item.assignments[0]
        suite = self._common_suite(item)
        start = next(index for index, statement in enumerate(suite) if _holds(statement, first))
        limit = next(
            (
                index
                for index, statement in enumerate(suite)
                if index >= start and self.program.runs_backward(statement) and not _holds(statement, first)
            ),
            len(suite),
        )
        last = start
        for index in range(start, limit):
            inner = [node for node in walk(suite[index]) if isinstance(node, ast.stmt)]
            if not isinstance(suite[index], (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and any(
                self._is_placing(node, item.path) or self._initialises(node, item, value) for node in inner
            ):
                last = index
        built = self._optimizer_statement(item)
        for index in range(last + 1, limit):
            if built is None or any(_holds(statement, built) for statement in suite[last : index + 1]):
                break
            if self._completes(suite[index], item):
                last = index
        fence = next(
            (index for index in range(start + 1, limit) if index < last and self._leaks(suite[index], item.path)),
            None,
        )
        statement = suite[last]
        inline = None
        # What is asked for an attribute before is not None here.
        is_optional = any(may_be_none(self.program, given) for given in item.assignments) and not any(
            _asks_for_attribute(one, item.path) for one in suite[start + 1 : last + 1]
        )
        value_node = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if isinstance(value_node, (ast.Call, ast.Name, ast.Attribute)) and not self._is_parallel(
            value_node, item.scope
        ):
            assert isinstance(statement, ast.Assign)
            single = statement.lineno == statement.end_lineno
            if single and _exact_path(statement.targets[0]) == item.path and last == start and not is_optional:
                inline = value_node
        return Home(
            item.module,
            item.scope,
            item.body,
            statement,
            item.path,
            item.key,
            inline,
            rebinds=fence is None,
            made=_order(value),
            is_optional=is_optional,
        )

    def _initialises(self, statement: ast.stmt, item: _Candidate, value: Value) -> bool:
        """Whether a call sets weights of a part of the model, or of the model under another name."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        call = statement.value
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            return False
        if isinstance(call.func, ast.Attribute) and call.func.attr in _INITIALISING:
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

    def _completes(self, statement: ast.stmt, item: _Candidate) -> bool:
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
                if not any(_exact_path(argument) == path for argument in arguments):
                    continue
                inner = [item for item in walk(statement) if isinstance(item, ast.stmt) and node in set(walk(item))]
                if any(self._is_placing(item, path) for item in inner):
                    continue
                if self._only_uses(node, path):
                    continue
                # A library's function that gives nothing back (``print``) keeps nothing either.
                if self.flow.callees(node) or not any(isinstance(item, ast.Expr) for item in inner):
                    return True
            elif isinstance(node, (ast.List, ast.Tuple, ast.Dict)):
                parts = node.values if isinstance(node, ast.Dict) else node.elts
                if any(part is not None and _exact_path(part) == path for part in parts):
                    if isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
                        return True
        return False

    def _only_uses(self, call: ast.Call, path: str) -> bool:
        """Whether the functions of the project that get the model ask it for things, and keep it nowhere."""
        callees = self.flow.callees(call)
        for info in callees:
            given = {name for name, argument in info.bound(call) if blocks.path_of(argument) == path}
            if not given or info.name == "__init__" or info.yields:
                return False
            for node in walk(info.node):
                if isinstance(node, ast.Name) and node.id in given:
                    if not isinstance(info.module.module.parents.get(node), ast.Attribute):
                        return False
        return bool(callees)

    def _common_suite(self, item: _Candidate) -> tuple[ast.stmt, ...]:
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


def _where_bound(home: Home) -> list[Home]:
    """The home; or one at each assignment, where other branches make no model: ``if a: x = A()`` and no ``else``."""
    where = blocks.place(home.module, home.statement)
    bound = (name for item in where.suite[: where.index + 1] for name in blocks.certainly_bound(item))
    if home.in_place or home.before or not isinstance(home.statement, ast.If) or not home.variable.isidentifier():
        return [home]
    given = arguments_of(home.body) if _is_function(home.body) else ()
    if home.variable in {*bound, *(argument.arg for argument in given)}:
        return [home]
    made = [
        node
        for node in blocks.walk_own(home.statement)
        if isinstance(node, ast.Assign) and home.variable in {blocks.path_of(target) for target in node.targets}
    ]
    singles = [node for node in made if len(node.targets) == 1 and node.lineno == node.end_lineno]
    return [replace(home, statement=node, inline=node.value if node in singles else None) for node in made] or [home]


def _is_made_within(part: Value, whole: Value) -> bool:
    """Whether the call that makes one model is an argument of the call that makes the other."""
    if part.site is None or whole.site is None or part.site is whole.site:
        return False
    return whole.kind == "object" and any(node is part.site for node in walk(whole.site))


def _only_unwraps(item: _Candidate) -> bool:
    """Whether a function takes the wrapper off the model that it is given: ``model = model.module``."""
    values = [getattr(statement, "value", None) for statement in item.assignments]
    return all((blocks.path_of(value) or "").startswith(f"{item.path}.") for value in values if value is not None)


def _is_alias(item: _Candidate, others: list[_Candidate]) -> bool:
    """Whether a variable is another name for a model that runs by its own: ``bare = model``, ``bare = model.module``.

    It is asked for parameters and weights alone, while the script may wrap what the other one holds.
    """
    paths = {other.path for other in others if other is not item and other.body is item.body}
    values = [getattr(statement, "value", None) for statement in item.assignments]
    if not all((blocks.path_of(value) or "").removesuffix(".module") in paths for value in values if value is not None):
        return False
    uses = [node for node in walk(item.body) if isinstance(node, (ast.Name, ast.Attribute)) and _is_read(node, item)]
    return all(_asks_of(item.module.parents[node]) for node in uses)


def _is_read(node: ast.Name | ast.Attribute, item: _Candidate) -> bool:
    return isinstance(node.ctx, ast.Load) and blocks.path_of(node) == item.path


def _asks_of(parent: ast.AST) -> bool:
    """Whether an attribute is asked for that runs no model."""
    return isinstance(parent, ast.Attribute) and parent.attr in {*TELLS_OF_MODEL, *_PLACING}


def _without_placing(node: ast.expr) -> ast.expr:
    """``Net()`` of ``Net().to(device)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER:
        node = node.func.value
    return node


def _is_function(body: ast.AST) -> TypeGuard[FunctionNode]:
    return isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef))


def _assigned_name(statement: ast.stmt) -> str:
    """``model`` of ``self.model = model``; empty for anything else."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return value.id if isinstance(value, ast.Name) else ""


def _is_no_model(value: ast.expr) -> bool:
    """Whether a variable gets a tensor, a number or a text, whatever else it may hold: ``far = far * scale``."""
    if isinstance(value, ast.Constant):
        return value.value is not None
    return isinstance(value, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr))


def _empties(statement: ast.stmt) -> bool:
    """``model = None``."""
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Constant) and value.value is None


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


def _flat_paths(target: ast.expr) -> set[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return {path for element in target.elts for path in _flat_paths(element)}
    path = _exact_path(target)
    return {path} if path is not None else set()


def _is_placed_by(statement: ast.AST, variable: str) -> bool:
    """``model.to(device)`` and ``model.load_state_dict(state)``, on lines of their own."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _PLACING
        and blocks.path_of(call.func.value) == variable
    )


def _asks_for_attribute(statement: ast.stmt, path: str) -> bool:
    """``model.to(device)``: whether running the statement is sure to fail where the variable is None."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    while isinstance(call, ast.Call | ast.Attribute):
        if isinstance(call, ast.Attribute) and blocks.path_of(call.value) == path:
            return True
        call = call.func if isinstance(call, ast.Call) else call.value
    return False


def _exact_path(node: ast.AST) -> str | None:
    """``self.model``, and ``self.models["encoder"]`` for an item of its own; other items count as their whole."""
    if isinstance(node, ast.Subscript):
        base = blocks.path_of(node.value) if not isinstance(node.value, ast.Subscript) else None
        is_item = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return f'{base}["{node.slice.value}"]' if base is not None and is_item else None  # type: ignore[attr-defined]
    return blocks.path_of(node)


def _holds(statement: ast.stmt, node: ast.AST) -> bool:
    return any(child is node for child in walk(statement))


def _order(value: Value) -> tuple[int, int, str]:
    """By where it was made, so that reports and edits come out the same every time."""
    return getattr(value.site, "lineno", 0), getattr(value.site, "col_offset", 0), str(value.ref)
