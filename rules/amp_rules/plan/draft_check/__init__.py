"""A last look at what is about to be shown: every draft is read as the program that it would be.

``matching``  what of a draft was there, and what is new
``binding``   names that may not be bound where they are read; ``naming`` what nodes bind and read
``protocol``  the order of the runtime's calls, and the conditions around them

What is found here is a mistake of this tool. The file stays as it was, and the user is told so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.draft_check.binding import Reads, reads_of
from amp_rules.plan.draft_check.matching import Defect, Draft, Mismatch, matched
from amp_rules.plan.draft_check.naming import certain_names, leaves
from amp_rules.plan.draft_check.protocol import Protocol
from amp_rules.plan.report import Unit
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import bindings
from amp_rules.source.syntax import own_name, walk
from amp_rules.text.actions import Action
from amp_rules.text.runtime_vocabulary import RUNTIME

__all__ = ["Defect", "New", "defects", "reasons"]


@dataclass(frozen=True)
class New:
    """The new text of one file, and the edits that made it."""

    actions: Sequence[Action]
    text: str


def reasons(program: Program, drafts: Mapping[Module, New], distributed: bool) -> Iterator[Declined]:
    """Yield what is wrong with the new texts, as reasons against the unit that was added last."""
    for defect in defects(program, drafts):
        declined = declining.decline(
            declining.DRAFT,
            defect.module,
            defect.place,
            f"a bug in amp-migrate, not in the script: its draft {defect.what}",
            "report it with the lines around this place; until it is fixed, migrate them by hand",
        )
        unit: Unit = "distribution" if distributed else "precision"
        yield Declined(*(replace(item, unit=unit) for item in declined.refusals))


def defects(program: Program, drafts: Mapping[Module, New]) -> Iterator[Defect]:
    """Yield what is wrong with the new texts of a program's files."""
    found: list[Draft] = []
    for module, new in drafts.items():
        try:
            found.append(matched(module, new.actions, new.text))
        except Mismatch as mismatch:
            yield mismatch.defect
    updating = {name for draft in found for name in _updated_after(draft)}
    for draft in found:
        alias = _alias(draft.tree)
        yield from _names(program, draft, alias)
        if alias is not None:
            yield from _import(draft, alias)
            yield from Protocol(program, draft, alias, updating).defects()


def _alias(tree: ast.Module) -> str | None:
    """The name that the runtime has in a file."""
    for node in walk(tree):
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name == RUNTIME:
                    return item.asname or item.name
    return None


def _names(program: Program, draft: Draft, alias: str | None) -> Iterator[Defect]:
    """Names that new code reads where they may not be bound, and what no path leads to any more."""
    before, after = reads_of(draft.module.tree, None), reads_of(draft.tree, alias)
    for statement, names in after.open.items():
        old = draft.old.get(statement)
        known = _open_before(draft, before, old) if old is not None else set()
        for name in sorted(names - known):
            if _is_starred(program, draft, name):
                continue
            if old is not None or not _read_soon(draft, statement, name):
                yield Defect(
                    draft.module,
                    draft.place_of(statement),
                    f"reads `{name}` where it may not be bound: `{_text(statement)}`",
                )
    for statement in after.unreachable & draft.added:
        suite, index = draft.suite_of(statement)
        if index and suite[index - 1] not in after.unreachable:
            yield Defect(draft.module, draft.place_of(statement), f"never comes to `{_text(statement)}`")


def _is_starred(program: Program, draft: Draft, name: str) -> bool:
    """Whether a star import at the head of a file brings a name that nothing in the file binds."""
    if not any(isinstance(item, ast.ImportFrom) and item.names[0].name == "*" for item in draft.tree.body):
        return False
    scope = program.flow.scopes.get(draft.module.tree)
    is_bound = any(name in bindings(node) for node in walk(draft.tree))
    return not is_bound and scope is not None and bool(program.flow.values(ast.Name(name, ast.Load()), scope))


def _open_before(draft: Draft, before: Reads, statement: ast.stmt) -> set[str]:
    """The names that the original reads unbound at a statement, or above it in the same body.

    A name that an earlier statement needed is there in the original. Where that one is left to one process, the others
    miss the name only where the original failed.
    """
    body = blocks.body_of(draft.module, statement)
    return set().union(
        *(
            names
            for item, names in before.open.items()
            if item is statement or (item.lineno < statement.lineno and blocks.body_of(draft.module, item) is body)
        )
    )


def _read_soon(draft: Draft, statement: ast.stmt, name: str) -> bool:
    """Whether the original reads the name next in any case, so that the new line fails only where that would."""
    current: ast.AST = statement
    while isinstance(current, ast.stmt):
        suite, index = draft.suite_of(current)
        for later in suite[index + 1 :]:
            if name in certain_names(later) and later not in draft.added:
                return True
            if later not in draft.added and (name in blocks.writes(later) or leaves(later)):
                return False
        current = draft.parents[current]
        if not isinstance(current, ast.If | ast.With):
            return False
    return False


def _import(draft: Draft, alias: str) -> Iterator[Defect]:
    """The runtime is imported before anything calls what uses it, and nothing else has its name."""
    tree = draft.tree
    imports = [item for item in tree.body if isinstance(item, ast.Import) and alias in _imported(item)]
    if not imports:
        return  # imported within functions, by the script itself
    for node in walk(tree):
        if _binds(node, alias):
            statement = node if isinstance(node, ast.stmt) else None
            place = draft.place_of(statement) if statement is not None else None
            yield Defect(draft.module, place, f"uses `{alias}` for the runtime, and the file for something else")
            return
    users = _users(tree, alias)
    for statement in tree.body[: tree.body.index(imports[0])]:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for node in blocks.walk_own(statement):
            if isinstance(node, ast.Name | ast.Attribute) and own_name(node) in users:
                yield Defect(
                    draft.module,
                    draft.place_of(statement),
                    f"imports the runtime only after `{_text(statement)}`, which may use it",
                )
                return


def _imported(node: ast.Import) -> set[str]:
    return {item.asname or item.name for item in node.names if item.name == RUNTIME}


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a node gives a name to something else than the runtime."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.arg):
        return node.arg == name
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((item.asname or item.name.split(".")[0]) == name and item.name != RUNTIME for item in node.names)
    return isinstance(node, ast.ExceptHandler) and node.name == name


def _users(tree: ast.Module, alias: str) -> set[str]:
    """The names of functions and classes of a file that may use the runtime when they run."""
    mentioned = {
        node: {own_name(item) for item in walk(node) if isinstance(item, ast.Name | ast.Attribute)}
        for node in walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    found = {alias}
    while True:
        more = {node.name for node, names in mentioned.items() if names & found} - found
        if not more:
            return found
        found |= more


def _updated_after(draft: Draft) -> Iterator[str]:
    """The own names of functions after whose call a draft updates the scale."""
    for node in walk(draft.tree):
        if isinstance(node, ast.stmt) and node in draft.added and ast.unparse(node).endswith(".scaler.update()"):
            suite, index = draft.suite_of(node)
            for earlier in suite[:index]:
                for call in blocks.walk_own(earlier):
                    if isinstance(call, ast.Call):
                        yield own_name(call.func)


def _text(statement: ast.stmt) -> str:
    """The first line of a statement."""
    return ast.unparse(statement).split("\n")[0]
