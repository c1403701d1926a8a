"""The modules, classes and functions that the program reaches."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from amp_rules.flow.store import Store
from amp_rules.flow.values import ClassInfo, Value
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.modules import Module
from amp_rules.source.project import Project
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of, build_scopes
from amp_rules.torch.packages import NEVER_FOLLOWED


class Reached:
    """Adds modules when they are imported, functions and classes when they are called.

    Attributes:
        project: the files.
        scopes: the scopes of all modules added.
        functions: their functions by node.
        classes: their classes by node.
        modules: the modules in the order in which they were added, the entry first.
        imported: qualified names of libraries that are imported.
    """

    def __init__(self, project: Project, store: Store) -> None:
        self.project = project
        self.scopes: dict[ast.AST, Scope] = {}
        self.functions: dict[ast.AST, FunctionFacts] = {}
        self.classes: dict[ast.AST, ClassInfo] = {}
        self.modules: list[Module] = []
        self.imported: set[str] = set()
        self._store = store
        self._originals: dict[ast.AST, ast.AST] = {}
        self._copies: set[ast.AST] = set()
        self._facts: dict[Module, ModuleFacts] = {}
        self._running: set[FunctionFacts] = set()
        self._instantiated: set[ClassInfo] = set()

    # ---- modules -----------------------------------------------------------------------------------------------

    def add_module(self, module: Module) -> None:
        """Have the body of a module looked at, once."""
        if self._store.frozen or module in self.modules:
            return
        self.modules.append(module)
        scopes = build_scopes(module)
        self._add_scopes(scopes)
        # What a module binds is known before those that import it, or call into it, are looked at again.
        self._store.add_first(module.tree, scopes[module.tree])

    def module(self, importer: Module, name: str, level: int = 0) -> Module | None:
        """The module of the project that an import finds."""
        if not level and name.split(".")[0] in NEVER_FOLLOWED:
            return None
        found = self.project.find(importer, name, level)
        if found is not None:
            self.add_module(found)
        return found

    def imported_module(self, importer: Module, name: str) -> set[Value]:
        """What ``import name`` gives, of the project or of a library."""
        found = self.module(importer, name)
        if found is not None:
            return {Value("module", found)}
        self.imported.add(name)
        return {Value("external", name)}

    def submodule(self, package: Module, name: str) -> Module | None:
        """A module of a package of the project."""
        if package.path.name != "__init__.py":
            return None
        return self.module(package, name, 1)

    # ---- classes and functions -----------------------------------------------------------------------------------

    def _add_scopes(self, scopes: Mapping[ast.AST, Scope]) -> None:
        self.scopes.update(scopes)
        for node, scope in scopes.items():
            if isinstance(node, ast.ClassDef):
                self.classes[node] = ClassInfo(self._facts_of(scope.module).class_facts(node))
        for node, scope in scopes.items():
            if isinstance(node, FunctionNode):
                owner = self.classes.get(scope.parent.node) if scope.parent is not None else None
                cls = owner.facts if owner is not None else None
                self.functions[node] = self._facts_of(scope.module).function_facts(node, cls)

    def _facts_of(self, module: Module) -> ModuleFacts:
        known = self._facts.get(module)
        if known is None:
            known = self._facts[module] = ModuleFacts(module, _Unresolved())
        return known

    def class_of(self, info: FunctionFacts) -> ClassInfo | None:
        """The class whose method a function is."""
        return self.classes[info.cls.node] if info.cls is not None else None

    def reach(self, info: FunctionFacts) -> None:
        """Have the body of a function looked at, once."""
        if info in self._running or self._store.frozen:
            return
        self._running.add(info)
        owner = self.class_of(info)
        if owner is not None and not info.is_static:
            self.give_receiver(info, Value("class" if info.is_class_method else "instance", owner))
        self._store.add_body(info.node, self.scopes[info.node])

    def reach_class(self, info: ClassInfo) -> None:
        """Have all methods of a class looked at, as those of its objects, once."""
        if info in self._instantiated or self._store.frozen:
            return
        family = info.mro()
        self._instantiated.update(family)
        for base in family:
            for method in base.facts.methods.values():
                self.reach(method)
                if not method.is_static and not method.is_class_method:
                    self.give_receiver(method, Value("instance", info))

    def reach_new_bases(self, info: ClassInfo) -> None:
        """Have the methods of bases looked at that a class got after its first object was made."""
        if info in self._instantiated:
            self._instantiated.discard(info)
            self.reach_class(info)

    def give_receiver(self, method: FunctionFacts, receiver: Value) -> None:
        """Add to what the first parameter of a method can be."""
        first = next(arguments_of(method.node), None)
        if first is not None:
            self._store.write((method.node, first.arg), {receiver})

    # ---- copies of classes ---------------------------------------------------------------------------------------

    def add_copies(self, scopes: Mapping[ast.AST, Scope], originals: Mapping[ast.AST, ast.AST]) -> None:
        """Add a class that does not stand in a file but is a copy of one that does, node for node."""
        self._add_scopes(scopes)
        self._copies.update(scopes)
        self._originals.update(originals)

    def original(self, node: ast.AST) -> ast.AST | None:
        """The node of the file that a node is a copy of."""
        return self._originals.get(node)

    def bodies(self) -> list[tuple[ast.AST, Scope]]:
        """The bodies that the program can reach, as they stand in files."""
        return [(body, scope) for body, scope in self._store.bodies.items() if body not in self._copies]


class _Unresolved:
    """Finds nothing in other files: there this analysis follows values, which know more than dotted names do."""

    def resolve(self, importer: ModuleFacts, dotted: str) -> None:
        """Nothing."""

    def module_of_constant(self, importer: ModuleFacts, dotted: str) -> None:
        """Nothing."""

    def users(self, function: FunctionFacts) -> list[ModuleFacts]:
        """None."""
        return []

    def importers(self, module: ModuleFacts) -> list[ModuleFacts]:
        """None."""
        return []
