"""Options by which a script chose Apex, where it goes on with the mixed precision of torch alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from amp_rules.plan import notes
from amp_rules.plan.drafts import Draft
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk

_APEX = re.compile(r"(?<![a-z])apex(?![a-z])", re.IGNORECASE)
_INSTALL = re.compile(r"(?<![a-z])install\w*\W[^.]*(?<![a-z])apex(?![a-z])", re.IGNORECASE)
_TURNS_OFF = re.compile(r"(?<![a-z])(no|not|without|disable|skip)(?![a-z])", re.IGNORECASE)

_ADDS = ("add_argument", "option")


def options_left(program: Program) -> Iterator[Note]:
    """Yield a note for each option that is named for Apex, or has it among its values."""
    for module, node, flags in _options(program):
        named = next((flag for flag in flags if _APEX.search(flag)), None)
        told = f"`{named}` turns nothing on any more"
        if named is None:
            if not _has_value(node):
                continue
            told = f"the value `apex` of `{max(flags, key=len)}` chooses nothing any more"
        text = f"{told}: Apex's `amp` cannot be imported, and torch's mixed precision is what the script keeps"
        yield notes.note(notes.APEX_OPTION, module, node, text)


def advice_left(drafts: Iterable[Draft]) -> Iterator[Note]:
    """Yield a note for each line printed or raised that tells to install Apex, in files that do without it now."""
    for draft in drafts:
        for node in draft.module.nodes if _INSTALL.search(draft.module.source.text) else ():
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and _INSTALL.search(node.value)):
                continue
            statement = blocks.statement_of(draft.module, node)
            if isinstance(statement, ast.Raise) or _is_printed(statement):
                text = "this line still tells to install Apex, whose `amp` cannot be imported: that changes nothing"
                rule, span = notes.APEX_OPTION, draft.place(draft.module.span(statement))
                yield Note(draft.original.path, span, rule.code, rule.name, text)


def _is_printed(statement: ast.stmt) -> bool:
    """Whether a statement is a call, and not the one that adds an option."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and own_name(call.func) not in _ADDS


def options_kept(program: Program) -> Iterator[Note]:
    """Yield a note for each option that turns on a branch for Apex which was not taken out."""
    for module, node, flags in _options(program):
        told = f"`{max(flags, key=len)}`"
        if _has_value(node):
            by_default = literal(keyword(node, "default")) == "apex"
            told += " chooses Apex by default" if by_default else " may choose Apex by its value `apex`"
        elif any(_APEX.search(flag) and not _TURNS_OFF.search(flag) for flag in flags) and _is_switch(node):
            told += " chooses Apex"
        else:
            continue
        text = f"{told}, whose `amp` cannot be imported: what the script does with it alone cannot run"
        yield notes.note(notes.APEX_OPTION, module, node, text)


def _options(program: Program) -> Iterator[tuple[Module, ast.Call, list[str]]]:
    """Yield the options of files that speak of Apex, with their flags."""
    for module in program.flow.modules:
        for node in module.nodes if _APEX.search(module.source.text) else ():
            if isinstance(node, ast.Call) and own_name(node.func) in _ADDS:
                flags = [
                    item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
                ]
                if flags:
                    yield module, node, flags


def _is_switch(option: ast.Call) -> bool:
    return literal(keyword(option, "action")) == "store_true" or literal(keyword(option, "is_flag")) is True


def _has_value(option: ast.Call) -> bool:
    """Whether an option may have the value ``apex``."""
    # As a default or a choice, and not a word of its help.
    values = (item.value for item in option.keywords if item.arg in ("choices", "default", "type"))
    return any(literal(node) == "apex" for value in values for node in walk(value))
