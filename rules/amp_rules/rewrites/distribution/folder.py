"""Make folders that another process may have made in between.

## What it does
`os.mkdir(d)` after `if not os.path.exists(d):` becomes `os.makedirs(d, exist_ok=True)`, and `d.mkdir()` of a path
becomes `d.mkdir(exist_ok=True)`. Where the script did not
look first, and so may mean an existing folder to be an error, only several processes accept it:
`exist_ok=amp.world_size() > 1`.

## Why
Two processes look at the same time, both find nothing, and the second fails.

## Before
    if not os.path.isdir("checkpoint"):
        os.mkdir("checkpoint")

## After
    if not os.path.isdir("checkpoint"):
        os.makedirs("checkpoint", exist_ok=True)

## When it declines
Under a `try` that handles the error and goes on: where it then trains in another way, several processes are declined
(AMP294). With `exist_ok=True`.

## Leaving it out
No: the slower process fails at its first line of work.

## Source
https://docs.python.org/3/library/os.html#os.makedirs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from amp_rules.plan.context import Change, Context
from amp_rules.plan.rule import Rule
from amp_rules.roles.file_effects import makes_folder, try_that_expects
from amp_rules.roles.path_objects import is_path
from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import ExpressionEdit, Replace
from amp_rules.text.expression_edits import add_keyword
from amp_rules.torch.file_access import FOLDER_ERRORS, MAKES_FOLDERS

RULE = Rule("AMP209", "folder-made-once", "A folder may have been made by another process.", "distribution")


@dataclass(frozen=True)
class _Folder(Site):
    """A call that makes a folder.

    Attributes:
        looked: whether the script looked for it first.
        is_mkdir: whether it is ``os.mkdir``, which takes no ``exist_ok``.
    """

    looked: bool
    is_mkdir: bool


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each folder that two processes may make at once."""
    made_by_one = {node for statement in context.processes.files.statements for node in walk(statement)}
    for site in _folders(context.program):
        assert isinstance(site.node, ast.Call)
        if site.node in made_by_one:
            continue
        allowed = "True" if site.looked else context.vocabulary.several_processes(site.module)
        message = f"`{site.module.text(site.node)}` does not fail if another process made the folder first"
        action = Replace(site.node, _allowing(allowed, site.is_mkdir))
        yield Change(RULE, site.module, site.node, message, [action], needs_import=not site.looked)


def _allowing(allowed: str, is_mkdir: bool) -> ExpressionEdit:
    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        index = next((i for i, item in enumerate(call.args) if item.keyword and item.keyword.value == "exist_ok"), None)
        if index is None:
            call = cst.ensure_type(add_keyword(f"exist_ok={allowed}")(call), cst.Call)
        else:
            given = call.args[index].value
            old = cst.Module([]).code_for_node(given)
            simple = isinstance(given, (cst.Name, cst.Attribute, cst.Call))
            value = cst.parse_expression(
                allowed if old == "False" else f"{old} or {allowed}" if simple else f"({old}) or {allowed}"
            )
            arguments = [*call.args]
            arguments[index] = arguments[index].with_changes(value=value)
            call = call.with_changes(args=arguments)
        if is_mkdir:
            function = cst.ensure_type(call.func, cst.Attribute)
            return call.with_changes(func=function.with_changes(attr=cst.Name("makedirs")))
        return call

    return edit


def _folders(program: Program) -> list[_Folder]:
    """Calls that make a folder and fail where another process has made it in between."""
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
        path = ast.unparse(folder.value if isinstance(folder, ast.Attribute) and not call.args else folder)
        looked = any(isinstance(parent, ast.If) and _looks_for(parent.test, path) for parent in around)
        told = {"parents", "exist_ok"} & {item.arg for item in call.keywords}
        is_plain = names & MAKES_FOLDERS or looked or told
        if is_plain or (isinstance(call.func, ast.Attribute) and is_path(program, call.func.value, scope)):
            found.append(_Folder(scope.module, scope, body, call, looked, "os.mkdir" in names))
    return found


def _looks_for(test: ast.expr, path: str) -> bool:
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
