"""What functions of the file do beside the models: whether these can be prepared before a call."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import own_name, walk

_RECEIVERS = frozenset({"self", "cls"})
# What reaches a variable or an attribute by a name made elsewhere, or runs a text.
_INDIRECT = frozenset(
    {"delattr", "eval", "exec", "getattr", "globals", "locals", "setattr", "super", "vars", "__dict__"}
)


def leaves_alone(module: Module, call: ast.Call, models: set[str], held: set[str]) -> bool:
    """Whether a call reaches none of the models by functions of the file, and changes nothing that is held.

    Functions of other files are given what the call gives them, and nothing else of this file.

    Args:
        module: the file.
        call: the call.
        models: the paths of the models and their optimizers.
        held: the paths on which the level depends.
    """
    ends = {path.rpartition(".")[2] for path in models}
    fixed = ends | {path.rpartition(".")[2] for path in held}
    seen: set[ast.AST] = set()
    pending = [call]
    while pending:
        name = own_name(pending.pop().func)
        for made in _definitions(module, name):
            if isinstance(made, ast.ClassDef):
                return False
            if made in seen:
                continue
            seen.add(made)
            if not all(_is_apart(module, node, ends, fixed) for item in made.body for node in walk(item)):
                return False
            pending += [node for item in made.body for node in walk(item) if isinstance(node, ast.Call)]
    return True


def reads_beside_methods(module: Module, statement: ast.stmt) -> set[str]:
    """Paths that a statement reads, without the object whose methods of this file it calls: these are looked at."""
    bare = [node for node in walk(statement) if isinstance(node, ast.Name) and node.id in _RECEIVERS]
    is_known = all(_is_apart(module, node, set(), set()) and _names_part(module, node) for node in bare)
    found = blocks.reads(statement)
    return found - _RECEIVERS if is_known else found


def _names_part(module: Module, receiver: ast.Name) -> bool:
    """Whether an object is read for one of its attributes, or for a method that this file defines."""
    attribute = module.parents[receiver]
    return isinstance(attribute, ast.Attribute) and _is_apart(module, attribute, set(), set())


def _definitions(module: Module, name: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    return [
        node
        for node in module.nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name
    ]


def _is_apart(module: Module, node: ast.AST, models: set[str], fixed: set[str]) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return True
    name = own_name(node)
    if name in models or name in _INDIRECT or (name in fixed and not isinstance(node.ctx, ast.Load)):
        return False
    parent = module.parents[node]
    if isinstance(node, ast.Name) and node.id in _RECEIVERS:
        return isinstance(parent, ast.Attribute)  # handed on whole, it brings its models
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in _RECEIVERS:
        is_called = isinstance(parent, ast.Call) and parent.func is node
        return not is_called or bool(_definitions(module, name))  # a method of a base in another file is not looked at
    return True
