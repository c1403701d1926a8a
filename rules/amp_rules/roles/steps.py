"""Training steps: backward passes, optimizer steps, gradient accesses, and what a statement leads to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from amp_rules.flow.flow import Flow
from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import CallSite, ClassInfo, Value
from amp_rules.roles.absent import is_always_none
from amp_rules.roles.kinds import is_module, is_optimizer, is_without_parameters
from amp_rules.roles.looking_passes import Looks, looks
from amp_rules.roles.own_gradients import sets_all_gradients
from amp_rules.roles.own_optimizers import models_given, models_within
from amp_rules.roles.owned_parameters import owners
from amp_rules.roles.value_roles import Roles
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.phases import phase
from amp_rules.source.project import Project
from amp_rules.source.reach import Reach
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_super, walk
from amp_rules.torch.distributed import JOINS
from amp_rules.torch.functions import TENSOR_MAKERS
from amp_rules.torch.gradients import BACKWARD_FUNCTIONS
from amp_rules.torch.mixed_precision import SCALERS, runs_whole_step
from amp_rules.torch.models import NO_FORWARD, PUTS_PART
from amp_rules.torch.wrappers import SPREAD_IN_ONE_CALL


@dataclass(frozen=True)
class Site:
    """A node of interest and where it stands."""

    module: Module
    scope: Scope
    body: ast.AST
    node: ast.AST

    @property
    def statement(self) -> ast.stmt:
        """The statement that the node is in."""
        return blocks.statement_of(self.module, self.node)

    @property
    def line(self) -> int:
        """The line that it begins on."""
        return int(getattr(self.node, "lineno", 1))


@dataclass(frozen=True)
class Backward(Site):
    """``loss.backward()`` or ``torch.autograd.backward(loss)``.

    ``is_scaled`` says that a scaler is called there already: ``scaler.scale(loss).backward()``.
    """

    call: ast.Call
    loss: ast.expr
    is_scaled: bool = False


@dataclass(frozen=True)
class Step(Site):
    """``optimizer.step()``."""

    call: ast.Call
    optimizer: ast.expr


@dataclass(frozen=True)
class Apart:
    """One step that stays as it is: its optimizer trains models that no other one does, within its closure alone.

    Nothing of it has to do with the loss scale, as of an LBFGS probe of features beside the training.

    Attributes:
        step: the step.
        backwards: the backward passes of its closure.
        closures: the closures, where they set the gradients themselves and run no backward pass.
    """

    step: Step
    backwards: tuple[Backward, ...]
    closures: tuple[ast.AST, ...] = ()


def calling(caller: CallSite) -> Site:
    """A call of a function of the project, as a site."""
    module = caller.scope.module
    return Site(module, caller.scope, blocks.body_of(module, caller.call), caller.call)


ToldOwners = Mapping[tuple[object, ...], str]
"""The optimizer, by its source, that a script says holds some parameters; the key is made by :func:`told_owner`."""


def told_owner(module: Module, parameters: ast.AST) -> tuple[object, ...]:
    """What stands for an expression in one function, whatever lines are put before it."""
    body = blocks.body_of(module, parameters)
    return module.path, getattr(body, "name", ""), ast.unparse(parameters)


class Program:
    """One entry script and what it imports, with the facts that every rule starts from.

    Attributes:
        project: the files.
        flow: what each name may hold.
        roles: what each value is for.
        told_owners: what the script said in words that are gone now, see :mod:`amp_rules.plan.apex.told_owners`.
    """

    def __init__(self, project: Project, flow: Flow | None = None, left_out: Collection[ast.AST] = ()) -> None:
        """Follow the values of a project.

        Args:
            project: the files.
            flow: what was followed already.
            left_out: functions that do not belong to the program.
        """
        self.project = project
        self.told_owners: ToldOwners = {}
        self._left_out = left_out
        with phase("following values"):
            self.flow = Flow(project) if flow is None else flow
        self.roles = Roles(self.flow)
        self._calls_by_body: dict[ast.AST, list[ast.Call]] = {}
        self._names: dict[tuple[ast.expr, Scope], frozenset[str]] = {}

    @property
    def entry(self) -> Module:
        """The script that is run."""
        return self.project.entry

    # ---- walking -------------------------------------------------------------------------------------------

    @cached_property
    def bodies(self) -> list[tuple[ast.AST, Scope]]:
        """Bodies that the program can run, in the order of files and lines."""
        order = {module: index for index, module in enumerate(self.flow.modules)}
        return sorted(
            (item for item in self.flow.bodies() if item[0] not in self._replaced and item[0] not in self._left_out),
            key=lambda item: (
                order[item[1].module],
                getattr(item[0], "lineno", 0),
                getattr(item[0], "col_offset", 0),
            ),
        )

    @cached_property
    def _replaced(self) -> set[ast.AST]:
        """Methods that nothing calls because objects are of a subclass, whose method of that name is called instead."""
        methods: dict[str, list[FunctionFacts]] = {}
        for info in self.flow.functions.values():
            if info.cls is not None and not info.name.startswith("__"):
                methods.setdefault(info.name, []).append(info)
        found: set[ast.AST] = set()
        for several in methods.values():
            called = {self.flow.class_of(info) for info in several if self.flow.callers(info)}
            for info in several if called and len(several) > 1 else ():
                owner = self.flow.class_of(info)
                if owner is None or owner in called or owner in self._made_classes:
                    continue
                if any(other is not None and owner in other.mro()[1:] for other in called):
                    found.add(info.node)
        return found

    @cached_property
    def _made_classes(self) -> set[ClassInfo]:
        """The classes that have objects of their own, not only those of subclasses."""
        return {
            value.ref
            for cell in self.flow.cells.values()
            for value in cell.values
            if value.kind == "instance" and value.site is not None
        }

    @cached_property
    def _nodes(self) -> dict[ast.AST, list[ast.AST]]:
        found: dict[ast.AST, list[ast.AST]] = {}
        for body, scope in self.bodies:
            if isinstance(body, ast.Module) and not scope.module.is_entry:
                # Only the entry's guard runs.
                parts = [item for item in body.body if not (isinstance(item, ast.If) and is_main_guard(item))]
                found[body] = [node for item in parts for node in blocks.walk_own(item)]
            else:
                found[body] = list(blocks.walk_body(body))
        return found

    def nodes_of(self, body: ast.AST) -> list[ast.AST]:
        """The nodes that run with a body."""
        return self._nodes.get(body, [])

    def runs(self, body: ast.AST) -> bool:
        """Whether the program can run a body."""
        return body in self._nodes

    def nodes(self) -> Iterator[tuple[ast.AST, ast.AST, Scope]]:
        """Yield every node that can run with its body and the scope of its names."""
        for body, scope in self.bodies:
            for node in self._nodes[body]:
                yield node, body, scope

    def calls(self) -> Iterator[tuple[ast.Call, ast.AST, Scope]]:
        """Yield every call that can run, with its body and scope."""
        return iter(self._calls)

    @cached_property
    def _calls(self) -> list[tuple[ast.Call, ast.AST, Scope]]:
        return [(node, body, scope) for node, body, scope in self.nodes() if isinstance(node, ast.Call)]

    @cached_property
    def reads(self) -> list[tuple[ast.Name | ast.Attribute | ast.ImportFrom, Scope]]:
        """What reads a name or an attribute, or imports from a module; in decorators of functions that run, too."""
        found: list[tuple[ast.Name | ast.Attribute | ast.ImportFrom, Scope]] = []
        for body, scope in self.bodies:
            decorators = getattr(body, "decorator_list", ())
            above = ((node, scope.parent or scope) for item in decorators for node in walk(item))
            for node, where in chain(above, ((node, scope) for node in self._nodes[body])):
                if isinstance(node, ast.ImportFrom) or (
                    isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
                ):
                    found.append((node, where))
        return found

    def names(self, node: ast.expr, scope: Scope) -> set[str]:
        """Qualified names of the library objects that the expression can be."""
        key = node, scope
        known = self._names.get(key)
        if known is None:
            values = self.flow.values(node, scope)
            known = self._names[key] = frozenset(value.ref for value in values if value.kind == "external")
        return set(known)

    def callee_names(self, call: ast.Call, scope: Scope) -> set[str]:
        """Qualified names of the library functions that a call by name can run.

        A class of the script's own that is used as ``DataParallel`` is goes by its name.
        """
        if not isinstance(call.func, (ast.Name, ast.Attribute)):
            return set()
        own = (value.ref.spreads_as for value in self.flow.values(call.func, scope) if value.kind == "class")
        return self.names(call.func, scope).union(*own)

    def calls_to(self, names: frozenset[str]) -> list[Site]:
        """Calls of library functions or classes by their qualified names."""
        places = {place for name in names & self._calls_by_name.keys() for place in self._calls_by_name[name]}
        found = [self._calls[place] for place in sorted(places)]
        return [Site(scope.module, scope, body, call) for call, body, scope in found]

    @cached_property
    def _calls_by_name(self) -> dict[str, list[int]]:
        """The places among all calls of those that can run a library's function, by its name."""
        found: dict[str, list[int]] = {}
        for place, (call, _, scope) in enumerate(self._calls):
            for name in self.callee_names(call, scope):
                found.setdefault(name, []).append(place)
        return found

    def is_model_code(self, body: ast.AST) -> bool:
        """Whether the body belongs to a class of models."""
        info = self.function_of(body)
        owner = self.flow.class_of(info) if info is not None else None
        return owner is not None and is_module(Value("instance", owner))

    def called_from(self, nodes: Iterable[ast.AST], apart: Collection[ast.AST] = ()) -> set[ast.AST]:
        """Bodies of the project's functions that the calls among ``nodes`` run, at any depth; not through ``apart``."""
        found: set[ast.AST] = set()
        pending = [node for node in nodes if isinstance(node, ast.Call)]
        while pending:
            for info in self.flow.callees(pending.pop()):
                if info.node not in found and info.node not in apart:
                    found.add(info.node)
                    pending.extend(self._calls_in(info.node))
        return found

    def _calls_in(self, body: ast.AST) -> list[ast.Call]:
        """The calls of a function's own body."""
        known = self._calls_by_body.get(body)
        if known is None:
            known = [node for node in blocks.walk_body(body) if isinstance(node, ast.Call)]
            self._calls_by_body[body] = known
        return known

    def is_of_optimizer(self, info: FunctionFacts) -> bool:
        """Whether a function is a method of an optimizer of the project."""
        owner = self.flow.class_of(info)
        return owner is not None and is_optimizer(Value("instance", owner))

    def function_of(self, body: ast.AST) -> FunctionFacts | None:
        """The function whose body this is; None for a module's."""
        return self.flow.functions.get(body)

    def reach(self) -> Reach:
        """The files and functions that the program rests on."""
        functions: dict[Path, list[tuple[int, int]]] = {}
        for body, scope in self.bodies:
            if isinstance(body, FunctionNode):
                functions.setdefault(scope.module.path, []).append((body.lineno, body.end_lineno or body.lineno))
        return Reach(
            tuple(sorted(module.path for module in self.project.modules)),
            tuple(sorted(self.project.probes.items())),
            {path: tuple(sorted(ranges)) for path, ranges in functions.items()},
            tuple(sorted(self.project.listed.items())),
            tuple(sorted({*self.project.configured.read, *self.project.settings})),
        )

    # ---- sites ---------------------------------------------------------------------------------------------

    @cached_property
    def backwards(self) -> list[Backward]:
        """Every backward pass, but for those that stay in full precision."""
        kept = {item.node for one in self.apart for item in one.backwards}
        kept |= {item.node for item in self.looks.backwards}
        return [item for item in self._all_backwards if item.node not in kept]

    @cached_property
    def apart(self) -> list[Apart]:
        """Steps beside the training that stay as they are, in full precision."""
        return _apart(self, self._steppers[0], self._all_backwards)

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
            if self.flow.callees(call):
                continue
            scaled = self._scaled(call.func.value, scope)
            if scaled is not None:
                found.append(Backward(scope.module, scope, body, call, call, scaled, is_scaled=True))
                continue
            if any(value.kind == "external" for value in self.flow.values(call.func.value, scope)):
                continue
            found.append(Backward(scope.module, scope, body, call, call, call.func.value))
        return [*found, *self.whole_steps] if self.calls_to(JOINS) else found

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
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scale"):
            return None
        return node.args[0] if node.args and self._is_scaler(node.func.value, scope) else None

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
            if kind == "optimizer":
                known.append(site)
            elif kind == "unknown" and not is_always_none(self.flow, call.func.value, scope):
                unknown.append(site)
        return known, unknown

    @cached_property
    def steps(self) -> list[Step]:
        """Every optimizer step, but for those that stay in full precision."""
        kept = {one.step.node for one in self.apart}
        return [item for item in self._steppers[0] if item.node not in kept]

    @property
    def unknown_steps(self) -> list[Step]:
        """Calls of ``step()`` on something that could be an optimizer for all that is known."""
        return self._steppers[1]

    # ---- models --------------------------------------------------------------------------------------------

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
        # Beside a model that the program makes, one that only others could give is trained by nothing that runs.
        return {value for value in found if not value.is_given_model} or found

    def models_of_step(self, step: Step) -> set[Value]:
        """Models whose parameters reach the constructor of the optimizer that a step is of."""
        made = [value.site for value in self.flow.values(step.optimizer, step.scope)]
        return {model for site in made if isinstance(site, ast.Call) for model in self.models_of_optimizer(site)}

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

    def models_of_optimizer(self, call: ast.Call) -> set[Value]:
        """Models whose parameters reach this call, which makes an optimizer or adds a group to one.

        Those of another optimizer that is given count too.
        """
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
                    found.add(self._whole(value.ref))
                elif isinstance(value.ref.site, ast.Call):
                    pending.append(value.ref.site)
        return found

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
        return {value for value in loose if not self._owners(value)}

    def _owners(self, value: Value) -> set[Value]:
        """The models that own a single parameter."""
        known = self._known_owners.get(value)
        if known is None:
            known = self._known_owners[value] = owners(self.flow, self.nodes(), value)
        return known

    @cached_property
    def _known_owners(self) -> dict[Value, set[Value]]:
        return {}

    def given(self, call: ast.Call, arguments: Iterable[ast.expr]) -> set[Value]:
        """What the arguments of a call can hold, the elements of containers included."""
        located = self.locate(call)
        if located is None:
            return set()
        pending = [value for argument in arguments for value in self.flow.values(argument, located[1])]
        seen: set[Value] = set()
        while pending:
            value = pending.pop()
            if value not in seen:
                seen.add(value)
                if value.kind == "sequence":
                    pending.extend(self.flow.elements({value}))
        return seen

    def locate(self, node: ast.AST) -> tuple[ast.AST, Scope] | None:
        """The body that runs a node, and its scope; None when the program cannot reach it."""
        module = self.module_of(node)
        if module is None:
            return None
        body = blocks.body_of(module, node)
        return (body, self.flow.scopes[body]) if body in self._nodes else None

    @cached_property
    def _module_of(self) -> dict[ast.AST, Module]:
        return {}

    def module_of(self, node: ast.AST) -> Module | None:
        """The file that a node stands in."""
        known = self._module_of.get(node)
        if known is None:
            known = next((module for module in self.flow.modules if node in module.parents), None)
            if known is not None:
                self._module_of[node] = known
        return known

    def is_trained(self, value: Value) -> bool:
        """Whether the value is one of the models that are trained, its own ``self`` included."""
        if value in self.trained:
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
        for (owner, _), cell in self.flow.cells.items():
            info = self.flow.classes.get(owner) if isinstance(owner, ast.ClassDef) else None
            if info is None or info in whole or not is_module(Value("instance", info)):
                continue
            if any(value.kind in ("object", "instance") and value in self.trained for value in cell.values):
                found.add(info)
        return found

    def called_models(self, call: ast.Call, scope: Scope) -> set[Value]:
        """Models whose forward pass the call runs directly."""
        if is_super(call) or self._makes_itself(call, scope):
            return set()
        found = self.roles.modules(call.func, scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("forward", "__call__"):
            found = found | self.roles.modules(call.func.value, scope)
        if (spread := self.callee(call, scope)) is not call.func:
            found = found | self.roles.modules(spread, scope)
        return found

    def _makes_itself(self, call: ast.Call, scope: Scope) -> bool:
        """``model = model(**settings)``, where the name held what makes models before it held one."""
        statement = scope.module.parents.get(call) if isinstance(call.func, ast.Name) else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            return False
        target = statement.targets[0]
        if not (isinstance(target, ast.Name) and isinstance(call.func, ast.Name) and target.id == call.func.id):
            return False
        return any(value.kind in ("function", "class") for value in self.flow.values(call.func, scope))

    def callee(self, call: ast.Call, scope: Scope) -> ast.expr:
        """What a call runs: ``model`` for ``model(x)``, and for ``data_parallel(model, x)`` as well."""
        is_spread = call.args and self.callee_names(call, scope) & SPREAD_IN_ONE_CALL
        return call.args[0] if is_spread else call.func

    # ---- what a statement leads to -------------------------------------------------------------------------

    def closure(self, direct: Callable[[ast.AST], bool], *, with_gradients: bool = False) -> Callable[[ast.AST], bool]:
        """Whether running a node can run something for which ``direct`` holds, calls within the project included."""
        return _Closure(self, direct, with_gradients).has

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
        if self.flow.callees(call):
            return False
        owner = call.func.value
        while True:
            found = self.roles.modules(owner, scope)
            if found:
                return all(value.kind == "object" and not value.is_given_model for value in found) and any(
                    value in self.trained for value in found
                )
            if not isinstance(owner, (ast.Attribute, ast.Subscript)):
                return False
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

    def is_without_gradients(self, call: ast.Call) -> bool:
        """Whether the call runs under ``no_grad`` or ``inference_mode``."""
        located = self.locate(call)
        return located is not None and self.without_gradients(located[1].module, call, located[0])

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

    def without_gradients(self, module: Module, node: ast.AST, body: ast.AST) -> bool:
        """Whether a node runs under ``no_grad`` or ``inference_mode``."""
        for parent in blocks.enclosing(module, node):
            if isinstance(parent, ast.With):
                heads = [ast.unparse(item.context_expr) for item in parent.items]
                if any("no_grad" in head or "inference_mode" in head for head in heads):
                    return True
        info = self.function_of(body)
        return info is not None and info.has_decorator("no_grad", "inference_mode")


class _Closure:
    """What runs something of a kind, over all calls within the program.

    A body is decided once, together with all that it calls: functions that call each other are decided as one.
    """

    def __init__(self, program: Program, direct: Callable[[ast.AST], bool], with_gradients: bool) -> None:
        self._program = program
        self._direct = direct
        self._with_gradients = with_gradients
        self._decided: dict[ast.AST, bool] = {}
        self._known: dict[ast.AST, bool] = {}

    def has(self, node: ast.AST) -> bool:
        """Whether running the node runs such a thing."""
        known = self._known.get(node)
        if known is None:
            called = self._called([node])
            known = self._known[node] = called is None or any(self._body_has(body) for body in called)
        return known

    def _called(self, parts: Iterable[ast.AST]) -> dict[ast.AST, None] | None:
        """The bodies that the parts call; None where they hold such a thing themselves, or call what is known to."""
        called: dict[ast.AST, None] = {}
        for part in parts:
            for current in blocks.walk_own(part):
                is_call = isinstance(current, ast.Call)
                if self._with_gradients and is_call and self._program.is_without_gradients(current):  # type: ignore[arg-type]
                    continue
                if self._direct(current):
                    return None
                for info in self._program.flow.callees(current) if isinstance(current, ast.Call) else ():
                    if self._decided.get(info.node):
                        return None
                    called[info.node] = None
        return called

    def _body_has(self, body: ast.AST) -> bool:
        if body not in self._decided:
            self._decide(body)
        return self._decided[body]

    def _decide(self, start: ast.AST) -> None:
        """Look at all that a body calls, then carry what was found back to the callers."""
        callers: dict[ast.AST, list[ast.AST]] = {}
        found: list[ast.AST] = []
        looked_at: set[ast.AST] = {start}
        pending = [start]
        while pending:
            body = pending.pop()
            called = self._called(blocks.own_parts(body))
            if called is None:
                found.append(body)
                continue
            for callee in called:
                if callee in self._decided:
                    continue
                callers.setdefault(callee, []).append(body)
                if callee not in looked_at:
                    looked_at.add(callee)
                    pending.append(callee)
        self._decided.update(dict.fromkeys(looked_at, False))
        while found:
            body = found.pop()
            if not self._decided[body]:
                self._decided[body] = True
                found.extend(callers.get(body, ()))


# ---- steps beside the training ---------------------------------------------------------------------------------------


def _apart(program: Program, steps: Sequence[Step], backwards: Sequence[Backward]) -> list[Apart]:
    """The steps with closures that have nothing to do with the other steps; none, where there are no others."""
    closures = {step: given for step in steps if (given := closure_of(step)) is not None}
    others = [step for step in steps if step not in closures]
    if not closures or not others:
        return []
    searches = [one for step, given in closures.items() if (one := _search(program, step, given, backwards))]
    elsewhere = {model for step in others for model in _models_of_step(program, step) or ()}
    is_known = all(_models_of_step(program, step) is not None for step in others)
    found = []
    for step, given in closures.items():
        own = _models_of_step(program, step)
        if own is None or not is_known or not own.isdisjoint(elsewhere) or _are_parts(program, own):
            continue
        functions = [value.ref for value in program.flow.values(given, step.scope) if value.kind == "function"]
        inside = tuple(item for item in backwards if item.body in {info.node for info in functions})
        if functions and inside and _stays_within(program, functions, step, inside, own, backwards):
            found.append(Apart(step, inside))
    left = {item for one in found for item in one.backwards}
    return [*searches, *found] if len(left) < len(backwards) else searches


def _search(program: Program, step: Step, given: ast.expr, backwards: Sequence[Backward]) -> Apart | None:
    """A step that has nothing to do with the scale, as its closure sets all gradients by ``torch.autograd.grad``."""
    values = program.flow.values(step.optimizer, step.scope)
    made = [value.site for value in values if isinstance(value.site, ast.Call)]
    functions = [value.ref for value in program.flow.values(given, step.scope) if value.kind == "function"]
    bodies = tuple(info.node for info in functions)

    def is_differentiated(call: ast.Call) -> bool:
        located = program.locate(call)
        return located is not None and "torch.autograd.grad" in program.callee_names(call, located[1])

    if not functions or len(made) != len(values) or not sets_all_gradients(made, bodies, is_differentiated):
        return None
    if any((located := program.locate(call)) is None or located[0] is not step.body for call in made):
        return None  # the names are those of another function
    if any(caller.call is not step.call for info in functions for caller in program.flow.callers(info)):
        return None
    called = program.called_from(node for body in bodies for node in blocks.walk_body(body)) | set(bodies)
    if any(item.body in called for item in backwards):
        return None
    return Apart(step, (), bodies)


def closure_of(step: Step) -> ast.expr | None:
    """``closure`` of ``optimizer.step(closure)``."""
    call = step.call
    if step.optimizer in call.args or len(call.args) + len(call.keywords) != 1:
        return None
    return call.args[0] if call.args else call.keywords[0].value


def _models_of_step(program: Program, step: Step) -> set[Value] | None:
    """The models that an optimizer trains; None where they are not known."""
    found: set[Value] = set()
    for value in program.flow.values(step.optimizer, step.scope):
        models = program.models_of_optimizer(value.site) if isinstance(value.site, ast.Call) else set()
        if not models:
            return None
        found |= models
    return found or None


def _are_parts(program: Program, models: set[Value]) -> bool:
    """Whether an object of a class of models keeps one of them, or one is kept by another's attribute."""
    for (owner, _), cell in program.flow.cells.items():
        info = program.flow.classes.get(owner) if isinstance(owner, ast.ClassDef) else None
        held = cell.values | program.flow.elements(cell.values)
        if info is not None and is_module(Value("instance", info)) and not models.isdisjoint(held):
            return True
    return any(value.kind == "attribute" for value in models)


def _stays_within(
    program: Program,
    functions: Sequence[FunctionFacts],
    step: Step,
    inside: Sequence[Backward],
    own: set[Value],
    backwards: Sequence[Backward],
) -> bool:
    """Whether nothing but the step calls the closures, and they run no model and no backward pass of others."""
    bodies = {info.node for info in functions}
    callers = [caller.call for info in functions for caller in program.flow.callers(info)]
    if any(call is not step.call for call in callers):
        return False
    called = program.called_from(node for body in bodies for node in blocks.walk_body(body)) | bodies
    if any(item.body in called and item not in inside for item in backwards):
        return False
    return all(
        model in own or is_without_parameters(model)
        for call, body, scope in program.calls()
        if body in called and not program.is_model_code(body)
        for model in program.called_models(call, scope)
    )
