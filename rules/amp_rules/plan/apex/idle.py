"""Files that use Apex in functions alone which nothing else of the program names: a library copied as a whole."""

from __future__ import annotations

import ast
from weakref import WeakKeyDictionary

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.apex.references import References
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled import found_by_text
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, names_written, walk

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_KNOWN: WeakKeyDictionary[Program, dict[Module, bool]] = WeakKeyDictionary()
"""What is known of the files of each program: each stage asks."""

_FOUND: WeakKeyDictionary[Program, set[frozenset[Module] | None]] = WeakKeyDictionary()
"""Of whose functions the nodes of each program may give one by its name: the same for all its files."""


def is_idle(program: Program, module: Module) -> bool:
    """Whether a file uses Apex where nothing comes to: its functions and classes that do are named by nothing else.

    What imports them, or gives them another name, calls none. The entry runs what it has, as far as is known.
    """
    known = _KNOWN.setdefault(program, {})
    if module not in known:
        known[module] = module is not program.entry and _is_idle(program, module)
    return known[module]


def only_imports(program: Program, module: Module) -> bool:
    """Whether a file imports Apex at its head, and nothing comes to what it does with that."""
    return module is not program.entry and _is_idle(program, module, with_imports=False)


def _is_idle(program: Program, module: Module, *, with_imports: bool = True) -> bool:
    references = References(module)
    imports = [*references.statements, *references.star_imports] if with_imports else []
    used = [*imports, *(item.node for item in references.uses)]
    tops = {_top_of(module, node) for node in used}
    names: set[str] = set()
    for top in tops:
        if not isinstance(top, _DEFINITIONS):
            return False
        names.add(top.name)
    while True:
        more = _named_with(program, module, names)
        if more is None:
            return False
        if more <= names:
            break
        names |= more
    if any(isinstance(item, _DEFINITIONS) and item.name in names and _is_given_away(item) for item in module.tree.body):
        return False
    if program not in _FOUND:
        _FOUND[program] = {found_by_text(program, scope.module, node) for node, _, scope in program.nodes()}
    return not any(files is None or module in files for files in _FOUND[program])


def _is_given_away(item: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether something gets hold of a function or class where it is defined: a decorator, or what makes classes."""
    return bool(item.decorator_list) or (isinstance(item, ast.ClassDef) and bool(item.keywords))


def _named_with(program: Program, module: Module, names: set[str]) -> set[str] | None:
    """The names of what uses one of the names, or is another name for it; None where something runs with it."""
    found: set[str] = set()
    for other in program.flow.modules:
        written = _written(other)
        for statement, node in [place for name in sorted(names & written.keys()) for place in written[name]]:
            if other is not program.entry and isinstance(statement, ast.If) and is_main_guard(statement):
                continue  # it runs where the file is the script
            if _is_of_library(program, node):
                continue
            if isinstance(node, ast.alias):
                if node.asname is not None:
                    found.add(node.asname)
            elif other is module and isinstance(statement, _DEFINITIONS):
                found.add(statement.name)
            else:
                given = _other_names(other, node)
                if given is None:
                    return None
                found |= given
    return found


def _written(module: Module) -> dict[str, list[tuple[ast.stmt, ast.AST]]]:
    """Where a file writes each name, with the statement of its own suite around the place."""
    known: dict[str, list[tuple[ast.stmt, ast.AST]]] | None = module.kept.get("names written")
    if known is None:
        known = module.kept["names written"] = {}
        for statement in module.tree.body:
            for node in walk(statement):
                for name in names_written(node):
                    known.setdefault(name, []).append((statement, node))
    return known


def _is_of_library(program: Program, node: ast.AST) -> bool:
    """Whether an attribute is a library's own: ``torch.optim.Optimizer`` beside an ``Optimizer`` of the project."""
    if not isinstance(node, ast.Attribute):
        return False
    located = program.locate(node)
    return located is not None and bool(program.names(node, located[1]))


def _other_names(module: Module, node: ast.AST) -> set[str] | None:
    """The names that a statement of a file's own suite gives what a node names; None where it does more with it."""
    statement = blocks.statement_of(module, node)
    if not isinstance(statement, ast.Assign) or module.parents[statement] is not module.tree:
        return None
    if any(node in walk(item) for item in statement.targets):
        return set()  # ``package.Optim = other`` and ``table["Optim"] = other`` give a name another meaning
    if not all(isinstance(item, (ast.Name, ast.Attribute)) for item in statement.targets):
        return None
    targets = {last_name(item) for item in statement.targets}
    if targets == {"__all__"}:
        return set()
    return targets if node is statement.value else None


def _top_of(module: Module, node: ast.AST) -> ast.AST:
    """The statement of the file's own suite around a node."""
    found = node
    for parent in module.ancestors(node):
        if parent is module.tree:
            break
        found = parent
    return found
