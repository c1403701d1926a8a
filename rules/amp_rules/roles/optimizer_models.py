"""The models whose parameters optimizers are given."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.roles.bodies import Bodies
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.roles.own_optimizers import models_within
from amp_rules.roles.owned_parameters import made_parameters, owners
from amp_rules.roles.sites import Step
from amp_rules.source.scopes import Scope
from amp_rules.torch.functions import TENSOR_MAKERS

_LISTS = frozenset({"torch.nn.ModuleList", "torch.nn.modules.ModuleList", "torch.nn.modules.container.ModuleList"})


class OptimizerModels(Bodies):
    """Bodies that can run, and which models each optimizer among them is given."""

    def models_of_step(self, step: Step) -> set[Value]:
        """Models whose parameters reach the constructor of the optimizer that a step is of."""
        made = [value.site for value in self.flow.values(step.optimizer, step.scope)]
        return {model for site in made if isinstance(site, ast.Call) for model in self.models_of_optimizer(site)}

    def models_of_optimizer(self, call: ast.Call) -> set[Value]:
        """Models whose parameters reach this call, which makes an optimizer or adds a group to one.

        Those of another optimizer that is given count too.
        """
        known = self._models_of_optimizers.get(call)
        if known is None:
            known = self._models_of_optimizers[call] = frozenset(self._find_models(call))
        return set(known)

    @cached_property
    def _models_of_optimizers(self) -> dict[ast.Call, frozenset[Value]]:
        return {}

    def _find_models(self, call: ast.Call) -> set[Value]:
        found: set[Value] = set()
        seen: set[ast.AST] = set()
        pending = [call]
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            arguments = [*current.args, *(item.value for item in current.keywords)]
            found |= self._asked_for_tensors(current)
            given = self.given(current, arguments)
            located = self.locate(current)
            if located is not None:
                found |= models_within(self.flow, current, located[1], given)
            for value in given:
                if value.kind == "object" and is_optimizer(value) and isinstance(value.site, ast.Call):
                    pending.append(value.site)  # ``LARS(optimizer)`` of a library
                found |= self._owners(value)
                if value.kind != "parameters":
                    continue
                if not is_optimizer(value.ref):
                    wholes = self._called_in_list(value.ref) or self._libraries_with(value.ref)
                    found |= wholes or {self._whole(value.ref)}
                elif isinstance(value.ref.site, ast.Call):
                    pending.append(value.ref.site)
        return found

    def _called_in_list(self, value: Value) -> set[Value]:
        """The models in a list of modules that only its parameters are taken of, where each of them is called itself.

        Distillation keeps so what it trains beside the student: ``trainable.append(student)``.
        """
        if value.kind != "object" or value.ref not in _LISTS:
            return set()
        groups = self._groups(value)
        is_run = bool(groups) and all(any(self._is_called(model, group) for model in group) for group in groups)
        return set().union(*groups) if is_run else set()

    def _groups(self, value: Value) -> list[set[Value]]:
        """The modules that a list is given, one after the other: each may be one of several classes."""
        first = value.site.args[0] if isinstance(value.site, ast.Call) and value.site.args else None
        located = self.locate(value.site) if value.site is not None else None
        if located is None or (first is not None and not isinstance(first, (ast.List, ast.Tuple))):
            return []
        given = [(item, located[1]) for item in (first.elts if first is not None else [])]
        for call, method, scope in self._additions.get(value, ()):
            if method != "append" or len(call.args) != 1:
                return []
            given.append((call.args[0], scope))
        groups = [set(filter(is_module, self.flow.values(item, scope))) for item, scope in given]
        return groups if all(groups) else []

    @cached_property
    def _additions(self) -> dict[Value, list[tuple[ast.Call, str, Scope]]]:
        """By each value the calls of methods that put something into a list, and may do so to it."""
        found: dict[Value, list[tuple[ast.Call, str, Scope]]] = {}
        for call, _, scope in self._calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "extend", "insert"):
                for value in self.flow.values(call.func.value, scope):
                    found.setdefault(value, []).append((call, call.func.attr, scope))
        return found

    def _is_called(self, model: Value, among: set[Value]) -> bool:
        """Whether a variable is called that holds a model, and others of a few at most."""
        return any(held <= among for held in self._held_when_called.get(model, ()))

    @cached_property
    def _held_when_called(self) -> dict[Value, list[frozenset[Value]]]:
        """By each model all that the variables can hold that may hold it where they are called."""
        found: dict[Value, list[frozenset[Value]]] = {}
        for call, body, scope in self._calls:
            if isinstance(call.func, (ast.Name, ast.Attribute)) and not self.is_model_code(body):
                held = frozenset(filter(is_module, self.flow.values(call.func, scope)))
                for model in held:
                    found.setdefault(model, []).append(held)
        return found

    def _libraries_with(self, value: Value) -> set[Value]:
        """The models of a library that the script puts a model into: ``model.fc = nn.Linear(512, 2)``.

        They run it, where the script does not call it itself.
        """
        owners = self._homes_of_parts.get(value, set()) - {value}
        return owners if owners and not self._is_called(value, {value}) else set()

    @cached_property
    def _homes_of_parts(self) -> dict[Value, set[Value]]:
        """The models of a library that hold what the script has put into them."""
        found: dict[Value, set[Value]] = {}
        for node, _, scope in self.nodes():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if not isinstance(target, (ast.Attribute, ast.Subscript)) or not isinstance(node, ast.Assign):
                    continue
                for part in filter(is_module, self.flow.values(node.value, scope)):
                    found.setdefault(part, set()).update(self._of_libraries(target.value, scope))
        return found

    def _of_libraries(self, node: ast.expr, scope: Scope) -> set[Value]:
        """The models of a library that an expression is, or is a part of: ``model`` of ``model.classifier``."""
        while True:
            made = {value for value in self.flow.values(node, scope) if value.kind == "object" and is_module(value)}
            made = {value for value in made if not value.is_result and value.site is not None}
            if made or not isinstance(node, (ast.Attribute, ast.Subscript)):
                return made
            node = node.value

    def _whole(self, value: Value) -> Value:
        """The model that a method which is not known gives a part of, ``model.add_head()``; else the value itself.

        What is called is none, for all that is known: ``model.clone()``.
        """
        owner = value.receiver if value.kind == "object" and value.is_result else None
        if owner is None or not is_module(owner):
            return value
        is_called = any(
            value in self.flow.values(call.func, scope)
            or (
                isinstance(call.func, ast.Attribute)
                and call.func.attr == "forward"
                and value in self.flow.values(call.func.value, scope)
            )
            for call, _, scope in self._calls
        )
        return value if is_called else owner

    def _asked_for_tensors(self, call: ast.Call) -> set[Value]:
        """Models of which a method that is not known gives what an optimizer is made of: ``model.get_weights()``.

        An optimizer takes no single tensor there, as a method may make one to be trained beside a model.
        """
        given = (
            call.args[0] if call.args else next((item.value for item in call.keywords if item.arg == "params"), None)
        )
        located = self.locate(call) if given is not None else None
        if given is None or located is None:
            return set()
        return {value.receiver for value in self.flow.values(given, located[1]) if value.is_result and value.receiver}

    def loose_parameters(self, call: ast.Call) -> set[Value]:
        """Tensors that this constructor call of an optimizer, or what adds a group, is given and that no model owns."""
        given = [*call.args[:1], *(item.value for item in call.keywords if item.arg in ("params", None))]
        loose = {value for value in self.given(call, given) if value.kind == "object" and value.ref in TENSOR_MAKERS}
        owned = {value for value in loose if self._owners(value)}
        return loose - owned - made_parameters(self.flow, self.nodes(), loose - owned, owned)

    def fits_loose_tensors(self, step: Step) -> bool:
        """Whether a step is of tensors that are no model's parameters: of a temperature that calibrates its outputs."""
        made = [value.site for value in self.flow.values(step.optimizer, step.scope)]
        return bool(made) and all(
            isinstance(site, ast.Call) and self.loose_parameters(site) and not self.models_of_optimizer(site)
            for site in made
        )

    def _owners(self, value: Value) -> set[Value]:
        """The models that own a single parameter."""
        known = self._known_owners.get(value)
        if known is None:
            known = self._known_owners[value] = owners(self.flow, self.nodes(), value)
        return known

    @cached_property
    def _known_owners(self) -> dict[Value, set[Value]]:
        return {}
