"""The bodies of a program that can run, their calls and names, and what running a node leads to."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path

from amp_rules.flow.flow import Flow
from amp_rules.flow.statements import nodes_run
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.found_by_name import FoundByName
from amp_rules.roles.given_names import has_one_name, name_given
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.roles.sites import Site
from amp_rules.roles.value_roles import Roles
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.phases import phase
from amp_rules.source.project import Project
from amp_rules.source.reach import Reach
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_super, last_name, values_given, walk
from amp_rules.torch.gradients import RECORDS_NOTHING
from amp_rules.torch.wrappers import CALLS_WITH_WEIGHTS, SPREAD_IN_ONE_CALL

ToldOwners = Mapping[tuple[object, ...], str]
"""The optimizer, by its source, that a script says holds some parameters; the key is made by :func:`told_owner`."""


def told_owner(module: Module, parameters: ast.AST) -> tuple[object, ...]:
    """What stands for an expression in one function, whatever lines are put before it."""
    body = blocks.body_of(module, parameters)
    return module.path, getattr(body, "name", ""), ast.unparse(parameters)


class Bodies:
    """What of one entry script and its imports can run: its bodies, calls and names, whatever it trains.

    Attributes:
        project: the files.
        flow: what each name may hold.
        roles: what each value is for.
        found_by_name: what functions run that find it by a name in a module.
        told_owners: what the script said in words that are gone now, see :mod:`amp_rules.plan.apex.told_owners`.
        told_optimizers: what it said to be optimizers there, by the keys of :func:`told_owner`.
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
        self.told_optimizers: frozenset[tuple[object, ...]] = frozenset()
        self._left_out = left_out
        with phase("following values"):
            self.flow = Flow(project) if flow is None else flow
        self.roles = Roles(self.flow)
        self.found_by_name = FoundByName(self.flow)
        self._calls_by_body: dict[ast.AST, list[ast.Call]] = {}
        self._finding: dict[ast.AST, dict[ast.Call, str]] = {}
        self._names: dict[tuple[ast.expr, Scope], frozenset[str]] = {}
        self._models_of_calls: dict[ast.Call, frozenset[Value]] = {}

    @property
    def entry(self) -> Module:
        """The script that is run."""
        return self.project.entry

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
        shared = [several for several in methods.values() if len(several) > 1]
        found: set[ast.AST] = set()
        while True:
            # What only a replaced method calls, nothing calls: a `main` that is replaced runs no `train` of its class.
            more = {node for several in shared for node in self._replaced_of(several, found)} - found
            if not more:
                return found
            found |= more

    def _replaced_of(self, several: list[FunctionFacts], known: set[ast.AST]) -> Iterator[ast.AST]:
        """Yield those of several methods of one name that are replaced, where calls within ``known`` never run."""
        called = {
            self.flow.class_of(info)
            for info in several
            if any(caller.scope.node not in known for caller in self.flow.callers(info))
        }
        for info in several if called else ():
            owner = self.flow.class_of(info)
            if owner is None or owner in called or owner in self._made_classes:
                continue
            if any(other is not None and owner in other.mro()[1:] for other in called):
                yield info.node

    def is_made_by_replaced(self, value: Value) -> bool:
        """Whether an object is made where nothing runs, in a method that a subclass replaces."""
        module = self.module_of(value.site) if value.site is not None else None
        if module is None or value.site is None:
            return False
        return blocks.body_of(module, value.site) in self._replaced

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
        return {body: list(nodes_run(body, scope)) for body, scope in self.bodies}

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

    def reads_named(self, name: str) -> list[tuple[ast.Name | ast.Attribute, Scope]]:
        """What can run and reads a variable or an attribute of this name, in the order of files and lines."""
        return self._reads_by_name.get(name, [])

    @cached_property
    def _reads_by_name(self) -> dict[str, list[tuple[ast.Name | ast.Attribute, Scope]]]:
        found: dict[str, list[tuple[ast.Name | ast.Attribute, Scope]]] = {}
        for node, _, scope in self.nodes():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                found.setdefault(last_name(node), []).append((node, scope))
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

    def owner_of(self, body: ast.AST) -> ClassInfo | None:
        """The class of which a function is a method."""
        info = self.function_of(body)
        return self.flow.class_of(info) if info is not None else None

    def is_model_code(self, body: ast.AST) -> bool:
        """Whether the body belongs to a class of models."""
        owner = self.owner_of(body)
        return owner is not None and is_module(Value("instance", owner))

    def called_from(
        self, nodes: Iterable[ast.AST], apart: Collection[ast.AST] = (), outside: Collection[ast.AST] = ()
    ) -> set[ast.AST]:
        """Bodies of the project's functions that the calls among ``nodes`` run, at any depth.

        Not through functions that stand ``apart``, nor by calls that are ``outside``. Where a call gives a function the
        name of the method that this runs, ``self.emit("on_epoch_end")``, only methods of that name.
        """
        found: set[ast.AST] = set()
        pending: list[tuple[ast.Call, str | None]] = [(node, None) for node in nodes if isinstance(node, ast.Call)]
        by_names: set[tuple[ast.Call, str | None]] = set()
        while pending:
            call, name = pending.pop()
            if call in outside:
                continue
            for info in self.found_by_name.callees(call):
                if info.node in apart or (name is not None and self._is_of_another_name(call, name, info)):
                    continue
                finding = self._finding_by_name(info)
                if info.node not in found:
                    found.add(info.node)
                    pending.extend((inner, None) for inner in self._calls_in(info.node) if inner not in finding)
                for inner, parameter in finding.items():
                    given = literal(info.argument_or_default(call, parameter))
                    by_name = inner, given if isinstance(given, str) else None
                    if by_name not in by_names:
                        by_names.add(by_name)
                        pending.append(by_name)
        return found

    def _finding_by_name(self, info: FunctionFacts) -> dict[ast.Call, str]:
        """The calls in a function that find a method by a name that it is given, and the parameter of that."""
        known = self._finding.get(info.node)
        if known is None:
            named = ((call, name_given(call, info)) for call in self._calls_in(info.node))
            known = self._finding[info.node] = {call: name for call, name in named if name is not None}
        return known

    def _is_of_another_name(self, call: ast.Call, name: str, info: FunctionFacts) -> bool:
        """Whether a call finds a method by another name than it is given now: one that some other caller gives."""
        if info.name == name or not has_one_name(info):
            return False
        located = self.locate(call)
        finder = self.function_of(located[0]) if located is not None else None
        if finder is None:
            return False
        parameter = self._finding_by_name(finder)[call]
        given = (finder.argument_or_default(caller.call, parameter) for caller in self.flow.callers(finder))
        return any(literal(item) == info.name for item in given)

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

    def is_called(self, body: ast.AST) -> bool:
        """Whether a body is a file's own, or of a function that something in the program calls."""
        info = self.function_of(body)
        return info is None or bool(self.flow.callers(info))

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

    def called_models(self, call: ast.Call, scope: Scope) -> set[Value]:
        """Models whose forward pass the call runs directly."""
        known = self._models_of_calls.get(call)
        if known is None:
            known = self._models_of_calls[call] = frozenset(self._find_called_models(call, scope))
        return set(known)

    def calls_of_model(self, model: Value) -> list[tuple[ast.Call, ast.AST, Scope]]:
        """Every call that runs a model's forward pass directly, with its body and scope."""
        return self._calls_by_model.get(model, [])

    @cached_property
    def _calls_by_model(self) -> dict[Value, list[tuple[ast.Call, ast.AST, Scope]]]:
        found: dict[Value, list[tuple[ast.Call, ast.AST, Scope]]] = {}
        for item in self._calls:
            call, _, scope = item
            for model in self.called_models(call, scope):
                found.setdefault(model, []).append(item)
        return found

    def _find_called_models(self, call: ast.Call, scope: Scope) -> set[Value]:
        if is_super(call) or self._makes_itself(call, scope):
            return set()
        found = self.roles.modules(call.func, scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("forward", "__call__"):
            found = found | self.roles.modules(call.func.value, scope)
        if (given := self.callee(call, scope)) is not call.func:
            found = found | self.roles.modules(given, scope)
        return found

    def _makes_itself(self, call: ast.Call, scope: Scope) -> bool:
        """``model = model(**settings).to(device)``, where the name held what makes models before it held one."""
        parents = scope.module.parents
        made: ast.AST = call
        while isinstance(method := parents.get(made), ast.Attribute) and isinstance(parents.get(method), ast.Call):
            made = parents[method]
        statement = parents.get(made) if isinstance(call.func, ast.Name) else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            return False
        target = statement.targets[0]
        if not (isinstance(target, ast.Name) and isinstance(call.func, ast.Name) and target.id == call.func.id):
            return False
        return any(value.kind in ("function", "class") for value in self.flow.values(call.func, scope))

    def callee(self, call: ast.Call, scope: Scope) -> ast.expr:
        """What a call runs: ``model`` for ``model(x)``, and for ``data_parallel(model, x)`` as well.

        So it does for ``functional_call(model, weights, (x,))``.
        """
        gives_model = self.callee_names(call, scope) & (SPREAD_IN_ONE_CALL | CALLS_WITH_WEIGHTS)
        return call.args[0] if call.args and gives_model else call.func

    def is_without_gradients(self, call: ast.Call) -> bool:
        """Whether the call runs under ``no_grad`` or ``inference_mode``."""
        located = self.locate(call)
        return located is not None and self.without_gradients(located[1].module, call, located[0])

    def without_gradients(self, module: Module, node: ast.AST, body: ast.AST) -> bool:
        """Whether a node runs under ``no_grad`` or ``inference_mode``."""
        for parent in blocks.enclosing(module, node):
            if isinstance(parent, ast.With):
                if any(_records_nothing(item.context_expr) for item in parent.items):
                    return True
        info = self.function_of(body)
        return info is not None and info.has_decorator("no_grad", "inference_mode")

    def closure(self, direct: Callable[[ast.AST], bool], *, with_gradients: bool = False) -> Callable[[ast.AST], bool]:
        """Whether running a node can run something for which ``direct`` holds, calls within the project included."""
        return _Closure(self, direct, with_gradients).has


def _records_nothing(head: ast.expr) -> bool:
    """Whether no gradient is recorded under a context, whichever one a condition in it chooses."""
    if isinstance(head, ast.IfExp):
        return _records_nothing(head.body) and _records_nothing(head.orelse)
    if isinstance(head, ast.BoolOp):
        return all(map(_records_nothing, head.values))
    if isinstance(head, ast.Call) and last_name(head.func) == "inference_mode" and values_given(head):
        return all(isinstance(item, ast.Constant) and item.value is True for item in values_given(head))
    return any(name in ast.unparse(head) for name in RECORDS_NOTHING)


class _Closure:
    """What runs something of a kind, over all calls within the program.

    A body is decided once, together with all that it calls: functions that call each other are decided as one.
    """

    def __init__(self, bodies: Bodies, direct: Callable[[ast.AST], bool], with_gradients: bool) -> None:
        self._bodies = bodies
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
                if self._with_gradients and is_call and self._bodies.is_without_gradients(current):  # type: ignore[arg-type]
                    continue
                if self._direct(current):
                    return None
                for info in self._bodies.found_by_name.callees(current) if isinstance(current, ast.Call) else ():
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
