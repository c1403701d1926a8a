"""The cells of the points-to analysis: variables, attributes and elements, and who reads them."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Mapping

from amp_rules.program.modules import Module
from amp_rules.program.project import Project
from amp_rules.program.scopes import FunctionNode, Scope, arguments_of, build_scopes
from amp_rules.program.syntax import called_name, children
from amp_rules.program.values import Cell, ClassInfo, FunctionInfo, Value

_MAX_VALUES = 40

Overlay = dict[str, set[Value]]
CellKey = tuple[object, str]
Keywords = Mapping[str | None, set[Value]]


class Frame(Overlay):
    """The variables of a function in one of its calls, evaluated when they are asked for."""


class Cells:
    """What is known so far; what grows puts the bodies that read it on the queue."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.scopes: dict[ast.AST, Scope] = {}
        self.functions: dict[ast.AST, FunctionInfo] = {}
        self.classes: dict[ast.AST, ClassInfo] = {}
        self.modules: list[Module] = []
        self.cells: dict[CellKey, Cell] = {}
        self.attribute_names: dict[object, set[str]] = {}
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
        self._bound: dict[ast.Call, tuple[list[set[Value]], dict[str | None, set[Value]], Scope]] = {}
        self._whole_calls: dict[tuple[ast.Call, ast.Call], ast.Call] = {}
        self._copies: dict[tuple[ClassInfo, ast.Call], ClassInfo] = {}
        self._copied: dict[ast.AST, Scope] = {}
        self._original: dict[ast.AST, ast.AST] = {}
        self._registries: dict[ClassInfo, bool] = {}
        self._applications: dict[ast.expr, ast.Call] = {}
        self._definitions_of: dict[ast.AST, dict[str, list[ast.expr]]] = {}
        self._slices: dict[ast.AST, set[str] | None] = {}
        self._frozen = False
        self._add_module(project.entry)

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
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
        fresh = set(values) - cell.values
        if not fresh or len(cell.values) >= _MAX_VALUES:
            return
        if not cell.values and key[0].__class__ is ast.ClassDef:
            self._name_attribute(key)
        cell.values |= fresh
        for reader in cell.readers:
            self._enqueue(reader)

    def _name_attribute(self, key: CellKey) -> None:
        """Remember that objects of a class have an attribute, for those who look for it by a part of its name."""
        names = self.attribute_names.setdefault(key[0], set())
        if key[1] not in names and not key[1].startswith("<"):
            names.add(key[1])
            self._write((key[0], "<names>"), {Value("constant", len(names))})

    # ---- modules, classes, functions -----------------------------------------------------------------------

    def _add_module(self, module: Module) -> None:
        if module in self.modules:
            return
        self.modules.append(module)
        scopes = build_scopes(module)
        self._add_scopes(scopes)
        self._bodies[module.tree] = scopes[module.tree]
        # What a module binds is known before those that import it, or call into it, are looked at again.
        self._queued.add(module.tree)
        self._queue.appendleft(module.tree)

    def _add_scopes(self, scopes: dict[ast.AST, Scope]) -> None:
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
                    info.decorators = [called_name(item) for item in node.decorator_list]
                    _collect_returns(node, info)
                    if owner is not None:
                        owner.methods.setdefault(node.name, info)
                self.functions[node] = info

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

    def _apply(
        self,
        target: Value,
        node: ast.Call,
        arguments: list[set[Value]],
        keywords: dict[str | None, set[Value]],
        scope: Scope,
        overlay: Overlay | None,
    ) -> set[Value]:
        raise NotImplementedError

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

    def _project_submodule(self, package: Module, name: str) -> Module | None:
        if package.path.name != "__init__.py":
            return None
        return self._project_module(package, name, 1)

    def _write_attribute(self, owner: Value, name: str, values: Iterable[Value]) -> None:
        self._write(attribute_key(owner, name), values)

    def _keys(self, owner: Value) -> CellKey:
        return element_key(owner, "<keys>")

    def _write_element(self, owner: Value, index: object, values: Iterable[Value]) -> None:
        self._write(element_key(owner, "<keys>"), {Value("constant", index)})
        self._write(element_key(owner, index), values)


def attribute_key(owner: Value, name: str) -> CellKey:
    """The cell of an attribute: one for all objects of a class, one for each object of a library."""
    if owner.kind in ("instance", "class"):
        return (owner.ref.node, name)
    if owner.kind == "module":
        return (owner.ref.tree, name)
    return ((owner.kind, owner.ref, owner.site), f"attribute:{name}")


def element_key(owner: Value, index: object) -> CellKey:
    """The cell of an element; ``*`` stands for any."""
    if owner.kind == "sequence":
        return ((owner.ref, owner.site), f"element:{index}")
    return (("of", owner.kind, owner.ref, owner.site), f"element:{index}")


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
        stack.extend(children(current))
