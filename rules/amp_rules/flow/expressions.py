"""What an expression can hold, and what an assignment changes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable

from amp_rules.flow.attributes import Attributes
from amp_rules.flow.cells import CellKey, Mark, attribute_key
from amp_rules.flow.containers import Containers
from amp_rules.flow.local_variables import LocalVariables
from amp_rules.flow.parts import Calls, CallVariables, Overlay
from amp_rules.flow.reached import Reached
from amp_rules.flow.refused_calls import accepted
from amp_rules.flow.store import Store
from amp_rules.flow.values import Form, Value
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import children
from amp_rules.torch.containers import SETS
from amp_rules.torch.optimizers import OPTIMIZERS
from amp_rules.torch.wrappers import PROGRESS_BARS

_MAX_DEPTH = 40
"""Expressions within expressions, the returns of functions that are followed included. Code of people stays below ten;
what lies deeper is taken for unknown, which keeps Python's own stack out of reach."""
_BUILTINS = frozenset(dir(builtins))
_CONCATENATED = ("sequence", "parameters")

# The first argument is a node of the class that the table names.
_Evaluate = Callable[..., set[Value]]


class ExpressionEvaluator:
    """Evaluates expressions and assigns to targets.

    Attributes:
        uses: the attributes that the program asks of a variable.
    """

    def __init__(
        self,
        store: Store,
        reached: Reached,
        containers: Containers,
        attributes: Attributes,
        variables: LocalVariables,
        calls: Calls,
    ) -> None:
        self.uses: dict[CellKey, set[str]] = {}
        self._store = store
        self._reached = reached
        self._containers = containers
        self._attributes = attributes
        self._variables = variables
        self._depth = 0
        self._constants: dict[ast.Constant, Value] = {}
        self._by_class: dict[type[ast.AST], _Evaluate] = {
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: calls.call,
            ast.Constant: self._constant,
            ast.List: self._display,
            ast.Tuple: self._display,
            ast.Set: self._display,
            ast.Dict: self._dict,
            ast.ListComp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.DictComp: self._comprehension,
            ast.Subscript: self._subscript,
            ast.IfExp: self._choice,
            ast.BoolOp: self._bool_op,
            ast.NamedExpr: self._named,
            ast.BinOp: self._bin_op,
            ast.Starred: self._starred,
            ast.Lambda: self._lambda,
            ast.Yield: self._yield,
            ast.YieldFrom: self._yield_from,
            ast.Await: self._await,
        }

    # ---- targets -------------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, values: set[Value], scope: Scope) -> None:
        """Add the values to what a target holds."""
        if isinstance(target, ast.Name):
            self._store.write((scope.owner(target.id).node, target.id), values)
        elif isinstance(target, ast.Attribute):
            for owner in self.evaluate(target.value, scope):
                self._store.write(attribute_key(owner, target.attr), values)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    self.assign(element.value, values, scope)
                else:
                    self.assign(element, self._containers.element(values, index), scope)
        elif isinstance(target, ast.Subscript):
            if isinstance(target.slice, ast.Slice):
                given = {value for value in values if value.kind == "sequence"}
                values = (values - given) | self._containers.elements(given)
            for owner in self.evaluate(target.value, scope):
                self._store.write_element(owner, _index(target.slice), values)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, values, scope)

    def key(self, node: ast.expr, scope: Scope) -> CellKey | None:
        """The cell that a name or an attribute of ``self`` stands for."""
        if isinstance(node, ast.Name):
            return (scope.owner(node.id).node, node.id)
        if isinstance(node, ast.Attribute):
            for value in self.evaluate(node.value, scope):
                if value.kind == "instance":
                    return (value.ref.mro()[-1].facts.node, node.attr)
        return None

    # ---- expressions ---------------------------------------------------------------------------------------------

    def evaluate(self, node: ast.expr, scope: Scope, overlay: Overlay | None = None) -> set[Value]:
        """What an expression can hold; empty when nothing is known."""
        if self._depth > _MAX_DEPTH:
            return set()
        self._depth += 1
        try:
            return self._by_class.get(node.__class__, self._parts)(node, scope, overlay)
        finally:
            self._depth -= 1

    def _constant(self, node: ast.Constant, scope: Scope, overlay: Overlay | None) -> set[Value]:
        if not isinstance(node.value, (str, int, bool)):
            return set()
        known = self._constants.get(node)
        if known is None:
            known = self._constants[node] = Value("constant", node.value)
        return {known}

    def _parts(self, node: ast.expr, scope: Scope, overlay: Overlay | None) -> set[Value]:
        """Evaluate what an expression is put together from; it is a number, or of no interest."""
        for child in children(node):
            if isinstance(child, ast.expr):
                self.evaluate(child, scope, overlay)
        return set()

    def _display(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope, overlay: Overlay | None) -> set[Value]:
        found = Value("sequence", Form.PLAIN, node)
        for index, element in enumerate(node.elts):
            if isinstance(element, ast.Starred):
                spread = self._containers.elements(self.evaluate(element.value, scope, overlay))
                self._store.write_element(found, Mark.ANY, spread)
            else:
                self._store.write_element(found, index, self.evaluate(element, scope, overlay))
        return {found}

    def _dict(self, node: ast.Dict, scope: Scope, overlay: Overlay | None) -> set[Value]:
        found = Value("sequence", Form.PLAIN, node)
        for key, value in zip(node.keys, node.values, strict=True):
            values = self.evaluate(value, scope, overlay)
            if key is None:
                self._containers.copy_items(found, values)
            else:
                self._store.write_element(found, _index(key), values)
        return {found}

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope, overlay: Overlay | None
    ) -> set[Value]:
        for generator in node.generators:
            given = self._containers.elements(self.evaluate(generator.iter, scope, overlay))
            self.assign(generator.target, given, scope)
            for condition in generator.ifs:
                self.evaluate(condition, scope, overlay)
        if isinstance(node, ast.DictComp) and (copied := _copied(node)) is not None:
            found = Value("sequence", Form.PLAIN, node)
            self._containers.copy_items(found, self.evaluate(copied, scope, overlay))
            return {found}
        element = node.value if isinstance(node, ast.DictComp) else node.elt
        return {self._containers.made(Form.PLAIN, node, self.evaluate(element, scope, overlay))}

    def _subscript(self, node: ast.Subscript, scope: Scope, overlay: Overlay | None) -> set[Value]:
        self.evaluate(node.slice, scope, overlay)
        owners = self.evaluate(node.value, scope, overlay)
        if isinstance(node.slice, ast.Slice):
            return owners
        if isinstance(node.slice, ast.Constant):
            return self._containers.element(owners, node.slice.value)
        if isinstance(node.slice, ast.Name) and node.slice.id == "__name__":
            if any(owner.kind == "external" and owner.ref == "sys.modules" for owner in owners):
                return {Value("module", scope.top.module)}
        return accepted(self._containers.elements(owners), scope.module.parents, node)

    def _choice(self, node: ast.IfExp, scope: Scope, overlay: Overlay | None) -> set[Value]:
        self.evaluate(node.test, scope, overlay)
        return self.evaluate(node.body, scope, overlay) | self.evaluate(node.orelse, scope, overlay)

    def _bool_op(self, node: ast.BoolOp, scope: Scope, overlay: Overlay | None) -> set[Value]:
        return set().union(*(self.evaluate(value, scope, overlay) for value in node.values))

    def _named(self, node: ast.NamedExpr, scope: Scope, overlay: Overlay | None) -> set[Value]:
        values = self.evaluate(node.value, scope, overlay)
        self.assign(node.target, values, scope)
        return values

    def _bin_op(self, node: ast.BinOp, scope: Scope, overlay: Overlay | None) -> set[Value]:
        left = self.evaluate(node.left, scope, overlay)
        values = left | self.evaluate(node.right, scope, overlay)
        if isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call):
            # ``set(net.parameters()) - set(net.head.parameters())``
            made = self.evaluate(node.left.func, scope, overlay)
            return left if any(value.kind == "external" and value.ref in SETS for value in made) else set()
        if isinstance(node.op, ast.Mult):
            # ``[None] * depth``
            repeated = next((item for item in (node.left, node.right) if isinstance(item, ast.List)), None)
            return self.evaluate(repeated, scope, overlay) if repeated is not None else set()
        return {value for value in values if value.kind in _CONCATENATED} if isinstance(node.op, ast.Add) else set()

    def _starred(self, node: ast.Starred, scope: Scope, overlay: Overlay | None) -> set[Value]:
        return self.evaluate(node.value, scope, overlay)

    def _lambda(self, node: ast.Lambda, scope: Scope, overlay: Overlay | None) -> set[Value]:
        info = self._reached.functions[node]
        self._reached.reach(info)
        return {Value("function", info)}

    def _await(self, node: ast.Await, scope: Scope, overlay: Overlay | None) -> set[Value]:
        return self.evaluate(node.value, scope, overlay)

    def _yield(self, node: ast.Yield, scope: Scope, overlay: Overlay | None) -> set[Value]:
        if node.value is None:
            return set()
        values = self.evaluate(node.value, scope, overlay)
        return self._yielded(values, values, scope)

    def _yield_from(self, node: ast.YieldFrom, scope: Scope, overlay: Overlay | None) -> set[Value]:
        values = self.evaluate(node.value, scope, overlay)
        return self._yielded(values, self._containers.elements(values), scope)

    def _yielded(self, values: set[Value], yielded: set[Value], scope: Scope) -> set[Value]:
        if not scope.is_function:
            return values
        self._store.write((scope.node, Mark.YIELD), yielded)
        return set()

    # ---- names and attributes ------------------------------------------------------------------------------------

    def _name(self, node: ast.Name, scope: Scope, overlay: Overlay | None) -> set[Value]:
        owner = scope.owner(node.id)
        if overlay is not None and owner is scope:
            if node.id in overlay:
                return overlay[node.id]
            local = self._local(node.id, scope, overlay)
            if local is not None:
                return local
        values = self._store.read((owner.node, node.id))
        if not values and owner is scope.top and node.id not in owner.bound:
            for star in sorted(self._store.read((owner.node, Mark.STAR)), key=lambda value: str(value.ref)):
                if _may_export(star.name, node.id):
                    return {Value("external", f"{star.name}.{node.id}")}
            if node.id in _BUILTINS:
                return {Value("external", f"builtins.{node.id}")}
        return values

    def _local(self, name: str, scope: Scope, overlay: Overlay) -> set[Value] | None:
        """What a variable of a function holds in one of its calls; None where that call is not followed."""
        if not isinstance(overlay, CallVariables):
            return None
        given = self._variables[scope.node].get(name)
        if not given:
            return None
        # A variable that is computed from itself holds what it was given above: ``optimizer = optimizer(parameters)``.
        overlay[name] = set()
        for item in given:
            overlay[name] = overlay[name] | self.evaluate(item, scope, overlay)
        return overlay[name]

    def _attribute(self, node: ast.Attribute, scope: Scope, overlay: Overlay | None) -> set[Value]:
        return self.attribute(node, self.evaluate(node.value, scope, overlay), scope)

    def attribute(self, node: ast.Attribute, owners: set[Value], scope: Scope) -> set[Value]:
        """What an attribute of what its owner holds can hold."""
        if not self._store.frozen:
            self._note_use(node, scope)
        found: set[Value] = set()
        for owner in owners:
            found |= self._attributes.of(owner, node.attr)
        return found

    def _note_use(self, node: ast.Attribute, scope: Scope) -> None:
        owner = node.value
        is_plain = isinstance(owner, ast.Name) or (
            isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name)
        )
        key = self.key(owner, scope) if is_plain else None
        if key is not None:
            self.uses.setdefault(key, set()).add(node.attr)


def _index(node: ast.expr) -> object:
    """The key that an element is stored under."""
    return node.value if isinstance(node, ast.Constant) else Mark.ANY


def _may_export(module: str, name: str) -> bool:
    """Whether ``from module import *`` of a library binds the name."""
    is_class = name[:1].isupper()
    if module == "torch.optim":
        return name in OPTIMIZERS
    if module == "torch.nn":
        return is_class and name not in OPTIMIZERS
    if module == "torch.nn.functional":
        return not is_class and name not in _BUILTINS
    return (is_class and module.startswith("torch")) or f"{module}.{name}" in PROGRESS_BARS


def _copied(node: ast.DictComp) -> ast.expr | None:
    """The mapping whose items stay what they are: ``{k: d[k] for k in d}``, ``{k: v for k, v in d.items()}``."""
    if len(node.generators) != 1 or not isinstance(node.key, ast.Name):
        return None
    key, value = node.key.id, node.value
    target, mapping = node.generators[0].target, node.generators[0].iter
    method = ""
    if isinstance(mapping, ast.Call) and isinstance(mapping.func, ast.Attribute):
        method, mapping = mapping.func.attr, mapping.func.value
    if isinstance(target, ast.Tuple):
        names = [item.id for item in target.elts if isinstance(item, ast.Name)]
        return mapping if method == "items" and isinstance(value, ast.Name) and names == [key, value.id] else None
    if method not in ("", "keys") or not (isinstance(target, ast.Name) and target.id == key):
        return None
    if not (isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Name) and value.slice.id == key):
        return None
    return mapping if ast.dump(value.value) == ast.dump(mapping) else None
