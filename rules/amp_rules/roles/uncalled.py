"""Functions that nothing in the program can call: what stands in them is not run with it."""

from __future__ import annotations

import ast
from collections import defaultdict

from amp_rules.roles.steps import Program
from amp_rules.roles.uncalled_methods import uncalled_methods
from amp_rules.source.syntax import last_name, names_written, walk

_BY_TEXT = frozenset(
    {"__dict__", "__import__", "Fire", "eval", "exec", "getmembers", "globals", "import_module", "locals", "vars"}
)
"""By these a function is found without its name being written."""


def without_idle_steps(program: Program) -> Program:
    """The program without functions of older versions: nothing calls them, and nothing gives what they step.

    A script that imports such a function trains in full precision with it, as before.
    """
    unknown = {site.body for site in program.unknown_steps}
    idle = unknown & uncalled(program) if unknown else set()
    return Program(program.project, program.flow, idle) if idle else program


def uncalled(program: Program) -> set[ast.AST]:
    """The functions and methods of a script that trains by itself which nothing in it can call.

    Decorated and nested functions may be called by others, as may everything in a notebook, in a file that runs no
    training by itself, and where functions are looked up by a text.
    """
    if program.entry.cells or not any(map(program.runs_backward, program.entry.tree.body)):
        return set()
    functions = _uncalled_functions(program)
    return functions | uncalled_methods(program, functions)


def _uncalled_functions(program: Program) -> set[ast.AST]:
    """The plain functions whose names are written nowhere but in each other."""
    candidates = _candidates(program)
    if not candidates:
        return set()
    written: defaultdict[str, set[ast.AST]] = defaultdict(set)
    for module in program.flow.modules:
        for statement in module.tree.body:
            for node in walk(statement):
                if _finds_by_text(program, node):
                    return set()
                for name in names_written(node):
                    written[name].add(statement)
    alive = set(candidates)
    found: set[ast.AST] = set()
    # What only uncalled functions call is not called either.
    while added := {node for node in alive if written[candidates[node]] <= {*found, node}}:
        found |= added
        alive -= added
    return found


def _candidates(program: Program) -> dict[ast.AST, str]:
    """Plain functions of the files, undecorated, each with its name."""
    return {
        statement: statement.name
        for module in program.flow.modules
        for statement in module.tree.body
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and not statement.decorator_list
    }


def _finds_by_text(program: Program, node: ast.AST) -> bool:
    """Whether a node may give a function whose name it does not write."""
    if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _BY_TEXT:
        return isinstance(node, ast.Name) or node.attr != "eval"  # ``model.eval()``
    if not (isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1):
        return False
    located = None if isinstance(node.args[1], ast.Constant) else program.locate(node)
    if located is None:
        return not isinstance(node.args[1], ast.Constant)
    return any(value.kind == "module" for value in program.flow.values(node.args[0], located[1]))
