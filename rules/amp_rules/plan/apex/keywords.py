"""Keywords that a call is given as a dictionary: ``amp.initialize(model, optimizer, **settings)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_rules.plan.apex.file import ApexFile
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_DEFAULTS = {
    "opt_level": "O1",
    "keep_batchnorm_fp32": None,
    "master_weights": None,
    "loss_scale": None,
    "cast_model_outputs": None,
    "min_loss_scale": None,
}
"""What Apex takes where a keyword is not given, for those that the runtime understands so too."""


class Chosen(ast.IfExp):
    """A value that a condition of the script chooses; it stands nowhere in the file."""


class _Default(ast.Constant):
    """A value that is not given."""


@dataclass
class Keywords:
    """What ``**settings`` gives.

    Attributes:
        values: the keywords.
        made_by: the statements that make them, and nothing else.
    """

    values: dict[str, ast.expr] = field(default_factory=dict)
    made_by: list[ast.stmt] = field(default_factory=list)


def written_out(file: ApexFile, call: ast.Call, mapping: ast.expr) -> Keywords | None:
    """The keywords that ``**mapping`` gives, where the file shows them all, made for this call alone."""
    if not isinstance(mapping, ast.Name):
        values = _literal(file, mapping)
        return Keywords(values) if values is not None else None
    uses = _other_uses(file, mapping)
    constants = _of_constants(file, uses)
    if constants is not None:
        return constants
    where = blocks.place(file.module, blocks.statement_of(file.module, call))
    made = _makers(mapping.id, uses, where)
    if not made:
        return None
    first = made[0]
    assert isinstance(first, ast.Assign)
    values = _literal(file, first.value)
    for item in made[1:]:
        values = _after(item, mapping.id, values) if values is not None else None
    if values is None or not _holds_on(values, made, where):
        return None
    return Keywords(values, made)


def code_of(file: ApexFile, value: ast.expr) -> str:
    """The source of a value, of one that a condition chooses too."""
    if isinstance(value, _Default):
        return "None" if not isinstance(value.value, str) else f'"{value.value}"'
    if not isinstance(value, Chosen):
        return file.source(value)
    body, test, orelse = (code_of(file, part) for part in (value.body, value.test, value.orelse))
    if isinstance(value.body, (ast.IfExp, ast.Lambda)):
        body = f"({body})"
    if isinstance(value.test, (ast.IfExp, ast.Lambda)):
        test = f"({test})"
    return f"{body} if {test} else {orelse}"


def _other_uses(file: ApexFile, name: ast.Name) -> set[ast.Name]:
    """Where else the file speaks of the variable; empty where other files may have it too."""
    if name.id in file.wanted_elsewhere:
        return set()
    owner = file.references.scope_of(name).owner(name.id)
    return {
        node
        for node in file.module.parents
        if isinstance(node, ast.Name)
        and node.id == name.id
        and file.references.scope_of(node).owner(node.id) is owner
        and node is not name
    }


def _of_constants(file: ApexFile, uses: set[ast.Name]) -> Keywords | None:
    """A dictionary of constants that nothing else reads: it holds the same wherever it is made."""
    if len(uses) != 1:
        return None
    (target,) = uses
    statement = blocks.statement_of(file.module, target)
    if not isinstance(statement, ast.Assign) or statement.targets != [target]:
        return None
    values = _literal(file, statement.value)
    if values is None or not all(isinstance(value, ast.Constant) for value in values.values()):
        return None
    return Keywords(values, [statement])


def _makers(name: str, uses: set[ast.Name], where: blocks.Place) -> list[ast.stmt]:
    """The statements of the call's suite that make the dictionary; none, where something else has it too."""
    made = [item for item in where.suite[: where.index] if uses & set(walk(item))]
    first = made[0] if made else None
    if not (isinstance(first, ast.Assign) and len(first.targets) == 1 and first.targets[0] in uses):
        return []
    known = {first.targets[0], *(target.value for item in made[1:] for target in _set(item, name))}
    return made if uses <= known else []


def _set(statement: ast.stmt, name: str) -> Iterator[ast.Subscript]:
    """``settings["key"]`` that a statement sets, under conditions too."""
    for node in walk(statement):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == name:
                yield node


def _literal(file: ApexFile, value: ast.expr) -> dict[str, ast.expr] | None:
    """The entries of ``{...}`` or ``dict(...)``."""
    found: dict[str, ast.expr] = {}
    if isinstance(value, ast.Call):
        if value.args or not (isinstance(value.func, ast.Name) and value.func.id == "dict"):
            return None
        if "dict" in file.references.scope_of(value).owner("dict").bound:
            return None  # a function of the file's own
        pairs: list[tuple[ast.expr | None, ast.expr]]
        pairs = [(ast.Constant(item.arg) if item.arg else None, item.value) for item in value.keywords]
    elif isinstance(value, ast.Dict):
        pairs = list(zip(value.keys, value.values, strict=True))
    else:
        return None
    for key, item in pairs:
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or not _is_plain(item):
            return None
        found[key.value] = item
    return found


def _is_plain(value: ast.expr) -> bool:
    """Whether it can be evaluated a few statements later, with the same result."""
    kept = (ast.Constant, ast.Name, ast.Attribute, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp)
    inner = (*kept, ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.Subscript)
    return all(isinstance(part, inner) for part in walk(value))


def _after(statement: ast.stmt, name: str, values: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    """The entries after one more statement that sets some of them."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        is_entry = isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id == name
        key = target.slice if isinstance(target, ast.Subscript) else None
        if not is_entry or not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            return None
        return {**values, key.value: statement.value} if _is_plain(statement.value) else None
    if not isinstance(statement, ast.If) or not _is_plain(statement.test):
        return None
    branches: list[dict[str, ast.expr]] = []
    for suite in (statement.body, statement.orelse):
        found: dict[str, ast.expr] | None = values
        for item in suite:
            found = _after(item, name, found) if found is not None else None
        if found is None:
            return None
        branches.append(found)
    return _chosen(statement.test, *branches)


def _chosen(test: ast.expr, body: dict[str, ast.expr], orelse: dict[str, ast.expr]) -> dict[str, ast.expr] | None:
    """What a condition leaves of two dictionaries; None where one lacks what has no default here."""
    found: dict[str, ast.expr] = {}
    for key in [*body, *(key for key in orelse if key not in body)]:
        if any(key not in branch and key not in _DEFAULTS for branch in (body, orelse)):
            return None
        one, other = (branch.get(key) or _Default(_DEFAULTS[key]) for branch in (body, orelse))
        found[key] = one if one is other else Chosen(test, one, other)
    return found


def _holds_on(values: dict[str, ast.expr], made: list[ast.stmt], where: blocks.Place) -> bool:
    """Whether nothing between the dictionary and the call can change what its values are made of."""
    read = {path for value in values.values() for path in blocks.reads(value)}
    roots = {path.split(".")[0] for path in read}
    first = where.suite.index(made[0])
    for item in where.suite[first : where.index]:
        if item in made:
            continue
        if blocks.touches(blocks.writes(item), read):
            return False
        handed = {path for node in walk(item) if isinstance(node, ast.Call) for path in blocks.reads(node)}
        if roots & {path.split(".")[0] for path in handed}:
            return False
    return True
