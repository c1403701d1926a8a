"""What the constructor of a loader is given."""

from __future__ import annotations

import ast
import re

from amp_rules.roles.loader_arguments import BY_PLACE
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk

_LOADER_WORD = re.compile("(data_?)?loader", re.IGNORECASE)
_PLAIN = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.cmpop, ast.boolop,
    ast.unaryop, ast.expr_context,
)  # fmt: skip
"""What an expression may consist of that gives the same when it is read twice, and changes nothing."""


def arguments_of(program: Program, call: ast.Call) -> dict[str | None, ast.expr]:
    """What a loader is given, by name; under None what stars give, where that is not known."""
    given: dict[str | None, ast.expr] = {}
    for name, item in zip(BY_PLACE, call.args, strict=False):
        given[None if isinstance(item, ast.Starred) else name] = item
    for keyword in call.keywords:
        if keyword.arg is not None:
            given[keyword.arg] = keyword.value
            continue
        known = _known_keywords(program, keyword.value)
        given |= {None: keyword.value} if known is None else known
    return given


def _known_keywords(program: Program, node: ast.expr) -> dict[str | None, ast.expr] | None:
    """What ``**`` gives: a dictionary written out, in a variable of the same body that nothing else touches."""
    if isinstance(node, ast.IfExp):
        parts = [_known_keywords(program, part) for part in (node.body, node.orelse)]
        return None if parts[0] is None or parts[1] is None else {**parts[0], **parts[1]}
    if isinstance(node, ast.Dict):
        names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        known: dict[str | None, ast.expr] = {
            name: value for name, value in zip(names, node.values, strict=True) if isinstance(name, str)
        }
        return known if len(known) == len(node.keys) else None
    located = program.locate(node)
    if isinstance(node, ast.Call):
        is_dict = located is not None and program.callee_names(node, located[1]) == {"builtins.dict"}
        if not is_dict or node.args or any(item.arg is None for item in node.keywords):
            return None
        return {item.arg: item.value for item in node.keywords}
    if not isinstance(node, ast.Name) or located is None:
        return None
    module = located[1].module
    writers = [item for item in module.nodes if isinstance(item, ast.stmt) and _writes_itself(item, node.id)]
    first = writers[0] if len(writers) == 1 else None
    if not isinstance(first, ast.Assign) or not isinstance(first.targets[0], ast.Name):
        return None
    held = _known_keywords(program, first.value)
    for item in module.nodes:
        if not isinstance(item, ast.Name) or item.id != node.id or not isinstance(item.ctx, ast.Load):
            continue
        more = _put_in(program, module, item)
        held = None if held is None or more is None else held | more
    return held


def _put_in(program: Program, module: Module, name: ast.Name) -> dict[str | None, ast.expr] | None:
    """What a read of a dictionary may put into it; None where that is not known."""
    parent = module.parents[name]
    if isinstance(parent, ast.keyword) and parent.arg is None:
        return {}
    if isinstance(parent, ast.Subscript) and parent.value is name:
        if isinstance(parent.ctx, ast.Load):
            return {}
        statement = module.parents[parent]
        is_plain_key = isinstance(parent.slice, ast.Constant) and isinstance(parent.slice.value, str)
        if is_plain_key and isinstance(statement, ast.Assign) and isinstance(parent.slice, ast.Constant):
            return {str(parent.slice.value): statement.value}
        return None
    call = module.parents[parent]
    if not (isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent):
        # ``other.update(name)`` puts it into another one.
        is_given = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute)
        return {} if is_given and own_name(parent.func) == "update" else None  # type: ignore[attr-defined]
    if parent.attr != "update" or len(call.args) > 1 or any(item.arg is None for item in call.keywords):
        return None
    known: dict[str | None, ast.expr] = {item.arg: item.value for item in call.keywords}
    more = _known_keywords(program, call.args[0]) if call.args else {}
    return None if more is None else known | more


def moved_source(module: Module, node: ast.expr, column: int) -> str:
    """The text of an expression that goes to another column, its rows below the first moved along."""
    (line, start), (end_line, end) = module.start(node), module.end(node)
    rows = list(module.lines[line - 1 : end_line])
    rows[-1] = rows[-1][:end]
    first = rows[0][start:]
    moved = []
    for row in rows[1:]:
        space = len(row) - len(row.lstrip())
        moved.append(" " * max(space + column - start, 0) + row.lstrip())
    return "\n".join([first, *moved])


def _writes_itself(statement: ast.stmt, name: str) -> bool:
    """Whether a statement gives a variable a value, not one within it."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return any(isinstance(item, ast.Name) and item.id == name for item in targets)


def is_plain(node: ast.expr) -> bool:
    """Whether an expression gives the same when it is read twice, and changes nothing."""
    return all(isinstance(item, _PLAIN) for item in walk(node))


def name_for(variable: str, kind: str) -> str:
    """``train_sampler`` for ``train_loader``, ``trainLoader`` and ``loader_train``."""
    found = _LOADER_WORD.search(variable)
    parts = [variable[: found.start()], variable[found.end() :]] if found is not None else []
    if not variable.isascii() or (found is None and variable and kind == "sampler"):
        parts = ["train"]
    words = [*(part.strip("_").lower() for part in parts if part.strip("_")), kind]
    return "_".join(words if words[0].isidentifier() else words[::-1])  # ``sampler_1`` for ``loader1``
