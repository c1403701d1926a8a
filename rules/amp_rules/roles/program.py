"""A program: an entry script and what it imports, its training steps, and what a statement leads to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.given_data import without_data
from amp_rules.roles.kinds import is_module
from amp_rules.roles.own_optimizers import models_given
from amp_rules.roles.steps import Steps
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given
from amp_rules.torch.models import NO_FORWARD, OF_PRETRAINED, PUTS_PART


class Program(Steps):
    """One entry script and what it imports, with the facts that every rule starts from."""

    @cached_property
    def trained(self) -> set[Value]:
        """Models whose parameters an optimizer of the program is given."""
        found: set[Value] = set()
        for step in self.steps:
            found |= self.models_of_step(step)
        for site in self.added_groups:
            assert isinstance(site.node, ast.Call)
            later = self.models_of_optimizer(site.node) - found
            found |= later - self._put_into(found) if later else later
        found = found or models_given(self.flow, self._made_optimizers)
        found = self.without_data(found)
        # Beside a model that the program makes, one that only others could give is trained by nothing that runs.
        return {value for value in found if not value.is_given_model} or found

    def without_data(self, models: set[Value]) -> set[Value]:
        """These models, without what a loader or a sampler is given as its data."""
        return without_data(self.flow, self.nodes(), self.calls(), models)

    @property
    def _made_optimizers(self) -> Iterator[tuple[ast.Call, Scope]]:
        """Yield the calls by which the variables get their optimizers that are stepped."""
        keys = {self.flow.key(step.optimizer, step.scope) for step in self.steps} - {None}
        for node, _, scope in self.nodes():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                if any(self.flow.key(blocks.reading(target), scope) in keys for target in node.targets):
                    yield node.value, scope

    def _put_into(self, models: set[Value]) -> set[Value]:
        """What becomes a part of these models after they were made: ``model[-1] = head``, ``model.append(head)``."""
        parts: set[Value] = set()
        for node, _, scope in self.nodes():
            if isinstance(node, ast.Assign):
                owners = [target.value for target in node.targets if isinstance(target, (ast.Subscript, ast.Attribute))]
                given = [node.value]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PUTS_PART:
                owners = [node.func.value]
                given = [*node.args, *(item.value for item in node.keywords if item.arg == "module")]
            else:
                continue
            if any(self.flow.values(owner, scope) & models for owner in owners):
                parts |= {value for expression in given for value in self.flow.values(expression, scope)}
        return parts

    def held_as(self, value: Value) -> set[Value]:
        """What the variable holds that a model of no known class stands for: a library's, one that is loaded whole."""
        cell = self.flow.cells.get(value.ref[-1]) if value.kind == "object" and isinstance(value.ref, tuple) else None
        return cell.values if cell is not None else {value}

    def is_trained(self, value: Value) -> bool:
        """Whether the value is one of the models that are trained, its own ``self`` included."""
        if value in self.trained or not self.trained.isdisjoint(self.held_as(value)):
            return True
        if value.kind != "instance":
            return False
        if any(info in self._holding for info in value.ref.mro()):
            return True
        return any(
            other.kind == "instance" and other.ref is value.ref and (other.site is None or value.site is None)
            for other in self.trained
        )

    @cached_property
    def _holding(self) -> set[ClassInfo]:
        """Classes of models that keep a trained one as a part: ``net`` where the optimizer is given ``net.head``."""
        found: set[ClassInfo] = set()
        whole = {value.ref for value in self.trained if value.kind == "instance"}
        for info in self.flow.classes.values():
            if info in whole or not is_module(Value("instance", info)):
                continue
            kept = (value for values in self.flow.held_by(info.facts.node) for value in values)
            if any(value.kind in ("object", "instance") and value in self.trained for value in kept):
                found.add(info)
        return found

    def with_parts(self, values: Iterable[Value]) -> set[Value]:
        """The values, and all modules that they keep."""
        return set(self.parts_from(values))

    def parts_from(self, values: Iterable[Value]) -> Iterator[Value]:
        """Yield the values, and all modules that they keep, each when it is found."""
        found = set(values)
        pending = list(found)
        while pending:
            value = pending.pop()
            yield value
            new = self._modules_of(value) - found
            found |= new
            pending += new

    def _modules_of(self, value: Value) -> set[Value]:
        """The modules that a value keeps itself."""
        known = self._kept_modules.get(value)
        if known is not None:
            return known
        given: set[Value] = set()
        if value.kind == "instance":
            for info in value.ref.mro():
                given.update(*self.flow.held_by(info.facts.node))
        located = self.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is not None and isinstance(value.site, ast.Call) and value.kind == "object":
            for item in values_given(value.site):
                given |= self.flow.values(item.value if isinstance(item, ast.Starred) else item, located[1])
            # Made by a function of the project, in a call of its own.
            for info in self.flow.callees(value.site):
                for returned in info.returns:
                    given |= self.flow.values(returned, self.flow.scopes[info.node])
        given |= self.flow.elements([value, *given])
        found = self._kept_modules[value] = {item for item in given if is_module(item)}
        return found

    @cached_property
    def _kept_modules(self) -> dict[Value, set[Value]]:
        return {}

    @cached_property
    def runs_backward(self) -> Callable[[ast.AST], bool]:
        """Whether running a node runs a backward pass."""
        sites = {site.node for site in self.backwards}
        return self.closure(lambda node: node in sites)

    @cached_property
    def runs_look(self) -> Callable[[ast.AST], bool]:
        """Whether running a node runs a backward pass that only looks at the model."""
        sites = {site.node for site in self.looks.backwards}
        return self.closure(lambda node: node in sites)

    @cached_property
    def runs_step(self) -> Callable[[ast.AST], bool]:
        """Whether running a node steps an optimizer."""
        sites = {site.node for site in self.steps}
        return self.closure(lambda node: node in sites)

    @cached_property
    def runs_model(self) -> Callable[[ast.AST], bool]:
        """Whether running a node computes with a model or with a function of ``torch.nn``."""

        return self.closure(self._computes)

    def _computes(self, node: ast.AST) -> bool:
        located = self.locate(node) if isinstance(node, ast.Call) else None
        if located is None or not isinstance(node, ast.Call):
            return False
        if self.called_models(node, located[1]):
            return True
        if self.runs_part_of_unseen(node, located[1]):
            return True
        if isinstance(node.func, (ast.Name, ast.Attribute)):
            return any(name.startswith("torch.nn.functional.") for name in self.names(node.func, located[1]))
        return False

    def runs_part_of_unseen(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call gives something to a method or a part of a trained model that a library makes.

        ``model.encode_text(words)``, ``model.visual.trunk(images)``: nothing of the project shows what they are.
        """
        is_given = bool(call.args or call.keywords)
        if not is_given or not isinstance(call.func, ast.Attribute) or call.func.attr in NO_FORWARD:
            return False
        if self.flow.callees(call) or call.func.attr.endswith("_"):
            return False  # ``model.linear.weight.data.normal_(0, 0.02)`` changes a tensor
        owner = call.func.value
        while True:
            found = self.roles.modules(owner, scope)
            if found:
                return all(value.kind == "object" and not value.is_given_model for value in found) and any(
                    value in self.trained for value in found
                )
            if not isinstance(owner, (ast.Attribute, ast.Subscript)):
                return False
            if isinstance(owner, ast.Attribute) and owner.attr in OF_PRETRAINED:
                return False  # ``model.config.to_json_file(path)``
            owner = owner.value

    @cached_property
    def runs_forward(self) -> Callable[[ast.AST], bool]:
        """Whether running a node runs a forward pass of a trained model, or of a part of one."""
        return self.closure(self._forwards)

    @cached_property
    def runs_differentiable_forward(self) -> Callable[[ast.AST], bool]:
        """Whether running a node does so, and not under ``no_grad``."""
        return self.closure(self._forwards, with_gradients=True)

    def _forwards(self, node: ast.AST) -> bool:
        located = self.locate(node) if isinstance(node, ast.Call) else None
        return located is not None and isinstance(node, ast.Call) and self.forwards(node, located[1])

    @cached_property
    def runs_differentiable_model(self) -> Callable[[ast.AST], bool]:
        """Whether running a node computes with a model, and not under ``no_grad``."""
        return self.closure(self._computes, with_gradients=True)

    def forwards(self, call: ast.Call, scope: Scope) -> bool:
        """Whether the call itself is a forward pass of a trained model, of a part of one, or a method that is."""
        called = self.called_models(call, scope)
        if any(self.is_trained(value) for value in called):
            return True
        if not isinstance(call.func, ast.Attribute) or not (called or self.runs_model(call)):
            return False
        if not called and any(value.kind == "class" for value in self.flow.values(call.func, scope)):
            return False  # ``model = model.Net(3)``, where the name is a module's and the model's: it makes the model
        owner: ast.expr = call.func.value
        while True:
            if any(self.is_trained(value) for value in self.roles.modules(owner, scope)):
                return True
            if not isinstance(owner, (ast.Attribute, ast.Subscript)):
                return False
            owner = owner.value
