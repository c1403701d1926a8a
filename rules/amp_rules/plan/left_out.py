"""Parameters that some training step leaves out: the plain wrapper would wait for their gradients in vain."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property

from amp_rules.flow.values import GIVEN_MODEL, ClassInfo, Value
from amp_rules.plan.building_models import SETS_UP, only_builds
from amp_rules.plan.changing import Changing
from amp_rules.plan.file_names import name_of
from amp_rules.plan.model_parts import has_parameters
from amp_rules.plan.outputs_in_loss import Outputs, at
from amp_rules.plan.outputs_in_losses import OutputsInLosses
from amp_rules.plan.parts_cut_off import why_cut_off
from amp_rules.plan.parts_of_networks import why_in_parts
from amp_rules.plan.precision import Precision
from amp_rules.plan.skipped_layers import why_skipped
from amp_rules.plan.untrained_reads import gets_no_gradient, is_made_for_itself
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, own_name, walk
from amp_rules.torch.functions import PARAMETER_MAKERS
from amp_rules.torch.models import is_network_of_library
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_LEAVING = (ast.Return, ast.Continue, ast.Break)
_ALL_PARTS = frozenset({"children", "modules", "named_children", "named_modules", "_modules", "__dict__", "getattr"})
_GONE_OVER_TO_SET_UP = frozenset({"modules", "named_modules"})


def why_left_out(program: Program, precision: Precision, calls: list[Site]) -> str:
    """How a step may leave parameters out, for the report; empty where nothing suggests that it does."""
    return _LeftOut(program, precision, calls).reason()


def why_changing(program: Program, precision: Precision, calls: list[Site]) -> str:
    """How which parameters a step leaves out may change from step to step, and from one process to another."""
    return _LeftOut(program, precision, calls).changing_reason()


def why_left_out_as_written(program: Program) -> str:
    """The same for a program whose training steps are not known as regions, by all calls of its trained models.

    What another wrapper of the program's says counts, too: in `else:` beside Apex's it mostly wraps the same model.
    """
    for site in program.calls_to(DISTRIBUTED_DATA_PARALLEL):
        keywords = site.node.keywords if isinstance(site.node, ast.Call) else []
        if any(item.arg == "find_unused_parameters" and literal(item.value) is True for item in keywords):
            return f"the script's own wrapper in line {site.told_line} of {name_of(program, site.module)} does"
    return why_left_out(program, Precision(backwards=program.backwards), calls_as_written(program))


def calls_as_written(program: Program) -> list[Site]:
    """All calls of trained models that gradients go through, for a program whose regions are not known."""
    return [
        Site(scope.module, scope, body, call)
        for call, body, scope in program.calls()
        if not program.is_model_code(body)
        and any(map(program.is_trained, program.called_models(call, scope)))
        and not program.without_gradients(scope.module, call, body)
    ]


class _LeftOut:
    def __init__(self, program: Program, precision: Precision, calls: list[Site]) -> None:
        self.program = program
        self.precision = precision
        self.calls = calls
        self.changing = Changing(program)

    def changing_reason(self) -> str:
        """The first that steps decide on anew, by a draw, a counter or the data."""
        choices = (self._choice(info, site) for info, site in self._forward_passes())
        outputs = Outputs(self.program, self.precision, self._uses_part)
        return (
            next(filter(None, choices), "")
            or outputs.reason(self.calls)
            or OutputsInLosses(self.program, self._uses_part, outputs.entering).reason()
        )

    def reason(self) -> str:
        """The first of any kind."""
        for info, site in self._forward_passes():
            found = self._choice(info, site) or self._unrecorded(info, site) or self._handed_back(info, site)
            found = found or self._cut_off(info, site) or why_cut_off(self.program, info, site)
            if found:
                return found
        outputs = Outputs(self.program, self.precision, self._uses_part)
        return (
            outputs.reason(self.calls)
            or outputs.dropped_inside()
            or OutputsInLosses(self.program, self._uses_part, outputs.entering).reason()
            or self._never_called()
            or why_in_parts(self.program)
            or why_skipped(self.program, self._trained)
            or self._class_asked_for()
            or self._not_read()
        )

    # ---- the forward pass ----------------------------------------------------------------------------------

    @cached_property
    def _classes(self) -> list[ClassInfo]:
        """The classes of the models that are made, and their bases within the project."""
        made = {
            value.ref
            for cell in self.program.flow.cells.values()
            for value in cell.values
            if value.kind == "instance" and value.site is not None and is_module(value)
        }
        whole = {info for info in made for info in info.mro()}
        return sorted(whole, key=lambda info: (str(info.facts.module.module.path), info.facts.node.lineno))

    def _forward_passes(self) -> Iterator[tuple[FunctionFacts, Site]]:
        """The methods of models that a forward pass may run."""
        for owner in self._classes:
            if self._trained and owner not in self._trained:
                continue
            for info in owner.facts.methods.values():
                if info.node in self.program.flow.scopes and not only_builds(self.program, info):
                    scope = self.program.flow.scopes[info.node]
                    yield info, Site(info.module.module, scope, info.node, info.node)

    def _choice(self, info: FunctionFacts, site: Site) -> str:
        """A condition or an index that takes another part of the model in another step."""
        for node in self.program.nodes_of(info.node):
            here = Site(site.module, site.scope, site.body, node)
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                if self._chooses_part(node, here):
                    return f"{at(self.program, site.module, node)} takes another part of the model in another step"
            elif isinstance(node, (ast.If, ast.IfExp)):
                if self._skips_part(node, info, here) and self.changing.changes(node.test, here):
                    return f"{at(self.program, site.module, node.test)} may leave a part of the model out of a step"
            elif isinstance(node, ast.Call) and self._draws_part(node, here):
                return f"{at(self.program, site.module, node)} takes another part of the model in another step"
        return ""

    def _chooses_part(self, node: ast.Subscript, site: Site) -> bool:
        if isinstance(node.slice, (ast.Constant, ast.UnaryOp)):
            return False
        if not any(has_parameters(value) for value in self._held(node, site)):
            return False
        read = blocks.reads(node.slice)
        return not self._count(read, site) and self.changing.changes(node.slice, site)

    def _counters(self, loop: ast.For, site: Site) -> set[str]:
        """The variables of a loop that goes through the same in each step.

        Also the number of ``enumerate`` over a list that the method itself puts together, or whose length it asserts:
        only what it holds changes.
        """
        if not self.changing.changes(loop.iter, site):
            return set(blocks.writes_target(loop))
        call = loop.iter
        if (
            not isinstance(call, ast.Call)
            or own_name(call.func) != "enumerate"
            or not call.args  # ``enumerate(iterable=chosen)``
            or not isinstance(loop.target, ast.Tuple)
        ):
            return set()
        name, number = blocks.path_of(call.args[0]), loop.target.elts[0]
        if isinstance(number, ast.Name) and self._is_sure_of_length(call.args[0], site):
            return {number.id}
        made = [
            node.value
            for node in self.program.nodes_of(site.body)
            if isinstance(node, ast.Assign) and name in {blocks.path_of(target) for target in node.targets}
        ]
        listed = bool(made) and all(isinstance(value, ast.List) for value in made)
        return {number.id} if listed and isinstance(number, ast.Name) else set()

    def _is_sure_of_length(self, given: ast.expr, site: Site) -> bool:
        """Whether a method asserts how long a list is, or one of those in ``zip``: ``assert len(x) == self.levels``."""
        listed = given.args if isinstance(given, ast.Call) and own_name(given.func) == "zip" else [given]
        paths = {path for item in listed if (path := blocks.path_of(item)) is not None}
        for node in self.program.nodes_of(site.body):
            test = node.test if isinstance(node, ast.Assert) else None
            if not isinstance(test, ast.Compare) or [type(item) for item in test.ops] != [ast.Eq]:
                continue
            sides = [test.left, test.comparators[0]]
            for side, other in (sides, sides[::-1]):
                if isinstance(side, ast.Call) and own_name(side.func) == "len" and side.args:
                    if blocks.path_of(side.args[0]) in paths and not self.changing.changes(other, site):
                        return True
        return False

    def _count(self, names: set[str], site: Site, depth: int = 1) -> bool:
        """Whether variables count what a loop goes through in any step: one here, or around all calls of a method."""
        counters = {
            name
            for loop in blocks.enclosing(site.module, site.node)
            if isinstance(loop, ast.For)
            for name in self._counters(loop, site)
        }
        if names <= counters:
            return True
        info = self.program.function_of(site.body)
        if info is None or depth == 0 or not names - counters <= set(info.parameters) - {info.receiver}:
            return False
        calls = [calling(item) for item in self.program.flow.callers(info)]
        return bool(calls) and all(
            isinstance(call.node, ast.Call)
            and self.program.is_model_code(call.body)
            and (given := info.argument_or_default(call.node, name)) is not None
            and bool(blocks.reads(given))
            and self._count(blocks.reads(given), call, depth - 1)
            for call in calls
            for name in names - counters
        )

    def _draws_part(self, node: ast.Call, site: Site) -> bool:
        """``random.choice(self.layers)``, ``getattr(self, name)``."""
        names = self.program.callee_names(node, site.scope)
        if names & {"random.choice", "random.choices", "random.sample"}:
            held = [value for given in node.args for value in self.program.flow.elements(self._values(given, site))]
            return any(has_parameters(value) for value in held)
        is_look_up = isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1
        if not is_look_up or isinstance(node.args[1], ast.Constant):
            return False
        owns = any(map(is_module, self._values(node.args[0], site)))
        return owns and self.changing.changes(node.args[1], site)

    def _held(self, node: ast.Subscript, site: Site) -> set[Value]:
        owners = self._values(node.value, site)
        return self._values(node, site) | self.program.flow.elements(owners)

    def _values(self, node: ast.expr, site: Site) -> set[Value]:
        return self.program.flow.values(node, site.scope)

    def _skips_part(self, node: ast.If | ast.IfExp, info: FunctionFacts, site: Site) -> bool:
        """Whether one side of a condition runs a part of the model, or goes away before one."""
        if isinstance(node, ast.IfExp):
            return self._uses_part(node.body) or self._uses_part(node.orelse)
        if any(map(self._uses_part, [*node.body, *node.orelse])):
            return True
        if not any(isinstance(item, _LEAVING) for suite in (node.body, node.orelse) for item in suite):
            return False
        end = node.end_lineno or node.lineno
        loops = [parent for parent in blocks.enclosing(site.module, node) if isinstance(parent, blocks.LOOPS)]
        returns = any(isinstance(item, ast.Return) for suite in (node.body, node.orelse) for item in suite)
        around: ast.AST = loops[0] if loops and not returns else info.node
        after = [item for item in walk(around) if isinstance(item, ast.stmt) and item.lineno > end]
        return any(map(self._uses_part, after))

    @cached_property
    def _uses_part(self) -> Callable[[ast.AST], bool]:
        """Whether running a node uses parameters: calls a part that has some, or reads one."""

        def direct(node: ast.AST) -> bool:
            located = self.program.locate(node) if isinstance(node, (ast.Call, ast.Attribute)) else None
            if located is None:
                return False
            if isinstance(node, ast.Call):
                return any(map(has_parameters, self.program.called_models(node, located[1])))
            assert isinstance(node, ast.Attribute)
            return any(value.name in PARAMETER_MAKERS for value in self.program.flow.values(node, located[1]))

        return self.program.closure(direct)

    def _unrecorded(self, info: FunctionFacts, site: Site) -> str:
        """A part that only ever runs without gradients, and is not frozen for all that is known."""
        for node in self.program.nodes_of(info.node):
            if not isinstance(node, ast.With) or not any("no_grad" in ast.unparse(item) for item in node.items):
                continue
            for call in (part for item in node.body for part in walk(item) if isinstance(part, ast.Call)):
                called = self.program.called_models(call, site.scope)
                if any(map(has_parameters, called)) and not self._is_called_elsewhere(call, info, site):
                    return f"{at(self.program, site.module, call)} runs without gradients"
        return ""

    def _is_called_elsewhere(self, call: ast.Call, info: FunctionFacts, site: Site) -> bool:
        path = blocks.path_of(call.func)
        return any(
            isinstance(other, ast.Call)
            and other is not call
            and blocks.path_of(other.func) == path
            and not self.program.without_gradients(site.module, other, info.node)
            for other in self.program.nodes_of(info.node)
        )

    def _cut_off(self, info: FunctionFacts, site: Site) -> str:
        """What a part gives and only its values are gone on with: ``out = self.body(x)``, ``out = out.detach()``.

        A part that is frozen besides would need no such words in most scripts; the report says what is done either way.
        """
        for node in self.program.nodes_of(info.node):
            if not isinstance(node, ast.Assign) or (name := _cut_name(node)) is None:
                continue
            recorded = not self.program.without_gradients(site.module, node, info.node)
            if recorded and self._is_all_that_is_read(name, node, info, site):
                return f"{at(self.program, site.module, node)} cuts off the gradients of a part"
        return ""

    def _is_all_that_is_read(self, name: ast.Name, cut: ast.Assign, info: FunctionFacts, site: Site) -> bool:
        """Whether a part has given a variable what is cut off, and nothing else read it before."""
        uses = [
            other
            for other in self.program.nodes_of(info.node)
            if isinstance(other, ast.Name) and other.id == name.id and other.lineno < cut.lineno
        ]
        stores = sorted((other for other in uses if isinstance(other.ctx, ast.Store)), key=lambda item: item.lineno)
        made = blocks.statement_of(site.module, stores[-1]) if stores else None
        if not isinstance(made, ast.Assign) or not isinstance(made.value, ast.Call):
            return False
        if any(isinstance(other.ctx, ast.Load) and other.lineno > made.lineno for other in uses):
            return False
        called = self.program.called_models(made.value, site.scope)
        return any(map(has_parameters, called)) and not self._is_called_elsewhere(made.value, info, site)

    def _handed_back(self, info: FunctionFacts, site: Site) -> str:
        """A parameter that is read by itself and computed with in some branches alone, or in none.

        ``correction = self.revision.weight`` above ``if revise: return out, correction``.
        """
        for node in self.program.nodes_of(info.node):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Attribute):
                continue
            name = blocks.path_of(node.targets[0])
            if name is None or not self._is_parameter(node.value, site):
                continue
            reads = [
                other
                for other in self.program.nodes_of(info.node)
                if isinstance(other, ast.Name) and other.id == name and isinstance(other.ctx, ast.Load)
            ]
            if reads and not any(self._is_always_computed_with(other, info, site) for other in reads):
                return f"{at(self.program, site.module, node.value)} may take no part in a step"
        return ""

    def _is_parameter(self, node: ast.Attribute, site: Site) -> bool:
        """``self.layer.weight``, ``self.scale``."""
        if any(value.name in PARAMETER_MAKERS for value in self._values(node, site)):
            return True
        return node.attr in ("weight", "bias") and any(map(has_parameters, self._values(node.value, site)))

    def _is_always_computed_with(self, node: ast.Name, info: FunctionFacts, site: Site) -> bool:
        for parent in site.module.ancestors(node):
            if parent is info.node:
                return True
            if isinstance(parent, (ast.If, ast.IfExp)):
                return False
            if isinstance(parent, ast.Return):
                return not isinstance(parent.value, (ast.Tuple, ast.Name))
        return True

    # ---- around the forward pass ---------------------------------------------------------------------------

    def _never_called(self) -> str:
        """A part that a model keeps and no forward pass uses."""
        for owner in self._classes:
            if self._goes_over_all(owner) or owner not in self._trained:
                continue
            if owner.find_method("forward") is None and any(
                not base.startswith("torch.nn.") for base in owner.external_bases()
            ):
                continue  # a forward pass of a library, which uses what it knows by name
            for (holder, name), cell in self.program.flow.cells.items():
                if holder is not owner.facts.node or not any(map(has_parameters, cell.values)):
                    continue
                if not any(self._uses_attribute(*read, owner) for read in self._reads.get(str(name), ())):
                    return f"`{owner.facts.name}.{name}` takes no part in a forward pass"
        return ""

    @cached_property
    def _trained(self) -> set[ClassInfo]:
        """The classes of trained models and of their parts, and what these derive from."""
        whole = [Value("instance", owner) for owner in self._classes]
        roots = self.program.trained | {value for value in whole if self.program.is_trained(value)}
        parts = self.program.with_parts(roots)
        return {info for value in parts if value.kind == "instance" for info in value.ref.mro()}

    @cached_property
    def _reads(self) -> dict[str, list[tuple[Module, ast.Attribute]]]:
        """Where attributes are read, by their names."""
        found: defaultdict[str, list[tuple[Module, ast.Attribute]]] = defaultdict(list)
        for module in self.program.flow.modules:
            for node in module.nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found[node.attr].append((module, node))
        return found

    def _goes_over_all(self, owner: ClassInfo) -> bool:
        """Whether a class takes its parts without their names; what sets their weights at first does not count."""
        for info in owner.facts.methods.values():
            words = _ALL_PARTS - _GONE_OVER_TO_SET_UP if only_builds(self.program, info) else _ALL_PARTS
            if any(own_name(node) in words for node in walk(info.node)):
                return True
        return False

    def _uses_attribute(self, module: Module, node: ast.Attribute, owner: ClassInfo) -> bool:
        """Whether it may be a use of a part of a class's model: not to set what it begins with, nor another class's.

        Nor what leaves a part that the class makes without gradients: an averaged copy that is sampled from.
        """
        body = blocks.body_of(module, node)
        if _is_replaced(module, body):
            return False
        scope = self.program.flow.scopes.get(body)
        if scope is None:
            return True
        held = self.program.flow.values(node.value, scope) or self._own(node.value, body)
        if held and not any(_is_related(value, owner) for value in held):
            return False
        if gets_no_gradient(self.program, module, node, body) and is_made_for_itself(owner, node.attr):
            return False
        info = self.program.function_of(body)
        builds = info is not None and info.cls is not None and only_builds(self.program, info)
        parent = module.parents[node]
        return not (builds and isinstance(parent, ast.Attribute) and parent.attr in SETS_UP)

    def _own(self, node: ast.expr, body: ast.AST) -> set[Value]:
        """The object of ``self`` in a class of which the program makes none."""
        info = self.program.function_of(body)
        owner = self.program.flow.class_of(info) if info is not None else None
        if info is None or owner is None or not isinstance(node, ast.Name) or node.id not in info.parameters[:1]:
            return set()
        return {Value("instance", owner)}

    def _not_read(self) -> str:
        """A model of a package that cannot be read: which of its parameters a forward pass uses is not known.

        Nor is it of one that derives from such a model, and has a forward pass of its own.
        """
        for value in self.program.trained:
            if value.ref == GIVEN_MODEL and isinstance(value.site, ast.Call):
                located = self.program.locate(value.site)
                if located is not None:
                    return f"the model that {at(self.program, located[1].module, value.site)} makes cannot be read"
        for owner in self._classes:
            base = next(filter(is_network_of_library, sorted(owner.external_bases())), None)
            if base is not None and owner in self._trained:
                return f"`{owner.facts.name}` has parts of `{base}`, which cannot be read"
        return ""

    def _class_asked_for(self) -> str:
        """``type(model) is Net``, ``table[type(model)]``: a wrapper has a class of its own, with the same name."""
        for node, _, scope in self.program.nodes():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"):
                continue
            if len(node.args) != 1 or _is_only_named(scope.module.parents.get(node)):
                continue
            if any(map(self.program.is_trained, self.program.roles.modules(node.args[0], scope))):
                return f"{at(self.program, scope.module, node)} asks for the model's own class"
        return ""


def _cut_name(node: ast.Assign) -> ast.Name | None:
    """The variable that goes on as its own values: ``x = x.detach()``, ``x = Variable(x.data)``."""
    value = node.value
    if isinstance(value, ast.Call) and last_name(value.func) == "Variable" and len(value.args) == 1:
        value = value.args[0]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "detach":
        value = value.func
    if not (isinstance(value, ast.Attribute) and value.attr in ("data", "detach")):
        return None
    names = [item.id for item in node.targets if isinstance(item, ast.Name)]
    return value.value if isinstance(value.value, ast.Name) and value.value.id in names else None


def _is_related(value: Value, owner: ClassInfo) -> bool:
    """Whether an object may be one of a class: of it, of a base or of a class that derives from it."""
    return value.kind != "instance" or owner in value.ref.mro() or value.ref in owner.mro()


def _is_replaced(module: Module, body: ast.AST) -> bool:
    """Whether its class says a method once more below, so that it never runs."""
    owner = module.parents.get(body)
    if not isinstance(body, ast.FunctionDef) or body.decorator_list or not isinstance(owner, ast.ClassDef):
        return False
    return any(
        isinstance(item, ast.FunctionDef) and item.name == body.name and item.lineno > body.lineno
        for item in owner.body
    )


def _is_only_named(parent: ast.AST | None) -> bool:
    """``type(model).__name__``, or the class as a part of a text."""
    return isinstance(parent, ast.FormattedValue) or (
        isinstance(parent, ast.Attribute) and parent.attr in ("__name__", "__qualname__", "__module__")
    )
