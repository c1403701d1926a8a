"""Which definitions of a package the names reach that somebody uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amp_migrate.vendoring.definitions import Module, Statement, Target


class Reached:
    """What is reached of a package: statements of its modules, and the names of imports in use.

    Attributes:
        statements: those that are needed, by module. A module without any is imported nevertheless.
        imports: the names in use that a module's imports give.
        lacking: modules that were asked for a name which they do not have.

    Args:
        package: all modules of the package.
    """

    def __init__(self, package: Mapping[str, Module]) -> None:
        self._package = package
        self._pending: list[tuple[Module, Statement]] = []
        self.statements: dict[str, set[Statement]] = {}
        self.imports: dict[str, set[str]] = {}
        self.lacking: set[str] = set()

    def follow(self, targets: Iterable[Target]) -> None:
        """Reach ``targets`` and all that they mention."""
        for target in targets:
            self._target(target)
        self._settle()

    def load(self, module: str) -> None:
        """Reach what runs when a module is imported."""
        self._module(module)
        self._settle()

    def read(self, module: str, name: str, attribute: str | None) -> None:
        """Reach a name of a module, or where that is a module one attribute of it, and all that they mention."""
        self._name(self._module(module), name, attribute)
        self._settle()

    def _settle(self) -> None:
        while self._pending:
            module, statement = self._pending.pop()
            for mention in statement.mentions:
                self._name(module, mention.name, mention.attribute)
            for target in statement.inner:
                self._target(target)

    def _target(self, target: Target) -> None:
        module = self._module(target.module)
        if target.name is None:
            for name in [name for statement in module.statements for name in statement.binds]:
                self._name(module, name, None)
        elif module.binding(target.name):
            self._name(module, target.name, None)
        elif module.binding("__getattr__"):
            self._name(module, "__getattr__", None)
        else:
            self.lacking.add(module.name)

    def _module(self, name: str) -> Module:
        module = self._package[name]
        if name not in self.statements:
            self.statements[name] = set()
            self.imports[name] = set()
            parent = name.rpartition(".")[0]
            if parent:
                self._module(parent)
            for statement in module.statements:
                if statement.acts or "__getattr__" in statement.binds:
                    self._statement(module, statement)
        return module

    def _name(self, module: Module, name: str, attribute: str | None) -> None:
        for statement in module.binding(name):
            target = statement.targets.get(name)
            if target is None and not statement.is_import:
                self._statement(module, statement)
                continue
            self.imports[module.name].add(name)
            self.statements[module.name].add(statement)
            if not statement.is_import:
                self._name(module, "TYPE_CHECKING", None)
            if target is not None:
                self._target(Target(target.module, attribute) if target.name is None and attribute else target)

    def _statement(self, module: Module, statement: Statement) -> None:
        if statement not in self.statements[module.name]:
            self.statements[module.name].add(statement)
            self._pending.append((module, statement))
