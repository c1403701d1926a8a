"""Calls that make a folder, and fail where another process has made it in between."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.roles.file_effects import makes_folder, try_that_expects
from amp_rules.roles.path_objects import is_path
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.torch.file_access import FOLDER_ERRORS, MAKES_FOLDERS


@dataclass(frozen=True)
class Folder(Site):
    """A call that makes a folder.

    Attributes:
        looked: whether the script looked for it first.
        is_mkdir: whether it is ``os.mkdir``, which takes no ``exist_ok``.
    """

    looked: bool
    is_mkdir: bool


def new_folders(program: Program) -> list[Folder]:
    """Such calls of a program, those in a ``try`` that expects the error left out."""
    found = []
    for call, body, scope in program.calls():
        names = program.callee_names(call, scope)
        if not makes_folder(program, call, scope):
            continue
        if "os.mkdir" in names and not isinstance(call.func, ast.Attribute):
            continue  # ``from os import mkdir``: there is no ``makedirs`` to call instead
        if try_that_expects(scope.module, call, FOLDER_ERRORS) is not None:
            continue
        around = [parent for parent in blocks.enclosing(scope.module, call) if not isinstance(parent, ast.Expr)]
        folder = call.args[0] if call.args else call.func
        made = folder.value if isinstance(folder, ast.Attribute) and not call.args else folder
        tests = [parent.test for parent in around if isinstance(parent, ast.If)]
        looked = any(looks_for(test, path) for test in tests for path in _with_its_folder(made))
        told = {"parents", "exist_ok"} & {item.arg for item in call.keywords}
        is_plain = names & MAKES_FOLDERS or looked or told
        if is_plain or (isinstance(call.func, ast.Attribute) and is_path(program, call.func.value, scope)):
            found.append(Folder(scope.module, scope, body, call, looked, "os.mkdir" in names))
    return found


def _with_its_folder(made: ast.expr) -> list[str]:
    """The text of a path, and of the one that it is in: where that is missing, so is this."""
    if isinstance(made, ast.Call) and blocks.path_of(made.func) == "os.path.join" and len(made.args) > 1:
        return [ast.unparse(made), *_with_its_folder(made.args[0])]
    return [ast.unparse(made)]


def looks_for(test: ast.expr, path: str) -> bool:
    """Whether a condition holds only where a folder is missing: ``not exists(path)``, ``exists(path) is False``."""
    return any(
        ast.unparse(denied).endswith((f"exists({path})", f"isdir({path})", f"{path}.exists()", f"{path}.is_dir()"))
        for node in walk(test)
        if (denied := _denied(node)) is not None
    )


def _denied(node: ast.AST) -> ast.expr | None:
    """What must not hold, for a condition to."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.Eq)):
        (other,) = node.comparators
        return node.left if isinstance(other, ast.Constant) and other.value is False else None
    return None
