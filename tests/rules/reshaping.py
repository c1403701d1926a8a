"""The same program in another shape: other names, in a function or a class, over two files, with blocks around."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Callable

from amp_rules.plan.report import Report

Files = dict[str, str]
ENTRY = "train.py"
IMPORTS = (ast.Import, ast.ImportFrom)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class NotPossible(Exception):
    """A script cannot have this shape and mean the same."""


# ---- shapes ------------------------------------------------------------------------------------------------------


def renamed(text: str) -> tuple[Files, dict[str, str]]:
    """With other names for all variables; also what the new names stand for."""
    tree = ast.parse(text)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    fixed = {node.arg for node in ast.walk(tree) if isinstance(node, (ast.keyword, ast.arg))}
    fixed |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    fixed |= {node.name for node in ast.walk(tree) if isinstance(node, DEFINITIONS)}
    fixed |= {item.asname or item.name for node in ast.walk(tree) if isinstance(node, IMPORTS) for item in node.names}
    fixed |= {name for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    fixed |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    fixed |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    names = sorted(bound - fixed - set(dir(builtins)) - {"__name__", "_"})
    new = {name: f"{chr(97 + number % 26)}{number}q" for number, name in enumerate(names)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
    return {ENTRY: ast.unparse(tree) + "\n"}, {value: key for key, value in new.items()}


def _halves(text: str) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The imports of a script and the rest of it, a main guard opened."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, IMPORTS)]
    rest: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, IMPORTS):
            continue
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            rest += node.body
        else:
            rest.append(node)
    if any(isinstance(node, ast.Global) for node in ast.walk(tree)):
        raise NotPossible("global names")
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        raise NotPossible("a star import")
    if any(isinstance(node, ast.Name) and node.id in ("eval", "exec", "globals") for node in ast.walk(tree)):
        raise NotPossible("names that are looked up by their text, where the file has them")
    if any(isinstance(node, ast.Constant) and node.value == "__main__" for item in rest for node in ast.walk(item)):
        raise NotPossible("a guard elsewhere")
    return imports, rest


def _joined(*parts: ast.stmt | str) -> str:
    return "\n".join(part if isinstance(part, str) else ast.unparse(part) for part in parts) + "\n"


def _indented(statements: list[ast.stmt], levels: int = 1) -> str:
    whole = "\n".join(ast.unparse(item) for item in statements)
    return "\n".join("    " * levels + row for row in whole.split("\n"))


def in_function(text: str) -> tuple[Files, dict[str, str]]:
    """Everything but the imports in a function, which the main guard calls."""
    imports, rest = _halves(text)
    _no_multiline_text(rest)
    return {
        ENTRY: _joined(*imports, "def run_all():", _indented(rest), "if __name__ == '__main__':", "    run_all()")
    }, {}


def in_method(text: str) -> tuple[Files, dict[str, str]]:
    """Everything but the imports in a method of a class."""
    imports, rest = _halves(text)
    _no_multiline_text(rest)
    head = ["class Job:", "    def __init__(self):", "        self.done = False", "    def run_all(self):"]
    end = ["        self.done = True", "if __name__ == '__main__':", "    Job().run_all()"]
    return {ENTRY: _joined(*imports, *head, _indented(rest, 2), *end)}, {}


def _no_multiline_text(statements: list[ast.stmt]) -> None:
    for item in statements:
        for node in ast.walk(item):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in ast.unparse(node):
                raise NotPossible("a text of several lines")


def _around_loops(text: str, head: str, end: list[str]) -> tuple[Files, dict[str, str]]:
    """With a block around each loop of the file's own suite that trains."""
    tree = ast.parse(text)
    rows: list[str] = []
    for node in tree.body:
        if isinstance(node, (ast.For, ast.While)) and ".backward" in ast.unparse(node):
            _no_multiline_text([node])
            rows += [head, _indented([node]), *end]
        else:
            rows.append(ast.unparse(node))
    if head not in rows:
        raise NotPossible("no loop of its own")
    return {ENTRY: "\n".join(rows) + "\n"}, {}


def in_try(text: str) -> tuple[Files, dict[str, str]]:
    """With ``try`` around the loop that trains."""
    return _around_loops(text, "try:", ["except KeyboardInterrupt:", "    print('stopped')"])


def in_with(text: str) -> tuple[Files, dict[str, str]]:
    """With a context manager around the loop that trains."""
    return _around_loops(text, "with torch.enable_grad():", [])


def aliased(text: str) -> tuple[Files, dict[str, str]]:
    """With other names for what is imported whole."""
    tree = ast.parse(text)
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    new: dict[str, str] = {}
    for node in tree.body:
        for item in node.names if isinstance(node, ast.Import) else ():
            if item.name == "torch" and item.asname is None and "." not in item.name and "th" not in taken:
                item.asname = new["torch"] = "th"
    if not new or any(
        isinstance(n, ast.Import) and any(i.name.startswith("torch.") and not i.asname for i in n.names)
        for n in ast.walk(tree)
    ):
        raise NotPossible("nothing to rename")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = new.get(node.id, node.id)
    return {ENTRY: ast.unparse(tree) + "\n"}, {value: key for key, value in new.items()}


def parenthesised(text: str) -> tuple[Files, dict[str, str]]:
    """With parentheses around the receivers of calls, which mean nothing."""
    text = ast.unparse(ast.parse(text))
    lines = text.encode().split(b"\n")
    spots: list[tuple[int, int, bytes]] = []
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            if node.func.attr in ("backward", "step", "zero_grad", "parameters"):
                name = node.func.value
                spots += [(name.lineno, name.col_offset, b"("), (name.lineno, name.end_col_offset or 0, b")")]
    for line, column, what in sorted(spots, reverse=True):
        row = lines[line - 1]
        lines[line - 1] = row[:column] + what + row[column:]
    return {ENTRY: b"\n".join(lines).decode() + "\n"}, {}


def split(text: str) -> tuple[Files, dict[str, str]]:
    """With classes and functions in a file of their own, where they read nothing else of the script."""
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, IMPORTS)]
    definitions = [node for node in tree.body if isinstance(node, DEFINITIONS)]
    rest = [node for node in tree.body if not isinstance(node, (*IMPORTS, *DEFINITIONS))]
    own = {
        name.id
        for item in rest
        for name in ast.walk(item)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
    reads = {name.id for item in definitions for name in ast.walk(item) if isinstance(name, ast.Name)}
    local = {a.arg for item in definitions for a in ast.walk(item) if isinstance(a, ast.arg)}
    local |= {
        n.id for item in definitions for n in ast.walk(item) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    if not definitions or (own & reads) - local or any(isinstance(n, ast.Global) for n in ast.walk(tree)):
        raise NotPossible("nothing to split")
    names = ", ".join(item.name for item in definitions)
    if any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in imports):
        raise NotPossible("a future import")
    return {
        "parts.py": _joined(*imports, *definitions),
        ENTRY: _joined(*imports, f"from parts import {names}", *rest),
    }, {}


def by_methods(text: str) -> tuple[Files, dict[str, str]]:
    """With ``batches.__next__()`` in place of ``next(batches)``, and the same of ``iter``."""
    tree = ast.parse(text)
    found = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("next", "iter"):
            if len(node.args) == 1 and not isinstance(node.args[0], ast.GeneratorExp):
                node.func = ast.Attribute(node.args.pop(), f"__{node.func.id}__", ast.Load())
                found = True
    if not found:
        raise NotPossible("no iterator")
    return {ENTRY: ast.unparse(tree) + "\n"}, {}


SHAPES: dict[str, Callable[[str], tuple[Files, dict[str, str]]]] = {
    "renamed": renamed,
    "in a function": in_function,
    "in a method": in_method,
    "in try": in_try,
    "in with": in_with,
    "other names of imports": aliased,
    "parentheses": parenthesised,
    "two files": split,
    "methods of iterators": by_methods,
}


# ---- what stays the same -----------------------------------------------------------------------------------------


def essence(report: Report, names: dict[str, str]) -> tuple[str, str, Counter[tuple[str, str]]]:
    """What was decided, whatever the shape: outcomes, edits and reasons, by the original names."""

    def plain(message: str) -> str:
        message = re.sub(r"\b\w+\b", lambda found: names.get(found[0], found[0]), message)
        # Long texts are abridged to one length, whatever the names in them.
        message = re.sub(r"(\w+\.py:|\bline )\d+", r"\1", message)
        # A line of another file is named with that file, and which file it is in is what a shape changes.
        message = message.replace("line  of parts.py", "line ")
        return re.sub(r"`([^`]{20})[^`]*`", r"`\1`", re.sub(r"[()]", "", message))

    found = Counter(
        (edit.code, plain(edit.message))
        for edit in report.edits
        # Once a file; of the script itself alone, since other files may hand on what they import.
        if edit.message != "the runtime's names" and not edit.message.endswith("is not used any more")
    )
    found.update((item.code, plain(item.message)) for item in report.refusals)
    return report.precision, report.distribution, found
