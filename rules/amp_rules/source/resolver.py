"""What the names of a file mean: through imports, aliases, and Python's scopes, never by spelling.

Both commands ask this one resolver, and each asks its own question: the linter what a name means most likely
(:meth:`Names.dotted`), a rewrite what it may mean by all imports of it (:meth:`Names.targets`). What a dotted name
leads to in other files of the project, through re-exports and star imports, is found by
:mod:`amp_rules.source.project_facts`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_rules.source import blocks
from amp_rules.source.index import Function
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope, build_scopes
from amp_rules.source.syntax import walk
from amp_rules.torch.canonical_names import canonical

_INDENTED_IMPORT = re.compile(r"\n[ \t]+(?:import|from)[ \t]")
"""What may be an import within a function; a docstring may look like one, which costs time and nothing else."""

ImportStatement = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Binding:
    """A name that an import statement gives to something of another package.

    Attributes:
        name: the name in the file.
        target: what it means, as in ``apex.amp``.
        statement: the import.
        scope: where the name is known.
    """

    name: str
    target: str
    statement: ImportStatement
    scope: Scope


@dataclass(frozen=True)
class Reference:
    """An expression that means something of another package: the longest chain of attributes that does."""

    node: ast.expr
    target: str


class _LocalImports:
    """What one name means in the functions that import it for themselves."""

    def __init__(self) -> None:
        self._known: list[tuple[int, int, str]] = []

    def add(self, function: Function, dotted: str) -> None:
        """Note what the name means in a function; the first of several counts, as in :attr:`Names.imports`."""
        self._known.append((function.lineno, function.end_lineno or function.lineno, dotted))

    def get(self, node: ast.expr) -> str | None:
        """What the name means where ``node`` stands, by the innermost function around it that imports it."""
        around = [(first, dotted) for first, last, dotted in self._known if first <= node.lineno <= last]
        return max(around, key=lambda item: item[0])[1] if around else None


class Names:
    """What the names of one file mean.

    Attributes:
        module: the file.
        imports: what the imports of the file's own suite bind, those under ``if`` and ``try`` too: local name to
            canonical dotted name. A relative import keeps its leading dots. Of several the first counts, as others are
            what a script falls back on.
        stars: modules of which everything is imported there.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self._statements = 0
        self._collect(module.tree.body)

    def _collect(self, body: list[ast.stmt]) -> None:
        for item in body:
            if isinstance(item, (ast.Import, ast.ImportFrom)):
                self._statements += 1
                for name, dotted in imported_names(item):
                    if name == "*":
                        self.stars.append(dotted)
                    elif body is self.module.tree.body and name in self._hidden_names:
                        self.imports[name] = dotted  # the last of them counts
                    else:
                        self.imports.setdefault(name, dotted)
            elif isinstance(item, ast.If):
                self._collect(item.body)
                self._collect(item.orelse)
            elif isinstance(item, ast.Try):
                self._collect(item.body)
                for handler in item.handlers:
                    self._collect(handler.body)
            elif isinstance(item, (ast.With, ast.For)):
                self._collect(item.body)

    # ---- what a name means most likely ---------------------------------------------------------------------------

    def dotted(self, node: ast.expr) -> str | None:
        """The canonical dotted name that an expression of names and attributes stands for, through imports.

        A name that nothing imports stands for itself; anything but names and attributes gives None.
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        head = self._local[node.id].get(node) if node.id in self._local else None
        if head is None:
            head = self.imports.get(node.id, node.id)
        return canonical(".".join([head, *reversed(parts)]))

    @cached_property
    def _local(self) -> dict[str, _LocalImports]:
        """What functions import for themselves, by name.

        Few files have any, and finding the scopes of all the others would take a third of the linter's time. So the
        imports are looked for by their lines, and a name means what its function imports anywhere in the function's
        lines.
        """
        found: dict[str, _LocalImports] = {}
        text = self.module.source.text
        if text.count("import") == self._statements:
            return found
        for match in _INDENTED_IMPORT.finditer(text):
            line = text.count("\n", 0, match.end()) + 1
            for function, statement in _functions_importing(self.module.tree.body, line, None):
                for name, dotted in imported_names(statement):
                    found.setdefault(name, _LocalImports()).add(function, dotted)
        return found

    def name_of(self, package: str) -> str | None:
        """The name under which the head of the file imports a package, as in ``torch``."""
        return next((name for name, dotted in self.imports.items() if dotted == package), None)

    # ---- what a name may mean by all its imports -----------------------------------------------------------------

    @cached_property
    def scopes(self) -> dict[ast.AST, Scope]:
        """The scope of each module, class and function node."""
        return build_scopes(self.module)

    @cached_property
    def import_statements(self) -> list[ImportStatement]:
        """Every import, in the order of the file."""
        found = [node for node in self.module.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    @cached_property
    def hidden(self) -> frozenset[ast.alias]:
        """What one import of the file's own suite binds and a later one binds anew, before anything reads the name."""
        last: dict[str, tuple[ast.alias, ImportStatement]] = {}
        found = set()
        imports = (item for item in self.module.tree.body if isinstance(item, (ast.Import, ast.ImportFrom)))
        for node in imports:
            for alias in node.names:
                name = bound_name(alias)
                if name in last and imported(node, alias) != imported(last[name][1], last[name][0]):
                    lines = range(last[name][1].lineno, node.lineno)
                    if not any(item.lineno in lines for item in self._read(name)):
                        found.add(last[name][0])
                last[name] = alias, node
        return frozenset(found)

    @cached_property
    def _hidden_names(self) -> frozenset[str]:
        return frozenset(map(bound_name, self.hidden))

    def _read(self, name: str) -> Iterator[ast.Name]:
        return (node for node in self.module.nodes if isinstance(node, ast.Name) and node.id == name)

    @cached_property
    def bindings(self) -> list[Binding]:
        """Every name that an import binds to something of another package, in the order of the file."""
        found = []
        for node in self.import_statements:
            scope = self.scope_of(node)
            for alias in node.names:
                target = imported(node, alias) if alias not in self.hidden else None
                if target is not None and not target.startswith("."):
                    name = bound_name(alias)
                    found.append(Binding(name, target, node, scope.owner(name)))
        return found

    @cached_property
    def _by_name(self) -> dict[str, list[Binding]]:
        found: defaultdict[str, list[Binding]] = defaultdict(list)
        for binding in self.bindings:
            found[binding.name].append(binding)
        return found

    def scope_of(self, node: ast.AST) -> Scope:
        """The scope in which the names of ``node`` are looked up."""
        current = node
        for parent in self.module.ancestors(node):
            if parent in self.scopes:
                # A function's decorators, defaults and a class's bases belong to what is around it.
                if isinstance(parent, ast.Lambda) or current in getattr(parent, "body", ()):
                    return self.scopes[parent]
            current = parent
        return self.scopes[self.module.tree]

    def targets(self, node: ast.expr) -> set[str]:
        """What an expression means of other packages: ``apex.amp.initialize``; several where imports disagree."""
        if isinstance(node, ast.Name):
            owner = self.scope_of(node).owner(node.id)
            return {binding.target for binding in self._by_name.get(node.id, ()) if binding.scope is owner}
        if isinstance(node, ast.Attribute):
            return {f"{target}.{node.attr}" for target in self.targets(node.value)}
        return set()

    def target(self, node: ast.expr) -> str | None:
        """The one canonical meaning of an expression in other packages; None where there is none, or several."""
        found = {canonical(target) for target in self.targets(node)}
        return next(iter(found)) if len(found) == 1 else None

    @cached_property
    def rebound(self) -> frozenset[str]:
        """Names that the file imports from several places, or defines or assigns itself as well, as fallbacks do."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for node in self.module.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for name, dotted in imported_names(node):
                    # ``import torch.nn`` binds what ``import torch`` does.
                    found[name].add(dotted)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found[node.name].add("own")
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found[target.id].add("own")
        return frozenset(name for name, sources in found.items() if len(sources) > 1)

    @cached_property
    def uses(self) -> list[Reference]:
        """Every expression that reads something imported, in the order of the file."""
        found = []
        for node in self.module.parents:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                continue
            parent = self.module.parents[node]
            if isinstance(parent, ast.Attribute) and isinstance(parent.ctx, ast.Load):
                continue
            targets = self.targets(node)
            if targets:
                found.append(Reference(node, canonical(min(targets))))
        return sorted(found, key=lambda item: (item.node.lineno, item.node.col_offset))

    def is_plain(self, node: ast.stmt) -> bool:
        """Whether the statement stands in the file's own suite."""
        return isinstance(blocks.place(self.module, node).parent, ast.Module)

    # ---- which names are free ------------------------------------------------------------------------------------

    def is_taken(self, name: str) -> bool:
        """Whether the file uses or binds a name for anything."""
        return any(name in _spelt_by(node) for node in self.module.nodes)


def _functions_importing(
    body: list[ast.stmt], line: int, function: Function | None
) -> Iterator[tuple[Function, ImportStatement]]:
    """Yield the import within a function that begins on a line, with the function; none of a class or of the file."""
    for item in body:
        if item.lineno > line or (item.end_lineno or item.lineno) < line:
            continue
        if isinstance(item, (ast.Import, ast.ImportFrom)):
            if function is not None:
                yield function, item
        elif isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _functions_importing(item.body, line, item)
        else:
            inner = None if isinstance(item, ast.ClassDef) else function
            for suite in blocks.suites(item):
                yield from _functions_importing(suite, line, inner)


def names_of(module: Module) -> Names:
    """The names of a file, found out once for all programs that the file is part of."""
    known: Names | None = module.kept.get("names")
    if known is None:
        known = module.kept["names"] = Names(module)
    return known


def imported(node: ImportStatement, alias: ast.alias) -> str | None:
    """What an import's name means, as it is written there: ``apex.amp`` for ``from apex import amp``.

    A relative import keeps its leading dots; ``*`` means nothing by itself.
    """
    if isinstance(node, ast.Import):
        return alias.name if alias.asname else alias.name.partition(".")[0]
    return None if alias.name == "*" else member_of(_origin(node), alias.name)


def imported_names(node: ImportStatement) -> Iterator[tuple[str, str]]:
    """Yield the names that an import binds with the canonical names they stand for; ``*`` with the module."""
    for alias in node.names:
        target = imported(node, alias)
        if target is not None:
            yield bound_name(alias), canonical(target)
        elif isinstance(node, ast.ImportFrom):
            yield "*", _origin(node)


def bound_name(alias: ast.alias) -> str:
    """The name that an import binds: ``a`` for ``import a.b``, ``c`` for ``import a.b as c``."""
    return alias.asname or alias.name.partition(".")[0]


def member_of(module: str, name: str) -> str:
    """The dotted name of a member: ``a.b`` in ``a``, ``..b`` in ``..``."""
    return f"{module}{'' if module.endswith('.') or not module else '.'}{name}"


def root_of(node: ast.expr) -> ast.expr:
    """What a chain of attributes begins with: ``apex`` in ``apex.amp.initialize``."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def is_variable(node: ast.expr, scope: Scope) -> bool:
    """Whether what is called is held by a variable, and not spelt by the name that an import gave it.

    A variable may hold what has some of its arguments already: ``make = partial(Adam, lr=0.1)``. Star imports bind
    names that nothing in the file binds.
    """
    root = root_of(node)
    if not isinstance(root, ast.Name):
        return True
    return root.id in scope.owner(root.id).bound and not names_of(scope.module).targets(root)


def _origin(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")


def _spelt_by(node: ast.AST) -> set[str]:
    """Names that a node uses or binds by itself."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.alias):
        return {node.asname or node.name}
    return {node.name} if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else set()


def free_name(module: Module, preferred: Sequence[str]) -> str:
    """A name that the file does not use for anything: one of ``preferred``, else the first with a number."""
    names = {node.id for node in walk(module.tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in walk(module.tree) if isinstance(node, ast.arg)}
    numbered = (f"{preferred[0]}_{number}" for number in itertools.count(1))
    return next(item for item in itertools.chain(preferred, numbered) if item not in names)
