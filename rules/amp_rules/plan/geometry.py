"""Losses that compute where pixels lie: regions end before them, since half has too few digits for a place.

A coordinate of 400 has steps of 2 in bfloat16 and of 0.25 in float16, so an image that is sampled there is another one.
What the matrix products of cameras and poses give is as exact as their operands; the outputs of prepared models are
FP32, and outside of a region so is all that is made of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.lattice.operation_names import function_named
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_parts import has_weights, trained_classes
from amp_rules.roles.program import Program
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk

Ends = Callable[[Program, ast.stmt], bool]
"""Whether a region ends before a statement."""

_PRODUCTS = frozenset({"matmul", "mm", "bmm", "baddbmm", "einsum", "mv"})
_SAMPLES = "grid_sample"
_PLACES = frozenset({_SAMPLES, "meshgrid", "inverse", "inv"})
"""What is done with places: images are sampled at them, grids made of them, and cameras inverted."""


def before_geometry(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions, those that end in such a loss without it, where all that goes out of them is FP32."""
    return _cut(program, runs, _computes_places)


def before_products(program: Program, runs: Iterable[StatementRun]) -> list[StatementRun]:
    """The regions, those that end in a loss of its own that multiplies matrices without it, where that is FP32 then."""
    return _cut(program, runs, _multiplies)


def _cut(program: Program, runs: Iterable[StatementRun], ends: Ends) -> list[StatementRun]:
    return [
        run if (last := _last(program, run, ends)) is None else StatementRun(run.module, run.first, last)
        for run in runs
    ]


def beside_models(program: Program, runs: Iterable[StatementRun]) -> set[ast.AST]:
    """The functions that regions run beside the trained models, where they sample images at places that they compute.

    The products of cameras, poses and points in them go from one to the next, through layers without weights.
    """
    trained = trained_classes(program)
    found: set[ast.AST] = set()
    for run in runs:
        for statement in run.statements():
            operations = operations_in(program, statement)
            if _SAMPLES in operations and not operations.isdisjoint(_PRODUCTS):
                found |= program.called_from(walk(statement))
    return {
        body for body in found if (owner := program.owner_of(body)) not in trained or _is_weightless(program, owner)
    }


def _is_weightless(program: Program, owner: ClassInfo | None) -> bool:
    """Whether a class has layers of no weights: a trained model may keep one that the loss uses, too."""
    return owner is not None and not has_weights(program, Value("instance", owner))


def reasons_in_torch(program: Program, runs: Iterable[StatementRun]) -> Iterator[Declined]:
    """Yield such losses for plain torch, where nothing makes the outputs of models FP32."""
    for run in runs:
        for statement in run.statements():
            if _last(program, run, _computes_places) is not None and _computes_places(program, statement):
                yield declining.decline(
                    declining.NOT_IN_TORCH,
                    run.module,
                    statement,
                    f"`{run.module.text(statement)}` computes pixel positions, for which half precision has too few "
                    "digits, and plain torch gives it model outputs in half precision",
                    "take --target runtime, whose models give FP32; or write the region around the models alone, and "
                    "`.float()` after each of their outputs",
                )
                break


def _last(program: Program, run: StatementRun, ends: Ends) -> ast.stmt | None:
    """The statement before the first one that a region is to end before; None where the region stays as it is."""
    statements = run.statements()
    for index, statement in enumerate(statements):
        if ends(program, statement):
            rest = statements[index:]
            if not index or any(map(program.runs_forward, rest)):
                return None
            return statements[index - 1] if _gives_float32(program, statements[:index]) else None
    return None


def _computes_places(program: Program, statement: ast.stmt) -> bool:
    """Whether a statement, with what it calls, multiplies matrices and does something with places."""
    if program.runs_forward(statement):
        return False
    found = operations_in(program, statement)
    return not found.isdisjoint(_PRODUCTS) and not found.isdisjoint(_PLACES)


def _multiplies(program: Program, statement: ast.stmt) -> bool:
    """Whether a statement, with what it calls, multiplies matrices beside the models."""
    return not program.runs_forward(statement) and not operations_in(program, statement).isdisjoint(_PRODUCTS)


def operations_in(program: Program, statement: ast.stmt) -> set[str]:
    """The operations of torch that a statement may run, with what it calls."""
    found: set[str] = set()
    for node, scope in _run_by(program, statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            found.add("matmul")
        elif isinstance(node, ast.Call):
            found.update(_operations(program, node, scope))
    return found


def _run_by(program: Program, statement: ast.stmt) -> Iterator[tuple[ast.AST, Scope]]:
    located = program.locate(statement)
    if located is not None:
        yield from ((node, located[1]) for node in walk(statement))
    for body in program.called_from(walk(statement)):
        scope = program.flow.scopes.get(body)
        if scope is not None:
            yield from ((node, scope) for node in program.nodes_of(body))


def _operations(program: Program, call: ast.Call, scope: Scope) -> Iterator[str]:
    """The operations that a call may be: torch's functions, and methods of tensors of these names."""
    names = program.callee_names(call, scope)
    yield from filter(None, map(function_named, names))
    if not names and isinstance(call.func, ast.Attribute) and not program.flow.callees(call):
        yield call.func.attr


def _gives_float32(program: Program, statements: list[ast.stmt]) -> bool:
    """Whether nothing is half after some statements: they call prepared models, and compute by element besides."""
    for statement in statements:
        located = program.locate(statement)
        if located is None:
            return False
        for node in walk(statement):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                return False
            if isinstance(node, ast.Call) and not _keeps_float32(program, node, located[1]):
                return False
    return True


def _keeps_float32(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call gives FP32 of FP32 under autocast: one of a whole trained model does, whose outputs are cast."""
    called = program.called_models(call, scope)
    if called:
        is_part = isinstance(call.func, ast.Attribute) and bool(program.roles.modules(call.func.value, scope))
        return not is_part and all(program.is_trained(value) for value in called)
    # What a function of a library is given is a call of its own.
    runs_model = bool(program.flow.callees(call)) and program.runs_model(call)
    return not runs_model and _PRODUCTS.isdisjoint(_operations(program, call, scope))
