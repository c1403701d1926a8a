"""Options by which a script chose Apex, where it goes on with the mixed precision of torch alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.plan import notes
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.source.syntax import own_name, walk

_APEX = re.compile(r"(?<![a-z])apex(?![a-z])", re.IGNORECASE)


def options_left(program: Program) -> Iterator[Note]:
    """Yield a note for each option that is named for Apex, or has it among its values."""
    for module in program.flow.modules:
        for node in module.nodes if _APEX.search(module.source.text) else ():
            if not isinstance(node, ast.Call) or own_name(node.func) not in ("add_argument", "option"):
                continue
            flags = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
            named = next((flag for flag in flags if _APEX.search(flag)), None)
            told = f"`{named}` turns nothing on any more"
            if named is None:
                if not flags or not any(_is_value(item, node) for item in walk(node)):
                    continue
                told = f"the value `apex` of `{max(flags, key=len)}` chooses nothing any more"
            text = f"{told}: Apex's `amp` cannot be imported, and torch's mixed precision is what the script keeps"
            yield notes.note(notes.APEX_OPTION, module, node, text)


def _is_value(node: ast.AST, option: ast.Call) -> bool:
    """Whether Apex is a default or a choice of an option, and not a word of its help."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value == "apex"):
        return False
    return any(item.arg in ("choices", "default", "type") and node in set(walk(item.value)) for item in option.keywords)
