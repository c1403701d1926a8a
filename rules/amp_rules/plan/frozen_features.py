"""What methods of models compute outside of all regions, in FP32 as before: features of frozen networks, evaluations.

No prepared model casts back what such a method gives, and without gradients nothing tells where it goes besides.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from amp_rules.plan.notes import IN_FULL_PRECISION, note
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Note
from amp_rules.roles.evaluation_regions import asks_for_shape, is_dropped, is_for_shapes
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.wrappers import OF_DISTRIBUTED_DATA_PARALLEL

_FORWARD = frozenset({"forward", "__call__"})


def notes(program: Program, precision: Precision) -> Iterator[Note]:
    """Yield one for each such call whose result a loss of the same function is computed from."""
    covered = {node for run in precision.runs for item in run.statements() for node in walk(item)}
    told: set[ast.AST] = set()
    read: defaultdict[ast.AST, set[str]] = defaultdict(set)
    for run in precision.training:
        body = blocks.body_of(run.module, run.first)
        read[body] |= {path for item in run.statements() for path in blocks.reads(item)}
    for call, body, scope in program.calls():
        if body not in read or call in covered or not _gives_features(program, call, scope):
            continue
        statement = blocks.statement_of(scope.module, call)
        if isinstance(statement, ast.Assign) and blocks.touches(blocks.writes(statement), read[body]):
            text = (
                f"`{scope.module.text(call)}` runs in full precision: it computes without gradients, by a method, "
                "and nothing casts back what a method gives; where its time matters, put it under autocast and make "
                "its result float32 again"
            )
            told.add(call)
            yield note(IN_FULL_PRECISION, scope.module, call, text)
    yield from _evaluations(program, precision, told)


def _evaluations(program: Program, precision: Precision, told: set[ast.AST]) -> Iterator[Note]:
    """Yield one for each method or part of a model that evaluates outside of all regions, by its name."""
    names = {last_name(call.func) for call in told if isinstance(call, ast.Call)}
    for site in precision.left:
        call = site.node
        assert isinstance(call, ast.Call)
        name = last_name(call.func)
        if _is_of_wrapper(program, call) or _is_in_constructor(program, site):
            continue
        if name in names or is_dropped(site) or is_for_shapes(site) or asks_for_shape(site.module, call):
            continue
        names.add(name)
        text = (
            f"`{site.module.text(call)}` runs in full precision: no loss is differentiated through it, and what a "
            "method, a part or a model that is not prepared gives stays half; where its time matters, put it under "
            "autocast and make its result float32 again"
        )
        yield note(IN_FULL_PRECISION, site.module, call, text)


def _is_of_wrapper(program: Program, call: ast.Call) -> bool:
    """Whether a method is one that a wrapper for several processes has itself: ``with model.join():``."""
    func = call.func
    is_named = isinstance(func, ast.Attribute) and func.attr in OF_DISTRIBUTED_DATA_PARALLEL - _FORWARD
    return is_named and not program.flow.callees(call)


def _is_in_constructor(program: Program, site: Site) -> bool:
    """Whether a constructor calls a method of its own object, which makes layers: ``self.stack = self._made(3)``."""
    info = program.function_of(site.body)
    if info is None or info.name != "__init__":
        return False
    func = site.node.func if isinstance(site.node, ast.Call) else None
    return isinstance(func, ast.Attribute) and blocks.path_of(func.value) == info.receiver


def _gives_features(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call is of a method of a model that no optimizer trains as a whole, without gradients."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr in _FORWARD or not program.is_without_gradients(call):
        return False
    models = program.roles.modules(func.value, scope)
    trained = {value.ref for value in program.trained}
    return bool(models) and not any(model.ref in trained for model in models) and program.runs_model(call)
