"""What a training loop computes of its data alone, before any model has had it: rays of cameras, grids, transforms."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_TRAINED = frozenset({"requires_grad", "requires_grad_", "Parameter", "parameters", "named_parameters", "state_dict"})
"""Words of statements after which a tensor may be one that is trained."""


def is_made_of_data(program: Program, site: Site) -> bool:
    """Whether no model and no weight has part in a value, as far back as variables of the same body tell.

    What a function is given counts as if it had.
    """
    info = program.function_of(site.body)
    given = set(info.parameters) if info is not None else set()
    values = _values_by_name(program, site.body)
    pending: list[ast.AST] = [site.node]
    seen: set[str] = set()
    while pending:
        part = pending.pop()
        if program.runs_model(part) or _names_trained(part) or _reads_module(program, part, site):
            return False
        names = {path.partition(".")[0] for path in blocks.reads(part)} - seen - _of_packages(program, part, site)
        if names & given or any(name not in values for name in names):
            return False
        seen |= names
        pending += [value for name in names for value in values[name]]
    return True


def _values_by_name(program: Program, body: ast.AST) -> dict[str, list[ast.AST]]:
    """What the variables of a body are made of, in all its assignments and loops."""
    found: dict[str, list[ast.AST]] = {}
    for node in program.nodes_of(body):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.Expr)):
            value, written = node.value, blocks.writes(node)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            value, written = node.iter, blocks.writes_target(node)
        else:
            continue
        for path in written if value is not None else ():
            assert value is not None
            found.setdefault(path.partition(".")[0], []).append(value)
    return found


def _of_packages(program: Program, node: ast.AST, site: Site) -> set[str]:
    """The names that stand for a package: ``torch`` of ``torch.einsum``."""
    packages = set()
    for part in walk(node):
        if isinstance(part, ast.Name):
            held = program.flow.values(part, site.scope)
            if held and all(value.kind in ("external", "module") and value.site is None for value in held):
                packages.add(part.id)
    return packages


def _names_trained(node: ast.AST) -> bool:
    words = (getattr(part, "attr", None) or getattr(part, "arg", None) for part in walk(node))
    return any(word in _TRAINED for word in words)


def _reads_module(program: Program, node: ast.AST, site: Site) -> bool:
    """Whether a weight of a model may be read: ``model.weight``."""
    return any(isinstance(part, ast.Attribute) and program.roles.modules(part.value, site.scope) for part in walk(node))
