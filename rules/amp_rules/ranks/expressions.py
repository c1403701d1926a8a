"""What an expression is on the ranks: the same everywhere, or why it is not."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.ranks.calls import Calls
from amp_rules.ranks.elements import Elements
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.memory import ELEMENTS, LENGTH, STATE, attribute, element, nothing
from amp_rules.ranks.origins import NOWHERE, Decision, Kind, Origins
from amp_rules.ranks.targets import Targets
from amp_rules.ranks.values import REPLICATED, SHARED, UNKNOWN, RankValue, Ref, join, join_all
from amp_rules.ranks.world import Given, World
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.source import blocks
from amp_rules.source.syntax import children, is_text, own_variables
from amp_rules.torch.containers import CONFIGURATION_OBJECTS
from amp_rules.torch.replication import KINDS, SIZES, SPACES

_MAX_DEPTH = 60
"""Expressions within expressions, calls of functions included. What lies deeper counts as replicated, which keeps
Python's own stack out of reach."""


class Expressions:
    """Evaluates expressions in a frame."""

    def __init__(self, world: World, elements: Elements, targets: Targets, calls: Calls) -> None:
        self._world = world
        self._memory = world.memory
        self._elements = elements
        self._targets = targets
        self._depth = 0
        self._constants: dict[ast.Constant, RankValue] = {}
        self._configurations: dict[ast.AST, bool] = {}
        self._nonlocal = {name for scope in world.flow.scopes.values() for name in scope.nonlocal_names}
        setting = world.setting
        self._rebound = {statement for statement, _ in setting.rebound_after}
        self._changed: frozenset[ast.AST] = setting.alike.union(setting.prepared, setting.reduced)
        self._by_class: dict[type[ast.AST], Callable[..., RankValue]] = {
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: calls.call,
            ast.Constant: self._constant,
            ast.List: self._display,
            ast.Tuple: self._display,
            ast.Set: self._set,
            ast.Dict: self._dict,
            ast.ListComp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.DictComp: self._comprehension,
            ast.Subscript: self._subscript,
            ast.IfExp: self._choice,
            ast.BoolOp: self._bool_op,
            ast.Compare: self._compare,
            ast.UnaryOp: self._unary,
            ast.NamedExpr: self._named,
            ast.Starred: lambda node, frame: self.evaluate(node.value, frame),
            ast.Await: lambda node, frame: self.evaluate(node.value, frame),
            ast.Lambda: lambda node, frame: REPLICATED,
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield_from,
        }

    def evaluate(self, node: ast.expr, frame: Frame) -> RankValue:
        """What an expression is."""
        if self._depth > _MAX_DEPTH:
            self._memory.record.is_partial = True
            return REPLICATED
        self._depth += 1
        try:
            if node in self._changed:
                value = self._as_changed(node, frame)
            else:
                value = self._by_class.get(node.__class__, self._parts)(node, frame)
        finally:
            self._depth -= 1
        self._world.note(node, value)
        return value

    def _as_changed(self, node: ast.expr, frame: Frame) -> RankValue:
        """What an expression is that the rewrites do something to."""
        setting = self._world.setting
        apart = frame.state.apart
        if node in setting.alike:
            frame.state.apart = False
        value = self._by_class.get(node.__class__, self._parts)(node, frame)
        if node in setting.alike:
            frame.state.apart = apart
        if node in setting.prepared and not (node in setting.by_sampler and self._gets_all(node, frame)):
            value = self._elements.shared(node, value, frame)
        return REPLICATED if node in setting.reduced else value

    def _gets_all(self, node: ast.expr, frame: Frame) -> bool:
        """Whether the sampler of a loader is none this time, or one of a single share: its helper was told so."""
        if not isinstance(node, ast.Call):
            return False
        given = [item for name in ("sampler", "batch_sampler") if (item := given_to_loader(node, name)) is not None]
        return bool(given) and all(self._gives_all(self.evaluate(item, frame)) for item in given)

    def _gives_all(self, sampler: RankValue) -> bool:
        shares = [self._memory.read(ref, attribute("num_replicas")) for ref in sampler.refs]
        return sampler.constant is None or (bool(shares) and all(item and item.constant == 1 for item in shares))

    def _constant(self, node: ast.Constant, frame: Frame) -> RankValue:
        known = self._constants.get(node)
        if known is None:
            known = self._constants[node] = RankValue(constant=node.value)
        return known

    # ---- put together --------------------------------------------------------------------------------------------

    def _parts(self, node: ast.expr, frame: Frame) -> RankValue:
        """An operation on what is inside of an expression."""
        values = [self.evaluate(child, frame) for child in children(node) if isinstance(child, ast.expr)]
        sizes: Origins = frozenset().union(*(self._memory.length(value) for value in values))
        refs = frozenset[Ref]()
        rows: Origins | None = None
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Add) and not is_text(node):
                # Lists that are added keep what they hold.
                refs = frozenset().union(*(value.refs for value in values))
            others = [value for value in values if not isinstance(value.constant, (int, float))]
            # A number makes no tensor larger.
            rows = others[0].rows if len(others) == 1 else None
        return RankValue(self._world.deep(values), sizes, refs, rows=rows)

    def _display(self, node: ast.List | ast.Tuple, frame: Frame) -> RankValue:
        ref = self._world.new(node, frame)
        for index, item in enumerate(node.elts):
            value = self.evaluate(item, frame)
            if isinstance(item, ast.Starred):
                self._memory.write(ref, ELEMENTS, self._elements.of(value, item, frame))
                self._memory.write(ref, LENGTH, RankValue(self._memory.length(value)))
            else:
                self._memory.write(ref, element(index), value)
        return RankValue(refs=frozenset((ref,)))

    def _set(self, node: ast.Set, frame: Frame) -> RankValue:
        ref = self._world.new(node, frame)
        values = [self.evaluate(item, frame) for item in node.elts]
        held = join_all(values).unknown()
        if not all(isinstance(item, ast.Constant) and isinstance(item.value, int) for item in node.elts):
            held = held.with_origins(self._world.order(frame.scope.module, node))
        self._memory.write(ref, ELEMENTS, held)
        return RankValue(refs=frozenset((ref,)))

    def _dict(self, node: ast.Dict, frame: Frame) -> RankValue:
        ref = self._world.new(node, frame)
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.evaluate(item, frame)
            if key is None:
                self._elements.copy(ref, value)
                self._memory.write(ref, LENGTH, RankValue(self._memory.members(value)))
                continue
            name = self.evaluate(key, frame)
            self._memory.write(ref, element(name.constant) if name.constant is not UNKNOWN else ELEMENTS, value)
            if name.own:
                self._memory.write(ref, LENGTH, RankValue(name.own))
        return RankValue(refs=frozenset((ref,)))

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
    ) -> RankValue:
        before = frame.control
        size: Origins = NOWHERE
        # Its variables are its own: those of the same names around it hold what they held.
        around = {name: frame.variables.get(name) for name in own_variables(node)}
        for generator in node.generators:
            given = self.evaluate(generator.iter, frame)
            counted = self._memory.length(given)
            if counted:
                frame.decide(Decision(frame.scope.module, generator.iter, counted, counts=True))
                size = size | counted
            self._targets.assign(generator.target, self._elements.of(given, generator.iter, frame), frame)
            for condition in generator.ifs:
                filtered = self._elements.truth(condition, self.evaluate(condition, frame), frame)
                if filtered:
                    frame.decide(Decision(frame.scope.module, condition, filtered))
                    size = size | filtered
        ref = self._world.new(node, frame)
        if isinstance(node, ast.DictComp):
            size = size | self.evaluate(node.key, frame).own
            held = self.evaluate(node.value, frame)
        else:
            held = self.evaluate(node.elt, frame)
        if isinstance(node, ast.SetComp):
            held = held.with_origins(self._world.order(frame.scope.module, node))
        frame.control = before
        for name, value in around.items():
            if value is not None:
                frame.variables[name] = value
            else:
                frame.variables.pop(name, None)
        self._memory.write(ref, ELEMENTS, held.unknown())
        return RankValue(NOWHERE, size, frozenset((ref,)))

    # ---- choices -------------------------------------------------------------------------------------------------

    def _choice(self, node: ast.IfExp, frame: Frame) -> RankValue:
        test = self.evaluate(node.test, frame)
        setting = self._world.setting
        if test.constant is not UNKNOWN:
            return self.evaluate(node.body if test.constant else node.orelse, frame)
        if node.test in setting.holding or node.test in setting.excluded:
            return self.evaluate(node.body if node.test in setting.holding else node.orelse, frame)
        origins = self._elements.truth(node.test, test, frame)
        before = frame.control
        if origins:
            frame.decide(Decision(frame.scope.module, node.test, origins))
        found = join(self.evaluate(node.body, frame).unknown(), self.evaluate(node.orelse, frame).unknown())
        frame.control = before
        return found.with_origins(origins)

    def _bool_op(self, node: ast.BoolOp, frame: Frame) -> RankValue:
        before = frame.control
        values: list[RankValue] = []
        is_and = isinstance(node.op, ast.And)
        said: Origins = NOWHERE
        for item in node.values:
            value = self.evaluate(item, frame)
            values.append(value)
            if value.constant is not UNKNOWN and bool(value.constant) is not is_and:
                break
            truth = self._elements.truth(item, value, frame) if item is not node.values[-1] else NOWHERE
            said = said | truth
            if truth:
                frame.decide(Decision(frame.scope.module, item, truth))
        frame.control = before
        if all(value.constant is not UNKNOWN for value in values):
            return values[-1]
        found = join_all([value.unknown() for value in values])
        return RankValue(found.content | said, found.size, found.refs)

    def _compare(self, node: ast.Compare, frame: Frame) -> RankValue:
        values = [self.evaluate(item, frame) for item in (node.left, *node.comparators)]
        if len(values) == 2:
            known = _compared(node.ops[0], values[0].constant, values[1].constant)
            if known is not None:
                return RankValue(constant=known)
        if all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            # Which object it is differs only where different objects were assigned.
            sizes = frozenset().union(*(value.size for value in values))
            return RankValue(frozenset(origin for origin in sizes if not origin.of_shape))
        if all(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
            found = frozenset().union(self._memory.deep(values[0]), *map(self._memory.members, values[1:]))
            found = frozenset(origin for origin in found if origin.kind is not Kind.ORDER)
        else:
            found = self._world.deep(values)
        return RankValue(found, frozenset().union(*(value.size for value in values)))

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> RankValue:
        value = self.evaluate(node.operand, frame)
        if isinstance(node.op, ast.Not):
            if value.constant is not UNKNOWN:
                return RankValue(constant=not value.constant)
            return RankValue(self._elements.truth(node.operand, value, frame))
        return RankValue(self._memory.deep(value), value.size)

    def _named(self, node: ast.NamedExpr, frame: Frame) -> RankValue:
        value = self.evaluate(node.value, frame)
        self._targets.assign(node.target, value, frame)
        return value

    # ---- generators ----------------------------------------------------------------------------------------------

    def _yield(self, node: ast.Yield, frame: Frame) -> RankValue:
        value = self.evaluate(node.value, frame) if node.value is not None else REPLICATED
        return self._yielded(value, frame)

    def _yield_from(self, node: ast.YieldFrom, frame: Frame) -> RankValue:
        value = self.evaluate(node.value, frame)
        counted = self._memory.length(value)
        if counted:
            self._memory.write(Ref(frame.node, frame.context), LENGTH, RankValue(counted))
        apart = frame.state.apart
        frame.state.apart = apart or self._memory.is_pass(value)
        found = self._yielded(self._elements.of(value, node.value, frame), frame)
        frame.state.apart = apart
        return found

    def _yielded(self, value: RankValue, frame: Frame) -> RankValue:
        ref = self._memory.made(Ref(frame.node, frame.context))
        self._memory.write(ref, ELEMENTS, value.unknown())
        if frame.state.apart:
            self._memory.note_pass(ref)
        if frame.control_origins:
            self._memory.write(ref, LENGTH, RankValue(frame.control_origins))
        return REPLICATED

    # ---- names and attributes ------------------------------------------------------------------------------------

    def _name(self, node: ast.Name, frame: Frame) -> RankValue:
        owner = frame.scope.owner(node.id)
        if owner is frame.scope and node.id in frame.variables:
            return frame.variables[node.id]
        if owner is not frame.scope and node.id in frame.closed:
            return frame.closed[node.id]
        if owner is frame.scope and owner.is_function and node.id not in self._nonlocal:
            # A path on which it has no value yet, and none that another call of the function gave its own.
            return nothing(frame.assigned.get(node.id)).unknown()
        known = self._memory.variable(owner.node, node.id)
        return nothing(known).unknown() if owner is not frame.scope else nothing(known)

    def _attribute(self, node: ast.Attribute, frame: Frame) -> RankValue:
        for value in self._world.flow.values(node.value, frame.scope):
            if value.kind == "module":
                return nothing(self._memory.variable(value.ref.tree, node.attr)).unknown()
        owner = self.evaluate(node.value, frame)
        path = self._world.lasting.path(node, frame)
        if path in frame.variables and not owner.content:
            return frame.variables[path]
        return self.attribute(owner, node.attr, node, frame)

    def attribute(self, owner: RankValue, name: str, node: ast.AST, frame: Frame) -> RankValue:
        """An attribute of a value."""
        found: list[RankValue] = []
        alias: set[Ref] = set()
        state: Origins = NOWHERE
        inherited: Origins = NOWHERE
        for ref in owner.refs:
            held = self._world.keeps.attribute(ref, name, frame)
            if held is not None:
                found.append(held.unknown() if len(owner.refs) > 1 or self._is_configuration(ref.site) else held)
            if ref.cls is not None:
                found.extend(self._of_class(ref, name, frame))
                inherited = inherited | nothing(self._memory.read(ref, STATE)).own
            elif held is None and ref.context != SHARED:
                alias.add(ref.part)
                state = state | nothing(self._memory.read(ref, STATE)).own
        if name in KINDS and not found:
            return REPLICATED
        if name in SPACES and not found and all(origin.kind is Kind.ENVIRONMENT for origin in owner.content):
            return REPLICATED
        if name in SIZES and not found:
            return RankValue(self._memory.length(owner), owner.size)
        if not found:
            # The script assigns it nowhere, so it is one of the library's that the class is derived from.
            state = state | inherited
        joined = join_all(found)
        refs = joined.refs - {ref for ref in joined.refs if self._is_shared_below(ref, node, frame)}
        return RankValue(
            joined.content | owner.content | state,
            joined.size | owner.size,
            refs | alias,
            joined.constant if not alias and not owner.content else UNKNOWN,
        )

    def _is_configuration(self, made: ast.AST) -> bool:
        """Whether an object holds defaults, into which the settings of a file or of the command line are merged."""
        if not isinstance(made, ast.Call):
            return False
        known = self._configurations.get(made)
        if known is None:
            located = self._world.program.locate(made)
            names = self._world.program.callee_names(made, located[1]) if located is not None else set()
            known = self._configurations[made] = not names.isdisjoint(CONFIGURATION_OBJECTS)
        return known

    def _of_class(self, ref: Ref, name: str, frame: Frame) -> list[RankValue]:
        """What an object has by its class: a property, or a variable of the class."""
        assert ref.cls is not None
        method = ref.cls.find_method(name)
        if method is not None:
            if method.is_property:
                return [self._world.run(Given(method, {}, frame, frozenset((ref,))))]
            return [RankValue(refs=frozenset((ref,)))]
        held = [self._memory.variable(info.facts.node, name) for info in ref.cls.mro()]
        return [value.unknown() for value in held if value is not None]

    def _subscript(self, node: ast.Subscript, frame: Frame) -> RankValue:
        owner = self.evaluate(node.value, frame)
        index = self.evaluate(node.slice, frame)
        chosen = self._memory.deep(index)
        if isinstance(node.slice, ast.Slice):
            return RankValue(owner.content | chosen, owner.size | chosen, owner.refs)
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and index.constant == 0:
            asked = self.evaluate(node.value.value, frame)
            if asked.rows is not None:
                return RankValue(asked.rows)
        found = self._elements.at(owner, index.constant, node, frame)
        refs = found.refs - {ref for ref in found.refs if self._is_shared_below(ref, node, frame)}
        return RankValue(found.content | chosen, found.size | chosen, refs, found.constant)

    def _is_shared_below(self, ref: Ref, node: ast.AST, frame: Frame) -> bool:
        """Whether a part is read above the one statement below which it is a loader that is shared out.

        What a container or an object holds is known for the whole program, not for a place in it.
        """
        module, statement = frame.scope.module, ref.site
        if ref.context != SHARED or statement not in self._rebound or statement not in module.parents:
            return False
        if node not in module.parents or blocks.loop_around(module, statement) is not None:
            return False
        same = blocks.body_of(module, node) is blocks.body_of(module, statement)
        return same and module.start(node) < module.end(statement)


def _compared(op: ast.cmpop, left: object, right: object) -> bool | None:
    """What comparing two constants gives; None where that is not certain."""
    if left is UNKNOWN or right is UNKNOWN:
        return None
    if isinstance(op, (ast.Eq, ast.Is)):
        return bool(left == right)
    if isinstance(op, (ast.NotEq, ast.IsNot)):
        return bool(left != right)
    if isinstance(left, str) and isinstance(right, str) and isinstance(op, (ast.In, ast.NotIn)):
        return (left in right) is isinstance(op, ast.In)
    return None
