"""The backward passes and optimizer steps of a program."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.roles.absent import is_always_none
from amp_rules.roles.apart import steps_apart
from amp_rules.roles.bodies import told_owner
from amp_rules.roles.looking_passes import Looks, looks
from amp_rules.roles.optimizer_models import OptimizerModels
from amp_rules.roles.sites import Apart, Backward, Site, Step
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_super, last_name
from amp_rules.torch.distributed import JOINS
from amp_rules.torch.gradients import BACKWARD_FUNCTIONS, LOAD_EXTENSIONS, MOST_ARGUMENTS_OF_BACKWARD
from amp_rules.torch.idioms import SCHEDULER
from amp_rules.torch.mixed_precision import SCALERS, runs_whole_step, scaler_of


class Steps(OptimizerModels):
    """Bodies that can run, with the backward passes and optimizer steps among them."""

    @cached_property
    def backwards(self) -> list[Backward]:
        """Every backward pass, but for those that stay in full precision."""
        kept = {item.node for one in self.apart for item in one.backwards}
        kept |= {item.node for item in self.looks.backwards}
        return [item for item in self._all_backwards if item.node not in kept]

    @cached_property
    def apart(self) -> list[Apart]:
        """Steps beside the training that stay as they are, in full precision."""
        return steps_apart(self, self._steppers[0], self._all_backwards)

    @cached_property
    def looks(self) -> Looks[Backward]:
        """The backward passes that stay as they are, for they look at the model and train nothing.

        Those of a script with a scaler of its own are that script's.
        """
        is_plain = not self.apart and not any(item.is_scaled for item in self._all_backwards)
        return self.looks_beside_any if is_plain else Looks()

    @cached_property
    def looks_beside_any(self) -> Looks[Backward]:
        """The backward passes that look at the model and train nothing, beside scaled ones too."""
        return looks(self, self._all_backwards, self._steppers[0], self.unknown_steps)

    @cached_property
    def _all_backwards(self) -> list[Backward]:
        found = []
        for call, body, scope in self.calls():
            if self.callee_names(call, scope) & BACKWARD_FUNCTIONS:
                loss = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "tensors"), None)
                if loss is not None:
                    found.append(Backward(scope.module, scope, body, call, call, loss))
                continue
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
                continue
            if self.flow.callees(call) or self._is_of_extension(call, scope):
                continue
            scaled = self._scaled(call.func.value, scope)
            if scaled is not None:
                found.append(Backward(scope.module, scope, body, call, call, scaled, is_scaled=True))
                continue
            if any(value.kind == "external" for value in self.flow.values(call.func.value, scope)):
                continue
            scaler = scaler_of(call.func.value)
            if scaler is not None and is_always_none(self.flow, scaler, scope):
                continue  # a branch for a scaler that nobody makes
            found.append(Backward(scope.module, scope, body, call, call, call.func.value))
        return [*found, *self.whole_steps] if self.calls_to(JOINS) else found

    def _is_of_extension(self, call: ast.Call, scope: Scope) -> bool:
        """Whether it is the function of an extension, by its arguments or by what loads it: ``kernels.backward``."""
        assert isinstance(call.func, ast.Attribute)
        made = self.flow.values(call.func.value, scope)
        is_loaded = bool(made) and all(value.kind == "object" and value.ref in LOAD_EXTENSIONS for value in made)
        return is_loaded or len(call.args) > MOST_ARGUMENTS_OF_BACKWARD

    @cached_property
    def whole_steps(self) -> list[Backward]:
        """Calls of a library's object that scales, goes backward and steps: ``loss_scaler(loss, optimizer)`` of timm.

        They count as backward passes where the script joins processes, which are looked at whoever goes backward.
        """
        return [
            Backward(scope.module, scope, body, call, call, call.args[0], is_scaled=True)
            for call, body, scope in self.calls()
            if call.args and not self.flow.callees(call) and self._runs_whole_step(call.func, scope)
        ]

    def _runs_whole_step(self, node: ast.expr, scope: Scope) -> bool:
        return any(
            value.kind == "object" and isinstance(value.ref, str) and runs_whole_step(value.ref)
            for value in self.flow.values(node, scope)
        )

    def _scaled(self, node: ast.expr, scope: Scope) -> ast.expr | None:
        """The loss in ``scaler.scale(loss)``."""
        scaler = scaler_of(node)
        if scaler is None or not self._is_scaler(scaler, scope):
            return None
        return node.args[0] if isinstance(node, ast.Call) and node.args else None

    def _is_scaler(self, node: ast.expr, scope: Scope) -> bool:
        return any(
            value.ref in SCALERS for value in self.flow.values(node, scope) if value.kind in ("object", "external")
        )

    @cached_property
    def _steppers(self) -> tuple[list[Step], list[Step]]:
        known, unknown = [], []
        for call, body, scope in self.calls():
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
                continue
            info = self.function_of(body)
            if is_super(call.func.value):
                continue
            if info is not None and info.name == "step" and self.is_of_optimizer(info):
                continue
            if self._is_scaler(call.func.value, scope):
                if call.args:
                    known.append(Step(scope.module, scope, body, call, call, call.args[0]))
                continue
            site = Step(scope.module, scope, body, call, call, call.func.value)
            kind = self.roles.stepper(call, scope)
            if kind == "unknown" and told_owner(scope.module, site.optimizer) in self.told_optimizers:
                kind = "optimizer"
            if kind == "optimizer":
                known.append(site)
            elif kind == "unknown" and not is_always_none(self.flow, call.func.value, scope):
                if not self._is_of_empty_list(site):
                    unknown.append(site)
        beside = {site.body for site in known}
        left = [site for site in unknown if not (site.body in beside and self._is_called_schedule(site))]
        return self._outermost(known), left

    def _is_of_empty_list(self, site: Step) -> bool:
        """Whether a loop goes through a list that stays empty: to ``self.schedulers``, for one, nothing is added."""
        name = site.optimizer.id if isinstance(site.optimizer, ast.Name) else None
        loops = (item for item in blocks.enclosing(site.module, site.node) if isinstance(item, ast.For))
        over = next((item.iter for item in loops if name in blocks.writes_target(item)), None)
        if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and over.args:
            over = over.args[0]
        if not isinstance(over, (ast.Name, ast.Attribute)):
            return False
        lists = self.flow.values(over, site.scope)
        made = [value.site for value in lists if isinstance(value.site, ast.List) and not value.site.elts]
        if not made or len(made) < len(lists) or self.flow.elements(lists):
            return False
        return not any(
            (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("append", "extend", "insert")
                and last_name(node.func.value) == last_name(over)
            )
            or (isinstance(node, ast.AugAssign) and last_name(node.target) == last_name(over))
            for node, _, _ in self.nodes()
        )

    def _is_called_schedule(self, site: Step) -> bool:
        """Whether something is a schedule by its name: a library that is not known may have made it."""
        is_used_as_optimizer = {"zero_grad", "param_groups"} & self.roles.uses(site.optimizer, site.scope)
        return SCHEDULER in last_name(site.optimizer).lower() and not is_used_as_optimizer

    def _outermost(self, steps: list[Step]) -> list[Step]:
        """The steps, without those within the step of an object around the optimizer that is stepped itself.

        The scaler steps such an object as a whole, and unscales the gradients of the optimizer in it once.
        """
        calls = {step.call for step in steps}
        found = []
        for step in steps:
            info = self.function_of(step.body)
            if info is not None and info.name == "step" and any(self._steps(item, info) for item in steps):
                if all(caller.call in calls for caller in self.flow.callers(info)):
                    continue
            found.append(step)
        return found

    def _steps(self, step: Step, info: FunctionFacts) -> bool:
        """Whether an object whose method this is may be what a step elsewhere steps."""
        return step.body is not info.node and any(
            value.kind == "instance" and value.ref.find_method("step") is info
            for value in self.flow.values(step.optimizer, step.scope)
        )

    @cached_property
    def steps(self) -> list[Step]:
        """Every optimizer step, but for those that stay in full precision."""
        kept = {one.step.node for one in self.apart}
        return [item for item in self._steppers[0] if item.node not in kept]

    @property
    def unknown_steps(self) -> list[Step]:
        """Calls of ``step()`` on something that could be an optimizer for all that is known."""
        return self._steppers[1]

    @cached_property
    def added_groups(self) -> list[Site]:
        """Calls that give an optimizer which steps more parameters: ``optimizer.add_param_group({...})``."""
        stepped = {value for step in self.steps for value in self.flow.values(step.optimizer, step.scope)}
        found = []
        for call, body, scope in self.calls():
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(owner, ast.Attribute) and owner.attr == "param_groups":
                owner = owner.value  # its list is appended to
            elif not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_param_group"):
                continue
            if owner is not None and self.flow.values(owner, scope) & stepped:
                found.append(Site(scope.module, scope, body, call))
        return found
