"""Imports of torch that nothing reads any more once the edits are made: ``import torch.optim as optim``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

from amp_rules.plan.context import Change, Context
from amp_rules.source.modules import Module
from amp_rules.source.sole_importer import SoleImporter
from amp_rules.source.syntax import walk
from amp_rules.text.actions import EditNames, Remove


def changes(context: Context, made: Sequence[Change], texts: Mapping[Module, str]) -> Iterator[Change]:
    """Yield a change for each import that only expressions read which are no more.

    A file that the script imports may hand on what it imports, unless the script alone reads it.

    Args:
        context: the program, as far as it was decided on.
        made: the changes so far; the one that takes the last read of an import takes the import too.
        texts: the files that they change, with their new texts.
    """
    importers = SoleImporter(context.program.project)
    for module, text in texts.items():
        imports = [item for item in module.tree.body if isinstance(item, (ast.Import, ast.ImportFrom))]
        bound = {name for statement in imports for name, _ in _torch_names(statement)}
        was = bound & _read(module.nodes)
        try:
            idle = was - _read(walk(ast.parse(text))) if was else set()
        except SyntaxError:  # the check of the drafts says so
            continue
        if not idle:
            continue
        words = {word for item in _texts(module) for word in re.findall(r"\w+", item)}
        own = [change for change in made if change.module is module]
        edited = {node for change in own for action in change.actions for node in _edited(action)}
        for statement in imports:
            if statement in edited:
                continue
            names = {
                name: full
                for name, full in _torch_names(statement)
                if name in idle - words and (module.is_entry or importers.alone_reads(module, name))
            }
            if names:
                yield _without(module, statement, names, own)


def _without(
    module: Module, statement: ast.Import | ast.ImportFrom, names: Mapping[str, str], own: Sequence[Change]
) -> Change:
    taken: dict[str, str | None] = {full: None for full in names.values()}
    whole = len(taken) == len(statement.names)
    action = Remove(statement, keep_comments=True) if whole else EditNames(statement, taken)
    readers = [(len(list(walk(change.node))), change.rule) for change in own if _read(walk(change.node)) & names.keys()]
    _, rule = min(readers, key=itemgetter(0), default=(0, own[0].rule))
    return Change(rule, module, statement, f"`{', '.join(names)}` is not used any more", [action])


def _torch_names(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The names that an import of torch binds, each with what it is called there."""
    head = f"{statement.module}." if isinstance(statement, ast.ImportFrom) and not statement.level else ""
    if isinstance(statement, ast.ImportFrom) and not head:
        return
    for item in statement.names:
        name = item.asname or item.name
        # That of `torch` itself stays: plain torch, into which the script may be translated later, has words of it.
        if name.isidentifier() and f"{head}{item.name}".startswith("torch."):
            yield name, item.name


def _read(nodes: Sequence[ast.AST] | Iterator[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _edited(action: object) -> Iterator[ast.AST]:
    if isinstance(action, (EditNames, Remove)):
        yield from walk(action.statement)


def _texts(module: Module) -> Iterator[str]:
    """The texts that may be read as code or as names, as ``__all__`` is; one that is a statement is a comment.

    Those that begin with a dash name options of a command.
    """
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not isinstance(module.parents.get(node), ast.Expr) and not node.value.startswith("-"):
                yield node.value
