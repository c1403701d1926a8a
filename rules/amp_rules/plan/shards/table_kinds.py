"""Which tables cannot share their rows out, by the way they are made and where they are kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from amp_rules.flow.values import Value
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.shards.declined import TABLES
from amp_rules.plan.shards.tables import Tables
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.dtypes import FLOAT32_TYPES
from amp_rules.torch.functions import PARAMETER_MAKERS
from amp_rules.torch.models import CHAINS, LENGTH_OF_ROWS, TORCH_MODULE_BASES

CONTAINERS = CHAINS | {
    f"torch.nn.{module}{name}"
    for module in ("", "modules.", "modules.container.")
    for name in ("ModuleList", "ModuleDict")
}
_KNOWN = ("torch.nn.", "torchvision.", "timm.")
"""Libraries whose layers and models have no tables but those that can be seen."""
_TAKES_OUT = frozenset({"builtins.getattr", "builtins.vars"})
_INITIALISES = "torch.nn.init."


def reasons(program: Program, tables: Tables, lookups: Mapping[ast.AST, Site]) -> Iterator[Declined]:
    """Yield what is made or kept in a way that rows cannot be shared out of."""
    looked_up = _looked_up(program, tables, lookups)
    for value in tables.large:
        located = program.locate(value.site) if value.site is not None else None
        if located is None or not isinstance(value.site, ast.Call):
            continue
        module, text = located[1].module, located[1].module.text(value.site)
        problem = _made(program, value, value.site, located[1])
        if problem is None and value not in looked_up:
            problem = "has no call that was found, so it is not known whether all processes run it alike"
        if problem is not None:
            yield TABLES.decline(module, value.site, f"`{text}` {problem}")
    for site in tables.of_weights:
        message = f"`{site.module.text(site.node)}` is a table whose use was not found"
        yield TABLES.decline(site.module, site.node, message)
    yield from _weights(program, tables)


def parts_not_known(program: Program, home: Home, models: set[Value]) -> Iterator[Declined]:
    """Yield the layers of libraries in a model, which may have tables that are not seen."""
    for name in sorted({name for part in program.with_parts(models) for name in _of_libraries(part)}):
        message = f"`{home.variable}` has a `{name.rpartition('.')[2]}` of a library, whose tables are not known"
        yield TABLES.decline(home.module, home.statement, message)


def _of_libraries(part: Value) -> Iterator[str]:
    if part.kind == "instance":
        yield from (name for name in part.ref.external_bases() - TORCH_MODULE_BASES if not _is_known(name))
    elif not _is_known(part.name):
        yield part.name


def _is_known(name: str) -> bool:
    return name.startswith((*_KNOWN, "builtins.", "abc.", "typing.", "enum."))


def _looked_up(program: Program, tables: Tables, lookups: Mapping[ast.AST, Site]) -> set[Value]:
    """The tables whose own call is seen, or that of the containers that they are in."""
    found: set[Value] = set()
    for call, site in lookups.items():
        assert isinstance(call, ast.Call)
        for value in program.called_models(call, site.scope):
            if value.kind == "object" or tables.is_large(value):
                found |= program.with_parts({value})
    return found


def _made(program: Program, value: Value, call: ast.Call, scope: Scope) -> str | None:
    if value.kind == "instance":
        return "is of a subclass, whose code may read the weight"
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return "gets arguments from elsewhere, which may include `max_norm=`"
    norm = LENGTH_OF_ROWS[value.name]
    given = {item.arg: item.value for item in call.keywords}
    for name, index in (("max_norm", norm), ("scale_grad_by_freq", norm + 2)):
        node = given.get(name) or (call.args[index] if len(call.args) > index else None)
        if node is not None and not (isinstance(node, ast.Constant) and not literal(node)):
            return f"has `{name}=`, for which a process would need the rows of all processes"
    dtype = given.get("dtype")
    if dtype is not None and not program.names(dtype, scope) & FLOAT32_TYPES:
        return "has `dtype=`, and sharded rows are float32"
    for part in walk(given["_weight"]) if "_weight" in given else ():
        if isinstance(part, ast.Attribute) and part.attr == "weight":
            return "has the weight of another layer"
    return None


def _weights(program: Program, tables: Tables) -> Iterator[Declined]:
    """Yield uses of a table or its weight, where the model is made, by which something else may hold the weight."""
    for node, _, scope in program.nodes():
        if isinstance(node, ast.Attribute) and node.attr in ("weight", "_parameters"):
            if any(map(tables.is_large, program.roles.modules(node.value, scope))):
                if not _stays(program, node, scope):
                    text = scope.module.text(node)
                    yield TABLES.decline(
                        scope.module,
                        node,
                        f"`{text}` may also be held by something else, and a table can be sharded only once",
                        "write into it: `torch.nn.init`, `.data.copy_(...)`",
                    )
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and any(
            map(tables.is_large, program.roles.modules(node, scope))
        ):
            taken = _taken(program, scope, node)
            if taken is not None:
                yield TABLES.decline(scope.module, node, taken)


def _stays(program: Program, node: ast.Attribute, scope: Scope) -> bool:
    """Whether a weight is only written into, or told of."""
    parents = scope.module.parents
    parent = parents[node]
    if isinstance(node.ctx, ast.Store):
        given = parent.value if isinstance(parent, (ast.Assign, ast.AnnAssign)) else None
        if not isinstance(given, ast.Call) or not program.callee_names(given, scope) & PARAMETER_MAKERS:
            return False
        return not any(isinstance(part, ast.Attribute) and part.attr == "weight" for part in walk(given))
    if isinstance(parent, ast.Call) and parent.func is not node:
        return any(name.startswith(_INITIALISES) for name in program.callee_names(parent, scope))
    if not isinstance(parent, ast.Attribute):
        return isinstance(parent, ast.Subscript) and parent.value is node and _is_written(parents, parent)
    if parent.attr in ("requires_grad", "shape", "device", "dtype"):
        return True
    if parent.attr == "data":
        return _is_written(parents, parent)
    return _is_written(parents, node)


def _is_written(parents: Mapping[ast.AST, ast.AST], node: ast.AST) -> bool:
    """Whether a tensor is written into, or elements of it: ``w.normal_()``, ``w[0] = 0``, ``w[0].zero_()``."""
    parent = parents[node]
    while isinstance(parent, ast.Subscript) and parent.value is node:
        if isinstance(parent.ctx, ast.Store):
            return True
        node, parent = parent, parents[parent]
    is_method = isinstance(parent, ast.Attribute) and (parent.attr.endswith("_") or parent.attr in ("size", "numel"))
    if not is_method:
        return False
    call = parents[parent]
    return isinstance(call, ast.Call) and isinstance(parents[call], ast.Expr)


def _is_harmless(name: str) -> bool:
    return name in CONTAINERS or (name.startswith("builtins.") and name not in _TAKES_OUT)


def _taken(program: Program, scope: Scope, node: ast.AST) -> str | None:
    """A function of a library that a table is given to, which may do anything with its weight."""
    module: Module = scope.module
    parent = module.parents[node]
    call = module.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return None
    names = program.callee_names(call, scope)
    if program.flow.callees(call) or (names and all(map(_is_harmless, names))):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("append", "add_module", "register_module", "extend"):
        return None
    return f"`{module.text(call.func)}` is given a table, and what it does with the weight is not known"
