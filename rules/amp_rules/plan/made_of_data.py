"""What a training loop computes of its data alone, before any model has had it: rays of cameras, grids, transforms."""

from __future__ import annotations

import ast

from amp_rules.roles.steps import Program, Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_TRAINED = frozenset({"requires_grad", "requires_grad_", "Parameter", "parameters", "named_parameters", "state_dict"})
"""Words of statements after which a tensor may be one that is trained."""
_OF_TENSORS = frozenset(
    {"to", "cuda", "cpu", "float", "double", "detach", "unsqueeze", "permute", "contiguous", "expand", "expand_as"}
)
"""Methods that no array of NumPy has, and that give a tensor."""
_KEEPING = frozenset({"view", "reshape", "flatten", "transpose", "t", "clone", "squeeze", "repeat", "sum", "mean"})
_LOADING = frozenset({"torch.load", "torch.utils.data.default_collate"})
_MAX_DEPTH = 12


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


def is_of_tensors(program: Program, site: Site) -> bool:
    """Whether a product is certainly of tensors: data often comes as arrays, which are multiplied by the same words."""
    node = site.node
    factors: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        factors = [node.left, node.right]
    elif isinstance(node, ast.Call):
        if _is_of_torch(program, node, site):
            return True
        factors = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    return any(_is_tensor(program, item, site) for item in factors)


def _is_of_torch(program: Program, node: ast.Call, site: Site) -> bool:
    names = program.callee_names(node, site.scope)
    return bool(names) and all(name.startswith("torch.") and name not in _LOADING for name in names)


def _is_tensor(program: Program, node: ast.expr, site: Site, depth: int = 0) -> bool:
    """Whether an expression is a tensor by how it is written, or by the statement above that assigns its variable."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TENSORS:
            return True
        if isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
            if _is_tensor(program, node.func.value, site, depth + 1):
                return True
        return _is_of_torch(program, node, site)
    if isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("T", "mT")):
        return _is_tensor(program, node.value, site, depth + 1)
    if isinstance(node, ast.BinOp):
        return any(_is_tensor(program, side, site, depth + 1) for side in (node.left, node.right))
    value = _assigned_above(node, site) if isinstance(node, ast.Name) else None
    return value is not None and _is_tensor(program, value, site, depth + 1)


def _assigned_above(node: ast.Name, site: Site) -> ast.expr | None:
    """What a variable holds, where a plain assignment above gives it and no loop in between another value."""
    above = blocks.statements_above(site.module, blocks.statement_of(site.module, node), site.body)
    assigned = max(
        (item for item in above if node.id in blocks.writes(item)), key=lambda item: item.lineno, default=None
    )
    if not isinstance(assigned, ast.Assign):
        return None
    for loop in blocks.enclosing(site.module, node):
        within = loop.lineno < assigned.lineno
        if isinstance(loop, blocks.LOOPS) and not within and node.id in blocks.writes(loop):
            return None
    plain = any(isinstance(target, ast.Name) and target.id == node.id for target in assigned.targets)
    return assigned.value if plain else None


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
