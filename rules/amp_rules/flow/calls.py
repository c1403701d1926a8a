"""Calls: which function they run, with which arguments, and what they give."""

from __future__ import annotations

import ast
from dataclasses import replace

from amp_rules.flow.arguments import Arguments
from amp_rules.flow.call_graph import CallGraph
from amp_rules.flow.cells import Mark
from amp_rules.flow.configurations import Configurations
from amp_rules.flow.containers import Containers, is_container
from amp_rules.flow.libraries import Libraries
from amp_rules.flow.local_variables import LocalVariables
from amp_rules.flow.partials import Partials
from amp_rules.flow.parts import Evaluation, Invocation, Overlay
from amp_rules.flow.reached import Reached
from amp_rules.flow.records import Records, fields_of, named_tuple
from amp_rules.flow.refused_calls import refuses
from amp_rules.flow.registries import Registries
from amp_rules.flow.remade_names import without_remade
from amp_rules.flow.returns import Returns
from amp_rules.flow.store import Store
from amp_rules.flow.values import ClassInfo, Form, Member, MemberOf, Value, without_missing
from amp_rules.roles.kinds import is_chain, is_module
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_super, own_name, walk
from amp_rules.torch.commands import RUNS_COMMANDS
from amp_rules.torch.containers import BY_CONFIGURATION, TAKES_CONFIGURATION
from amp_rules.torch.functions import COMPUTED_FROM_ALL
from amp_rules.torch.models import RETURNS_RECEIVER

_BY_NAME = {"__getattribute__": (1, "builtins.getattr"), "__setattr__": (2, "builtins.setattr")}
"""Methods of all objects that ask for an attribute by its name, with their arguments, and the functions that do so."""


class CallEvaluator:
    """Calls of functions, classes and objects of the project; what is not is handed on."""

    def __init__(
        self,
        store: Store,
        reached: Reached,
        graph: CallGraph,
        containers: Containers,
        records: Records,
        registries: Registries,
        libraries: Libraries,
        partials: Partials,
        configurations: Configurations,
        returns: Returns,
        variables: LocalVariables,
        evaluation: Evaluation,
    ) -> None:
        self._store = store
        self._arguments = Arguments(store, containers)
        self._reached = reached
        self._graph = graph
        self._containers = containers
        self._records = records
        self._registries = registries
        self._libraries = libraries
        self._partials = partials
        self._configurations = configurations
        self._returns = returns
        self._variables = variables
        self._evaluation = evaluation
        self._calls_inside: dict[ast.AST, set[ast.AST | None]] = {}
        self._decorations: dict[ast.expr, ast.Call] = {}

    # ---- the call as it is written -------------------------------------------------------------------------------

    def call(self, node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        """What a call can give."""
        if is_super(node) and scope.is_function:
            return self._super(scope)
        evaluate = self._evaluation.expressions.evaluate
        # Once for all that asks: of ``w.data.clone().detach()`` each link of the chain would double the work, or worse.
        owners = evaluate(node.func.value, scope, overlay) if isinstance(node.func, ast.Attribute) else set()
        targets = without_missing(self._called(node.func, owners, scope, overlay))
        targets = self._inherited(node.func, scope, overlay) or targets
        targets = without_remade(targets, node, scope, self._variables)
        arguments = [evaluate(argument, scope, overlay) for argument in node.args]
        keywords = {item.arg: evaluate(item.value, scope, overlay) for item in node.keywords}
        for values in [*arguments, *keywords.values()]:
            for value in values:
                if value.kind == "function":
                    self._reached.reach(value.ref)
        given = Invocation(node, arguments, keywords, scope, overlay, owners)
        if isinstance(node.func, ast.Attribute) and len(arguments) == _BY_NAME.get(node.func.attr, (0, ""))[0] > 0:
            if not is_super(node.func.value):
                return self._asked_by_name(node.func, given)
        if any(target.kind == "external" and target.ref in RUNS_COMMANDS for target in targets):
            self._run_commands(given)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "__init__" and is_super(node.func.value):
            for value in self._own(scope, overlay):
                if is_chain(value):
                    self._libraries.put_parts(value, given)
        found: set[Value] = set()
        alike: dict[tuple[FunctionFacts, object], set[Value]] = {}
        for target in _fitting(targets, node):
            method = _run_by_call(target)
            if method is not None:
                alike.setdefault((method, target.ref), set()).add(target)
            elif not _lacks_arguments(target, node):
                found |= self.apply(target, given)
        # Objects of one class share their attributes: calling any of them gives what calling each would.
        for (method, _), receivers in alike.items():
            found |= self._run(method, given, receivers, is_method=True)
        return found

    def _called(self, func: ast.expr, owners: set[Value], scope: Scope, overlay: Overlay | None) -> set[Value]:
        """What a call may run."""
        if isinstance(func, ast.Attribute):
            return self._evaluation.expressions.attribute(func, owners, scope)
        return self._evaluation.expressions.evaluate(func, scope, overlay)

    def _asked_by_name(self, method: ast.Attribute, given: Invocation) -> set[Value]:
        """``module.__getattribute__(name)``, which is ``getattr(module, name)``, and ``setattr`` alike."""
        asked = ast.Call(method, [method.value, *given.node.args], [])
        arguments = [given.owners, *given.arguments]
        function = _BY_NAME[method.attr][1]
        return self._libraries.apply(function, Invocation(asked, arguments, {}, given.scope, given.overlay))

    def _run_commands(self, given: Invocation) -> None:
        """Reach what the command line may choose; without an argument that is every function of the file."""
        pending = [value for values in [*given.arguments, *given.keywords.values()] for value in values]
        if not given.node.args and not given.node.keywords:
            members = self._containers.members(Value("module", given.scope.top.module))
            pending = [value for value in members if value.kind == "function"]
        seen: set[Value] = set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            if value.kind == "sequence":
                pending.extend(self._containers.elements({value}))
            elif value.kind == "module":
                pending.extend(self._containers.members(value))
            elif value.kind == "function":
                self._reached.reach(value.ref)
            elif value.kind == "class":
                self.apply(value, Invocation(given.node, [], {}, given.scope, given.overlay))

    def decorate(self, decorator: ast.expr, decorated: set[Value], scope: Scope) -> None:
        """Run a decorator of the project for what it does besides: many enter a class into a registry.

        The decorated name keeps its own value.
        """
        for target in list(self._evaluation.expressions.evaluate(decorator, scope)):
            if target.ref == TAKES_CONFIGURATION and isinstance(decorator, ast.Call):
                self._configurations.give(decorator, decorated, scope)
            elif target.kind == "function" or (target.kind == "instance" and not is_module(target)):
                call = self._decorations.get(decorator)
                if call is None:
                    call = self._decorations[decorator] = ast.Call(decorator, [ast.Name("<decorated>")], [])
                self.apply(target, Invocation(call, [decorated], {}, scope))

    def _super(self, scope: Scope) -> set[Value]:
        info = self._reached.functions.get(scope.node)
        owner = self._reached.class_of(info) if info is not None else None
        return (
            {Value("instance", base.ref) for base in owner.bases if base.kind == "class"}
            if owner is not None
            else set()
        )

    def _inherited(self, func: ast.expr, scope: Scope, overlay: Overlay | None) -> set[Value]:
        """``super().to(device)`` by a library's method: it gives the object itself, which its base does not know."""
        if not (isinstance(func, ast.Attribute) and func.attr in RETURNS_RECEIVER and is_super(func.value)):
            return set()
        info = self._reached.functions.get(scope.node)
        owner = self._reached.class_of(info) if info is not None else None
        if owner is None:
            return set()
        if any(base.ref.find_method(func.attr) is not None for base in owner.bases if base.kind == "class"):
            return set()
        own = self._own(scope, overlay)
        return {Value("attribute", Member(MemberOf.RECEIVER, func.attr), receiver=value) for value in own}

    def _own(self, scope: Scope, overlay: Overlay | None) -> set[Value]:
        """The objects of which a method runs."""
        info = self._reached.functions.get(scope.node)
        if info is None or info.receiver is None:
            return set()
        return self._evaluation.expressions.evaluate(ast.Name(info.receiver, ast.Load()), scope, overlay)

    # ---- by what is called ---------------------------------------------------------------------------------------

    def apply(self, target: Value, given: Invocation) -> set[Value]:
        """What calling one value can give."""
        if target.kind == "function":
            return self._apply_function(target, given)
        if target.kind == "class":
            instance = self._apply_class(target.ref, given)
            return (given.first or given.keywords.get("module", set())) if target.ref.spreads_as else {instance}
        if target.kind == "instance":
            return self._apply_instance(target, given)
        if target.kind == "partial":
            return self._partials.apply(target, given)
        if target.kind == "external":
            if target.ref == "functools.partial" and given.arguments:
                return self._partials.make(given)
            if target.ref in BY_CONFIGURATION and (made := self._configurations.apply(target.ref, given)) is not None:
                return made
            return self._libraries.apply(target.ref, given)
        if target.kind == "attribute":
            if target.receiver is not None and target.receiver.kind == "class":
                return {self._apply_inherited(target.receiver.ref, given)}
            return self._libraries.apply_method(target, given)
        if target.kind == "object":
            return {self._apply_object(target, given)}
        return {target} if target.kind == "parameters" and _is_of_parameters(given) else set()

    def _apply_function(self, target: Value, given: Invocation) -> set[Value]:
        info = target.ref
        result = {self._made_by(value, info, given.node) for value in self._run(info, given, _receivers(target))}
        if info.name in ("parameters", "named_parameters") and target.receiver is not None:
            return {Value("parameters", target.receiver)}
        return result

    def _apply_class(self, info: ClassInfo, given: Invocation) -> Value:
        info = self._registries.own_class(info, given.node, given.scope)
        made = Value("instance", info, given.node)
        self._reached.reach_class(info)
        initializer = info.find_method("__init__")
        if initializer is not None:
            self._run(initializer, given, {made}, is_method=True)
        elif fields := fields_of(info):
            self._records.store(made, fields, given)
        elif is_container(made):
            self._containers.fill(made, given)
        return made

    def _apply_inherited(self, info: ClassInfo, given: Invocation) -> Value:
        """``OwnModel.from_pretrained(name, option=...)``: the initializer gets what is given by name."""
        return self._apply_class(info, replace(given, arguments=[]))

    def _apply_instance(self, target: Value, given: Invocation) -> set[Value]:
        method = _run_by_call(target)
        if method is not None:
            return self._run(method, given, {target}, is_method=True)
        self._run_parts(target, given)
        return set()

    def _run_parts(self, target: Value, given: Invocation) -> None:
        """Run what a chain of modules runs one after the other; what one gives to the next is not followed."""
        pending, seen = [target], {target}
        while pending:
            value = pending.pop()
            if not is_chain(value):
                continue
            for part in self._containers.elements({value}) - seen:
                seen.add(part)
                method = _run_by_call(part) if is_module(part) else None
                if method is not None:
                    self._run(method, given, {part}, is_method=True)
                else:
                    pending.append(part)

    def _apply_object(self, target: Value, given: Invocation) -> Value:
        names = named_tuple(target)
        if names is not None:
            made = Value("sequence", Form.RECORD, given.node)
            self._records.store(made, names, given)
            return made
        self._run_parts(target, given)
        # What a result gives has no name any more, or names would never stop growing.
        name = "" if target.is_result else f"{target.ref}()"
        return Value("object", name, given.node, is_result=True)

    def _made_by(self, value: Value, info: FunctionFacts, call: ast.Call) -> Value:
        """A model that a factory made is another one for each call of the factory."""
        if value.site not in self._calls_in(info) or not is_module(value):
            return value
        if info.cls is not None and not self._registries.owns(info) and not _is_alone(info):
            return value
        return value.at(call)

    def _calls_in(self, info: FunctionFacts) -> set[ast.AST | None]:
        found = self._calls_inside.get(info.node)
        if found is None:
            found = {node for node in walk(info.node) if isinstance(node, ast.Call)}
            self._calls_inside[info.node] = found
        return found

    # ---- functions of the project --------------------------------------------------------------------------------

    def _run(
        self, info: FunctionFacts, given: Invocation, receivers: set[Value], *, is_method: bool = False
    ) -> set[Value]:
        """Give a function its arguments, a method any of its objects besides; what it returns."""
        self._reached.reach(info)
        self._graph.add(given.node, given.scope, info)
        bound = self._arguments.bind(info, given, receivers, is_method)
        for name, values in bound.items():
            self._store.write((info.node, name), values)
        yields = self._store.read((info.node, Mark.YIELD))
        if info.yields:
            return {self._containers.made(Form.PLAIN, info.node, yields)}
        return self._returns.of(info, bound)


def _is_of_parameters(given: Invocation) -> bool:
    """Whether a method is called, which gives parameters again, ``p.data.clone()``, and no module among them.

    ``for layer in self.children(): x = layer(x)`` gives what the layer computes, and ``p.grad.norm()`` a number.
    """
    func = given.node.func
    if not isinstance(func, ast.Attribute):
        return not isinstance(func, (ast.Name, ast.Subscript))
    is_method = func.attr not in COMPUTED_FROM_ALL | {"forward"}
    return is_method and any(owner.kind == "parameters" for owner in given.owners)


def _receivers(target: Value) -> set[Value]:
    """The object that a function is bound to, if any."""
    return {target.receiver} if target.receiver is not None else set()


def _run_by_call(target: Value) -> FunctionFacts | None:
    """The method of the project that calling an object runs."""
    if target.kind != "instance":
        return None
    method: FunctionFacts | None = target.ref.find_method("forward") or target.ref.find_method("__call__")
    return method


def _fitting(targets: set[Value], call: ast.Call) -> list[Value]:
    """Without methods of other subclasses that need more than a call gives, where one of that name takes it.

    ``self.train(loader, model)`` of a base class is no call of a subclass's ``train(loader, unlabeled, model)``, which
    another method of that subclass calls.
    """
    methods = [item for item in targets if item.kind == "function" and item.ref.cls is not None]
    lacking = {
        item
        for item in methods
        if item.receiver is not None and item.receiver.kind == "instance" and _misses(item.ref, call, bound=True)
    }
    return list(targets - lacking) if len(lacking) < len(methods) else list(targets)


def _lacks_arguments(target: Value, call: ast.Call) -> bool:
    """Whether a call would raise on what a table or a text may find: it gives less than a function or class must have.

    ``globals()[name]()`` can be every function of the file, that of the call included, and ``loss(out, y)`` of
    ``loss = eval(name)`` every class. Under its own name a function is meant, whatever a decorator or a command line
    gives it.
    """
    info = target.ref
    if target.kind == "class":
        node = info.facts.node
        return node.name != own_name(call.func) and not node.decorator_list and refuses(target, call)
    if target.kind != "function" or target.receiver is not None or info.cls is not None:
        return False
    if isinstance(info.node, ast.Lambda) or info.node.decorator_list:
        return False
    return info.name != own_name(call.func) and _misses(info, call)


def _misses(info: FunctionFacts, call: ast.Call, *, bound: bool = False) -> bool:
    """Whether a call gives a function less than that must have; ``bound`` says that the object is given besides."""
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return False
    named = {item.arg for item in call.keywords}
    places = info.by_place[1:] if bound and not info.is_static else info.by_place
    needed = [*places[len(call.args) :], *(item.arg for item in info.node.args.kwonlyargs)]
    return any(name not in named and name not in info.defaults for name in needed)


def _is_alone(info: FunctionFacts) -> bool:
    """Whether a method needs no object: a static one, or one of the class."""
    return info.is_static or info.is_class_method
