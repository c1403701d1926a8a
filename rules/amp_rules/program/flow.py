"""Which values reach which name, attribute and call.

A points-to analysis: every variable, attribute of a class and element of a container is a *cell*, every
body (a module's or a function's) is evaluated again whenever a cell that it read has grown, until nothing
changes. It knows no order of statements and one context per function; what a helper returns is evaluated
once more for each call with that call's own arguments, which keeps ``make(kind)`` factories apart."""

from __future__ import annotations

import ast
import builtins
from collections import deque
from collections.abc import Iterable, Mapping

from amp_rules.program.blocks import suites
from amp_rules.program.kinds import is_loader_value, is_module
from amp_rules.program.modules import Module, Project
from amp_rules.program.scopes import FunctionNode, Scope, arguments_of, build_scopes
from amp_rules.program.values import CallSite, Cell, ClassInfo, FunctionInfo, Value
from amp_rules.tables import torch_api as api

_MAX_VALUES = 40
_MAX_VISITS = 20_000
_MAX_DEPTH = 40
_BUILTINS = frozenset(dir(builtins))

Overlay = Mapping[str, set[Value]]
CellKey = tuple[object, str]


class Flow:
    """The fixed point over one program: the entry and what it imports.

    Use :meth:`values` for what an expression can hold and :meth:`callees` for the functions of the project that a call
    can reach.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.scopes: dict[ast.AST, Scope] = {}
        self.functions: dict[ast.AST, FunctionInfo] = {}
        self.classes: dict[ast.AST, ClassInfo] = {}
        self.modules: list[Module] = []
        self.cells: dict[CellKey, Cell] = {}
        self.imported: set[str] = set()
        self.uses: dict[CellKey, set[str]] = {}
        self._bodies: dict[ast.AST, Scope] = {}
        self._queue: deque[ast.AST] = deque()
        self._queued: set[ast.AST] = set()
        self._current: ast.AST | None = None
        self._call_callees: dict[ast.Call, set[FunctionInfo]] = {}
        self._depth = 0
        self._sites_of: dict[ast.AST, set[ast.AST]] = {}
        self._inlining: list[FunctionInfo] = []
        self._frozen = False
        self._add_module(project.entry)
        for info in list(self.functions.values()):
            if info.module is project.entry and isinstance(info.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._reach(info)
        self._run()
        self._frozen = True

    # ---- questions -----------------------------------------------------------------------------------------

    def values(self, node: ast.expr, scope: Scope) -> set[Value]:
        """What the expression can hold; empty when nothing is known."""
        return self._eval(node, scope)

    def callees(self, call: ast.Call) -> set[FunctionInfo]:
        """Functions of the project that the call can run, methods' ``forward`` of called models included."""
        return self._call_callees.get(call, set())

    def bodies(self) -> Iterable[tuple[ast.AST, Scope]]:
        """Every body that the program can reach: modules and functions."""
        return list(self._bodies.items())

    def key(self, node: ast.expr, scope: Scope) -> CellKey | None:
        """The cell that a name or an attribute of ``self`` stands for."""
        if isinstance(node, ast.Name):
            return (scope.owner(node.id).node, node.id)
        if isinstance(node, ast.Attribute):
            for value in self._eval(node.value, scope):
                if value.kind == "instance":
                    return (value.ref.mro()[-1].node, node.attr)
        return None

    # ---- the fixed point -----------------------------------------------------------------------------------

    def _run(self) -> None:
        visits = 0
        while self._queue and visits < _MAX_VISITS:
            body = self._queue.popleft()
            self._queued.discard(body)
            self._current = body
            self._process(body, self._bodies[body])
            visits += 1
        self._current = None

    def _enqueue(self, body: ast.AST) -> None:
        if not self._frozen and body in self._bodies and body not in self._queued:
            self._queued.add(body)
            self._queue.append(body)

    def _read(self, key: CellKey) -> set[Value]:
        cell = self.cells.get(key)
        if cell is None:
            if self._frozen:
                return set()
            cell = self.cells[key] = Cell()
        if self._current is not None:
            cell.readers.add(self._current)
        return cell.values

    def _write(self, key: CellKey, values: Iterable[Value]) -> None:
        if self._frozen:
            return
        cell = self.cells.setdefault(key, Cell())
        fresh = set(values) - cell.values
        if not fresh or len(cell.values) >= _MAX_VALUES:
            return
        cell.values |= fresh
        for reader in cell.readers:
            self._enqueue(reader)

    # ---- modules, classes, functions -----------------------------------------------------------------------

    def _add_module(self, module: Module) -> None:
        if module in self.modules:
            return
        self.modules.append(module)
        scopes = build_scopes(module)
        self.scopes.update(scopes)
        for node, scope in scopes.items():
            if isinstance(node, ast.ClassDef) and scope.parent is not None:
                self.classes[node] = ClassInfo(node, scope, scope.parent)
        for node, scope in scopes.items():
            if isinstance(node, FunctionNode):
                owner = None
                if scope.parent is not None and scope.parent.is_class:
                    owner = self.classes.get(scope.parent.node)
                info = FunctionInfo(node, scope, owner)
                if isinstance(node, ast.Lambda):
                    info.returns.append(node.body)
                else:
                    info.decorators = [_last_name(item) for item in node.decorator_list]
                    _collect_returns(node, info)
                    if owner is not None:
                        owner.methods.setdefault(node.name, info)
                self.functions[node] = info
        self._bodies[module.tree] = scopes[module.tree]
        self._enqueue(module.tree)

    def _reach(self, info: FunctionInfo) -> None:
        if info.reached or self._frozen:
            return
        info.reached = True
        self._bodies[info.node] = info.scope
        if info.owner is not None and not info.is_static:
            first = next(arguments_of(info.node), None)
            if first is not None:
                is_class = "classmethod" in info.decorators
                self._write((info.node, first.arg), {Value("class" if is_class else "instance", info.owner)})
        self._enqueue(info.node)

    def _reach_class(self, info: ClassInfo) -> None:
        if info.reached or self._frozen:
            return
        info.reached = True
        for base in info.mro():
            base.reached = True
            for method in base.methods.values():
                self._reach(method)
                first = next(arguments_of(method.node), None)
                if first is not None and not method.is_static and "classmethod" not in method.decorators:
                    self._write((method.node, first.arg), {Value("instance", info)})

    # ---- statements ----------------------------------------------------------------------------------------

    def _process(self, body: ast.AST, scope: Scope) -> None:
        if isinstance(body, ast.Lambda):
            self._write((body, "<return>"), self._eval(body.body, scope))
            return
        if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = body.args.defaults
            positional = [*body.args.posonlyargs, *body.args.args]
            for argument, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
                self._write((body, argument.arg), self._eval(default, scope.parent or scope))
            for argument, keyword_default in zip(body.args.kwonlyargs, body.args.kw_defaults, strict=True):
                if keyword_default is not None:
                    self._write((body, argument.arg), self._eval(keyword_default, scope.parent or scope))
        for statement in getattr(body, "body", []):
            self._statement(statement, scope)

    def _block(self, statements: Iterable[ast.stmt], scope: Scope) -> None:
        for statement in statements:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        if isinstance(node, ast.Assign):
            values = self._eval(node.value, scope)
            for target in node.targets:
                self._assign(target, values, scope)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._assign(node.target, self._eval(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign):
            values = self._eval(node.value, scope)
            if isinstance(node.op, ast.Add):
                self._assign(node.target, {v for v in values if v.kind in ("sequence", "parameters")}, scope)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            self._assign(node.target, self.elements(self._eval(node.iter, scope)), scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.While):
            self._eval(node.test, scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, ast.If):
            if is_main_guard(node) and not scope.module.is_entry:
                self._block(node.orelse, scope)
                return
            self._eval(node.test, scope)
            self._block([*node.body, *node.orelse], scope)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                values = self._eval(item.context_expr, scope)
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, values, scope)
            self._block(node.body, scope)
        elif type(node).__name__ in ("Try", "TryStar"):
            for suite in suites(node):
                self._block(suite, scope)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                self._eval(decorator, scope)
            info = self.functions.get(node)
            if info is not None and not scope.is_class:
                self._write((scope.owner(node.name).node, node.name), {Value("function", info)})
        elif isinstance(node, ast.ClassDef):
            self._class(node, scope)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node, scope)
        elif isinstance(node, ast.Return):
            if node.value is not None and scope.is_function:
                self._write((scope.node, "<return>"), self._eval(node.value, scope))
        elif isinstance(node, ast.Expr):
            self._eval(node.value, scope)
        elif isinstance(node, ast.Match):
            self._eval(node.subject, scope)
            for case in node.cases:
                self._block(case.body, scope)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._eval(child, scope)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        info = self.classes.get(node)
        if info is None:
            return
        for base in node.bases:
            for value in self._eval(base, scope):
                if value.kind in ("class", "external") and value not in info.bases and value.ref is not info:
                    info.bases.append(value)
        inner = self.scopes[node]
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for decorator in statement.decorator_list:
                    self._eval(decorator, scope)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                values = self._eval(statement.value, inner)
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._write((node, target.id), values)
                        self._write((inner.node, target.id), values)
            else:
                self._statement(statement, inner)
        self._write((scope.owner(node.name).node, node.name), {Value("class", info)})

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    values = self._imported_module(scope.module, alias.name)
                    self._write((scope.owner(alias.asname).node, alias.asname), values)
                    continue
                parts = alias.name.split(".")
                for length in range(2, len(parts) + 1):
                    self._imported_module(scope.module, ".".join(parts[:length]))
                self._write((scope.owner(parts[0]).node, parts[0]), self._imported_module(scope.module, parts[0]))
            return
        base = node.module or ""
        found = self._project_module(scope.module, base, node.level)
        for alias in node.names:
            if alias.name == "*":
                self._star(found, base, scope)
                continue
            name = alias.asname or alias.name
            target = (scope.owner(name).node, name)
            submodule = self._project_module(scope.module, f"{base}.{alias.name}" if base else alias.name, node.level)
            if found is not None:
                self._write(target, self._read((found.tree, alias.name)))
                if submodule is not None and alias.name not in self.scopes[found.tree].bound:
                    self._write(target, {Value("module", submodule)})
            elif submodule is not None:
                self._write(target, {Value("module", submodule)})
            elif not node.level:
                self.imported.add(f"{base}.{alias.name}")
                self._write(target, {Value("external", f"{base}.{alias.name}")})

    def _star(self, found: Module | None, base: str, scope: Scope) -> None:
        if found is None:
            self.imported.add(f"{base}.*")
            if base == "torch.nn":
                scope.top.bound.add("*torch.nn")
            self._write((scope.top.node, "<star>"), {Value("external", base)})
            return
        for name in sorted(self.scopes[found.tree].bound):
            if not name.startswith("_"):
                scope.top.bound.add(name)
                self._write((scope.top.node, name), self._read((found.tree, name)))
        # A package's own star imports bind names only once its body was evaluated.
        self._write((scope.top.node, "<star>"), self._read((found.tree, "<star>")))
        self._read((found.tree, "<bound>"))
        self._write((scope.top.node, "<bound>"), {Value("constant", len(scope.top.bound))})

    def _project_module(self, importer: Module, name: str, level: int = 0) -> Module | None:
        if not level and name.split(".")[0] in ("torch", "numpy", "torchvision"):
            return None
        found = self.project.find(importer, name, level)
        if found is not None and not self._frozen:
            self._add_module(found)
        return found

    def _imported_module(self, importer: Module, name: str) -> set[Value]:
        found = self._project_module(importer, name)
        if found is not None:
            return {Value("module", found)}
        self.imported.add(name)
        return {Value("external", name)}

    def _assign(self, target: ast.expr, values: set[Value], scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self._write((scope.owner(target.id).node, target.id), values)
        elif isinstance(target, ast.Attribute):
            for owner in self._eval(target.value, scope):
                self._write(_attribute_key(owner, target.attr), values)
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

    # ---- expressions ---------------------------------------------------------------------------------------

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
                name = key.value if isinstance(key, ast.Constant) else "*"
                values = self._eval(value, scope, overlay)
                self._write_element(found, name, self.elements(values) if key is None else values)
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
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._eval(child, scope, overlay)
        return set()

    def _name(self, node: ast.Name, scope: Scope, overlay: Overlay | None) -> set[Value]:
        owner = scope.owner(node.id)
        if overlay is not None and owner is scope and node.id in overlay:
            return overlay[node.id]
        values = self._read((owner.node, node.id))
        if not values and owner is scope.top and node.id not in owner.bound:
            for star in sorted(self._read((owner.node, "<star>")), key=lambda value: str(value.ref)):
                if _may_export(star.name, node.id):
                    return {Value("external", f"{star.name}.{node.id}")}
            if node.id in _BUILTINS:
                return {Value("external", f"builtins.{node.id}")}
        return values

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
        if name == "__dict__" and owner.kind in ("module", "external"):
            return {Value("attribute", ("module", "__dict__"), receiver=owner)}
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
            return {Value("attribute", ("", name), receiver=owner)} if owner.kind == "instance" else set()
        if owner.kind == "object":
            stored = self._read(_attribute_key(owner, name))
            if stored:
                return set(stored)
            if name in ("module", "data"):
                return {owner}
            return {Value("attribute", (owner.ref, name), receiver=owner)}
        if owner.kind == "sequence":
            stored = self._read(_attribute_key(owner, name))
            return set(stored) | {Value("attribute", ("sequence", name), receiver=owner)}
        if owner.kind in ("batch", "parameters"):
            return {owner}
        if owner.kind == "attribute":
            return {Value("attribute", ("#", name), receiver=owner.receiver)}
        return set()

    def _project_submodule(self, package: Module, name: str) -> Module | None:
        if package.path.name != "__init__.py":
            return None
        return self._project_module(package, name, 1)

    # ---- containers ----------------------------------------------------------------------------------------

    def _element(self, owners: Iterable[Value], index: object) -> set[Value]:
        found: set[Value] = set()
        for owner in owners:
            if owner.kind == "sequence":
                found |= self._read(_element_key(owner, index)) | self._read(_element_key(owner, "*"))
            elif owner.kind in ("batch", "parameters"):
                found.add(owner)
            elif owner.kind == "attribute" and owner.ref[1] == "__dict__":
                found |= self._members(owner.receiver)
            elif owner.kind in ("object", "instance", "attribute"):
                stored = self._read(_element_key(owner, index)) | self._read(_element_key(owner, "*"))
                found |= stored
        return found

    def _write_element(self, owner: Value, index: object, values: Iterable[Value]) -> None:
        self._write(_element_key(owner, "<keys>"), {Value("constant", index)})
        self._write(_element_key(owner, index), values)

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
                for index in list(self._read(_element_key(owner, "<keys>"))):
                    found |= self._read(_element_key(owner, index.ref))
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

    # ---- calls ---------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: Scope, overlay: Overlay | None) -> set[Value]:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and scope.is_function:
            return self._super(scope)
        targets = self._eval(node.func, scope, overlay)
        arguments = [self._eval(argument, scope, overlay) for argument in node.args]
        keywords = {item.arg: self._eval(item.value, scope, overlay) for item in node.keywords}
        for values in [*arguments, *keywords.values()]:
            for value in values:
                if value.kind == "function":
                    self._reach(value.ref)
        found: set[Value] = set()
        for target in targets:
            found |= self._apply(target, node, arguments, keywords, scope, overlay)
        return found

    def _super(self, scope: Scope) -> set[Value]:
        info = self.functions.get(scope.node)
        if info is None or info.owner is None:
            return set()
        found: set[Value] = set()
        for base in info.owner.bases:
            if base.kind == "class":
                found.add(Value("instance", base.ref))
        return found

    def _apply(
        self,
        target: Value,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
        overlay: Overlay | None,
    ) -> set[Value]:
        if target.kind == "function":
            given = self._apply_function(target.ref, node, arguments, keywords, scope, target.receiver)
            given = {self._made_by(value, target.ref, node) for value in given}
            if target.ref.name in ("parameters", "named_parameters") and target.receiver is not None:
                return {Value("parameters", target.receiver)}
            return given
        if target.kind == "class":
            made = Value("instance", target.ref, node)
            self._reach_class(target.ref)
            initializer = target.ref.find_method("__init__")
            if initializer is not None:
                self._apply_function(initializer, node, arguments, keywords, scope, made, is_method=True)
            return {made}
        if target.kind == "instance":
            for name in ("forward", "__call__"):
                method = target.ref.find_method(name)
                if method is not None:
                    return self._apply_function(method, node, arguments, keywords, scope, target, is_method=True)
            return set()
        if target.kind == "external":
            return self._apply_external(target.ref, node, arguments, keywords, scope)
        if target.kind == "attribute":
            return self._apply_attribute(target, node, arguments, keywords)
        if target.kind == "parameters":
            return {target}
        if target.kind == "object":
            return {Value("object", f"{target.ref}()#" if not target.ref.endswith("#") else "#", node)}
        return set()

    def _made_by(self, value: Value, info: FunctionInfo, call: ast.Call) -> Value:
        """A model that a factory made is another one for each call of the factory."""
        if value.site is None or not is_module(value) or info.owner is not None:
            return value
        inside = value.site in self._sites(info)
        return Value(value.kind, value.ref, call) if inside else value

    def _sites(self, info: FunctionInfo) -> set[ast.AST]:
        found = self._sites_of.get(info.node)
        if found is None:
            found = self._sites_of[info.node] = {node for node in ast.walk(info.node) if isinstance(node, ast.Call)}
        return found

    def _apply_function(
        self,
        info: FunctionInfo,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
        receiver: Value | None,
        *,
        is_method: bool = False,
    ) -> set[Value]:
        self._reach(info)
        if not self._frozen:
            self._call_callees.setdefault(node, set()).add(info)
            if not any(site.call is node for site in info.callers):
                info.callers.append(CallSite(node, scope))
        parameters = [*info.node.args.posonlyargs, *info.node.args.args]
        bound: dict[str, set[Value]] = {}
        takes_receiver = not info.is_static and (
            is_method or (receiver is not None and (receiver.kind == "instance" or "classmethod" in info.decorators))
        )
        if takes_receiver and parameters and receiver is not None:
            bound[parameters[0].arg] = {receiver}
            parameters = parameters[1:]
        position = 0
        for argument, values in zip(node.args, arguments, strict=False):
            if isinstance(argument, ast.Starred):
                spread = self.elements(values)
                for parameter in parameters[position:]:
                    bound.setdefault(parameter.arg, set()).update(spread)
                position = len(parameters)
            elif position < len(parameters):
                bound.setdefault(parameters[position].arg, set()).update(values)
                position += 1
            elif info.node.args.vararg is not None:
                self._vararg(info, values)
        names = {argument.arg for argument in arguments_of(info.node)}
        for keyword, values in keywords.items():
            if keyword is None:
                spread = self.elements(values)
                for parameter in [*parameters[position:], *info.node.args.kwonlyargs]:
                    bound.setdefault(parameter.arg, set()).update(spread)
            elif keyword in names:
                bound.setdefault(keyword, set()).update(values)
        for name, values in bound.items():
            self._write((info.node, name), values)
        yields = self._read((info.node, "<yield>"))
        if info.yields:
            made = Value("sequence", None, info.node)
            self._write_element(made, "*", yields)
            return {made}
        if len(info.returns) <= 4 and bound:
            return self._returns_for(info, bound)
        return set(self._read((info.node, "<return>")))

    def _returns_for(self, info: FunctionInfo, bound: dict[str, set[Value]]) -> set[Value]:
        direct = {child.id for item in info.returns for child in ast.walk(item) if isinstance(child, ast.Name)}
        if not direct & set(bound):
            return set(self._read((info.node, "<return>")))
        if info in self._inlining or len(self._inlining) >= 3:
            return set(self._read((info.node, "<return>")))
        self._inlining.append(info)
        try:
            return set().union(*(self._eval(item, info.scope, bound) for item in info.returns))
        finally:
            self._inlining.pop()

    def _vararg(self, info: FunctionInfo, values: set[Value]) -> None:
        assert info.node.args.vararg is not None
        holder = Value("sequence", None, info.node.args.vararg)
        self._write_element(holder, "*", values)
        self._write((info.node, info.node.args.vararg.arg), {holder})

    def _apply_external(
        self,
        name: str,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
    ) -> set[Value]:
        first = arguments[0] if arguments else set()
        if name == "builtins.getattr" and len(node.args) >= 2:
            return self._getattr(first, node)
        if name == "builtins.next":
            return self.elements(first)
        if name == "builtins.enumerate":
            pair = Value("sequence", "pair", node)
            self._write_element(pair, 1, self.elements(first))
            return self._rows(pair, node)
        if name == "builtins.zip":
            pair = Value("sequence", "pair", node)
            for index, values in enumerate(arguments):
                self._write_element(pair, index, self.elements(values))
            return self._rows(pair, node)
        if name in api.RETURNS_FIRST_ARGUMENT:
            values = first or keywords.get("module", set()) or keywords.get("iterable", set())
            if name == "builtins.filter":
                return arguments[1] if len(arguments) > 1 else set()
            return values
        if name in api.COPIES_FIRST_ARGUMENT:
            return {
                Value(value.kind, value.ref, node) if value.kind in ("object", "instance") else value for value in first
            }
        if name == "builtins.map":
            made = Value("sequence", "map", node)
            results: set[Value] = set()
            for value in first:
                if value.kind == "function":
                    parameters = [argument.arg for argument in arguments_of(value.ref.node)]
                    for parameter, values in zip(parameters, arguments[1:], strict=False):
                        self._write((value.ref.node, parameter), self.elements(values))
                    results |= self._read((value.ref.node, "<return>"))
            self._write_element(made, "*", results)
            return {made}
        if name in ("itertools.chain", "itertools.chain.from_iterable"):
            made = Value("sequence", None, node)
            for values in arguments:
                self._write_element(made, "*", self.elements(values) | {v for v in values if v.kind == "parameters"})
            return {made}
        if name == "builtins.dict":
            if first:
                return first
            made = Value("sequence", None, node)
            for keyword, values in keywords.items():
                if keyword is not None:
                    self._write_element(made, keyword, values)
            return {made}
        made = Value("object", name, node)
        if name.endswith(".Sequential") or name.endswith("ModuleList"):
            for values in arguments:
                self._write_element(made, "*", values | self.elements(values))
        return {made}

    def _getattr(self, owners: set[Value], node: ast.Call) -> set[Value]:
        name = node.args[1]
        found: set[Value] = set()
        for owner in owners:
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found |= self._attribute_of(owner, name.value)
            else:
                found |= self._members(owner)
        return found

    def _apply_attribute(
        self,
        target: Value,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
    ) -> set[Value]:
        owner, name = target.ref
        receiver = target.receiver
        assert receiver is not None
        if receiver.kind == "sequence":
            return self._sequence_method(receiver, name, node, arguments)
        if name in api.RETURNS_RECEIVER:
            return {receiver}
        if name in ("parameters", "named_parameters") and receiver.kind in (
            "object",
            "instance",
            "attribute",
        ):
            return {Value("parameters", receiver)}
        if receiver.kind == "object" and name in ("__next__", "next"):
            return self.elements({receiver})
        # Chains of methods on what methods gave (tensors, mostly) end in one value, or they would never stop growing.
        if owner.endswith("#"):
            return {Value("object", "#")}
        return {Value("object", f"{owner or receiver.ref}.{name}#", node)}

    def _sequence_method(self, receiver: Value, name: str, node: ast.Call, arguments: list[set[Value]]) -> set[Value]:
        if name in ("append", "add", "insert", "appendleft"):
            self._write_element(receiver, "*", arguments[-1] if arguments else set())
        elif name in ("extend", "update"):
            self._write_element(receiver, "*", self.elements(arguments[0]) if arguments else set())
        elif name in ("values", "copy"):
            made = Value("sequence", name, node)
            self._write_element(made, "*", self.elements({receiver}))
            return {made}
        elif name == "items":
            pair = Value("sequence", "pair", node)
            self._write_element(pair, 1, self.elements({receiver}))
            return self._rows(pair, node)
        elif name in ("get", "pop", "setdefault", "popleft", "__getitem__"):
            first = node.args[0] if node.args else None
            found = (
                self._element({receiver}, first.value) if isinstance(first, ast.Constant) else self.elements({receiver})
            )
            return found | (arguments[1] if len(arguments) > 1 else set())
        return set()


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


def _attribute_key(owner: Value, name: str) -> CellKey:
    if owner.kind in ("instance", "class"):
        return (owner.ref.node, name)
    if owner.kind == "module":
        return (owner.ref.tree, name)
    return ((owner.kind, owner.ref, owner.site), f"attribute:{name}")


def _element_key(owner: Value, index: object) -> CellKey:
    if owner.kind == "sequence":
        return ((owner.ref, owner.site), f"element:{index}")
    return (("of", owner.kind, owner.ref, owner.site), f"element:{index}")


def is_main_guard(node: ast.If) -> bool:
    """Whether this is ``if __name__ == "__main__":``."""
    test = node.test
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and test.left.id == "__name__"
        and len(test.comparators) == 1
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value == "__main__"
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _collect_returns(node: ast.FunctionDef | ast.AsyncFunctionDef, info: FunctionInfo) -> None:
    stack: list[ast.AST] = list(node.body)
    while stack:
        current = stack.pop()
        if isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(current, ast.Return) and current.value is not None:
            info.returns.append(current.value)
        elif isinstance(current, (ast.Yield, ast.YieldFrom)) and current.value is not None:
            info.yields.append(current.value)
        stack.extend(ast.iter_child_nodes(current))
