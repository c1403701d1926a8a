"""Whose gradient an access reaches, and which optimizers hold that tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Step
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.functions import PARAMETER_MAKERS

_MAX_VALUES = 60
"""Values that one expression is followed to, elements of containers included; models in lists are some dozen."""
_PARAMETERS = frozenset({"parameters", "named_parameters"})


@dataclass(frozen=True)
class Owners:
    """Whose gradients an expression reaches.

    Attributes:
        optimizers: those that hold them, or a part of them.
        strangers: what it also can be and no optimizer holds.
        is_known: whether everything that it can be is known.
        models: those whose parameters it is, where it is nothing else that an optimizer holds.
    """

    optimizers: frozenset[Value]
    strangers: frozenset[Value]
    is_known: bool
    models: frozenset[Value] = frozenset()


class GradientOwners:
    """The optimizers of a program, by what they are given."""

    def __init__(self, program: Program) -> None:
        self._program = program
        # The same few models and classes are asked about at each gradient.
        self._optimizers_of: dict[Value, frozenset[Value]] = {}
        self._inside: dict[frozenset[ast.ClassDef], set[Value]] = {}

    # ---- optimizers ------------------------------------------------------------------------------------------

    def stepped(self, step: Step) -> frozenset[Value]:
        """The optimizers that a step can be of."""
        return self.at(step.optimizer, step.scope)

    def made_true(self, step: Step) -> frozenset[Value]:
        """The optimizers whose gradients are true after a step, on which the scaler unscales them where they are.

        One that is given a whole model makes true what any other holds of it: a second function trains it with its own.
        """
        stepped = self.stepped(step)
        held = {frozenset(self._held.get(optimizer) or ()) for optimizer in stepped}
        models = next(iter(held)) if len(held) == 1 else frozenset()
        if len(models) != 1 or not all(self.is_given_whole(one, model) for one in stepped for model in models):
            return stepped
        return stepped | self.held_by(models)

    def at(self, node: ast.expr, scope: Scope) -> frozenset[Value]:
        """The optimizers that an expression can be; one that is known by its use alone stands for itself."""
        found = {value for value in self._program.flow.values(node, scope) if is_optimizer(value)}
        if not found:
            key = self._program.flow.key(node, scope)
            found = {Value("object", ("used as an optimizer", key or ast.unparse(node)))}
        return frozenset(found)

    def cleared(self, call: ast.Call, scope: Scope) -> frozenset[Value]:
        """The optimizers all of whose gradients ``optimizer.zero_grad()`` or ``model.zero_grad()`` clears."""
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"):
            return frozenset()
        receiver = call.func.value
        values = self._program.flow.values(receiver, scope)
        models = {value for value in values if is_module(value)}
        if len(values) != 1 or not models:
            return self.at(receiver, scope) if not models else frozenset()
        return self.held_by(models)

    def held_by(self, models: Iterable[Value]) -> frozenset[Value]:
        """The optimizers that are given nothing but parameters of these models."""
        models = list(models)
        found = set()
        for optimizer, held in self._held.items():
            # What else flows into groups of parameters is no tensor: learning rates that a file of settings holds.
            given = [item for item in held or () if item.kind != "object" or str(item.ref).startswith("torch.")]
            if given and all(any(self._is_part(item, model) for model in models) for item in given):
                found.add(optimizer)
        return frozenset(found)

    def hold_all_of(self, model: Value) -> bool:
        """Whether optimizers are given all parameters of a model: as a whole, or of each of its parts."""
        held = {item for given in self._held.values() for item in given or ()}
        if any(given is None for given in self._held.values()) or any(self._is_part(model, item) for item in held):
            return True
        if model.kind != "instance":
            return False
        stored = self._attributes_of({info.facts.node for info in model.ref.mro()})
        parts = {value for value in stored if value.kind in ("object", "instance") and is_module(value)}
        return bool(parts) and all(any(self._is_part(part, item) for item in held) for part in parts)

    def is_given_whole(self, optimizer: Value, model: Value) -> bool:
        """Whether an optimizer is given ``model.parameters()``, all that train, in one group."""
        call = optimizer.site
        if not (isinstance(call, ast.Call) and call.args):
            return False
        located, given = self._program.locate(call), call.args[0]
        if isinstance(given, ast.Call) and blocks.path_of(given.func) == "filter" and len(given.args) == 2:
            is_wanted, given = given.args
            if not (isinstance(is_wanted, ast.Lambda) and last_name(is_wanted.body) == "requires_grad"):
                return False
        if located is None or not (isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute)):
            return False
        return given.func.attr == "parameters" and model in self._program.flow.values(given.func.value, located[1])

    @cached_property
    def optimizers(self) -> frozenset[Value]:
        """All optimizers that step."""
        return frozenset(value for step in self._program.steps for value in self.stepped(step))

    @cached_property
    def _known_by_use(self) -> dict[Value, frozenset[Value]]:
        """Objects of classes that are not known, and step: ``lamb.LAMB(...)`` of some library."""
        found: dict[Value, frozenset[Value]] = {}
        for step in self._program.steps:
            for value in self._program.flow.values(step.optimizer, step.scope):
                if value.kind in ("object", "instance") and not is_optimizer(value) and not is_module(value):
                    found[value] = found.get(value, frozenset()) | self.stepped(step)
        return found

    @cached_property
    def _held(self) -> dict[Value, set[Value] | None]:
        """What each optimizer is given: tensors, and models whose parameters; None where that is not known."""
        return {optimizer: self._given_to(optimizer) for optimizer in self.optimizers}

    def _given_to(self, optimizer: Value) -> set[Value] | None:
        if not isinstance(optimizer.site, ast.Call):
            return None
        call = optimizer.site
        arguments = [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("params", None))]
        found = self._owners_among(self._program.given(call, arguments))
        for other, _, scope in self._program.calls():
            if isinstance(other.func, ast.Attribute) and other.func.attr == "add_param_group":
                if optimizer in self._program.flow.values(other.func.value, scope):
                    found |= self._owners_among(self._program.given(other, other.args))
        return found or None

    def _given_again(self, value: Value) -> set[Value]:
        """The optimizers that were made of what the same method of the same model gives: ``model.get_weights()``."""
        if not (value.is_result and value.receiver is not None):
            return set()
        found: set[Value] = set()
        for optimizer in self.optimizers:
            call = optimizer.site
            given = self._program.given(call, call.args[:1]) if isinstance(call, ast.Call) else set()
            if any(item.is_result and (item.ref, item.receiver) == (value.ref, value.receiver) for item in given):
                found.add(optimizer)
        return found

    @staticmethod
    def _owners_among(values: Iterable[Value]) -> set[Value]:
        values = set(values)
        parameters = {value.ref for value in values if value.kind == "parameters"}
        parameters |= {value.receiver for value in values if value.is_result and value.receiver is not None}
        tensors = {value for value in values if value.kind == "object" and isinstance(value.ref, str)}
        return parameters | {value for value in tensors if not is_optimizer(value)}

    # ---- owners ----------------------------------------------------------------------------------------------

    def of(self, node: ast.expr | None, scope: Scope) -> Owners:
        """Whose gradients the expression stands for."""
        if node is None:
            return Owners(self.optimizers, frozenset(), is_known=False)
        pending = list(
            self._of_loop_around(node, scope)
            or self._program.flow.values(node, scope)
            or self._said_by_loops(node, scope)
        )
        if not pending and (listed := self._listed(node, scope)):
            return Owners(listed, frozenset(), is_known=True)
        seen: set[Value] = set()
        holding: set[Value] = set()
        strangers: set[Value] = set()
        models: dict[Value, frozenset[Value]] = {}
        is_known = bool(pending)
        while pending and len(seen) < _MAX_VALUES:
            value = pending.pop()
            if value in seen or value.kind == "constant":
                continue
            seen.add(value)
            if value.kind == "sequence":
                elements = self._program.flow.elements({value})
                is_known = is_known and bool(elements)
                pending.extend(elements)
                continue
            if again := self._given_again(value):
                holding |= again
                continue
            owner = _owner(value)
            if not isinstance(owner.ref, str) and owner.kind == "object":  # a model that is known by its use alone
                holding |= {item for item in self.optimizers if not self._held[item]}
                is_known = is_known and bool(holding)
                continue
            if is_optimizer(owner):
                holding |= {owner} & self.optimizers or self.optimizers
                continue
            if owner in self._known_by_use:
                holding |= self._known_by_use[owner]
                continue
            found = self._holding(owner)
            holding |= found
            if not found:
                strangers.add(owner)
            elif value.kind == "parameters":
                models[owner] = found
        is_of_models = holding <= frozenset().union(*models.values())
        return Owners(frozenset(holding), frozenset(strangers), is_known, frozenset(models if is_of_models else ()))

    def _listed(self, node: ast.expr, scope: Scope) -> frozenset[Value]:
        """The optimizers that a function makes of a variable of its own, which nothing gives another value after that.

        ``optim.SGD([delta], lr=0.1)``: an attack moves a tensor of which nothing else is known.
        """
        if not isinstance(node, ast.Name) or scope.owner(node.id) is not scope:
            return frozenset()
        found = set()
        for optimizer in self.optimizers:
            call = optimizer.site
            listed = call.args[0] if isinstance(call, ast.Call) and call.args else None
            if not isinstance(call, ast.Call) or not isinstance(listed, (ast.List, ast.Tuple)):
                continue
            located = self._program.locate(call)
            if located is None or located[1] is not scope or node.id not in map(blocks.path_of, listed.elts):
                continue
            written = [
                item.lineno
                for item in blocks.walk_body(scope.node)
                if isinstance(item, ast.Name) and item.id == node.id and not isinstance(item.ctx, ast.Load)
            ]
            if all(line < call.lineno for line in written):
                found.add(optimizer)
        return frozenset(found)

    def is_weight(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is a parameter of a model or of an optimizer, as far as is known."""
        values = self._program.flow.values(node, scope) or self._said_by_loops(node, scope)
        return any(
            value.kind == "parameters" or (value.kind == "object" and value.ref in PARAMETER_MAKERS) for value in values
        )

    def _of_loop_around(self, node: ast.expr, scope: Scope) -> set[Value]:
        """Whose parameters the loop around gives a variable, which other loops may give something else.

        ``for name, value in scores.items():`` above ``for name, value in net.named_parameters():``.
        """
        if not isinstance(node, ast.Name) or node not in scope.module.parents:
            return set()
        for loop in blocks.enclosing(scope.module, node):
            if node.id not in blocks.writes(loop):
                continue
            if not isinstance(loop, ast.For) or any(node.id in blocks.writes(item) for item in loop.body):
                return set()
            called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
            if not isinstance(called, ast.Attribute) or called.attr not in _PARAMETERS:
                return set()
            return {Value("parameters", model) for model in self._program.roles.modules(called.value, scope)}
        return set()

    def _said_by_loops(self, node: ast.expr, scope: Scope) -> set[Value]:
        """Whose parameters a variable runs over, where the values are not known: ``for p in net.parameters()``."""
        seen: set[str] = set()
        pending = [node]
        while pending:
            current = pending.pop()
            for part in walk(current):
                if isinstance(part, ast.Attribute) and part.attr == "param_groups":
                    return set(self.at(part.value, scope))
                if isinstance(part, ast.Attribute) and part.attr in _PARAMETERS:
                    return {Value("parameters", model) for model in self._program.roles.modules(part.value, scope)}
            name = (blocks.path_of(current) or "").split(".")[0]
            if name and name not in seen:
                seen.add(name)
                pending.extend(_iterated_for(name, scope))
        return set()

    def _holding(self, owner: Value) -> frozenset[Value]:
        """The optimizers that are given the tensor, or parameters of the model, or of a part or an owner of it."""
        known = self._optimizers_of.get(owner)
        if known is None:
            known = self._optimizers_of[owner] = frozenset(self._that_hold(owner))
        return known

    def _that_hold(self, owner: Value) -> set[Value]:
        found = set()
        for optimizer, held in self._held.items():
            if held is None:
                if is_module(owner) or self._is_made_by_model(owner):
                    found.add(optimizer)
            elif any(self._is_part(owner, other) or self._is_part(other, owner) for other in held):
                found.add(optimizer)
        return found

    def _is_made_by_model(self, value: Value) -> bool:
        return any(is_module(Value("instance", info)) for info in self._classes_around(value))

    def _is_part(self, part: Value, whole: Value) -> bool:
        """Whether one value is made in, stored in, or reached through the other."""
        if part == whole or (part.kind == "attribute" and part.receiver is not None and _owner(part) == whole):
            return True
        if whole.kind == "instance":
            if part.kind == "instance" and set(part.ref.mro()) & {whole.ref}:
                return part.site is None or whole.site is None or part.site is whole.site
            family = set(whole.ref.mro())
            return bool(family & self._classes_around(part)) or part in self._stored_in(family)
        if part.site is not None and whole.site is not None:
            return any(node is part.site for node in walk(whole.site)) or part in self._program.flow.elements({whole})
        return False

    def _classes_around(self, value: Value) -> set[ClassInfo]:
        """The classes in whose text a value is made: not a tensor that a method computes with, which is no weight."""
        if value.kind == "object" and not is_module(value) and value.ref not in PARAMETER_MAKERS:
            return set()
        module: Module | None = self._program.module_of(value.site) if value.site is not None else None
        if module is None or value.site is None:
            return set()
        return {
            self._program.flow.classes[parent]
            for parent in module.ancestors(value.site)
            if isinstance(parent, ast.ClassDef) and parent in self._program.flow.classes
        }

    def _stored_in(self, family: Iterable[ClassInfo]) -> set[Value]:
        """What objects of these classes hold, and what that holds."""
        nodes = frozenset(info.facts.node for info in family)
        known = self._inside.get(nodes)
        if known is None:
            known = self._inside[nodes] = self._all_inside(nodes)
        return known

    def _all_inside(self, nodes: frozenset[ast.ClassDef]) -> set[Value]:
        pending = list(self._attributes_of(nodes))
        seen: set[Value] = set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value.kind == "sequence" or (value.kind == "object" and is_module(value)):
                pending.extend(self._program.flow.elements({value}))
            elif value.kind == "instance" and is_module(value):
                pending.extend(self._attributes_of(info.facts.node for info in value.ref.mro()))
        return seen

    def _attributes_of(self, nodes: Iterable[ast.ClassDef]) -> Iterator[Value]:
        """What the attributes of objects hold, by the nodes of their classes."""
        for node in nodes:
            for values in self._program.flow.held_by(node):
                yield from values


def _iterated_for(name: str, scope: Scope) -> list[ast.expr]:
    """What loops and comprehensions of the body iterate that bind the name."""
    return [
        node.iter
        for part in blocks.own_parts(scope.owner(name).node)
        for node in blocks.walk_own(part)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension))
        and any(isinstance(item, ast.Name) and item.id == name for item in walk(node.target))
    ]


def _owner(value: Value) -> Value:
    """The model, optimizer or tensor that an attribute belongs to, however deep."""
    while value.kind in ("attribute", "parameters"):
        inner = value.receiver if value.kind == "attribute" else value.ref
        if not isinstance(inner, Value):
            return value
        value = inner
    return value
