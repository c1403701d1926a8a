"""What a script says where an import of Apex fails, once the runtime has Apex's interface: that is what is missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.guards import Guard, flags
from amp_rules.source.index import ends_process
from amp_rules.source.syntax import walk

_APEX = re.compile(r"\b(?:the )?(?:NVIDIA(?:'s)?[ /])?Apex\b", re.IGNORECASE)
# Where Apex is found, with the words that lead there: ` from https://www.github.com/nvidia/apex`, ` (https://...)`.
_ADDRESS = re.compile(
    r"(?:,? (?:from|at|in|via)|,? (?:please )?see|:)?\s*"
    r"(?P<open>[(<\[])?(?:https?://)?(?:www\.)?github\.com/nvidia/apex(?:\.git)?(?:[/#][\w./#-]*\w)?/?(?(open)[)>\]])"
    r"(?:\s+(?=[.,;!]))?",
    re.IGNORECASE,
)


def only_stops(guard: Guard) -> bool:
    """Whether all that the handler does is to end the program with a message, as the import itself does without it."""
    *before, last = guard.node.handlers[0].body
    ends = isinstance(last, ast.Raise) or (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and ends_process(last.value)
    )
    return ends and all(isinstance(item, (ast.Expr, ast.Pass)) for item in before)


def messages(file: ApexFile, guard: Guard, runtime: str) -> Iterator[tuple[ast.Constant, str]]:
    """Yield the strings that tell to install Apex where the imports of a guard fail, and what they are to say."""
    parts: list[ast.AST] = list(guard.node.handlers[0].body)
    remembered = {flag.name for flag in flags(file, guard.node)}
    for node in file.module.nodes:
        if isinstance(node, ast.If) and remembered & {
            item.id for item in walk(node.test) if isinstance(item, ast.Name)
        }:
            parts.extend(node.body)
    owners = [part for part in parts if isinstance(part, (ast.Expr, ast.Raise))]
    for node in dict.fromkeys(item for part in owners for item in walk(part)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not _in_template(file, node):
            new = said(node.value, runtime)
            if new != node.value:
                yield node, _written(file, node, new, runtime)


def said(text: str, runtime: str) -> str:
    """A message about Apex as one about the runtime, without Apex's address; others as they are."""
    if not _APEX.search(text):
        return text
    return _APEX.sub(runtime, _ADDRESS.sub("", text))


def _in_template(file: ApexFile, node: ast.AST) -> bool:
    return isinstance(file.module.parents[node], ast.JoinedStr)


def _written(file: ApexFile, node: ast.Constant, new: str, runtime: str) -> str:
    """The string in the quotes that it has; of several pieces, as one."""
    old = file.source(node)
    kept = said(old, runtime)
    try:
        if ast.literal_eval(kept) == new and node.lineno == node.end_lineno:
            return kept
    except (SyntaxError, ValueError):
        pass
    text = repr(new)
    return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text
