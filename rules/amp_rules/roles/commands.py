"""What a command does that a script runs, as far as its words are known."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath

from amp_rules.roles.file_paths import Paths
from amp_rules.roles.program import Program
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.file_access import SPLITS_COMMANDS, WRITING_PROGRAMS

_ONE_AFTER_THE_OTHER = re.compile(r"&&|\|\||[;|\n]")
_NAMES_BEHIND_NAMES = 4
_MAKE_FOLDERS = ("mkdir", "md")


def writes_files(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call runs a command of which the words say that it makes, moves or removes files."""
    given = call.args[0] if call.args else keyword(call, "args")
    if given is None:
        return False
    paths = Paths(program)
    return any(
        # Of a text with many gaps, which may have many texts, the first word is known all the same.
        _names_a_writer(_first_word(part)) or any(map(_names_a_writer, paths.of(part, where)))
        for part, where in _beginnings(program, paths, given, scope, _NAMES_BEHIND_NAMES)
    )


def only_makes_folder(call: ast.Call) -> bool:
    """Whether a command is ``mkdir -p``, which accepts a folder that is there, and nothing behind it.

    In one text, or in words that are run as they are or joined.
    """
    texts = [node.value for node in walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    words = [
        [item.value for item in node.elts[:2] if isinstance(item, ast.Constant)]
        for node in walk(call)
        if isinstance(node, (ast.List, ast.Tuple))
    ]
    makes = any(text.lstrip().startswith("mkdir -p") for text in texts) or ["mkdir", "-p"] in words
    return makes and not any(_ONE_AFTER_THE_OTHER.search(text) for text in texts)


def words_given(node: ast.expr) -> list[ast.expr]:
    """The expressions that stand in a command: ``path`` of ``"sort %s > %s" % (name, path)`` and of a list of words.

    A command that makes a folder writes no file.
    """
    return [] if _first_word(node) in _MAKE_FOLDERS else _words_in(node)


def words_held(program: Program, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """The expressions in a command that a variable of the function holds: ``command = f"sox {source} {path}"``."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return []
    return [word for value, at in Paths(program).assigned(node, scope) if at is scope for word in words_given(value)]


def _first_word(node: ast.expr) -> str:
    while isinstance(node, (ast.List, ast.Tuple, ast.JoinedStr, ast.BinOp, ast.Call)):
        if isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Call):
            node = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        else:
            inner = node.values if isinstance(node, ast.JoinedStr) else node.elts
            node = inner[0] if inner else ast.Constant("")
    words = node.value.split() if isinstance(node, ast.Constant) and isinstance(node.value, str) else []
    return words[0] if words else ""


def _words_in(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, (ast.List, ast.Tuple)):
        return [word for item in node.elts for word in _words_in(item)]
    if isinstance(node, ast.JoinedStr):
        return [item.value for item in node.values if isinstance(item, ast.FormattedValue)]
    if isinstance(node, ast.BinOp):
        return [*_words_in(node.left), *_words_in(node.right)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return [*node.args, *(item.value for item in node.keywords)]
    return [] if isinstance(node, ast.Constant) else [node]


def _beginnings(
    program: Program, paths: Paths, node: ast.expr, scope: Scope, depth: int
) -> list[tuple[ast.expr, Scope]]:
    """The texts that a command begins with: the whole of it, or the first of its words."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [(node.elts[0], scope)] if node.elts else []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.left, (ast.List, ast.Tuple)):
        return _beginnings(program, paths, node.left, scope, depth)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "split" and not node.args:
            return _beginnings(program, paths, node.func.value, scope, depth)
        if node.args and program.callee_names(node, scope) & SPLITS_COMMANDS:
            return _beginnings(program, paths, node.args[0], scope, depth)
    if isinstance(node, (ast.Name, ast.Attribute)) and depth:
        behind = paths.assigned(node, scope)
        return [item for value, at in behind for item in _beginnings(program, paths, value, at, depth - 1)]
    return [(node, scope)]


def _names_a_writer(text: str) -> bool:
    words = [part.split() for part in _ONE_AFTER_THE_OTHER.split(text)]
    return any(PurePosixPath(part[0]).name in WRITING_PROGRAMS for part in words if part)
