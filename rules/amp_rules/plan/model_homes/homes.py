"""The homes of the models that a program trains."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.flow.records import constructor_fields
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.model_homes.given_back import is_given_prepared
from amp_rules.plan.model_homes.holders import Holders
from amp_rules.plan.model_homes.home import Home, made_at
from amp_rules.plan.model_homes.picked import is_found_again, is_picked
from amp_rules.plan.model_homes.placement import Placement
from amp_rules.plan.model_homes.second_names import is_alias, is_beside_parameter, is_handed_over
from amp_rules.plan.model_homes.takers_of_parts import takers_of_argument, takers_of_parts
from amp_rules.plan.model_homes.variables import (
    NOTHING,
    PLACING,
    HoldingVariable,
    Variables,
    is_function,
    without_placing,
)
from amp_rules.plan.model_homes.wrapping import Wrapping
from amp_rules.plan.part_by_part import PartByPart
from amp_rules.plan.trained_before import TrainedBefore
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.workers import run_in_workers_alone
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope, arguments_of
from amp_rules.source.syntax import walk
from amp_rules.torch.models import COPIES, GIVE_NO_MODEL, RETURNS_RECEIVER


class Homes:
    """Finds the homes of the models that a program trains."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.flow = program.flow
        self._holders = Holders(program)
        self._variables = Variables(program)
        self._placement = Placement(program, self._variables)
        self._wrapping = Wrapping(program, self._variables)
        self._trained_before = TrainedBefore(program)
        self._part_by_part = PartByPart(program)

    def find(self) -> tuple[list[Home], list[Value]]:
        """The homes of all trained models in the order of the program, and the models without one."""
        # Two classes with a common base may both make what is one attribute of the base.
        homes: dict[tuple[CellKey, ast.AST], Home] = {}
        missing: list[Value] = []
        housed: list[Value] = []
        roots = self.roots()
        converting = {item.key for value in roots for item in self._converting(value)}
        for value in roots:
            candidates = self._variables.of(value)
            # A model and what a function of the script makes of it are prepared in the one variable that has both.
            candidates = [item for item in candidates if item.key in converting] or candidates
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
                turns = [
                    turn for item in self._made_alike(chosen, candidates, value) for turn in self._variables.turns(item)
                ]
                for turn in turns:
                    if self._takes_copies(turn) and turn is not turns[0]:
                        continue  # ``net = best``, a copy that was taken of the prepared model as it trained
                    if (turn.key, turn.assignments[0]) not in homes:
                        homes[turn.key, turn.assignments[0]] = self._placement.of(turn, value)
        found = sorted(
            (
                one
                for home in homes.values()
                for one in self._wrapping.where_bound(self._wrapping.inside_parallel(home))
            ),
            key=lambda home: (str(home.module.path), home.module.start(home.statement), home.made),
        )
        # What a factory makes in one of several ways is one model, in one variable.
        single = {(home.statement, home.variable, home.inline): home for home in reversed(found)}
        prepared_in = {home.body for home in single.values()}
        return list(reversed(single.values())), [
            value
            for value in missing
            if not (self._is_part_of(housed, value) or self._is_made_for_parts_of(housed, value))
            if not is_given_prepared(self.program, housed, prepared_in, value)
        ]

    def _takes_copies(self, item: HoldingVariable) -> bool:
        """Whether a variable gets copies of models, when the training is over."""
        given = [node.value for node in item.assignments if isinstance(node, ast.Assign)]
        models = {value for node in given for value in self.program.roles.modules(node, item.scope)}
        sites = [(value.site, self.program.locate(value.site)) for value in models if isinstance(value.site, ast.Call)]
        return (
            bool(models)
            and len(sites) == len(models)
            and all(found is not None and self.program.callee_names(call, found[1]) & COPIES for call, found in sites)
            and self._variables.comes_too_late(item)
        )

    def _converting(self, value: Value) -> list[HoldingVariable]:
        """The variables whose model becomes another one in their own place: ``model = convert_model(model)``."""
        call = value.site
        if not isinstance(call, ast.Call):
            return []
        given = {blocks.path_of(argument) for argument in call.args}
        return [
            item
            for item in self._variables.of(value)
            if item.path in given
            and any(isinstance(node, ast.Assign) and node.value is call for node in item.assignments)
        ]

    def _is_part_of(self, housed: list[Value], value: Value) -> bool:
        """Whether a model without a variable is kept by one that has a variable.

        After ``model = Trained(model)`` what ``Trained`` wraps its model in seems to hold ``Trained`` as well.
        A library's container is made of what its call says: ``nn.Sequential(nn.Linear(5, 4), ...)``.
        """
        return any(model in self._holders.all_of(value) or _is_made_within(value, model) for model in housed)

    def _is_made_for_parts_of(self, housed: list[Value], value: Value) -> bool:
        """Whether all that ever holds a model are variables of constructors, which take parts of it for their own.

        ``base = getattr(backbones, name)()`` above ``self.layer1 = base.layer1``, or ``base`` is their parameter.
        """
        bodies = {body for _, path, _, body, _ in self._variables.given.get(value, ()) if "." not in path}
        bodies = bodies or takers_of_parts(self.program, value)
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
        made = [value for value in self._holders.instances if owner in value.ref.mro()]
        return any(value in housed or any(model in self._holders.all_of(value) for model in housed) for value in made)

    def of(self, value: Value) -> Home | None:
        """Where a single model goes through ``prepare_model``, if a variable or a list holds it."""
        chosen = self._choose(self._variables.of(value), value)
        return self._where_made(value) if chosen is None else self._placement.of(chosen, value)

    def given_too_late(self, value: Value) -> HoldingVariable | None:
        """The first variable that gets a model, where all that do get it when the training is over."""
        candidates = self._variables.of(value)
        are_late = candidates and all(map(self._variables.comes_too_late, candidates))
        return candidates[0] if are_late else None

    def each_of(self, value: Value) -> list[Home]:
        """The same; under the condition that the model is made under, where other branches make none."""
        home = self.of(value)
        return self._wrapping.where_bound(home) if home is not None else []

    # ---- models --------------------------------------------------------------------------------------------

    def roots(self) -> list[Value]:
        """Trained models, each replaced by the model that holds it as a part."""
        found = {
            value
            for value in self.program.trained
            if (is_module(value) or _may_be_model(value)) and not self.program.is_made_by_replaced(value)
        }
        trained = set().union(*map(self._as_held, found))
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
            roots |= self.wholes(value)
        roots = self._without_parts(self.program.without_data(roots))
        wholes = (value for value in roots if not self._gives_parts_to(value, roots))
        return sorted((value for value in wholes if not self._is_taken_apart(value, roots - {value})), key=made_at)

    def _as_held(self, value: Value) -> set[Value]:
        """What the variables hold, for what a constructor sees of itself: a factory's result is told apart by its call.

        ``net = make(3)``, and the class of the model makes its optimizer.
        """
        located = self.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or value.kind != "instance" or value in self._variables.given:
            return {value}
        made = {
            other
            for other in self._variables.given
            if other.kind == "instance" and other.ref is value.ref and isinstance(other.site, ast.Call)
            if located[0] in self.program.called_from({other.site})
        }
        return made or {value}

    def wholes(self, model: Value) -> set[Value]:
        """The models that hold a model as a part, the outermost of them; the model itself where none does."""
        return self._holders.outermost(model) or {model}

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
        return all(any(self._holders.all_of(part) & others for part in found) for found in parts)

    def _is_taken_apart(self, value: Value, others: set[Value]) -> bool:
        """Whether a variable only gives parts of its model to another: ``Net(encoder=base.encoder)`` below ``base``.

        Or gives it to the constructor of the other, which takes parts of it and no more: ``Net(base)``.
        """
        candidates = self._variables.of(value)
        return bool(candidates) and all(self._gives_only_parts(item, others) for item in candidates)

    def _gives_only_parts(self, item: HoldingVariable, others: set[Value]) -> bool:
        parts: set[Value] = set()
        for node, scope in self.program.reads_named(item.path):
            if not isinstance(node, ast.Name) or self.flow.key(node, scope) != item.key:
                continue
            parents = scope.module.parents
            part = parents[node]
            if not isinstance(part, ast.Attribute):
                owners = {self._constructed(taker) for taker in takers_of_argument(self.program, scope.module, node)}
                wholes = {other for other in others if other.kind == "instance" and owners & set(other.ref.mro())}
                if not wholes:
                    return False
                parts |= wholes
                continue
            outer = parents[part]
            if isinstance(outer, ast.Call) and outer.func is part:
                if part.attr not in PLACING | {"eval", "train"}:
                    return False
            else:
                found = self.flow.values(part, scope)
                if not any(self._holders.all_of(other) & others for other in found):
                    return False
                parts |= found
        return bool(parts)

    def _calls_giving(self, value: Value) -> list[ast.Call]:
        """The constructor's call, or the calls of the factory whose variable holds the model until it is returned."""
        candidates = self._variables.of(value)
        if not all(self._variables.only_returned(item) for item in candidates):
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

    # ---- variables -----------------------------------------------------------------------------------------

    def _where_made(self, value: Value) -> Home | None:
        """The constructor itself, for models that live in a list only: ``[Net(w) for w in widths]``.

        Or at a key that is not known, ``nets[task] = Net()``, or in a field of a record: ``Trainer(model=Net())`` of a
        dataclass, which assigns the field itself.
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
            if isinstance(parent, ast.Attribute) and parent.attr in PLACING:
                outer = module.parents[parent]
                if isinstance(outer, ast.Call) and outer.func is parent:
                    expression = outer
                    continue
            if parent is not expression:
                break
        is_item = (
            isinstance(statement, ast.Assign)
            and statement.value is expression
            and all(isinstance(target, ast.Subscript) for target in statement.targets)
        )
        if not is_listed and not is_item and not self._is_field(expression, scope):
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
                if value in self.flow.cells.get((body, name), NOTHING).values and self._comes_with(body, name, value):
                    item = HoldingVariable((body, name), name, scope.module, scope, body, [])
                    return self._placement.of_parameter(item, value)
        return None

    def _comes_with(self, body: ast.AST, name: str, value: Value) -> bool:
        """Whether each call of a function makes the model that the parameter gets, which nothing else has."""
        info = self.flow.functions[body]
        if value.is_given_model:
            return value.site in set(arguments_of(info.node))
        given = [info.argument(caller.call, name) for caller in self.flow.callers(info)]
        return any(item is not None and without_placing(item) is value.site for item in given)

    def _choose(self, candidates: list[HoldingVariable], value: Value) -> HoldingVariable | None:
        candidates = [
            item
            for item in candidates
            if not self._variables.comes_too_late(item) and not self._part_by_part.is_run(item.body)
        ]
        # What the process that starts the others has prepared does not get to them: they get a copy of the weights.
        candidates = [item for item in candidates if item.body in self._in_workers] or candidates
        # What a loop picks out of a list in each round is prepared where the list is made: once each.
        others = [item for item in candidates if not is_picked(self.program, item)]
        if len(others) < len(candidates) and self._where_made(value) is not None:
            candidates = others
        if len(self._giving(candidates, value)) < len(candidates) and self._where_made(value) is not None:
            candidates = self._giving(candidates, value)
        # ``trainer.train()`` and then ``net = model``: the first training would run a model that is not prepared.
        candidates = [
            item
            for item in candidates
            if not all(self._trained_before.is_trained(value, node, item.module) for node in item.assignments)
        ]
        if not candidates:
            return None
        if len(candidates) > 1:
            candidates = self._variables.of_its_class(candidates, value)
            candidates = [item for item in candidates if not self._is_default_alone(item, value)] or candidates
            candidates = [
                item for item in candidates if not is_found_again(self.program, item, candidates, value)
            ] or candidates
            candidates = [item for item in candidates if self._variables.is_read(item)] or candidates
            candidates = [item for item in candidates if not self._variables.only_tells(item)] or candidates
            candidates = [item for item in candidates if not self._variables.only_unwraps(item)] or candidates
            candidates = [item for item in candidates if not is_alias(self.program, item, candidates)] or candidates
            candidates = [item for item in candidates if not is_beside_parameter(item)] or candidates
            candidates = [item for item in candidates if not is_handed_over(item, candidates)] or candidates
        order = {body: index for index, (body, _) in enumerate(self.program.bodies)}

        def score(item: HoldingVariable) -> tuple[int, ...]:
            optimizer_here = self._variables.optimizer_statement(item) is not None
            placed_here = self._variables.places(item)
            made_here = any(
                value.site is not None and value.site in set(walk(statement)) for statement in item.assignments
            )
            returned = self._variables.only_returned(item)
            return (
                0 if optimizer_here else 1,
                1 if returned else 0,
                0 if placed_here or made_here else 1,
                order.get(item.body, 0),
                0 if self._variables.is_run(item) else 1,
                0 if made_here else 1,  # ``a, b = b, a`` below: each may have either model
            )

        return min(candidates, key=score)

    def _giving(self, candidates: list[HoldingVariable], value: Value) -> list[HoldingVariable]:
        """Those that an assignment may give a model; ``nets.update({"head": Head()})`` is none to ``nets["head"]``."""
        return [
            item
            for item in candidates
            if "[" not in item.path
            or any(
                value in self.flow.values(given, item.scope)
                for statement in item.assignments
                if (given := getattr(statement, "value", None)) is not None
            )
        ]

    def _is_default_alone(self, item: HoldingVariable, value: Value) -> bool:
        """Whether a function gives its parameter another model, where its callers give none: ``if part is None:``.

        They may give this one, for all that is known of them; what is prepared there would be the other.
        """
        if not is_function(item.body) or item.path not in {argument.arg for argument in arguments_of(item.body)}:
            return False
        if not item.assignments or any(item.path in blocks.reads(given) for given in item.assignments):
            return False
        return self._variables.gives_another(item, value)

    @cached_property
    def _in_workers(self) -> set[ast.AST]:
        return run_in_workers_alone(self.program)

    def _made_alike(
        self, chosen: HoldingVariable, candidates: list[HoldingVariable], value: Value
    ) -> list[HoldingVariable]:
        """The variable, and others that need the same: an optimizer trains what they hold, and none is made of another.

        They get a model of their own from the same factory, or each of the functions moves the one that it is given.
        """
        makes_anew = self._variables.makes_anew(chosen, value)
        if not makes_anew and not _is_given(chosen):
            return [chosen]
        others = [
            item
            for item in candidates
            if item is not chosen
            and self._variables.optimizer_statement(item) is not None
            and not self._variables.comes_too_late(item)
            and (
                self._variables.makes_anew(item, value)
                if makes_anew
                else _is_given(item) and not self._runs(chosen.body, item.body)
            )
        ]
        return [chosen, *others]

    def _runs(self, body: ast.AST, other: ast.AST) -> bool:
        """Whether a function runs another one, to which it may give what it has prepared."""
        return body is other or other in self.program.called_from(self.program.nodes_of(body))


def _is_given(item: HoldingVariable) -> bool:
    """``def fit(net): net = nn.DataParallel(net)``: what this prepares no other function has."""
    return (
        is_function(item.body)
        and item.path in {argument.arg for argument in arguments_of(item.body)}
        and all(
            isinstance(statement, ast.Assign) and item.path in blocks.reads(statement.value)
            for statement in item.assignments
        )
    )


def _may_be_model(value: Value) -> bool:
    """Whether what a library gives may be a model, for all that is known of it."""
    return value.kind == "attribute" or (value.kind == "object" and not str(value.ref).startswith(GIVE_NO_MODEL))


def _is_made_within(part: Value, whole: Value) -> bool:
    """Whether the call that makes one model is an argument of the call that makes the other."""
    if part.site is None or whole.site is None or part.site is whole.site:
        return False
    return whole.kind == "object" and any(node is part.site for node in walk(whole.site))
