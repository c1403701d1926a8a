"""What an expression can hold."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable

from amp_rules.program import blocks
from amp_rules.program.cells import CellKey, Cells, Frame, Overlay, attribute_key, element_key
from amp_rules.program.kinds import is_loader_value, is_module
from amp_rules.program.scopes import Scope
from amp_rules.program.syntax import children
from amp_rules.program.values import Value
from amp_rules.tables import torch_api as api

_MAX_DEPTH = 40
_WRITERS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)
_BUILTINS = frozenset(dir(builtins))


class Expressions(Cells):
    """Evaluates expressions and assigns to targets; calls are left to a subclass."""

    def _call(self, node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        raise NotImplementedError

    def _attribute_by_item(self, owner: Value, name: str) -> set[Value]:
        raise NotImplementedError

    def _options(self, owner: Value, name: str) -> set[Value]:
        raise NotImplementedError

    def _assign(self, target: ast.expr, values: set[Value], scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self._write((scope.owner(target.id).node, target.id), values)
        elif isinstance(target, ast.Attribute):
            for owner in self._eval(target.value, scope):
                self._write(attribute_key(owner, target.attr), values)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    self._assign(element.value, values, scope)
                else:
                    self._assign(element, self._element(values, index), scope)
        elif isinstance(target, ast.Subscript):
            key = target.slice.value if isinstance(target.slice, ast.Constant) else "*"
            for owner in self._eval(target.value, scope):
                self._write_element(owner, key, values)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, values, scope)

    def _eval(self, node: ast.expr, scope: Scope, overlay: Overlay | None = None) -> set[Value]:
        if self._depth > _MAX_DEPTH:
            return set()
        self._depth += 1
        try:
            return self._eval_node(node, scope, overlay)
        finally:
            self._depth -= 1

    def _eval_node(self, node: ast.expr, scope: Scope, overlay: Overlay | None) -> set[Value]:
        if isinstance(node, ast.Name):
            return self._name(node, scope, overlay)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope, overlay)
        if isinstance(node, ast.Call):
            return self._call(node, scope, overlay)
        if isinstance(node, ast.Constant):
            return {Value("constant", node.value)} if isinstance(node.value, (str, int, bool)) else set()
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            found = Value("sequence", None, node)
            for index, element in enumerate(node.elts):
                if isinstance(element, ast.Starred):
                    self._write_element(found, "*", self.elements(self._eval(element.value, scope, overlay)))
                else:
                    self._write_element(found, index, self._eval(element, scope, overlay))
            return {found}
        if isinstance(node, ast.Dict):
            found = Value("sequence", None, node)
            for key, value in zip(node.keys, node.values, strict=True):
                values = self._eval(value, scope, overlay)
                if key is None:
                    self._copy_items(found, values)
                    continue
                self._write_element(found, key.value if isinstance(key, ast.Constant) else "*", values)
            return {found}
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            for generator in node.generators:
                self._assign(generator.target, self.elements(self._eval(generator.iter, scope, overlay)), scope)
                for condition in generator.ifs:
                    self._eval(condition, scope, overlay)
            element = node.value if isinstance(node, ast.DictComp) else node.elt
            found = Value("sequence", None, node)
            self._write_element(found, "*", self._eval(element, scope, overlay))
            return {found}
        if isinstance(node, ast.Subscript):
            self._eval(node.slice, scope, overlay)
            owners = self._eval(node.value, scope, overlay)
            if isinstance(node.slice, ast.Slice):
                return owners
            if isinstance(node.slice, ast.Constant):
                return self._element(owners, node.slice.value)
            if isinstance(node.slice, ast.Name) and node.slice.id == "__name__":
                if any(owner.kind == "external" and owner.ref == "sys.modules" for owner in owners):
                    return {Value("module", scope.top.module)}
            return self.elements(owners)
        if isinstance(node, ast.IfExp):
            self._eval(node.test, scope, overlay)
            return self._eval(node.body, scope, overlay) | self._eval(node.orelse, scope, overlay)
        if isinstance(node, ast.BoolOp):
            return set().union(*(self._eval(value, scope, overlay) for value in node.values))
        if isinstance(node, ast.NamedExpr):
            values = self._eval(node.value, scope, overlay)
            self._assign(node.target, values, scope)
            return values
        if isinstance(node, ast.BinOp):
            values = self._eval(node.left, scope, overlay) | self._eval(node.right, scope, overlay)
            kept = ("sequence", "parameters")
            return {value for value in values if value.kind in kept} if isinstance(node.op, ast.Add) else set()
        if isinstance(node, ast.Starred):
            return self._eval(node.value, scope, overlay)
        if isinstance(node, ast.Lambda):
            info = self.functions[node]
            self._reach(info)
            return {Value("function", info)}
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            if node.value is not None:
                values = self._eval(node.value, scope, overlay)
                if isinstance(node, ast.Yield) and scope.is_function:
                    self._write((scope.node, "<yield>"), values)
                elif isinstance(node, ast.YieldFrom) and scope.is_function:
                    self._write((scope.node, "<yield>"), self.elements(values))
                else:
                    return values
            return set()
        for child in children(node):
            if isinstance(child, ast.expr):
                self._eval(child, scope, overlay)
        return set()

    def _name(self, node: ast.Name, scope: Scope, overlay: Overlay | None) -> set[Value]:
        owner = scope.owner(node.id)
        if overlay is not None and owner is scope:
            if node.id in overlay:
                return overlay[node.id]
            local = self._local(node.id, scope, overlay)
            if local is not None:
                return local
        values = self._read((owner.node, node.id))
        if not values and owner is scope.top and node.id not in owner.bound:
            for star in sorted(self._read((owner.node, "<star>")), key=lambda value: str(value.ref)):
                if _may_export(star.name, node.id):
                    return {Value("external", f"{star.name}.{node.id}")}
            if node.id in _BUILTINS:
                return {Value("external", f"builtins.{node.id}")}
        return values

    def _local(self, name: str, scope: Scope, overlay: Overlay) -> set[Value] | None:
        """What a variable of a function holds in one of its calls; None where that call is not followed."""
        if not isinstance(overlay, Frame):
            return None
        definitions = self._definitions(scope.node).get(name)
        if not definitions:
            return None
        overlay[name] = set()
        found = overlay[name] = set().union(*(self._eval(item, scope, overlay) for item in definitions))
        return found

    def _definitions(self, body: ast.AST) -> dict[str, list[ast.expr]]:
        """The expressions that each variable of a function is assigned from, for variables of no other kind."""
        known = self._definitions_of.get(body)
        if known is None:
            known = self._definitions_of[body] = definitions(body)
        return known

    def _attribute(self, node: ast.Attribute, scope: Scope, overlay: Overlay | None) -> set[Value]:
        owners = self._eval(node.value, scope, overlay)
        key = self._use_key(node.value, scope)
        if key is not None and not self._frozen:
            self.uses.setdefault(key, set()).add(node.attr)
        found: set[Value] = set()
        for owner in owners:
            found |= self._attribute_of(owner, node.attr)
        return found

    def _use_key(self, node: ast.expr, scope: Scope) -> CellKey | None:
        if isinstance(node, ast.Name):
            return (scope.owner(node.id).node, node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            for value in self._eval(node.value, scope):
                if value.kind == "instance":
                    return (value.ref.mro()[-1].node, node.attr)
        return None

    def _members(self, owner: Value | None) -> set[Value]:
        """Whatever a computed name can find in a module."""
        if owner is None:
            return set()
        if owner.kind == "external":
            return {Value("external", f"{owner.ref}.?")}
        if owner.kind != "module":
            return set()
        tree = owner.ref.tree
        found: set[Value] = set()
        for attribute in sorted(self.scopes[tree].bound):
            found |= {value for value in self._read((tree, attribute)) if value.kind in ("class", "function")}
        return found

    def _attribute_of(self, owner: Value, name: str) -> set[Value]:
        if name == "__dict__" and owner.kind in ("module", "external", "instance"):
            stored = self._read(attribute_key(owner, name)) if owner.kind == "instance" else set()
            return {Value("attribute", ("", "__dict__"), receiver=owner), *stored}
        if owner.kind == "external":
            qualified = f"{owner.ref}.{name}"
            if self.project.is_folder(self.project.entry, owner.ref):
                found = self._project_module(self.project.entry, qualified)
                if found is not None:
                    return {Value("module", found)}
            return {Value("external", qualified)}
        if owner.kind == "module":
            tree = owner.ref.tree
            values = set(self._read((tree, name)))
            if not values:
                submodule = self._project_submodule(owner.ref, name)
                if submodule is not None:
                    return {Value("module", submodule)}
                if owner.ref.is_entry is False and name not in self.scopes[tree].bound:
                    for star in self._read((tree, "<star>")):
                        values.add(Value("external", f"{star.name}.{name}"))
            return values
        if owner.kind in ("instance", "class"):
            values = set()
            for info in owner.ref.mro():
                values |= self._read((info.node, name))
                method = info.methods.get(name)
                if method is not None:
                    if method.is_property:
                        self._reach(method)
                        return values | self._read((method.node, "<return>"))
                    return values | {Value("function", method, receiver=owner)}
            if values:
                return values
            if name == "module":
                return {owner}
            values = self._attribute_by_item(owner, name)
            if values:
                return values
            return {Value("attribute", ("", name), receiver=owner)} if owner.kind == "instance" else set()
        if owner.kind == "object":
            stored = self._read(attribute_key(owner, name))
            if stored:
                return set(stored)
            stored = self._attribute_by_item(owner, name)
            if stored:
                return stored
            if name in ("module", "data"):
                return {owner}
            if name in ("weight", "bias") and is_module(owner):
                return {Value("parameters", owner)}
            return {Value("attribute", (owner.ref, name), receiver=owner), *self._options(owner, name)}
        if owner.kind == "sequence":
            stored = self._read(attribute_key(owner, name))
            return set(stored) | {Value("attribute", ("sequence", name), receiver=owner)}
        if owner.kind in ("batch", "parameters"):
            return {owner}
        if owner.kind == "attribute" and owner.ref[1] == "__dict__":
            return {Value("attribute", ("__dict__", name), receiver=owner.receiver)}
        if owner.kind == "attribute":
            return {Value("attribute", ("#", name), receiver=owner.receiver)}
        return set()

    # ---- containers ----------------------------------------------------------------------------------------

    def _element(self, owners: Iterable[Value], index: object) -> set[Value]:
        found: set[Value] = set()
        for owner in owners:
            if owner.kind == "sequence":
                found |= self._read(element_key(owner, index)) | self._read(element_key(owner, "*"))
                if owner.ref == "loaded":
                    # Of a file of settings it is not known how deep it goes.
                    found.add(owner)
            elif owner.kind in ("batch", "parameters"):
                found.add(owner)
            elif owner.kind == "attribute" and owner.ref[1] == "__dict__":
                found |= self._members(owner.receiver)
            elif owner.kind in ("object", "instance", "attribute"):
                stored = self._read(element_key(owner, index)) | self._read(element_key(owner, "*"))
                found |= stored
        return found

    def _copy_items(self, target: Value, sources: set[Value]) -> None:
        """What a mapping takes over from others."""
        for source in sources:
            if source.kind in ("sequence", "instance", "object") and source != target:
                for index in list(self._read(self._keys(source))):
                    self._write_element(target, index.ref, self._element({source}, index.ref))

    def elements(self, owners: Iterable[Value]) -> set[Value]:
        """What iterating over the values can give."""
        found: set[Value] = set()
        for owner in owners:
            if owner.kind in ("batch", "parameters"):
                found.add(owner)
            elif owner.kind == "attribute" and owner.ref[1] == "__dict__":
                found |= self._members(owner.receiver)
            elif is_loader_value(owner):
                found.add(Value("batch", owner))
            elif owner.kind in ("sequence", "object", "instance", "attribute"):
                for index in list(self._read(element_key(owner, "<keys>"))):
                    found |= self._read(element_key(owner, index.ref))
                if owner.kind == "instance":
                    method = owner.ref.find_method("__iter__")
                    if method is not None:
                        self._reach(method)
                        found |= self._read((method.node, "<yield>"))
        return found

    def _rows(self, pair: Value, node: ast.Call) -> set[Value]:
        rows = Value("sequence", "rows", node)
        self._write_element(rows, "*", {pair})
        return {rows}


def _may_export(module: str, name: str) -> bool:
    """Whether ``from module import *`` of a library binds the name."""
    is_class = name[:1].isupper()
    if module == "torch.optim":
        return name in api.OPTIMIZERS
    if module == "torch.nn":
        return is_class and name not in api.OPTIMIZERS
    if module == "torch.nn.functional":
        return not is_class and name not in _BUILTINS
    return is_class and module.startswith("torch")


def definitions(body: ast.AST) -> dict[str, list[ast.expr]]:
    """Map the variables of a function to what plain assignments give them; others map to an empty list."""
    found: dict[str, list[ast.expr]] = {}
    other: set[str] = set()
    for node in blocks.walk_body(body):
        if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
            for target in node.targets:
                found.setdefault(target.id, []).append(node.value)  # type: ignore[attr-defined]
            continue
        for name in blocks.writes(node) if isinstance(node, _WRITERS) else ():
            other.add(name)
    return {name: [] if name in other else values for name, values in found.items()}
