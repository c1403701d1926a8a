"""Which expressions are paths of ``pathlib``, by how they are made, declared or read from the command line."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import in_pairs, walk

_LIBRARY = "pathlib."
_GIVES_PATHS = frozenset(
    {
        "with_suffix", "with_name", "with_stem", "joinpath", "resolve", "absolute", "expanduser", "relative_to", "glob",
        "iterdir", "rglob",
    }
)  # fmt: skip
_KEEPS_ITEMS = frozenset({"builtins.sorted", "builtins.list", "builtins.max", "builtins.min", "builtins.reversed"})
_PARSED = "argparse."

_Named = tuple[ast.expr, Scope]


def is_path(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is such a path, or holds some."""
    seen: set[ast.AST] = set()
    pending: list[_Named] = [(node, scope)]
    while pending:
        current, where = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if any(value.name.startswith(_LIBRARY) for value in program.flow.values(current, where)):
            return True
        if isinstance(current, (ast.Name, ast.Attribute)) and _is_declared(program, current, where):
            return True
        pending.extend(_made_of(program, current, where))
    return False


def _made_of(program: Program, node: ast.expr, scope: Scope) -> Iterator[_Named]:
    """What an expression is a path of if that is one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from ((node.left, scope), (node.right, scope))
    elif isinstance(node, ast.IfExp):
        yield from ((node.body, scope), (node.orelse, scope))
    elif isinstance(node, ast.BoolOp):
        yield from ((item, scope) for item in node.values)
    elif isinstance(node, ast.Subscript):
        yield node.value, scope
    elif isinstance(node, ast.Call):
        yield from _returned(program, node, scope)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        if isinstance(node, ast.Attribute) and node.attr in ("parent", "parents"):
            yield node.value, scope
        yield from ((made, scope) for made in assigned(program, node, scope))
        yield from _given(program, node, scope)


def _returned(program: Program, call: ast.Call, scope: Scope) -> Iterator[_Named]:
    for info in program.flow.callees(call):
        body = program.flow.scopes.get(info.node)
        for item in blocks.walk_body(info.node) if body is not None else ():
            if isinstance(item, ast.Return) and item.value is not None and body is not None:
                yield item.value, body
    if program.callee_names(call, scope) & _KEEPS_ITEMS:
        yield from ((item, scope) for item in call.args[:1])
    elif isinstance(call.func, ast.Attribute) and call.func.attr in _GIVES_PATHS:
        yield call.func.value, scope


def _given(program: Program, node: ast.expr, scope: Scope) -> Iterator[_Named]:
    """What the callers give for a parameter."""
    owner = scope.owner(node.id).node if isinstance(node, ast.Name) else None
    info = program.flow.functions.get(owner) if isinstance(owner, FunctionNode) else None
    if info is None or not isinstance(node, ast.Name):
        return
    for caller in program.flow.callers(info):
        given = info.argument_or_default(caller.call, node.id)
        if given is not None:
            yield given, program.flow.scope_given(info, caller, given)


def _is_declared(program: Program, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
    """Whether a parameter or an attribute says that it is a path, or an option is read as one."""
    if isinstance(node, ast.Name):
        owner = scope.owner(node.id).node
        parameters = arguments_of(owner) if isinstance(owner, FunctionNode) else ()
        return any(item.arg == node.id and _says_path(program, item.annotation, scope) for item in parameters)
    owners = program.flow.values(node.value, scope)
    for value in owners:
        for item in value.ref.facts.node.body if value.kind == "instance" else ():
            if isinstance(item, ast.AnnAssign) and blocks.path_of(item.target) == node.attr:
                return _says_path(program, item.annotation, program.flow.scopes[value.ref.facts.module.module.tree])
    if not any(value.is_result and str(value.ref).startswith(_PARSED) for value in owners):
        return False
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "add_argument"
        and _option(call) == node.attr
        and _says_path(program, keyword(call, "type"), where)
        for call, _, where in program.calls()
    )


def _option(call: ast.Call) -> str:
    """The attribute that an option becomes."""
    named = keyword(call, "dest")
    flags = [item.value for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    if isinstance(named, ast.Constant):
        return str(named.value)
    flag = next((item for item in flags if item.startswith("--")), flags[0] if flags else "")
    return flag.lstrip("-").replace("-", "_")


def _says_path(program: Program, node: ast.expr | None, scope: Scope) -> bool:
    """Whether an annotation, or the type of an option, is a path's class, alone or among others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return False
    parts = [item for item in walk(node) if isinstance(item, (ast.Name, ast.Attribute))] if node is not None else []
    return any(name.startswith(_LIBRARY) for item in parts for name in program.names(item, scope))


def assigned(program: Program, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """What a variable, or an attribute of ``self``, is assigned anywhere in the file."""
    path = blocks.path_of(node)
    if path is None:
        return []
    owner = scope.owner(path).node if isinstance(node, ast.Name) else None
    return [
        value
        for statement, value in _values_by_path(scope.module).get(path, ())
        if (owner is None and not isinstance(statement, ast.For)) or blocks.body_of(scope.module, statement) is owner
    ]


def _values_by_path(module: Module) -> dict[str, list[tuple[ast.stmt, ast.expr]]]:
    """The statements of a file that assign a variable, and the heads of its loops, by the path that they assign."""
    found: dict[str, list[tuple[ast.stmt, ast.expr]]] | None = module.kept.get("assigned_values")
    if found is None:
        found = module.kept["assigned_values"] = {}
        for node in module.nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                # One path once, as in ``x = x = value``; both sides may be written out: ``rank, n = get_rank(), 2``.
                pairs = [pair for target in targets for pair in in_pairs(target, node.value)]
                for path, value in {blocks.path_of(target): value for target, value in pairs}.items():
                    if path is not None:
                        found.setdefault(path, []).append((node, value))
            elif isinstance(node, ast.For) and (path := blocks.path_of(node.target)) is not None:
                found.setdefault(path, []).append((node, node.iter))
    return found
