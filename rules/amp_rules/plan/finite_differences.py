"""Differences of two runs of one model at inputs that are a small step apart: ``model(x + step * noise) - model(x)``.

Differences of neighbours within one output, divided by the step of a grid, are alike.

Half rounds the inputs, all layers and the outputs by more than such a step changes them: what is left is noise. A step
is taken for small where the difference is divided, as a quotient of differences is, where nothing can differentiate the
outputs, so that the difference stands in for a gradient, or where it is scaled by a small number.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from amp_rules.plan.grid_derivatives import differentiated
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.statement_runs import StatementRun, merged, outermost
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import literal
from amp_rules.source.syntax import walk

_HELPERS = 2
"""Functions that hand outputs on to the one that subtracts them: a loss has a method for the quotient."""
_NAMES = 3
"""Variables between the input of a model and the sum that it is."""
_SAME_ELEMENTS = frozenset(
    "clone contiguous cpu cuda detach double flatten float reshape squeeze to unsqueeze view".split()
)
_SMALL = 1e-2
"""From here on steps of half, 5e-4 in fp16 and 4e-3 in bfloat16 near one, are a large part of a step."""
_PLAIN = frozenset({"inference_mode", "no_grad", "staticmethod"})


@dataclass
class Differences:
    """What stays in full precision for differences that are taken of it.

    Attributes:
        runs: statements.
        functions: functions as a whole, where what they are given may be half.
    """

    runs: list[StatementRun] = field(default_factory=list)
    functions: list[FunctionFacts] = field(default_factory=list)


@dataclass(frozen=True)
class _Pair:
    """Two runs of a model, and the difference of what they give.

    Attributes:
        one, other: the calls.
        steps: what is added to the input of one of them.
        site: where they stand.
        difference: the difference, where it stands in the same body.
    """

    one: ast.Call
    other: ast.Call
    steps: list[ast.expr]
    site: Site
    difference: ast.AST | None


def finite_differences(
    program: Program, regions: Sequence[StatementRun], full_precision: Sequence[StatementRun]
) -> Differences:
    """Find them within the regions."""
    found = Differences()
    sites = nodes_in(program, regions, full_precision)
    inside = {site.node for site in sites}
    for site in sites:
        base = differentiated(program, site)
        for call, where in _outputs(program, base, site, _HELPERS) if base is not None else ():
            if call in inside:
                difference = site.node if where.body is site.body else None
                _keep(program, _Pair(call, call, [], where, difference), regions, found)
        if not (isinstance(site.node, ast.BinOp) and isinstance(site.node.op, ast.Sub)):
            continue
        for pair in _pairs(program, site.node.left, site.node.right, site, _HELPERS, site.node):
            if pair.one in inside and pair.other in inside and _is_small(program, pair, site):
                _keep(program, pair, regions, found)
    held = {node for info in found.functions for node in walk(info.node)}
    runs = [run for run in merged(found.runs) if run.first not in held]
    found.runs = outermost(runs)
    return found


def _outputs(program: Program, node: ast.expr, site: Site, depth: int) -> Iterator[tuple[ast.Call, Site]]:
    """Yield the runs of models that a tensor is given by, here or where a caller gives it."""
    held = _behind(node)
    if held is None:
        return
    for call in _calls(program, held, site):
        yield call, site
    info = program.function_of(site.body)
    if info is None or depth == 0 or not isinstance(held, ast.Name) or held.id not in info.parameters:
        return
    for caller in program.flow.callers(info):
        given = info.argument(caller.call, held.id)
        if given is not None:
            yield from _outputs(program, given, calling(caller), depth - 1)


def _keep(program: Program, pair: _Pair, regions: Sequence[StatementRun], found: Differences) -> None:
    module = pair.site.module
    nodes = [pair.one, pair.other, *([pair.difference] if pair.difference is not None else [])]
    around = [run for run in regions if run.module is module and set(nodes) <= _own_nodes(run)]
    if around:
        run = _run(pair, nodes)
        if run is not None and set(run.statements()) <= _own_nodes(around[0]):
            found.runs.append(run)
        return
    info = program.function_of(pair.site.body)
    if info is not None and info not in found.functions and _can_be_decorated(info, regions):
        found.functions.append(info)


def _own_nodes(run: StatementRun) -> set[ast.AST]:
    return {node for item in run.statements() for node in blocks.walk_own(item)}


def _run(pair: _Pair, nodes: Sequence[ast.AST]) -> StatementRun | None:
    """The fewest statements of one suite that hold all of some nodes."""
    module = pair.site.module
    innermost = blocks.statement_of(module, nodes[0])
    for suite, _ in blocks.suites_around(module, innermost):
        holding = [item for item in suite if any(node in nodes for node in blocks.walk_own(item))]
        held = {node for item in holding for node in blocks.walk_own(item)}
        if held >= set(nodes):
            return StatementRun(module, holding[0], holding[-1])
    return None


def _can_be_decorated(info: FunctionFacts, regions: Sequence[StatementRun]) -> bool:
    """Whether a function may be run in float32 as a whole: one that a region calls, and that holds none itself."""
    node = info.node
    if not isinstance(node, ast.FunctionDef) or info.is_generator or info.is_property:
        return False
    own = set(walk(node))
    plain = all(name.rpartition(".")[2] in _PLAIN for name, _ in info.decorators)
    return plain and not any(run.first in own for run in regions)


# ---- two runs of a model -----------------------------------------------------------------------------------------


def _pairs(
    program: Program, left: ast.expr, right: ast.expr, site: Site, depth: int, difference: ast.AST | None
) -> Iterator[_Pair]:
    """Yield the runs of a model that two expressions hold, here or where a caller gives them."""
    one, other = _behind(left), _behind(right)
    if one is None or other is None:
        return
    for call in _calls(program, one, site):
        for second in _calls(program, other, site):
            apart = _Apart(program, site)
            if call is not second and apart.are_given(call, second, _NAMES):
                yield _Pair(call, second, apart.steps, site, difference)
    info = program.function_of(site.body)
    names = [item.id for item in (one, other) if isinstance(item, ast.Name)]
    if info is None or depth == 0 or len(names) != 2 or not set(names) <= set(info.parameters):
        return
    for caller in program.flow.callers(info):
        given = [info.argument(caller.call, name) for name in names]
        if given[0] is not None and given[1] is not None:
            yield from _pairs(program, given[0], given[1], calling(caller), depth - 1, None)


def _behind(node: ast.expr) -> ast.expr | None:
    """``model(x)`` of ``model(x).squeeze()`` and ``model(x)[:, 0]``."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_ELEMENTS:
            node = node.func.value
        else:
            return node if isinstance(node, (ast.Name, ast.Call)) else None


def _calls(program: Program, node: ast.expr, site: Site) -> Iterator[ast.Call]:
    """The runs of a model that an expression, or a variable of the same body, holds."""
    values = _assigned(program, node.id, site) if isinstance(node, ast.Name) else [node]
    for value in values:
        call = _behind(value) if value is not None else None
        if isinstance(call, ast.Call) and _runs_layers(program, call, site):
            yield call


def _runs_layers(program: Program, call: ast.Call, site: Site) -> bool:
    """Whether a call runs a model, and not only functions of ``torch.nn``, which autocast rounds nothing for."""
    if program.called_models(call, site.scope):
        return True
    return any(
        isinstance(node, ast.Call) and program.called_models(node, program.flow.scopes[body])
        for body in program.called_from([call])
        for node in program.nodes_of(body)
    )


def _assigned(program: Program, name: str, site: Site) -> list[ast.expr | None]:
    """What a variable is assigned in a body; None for what is no plain assignment."""
    found: list[ast.expr | None] = []
    for node in program.nodes_of(site.body):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            parent = site.module.parents.get(node)
            target: ast.AST = node
            if isinstance(parent, ast.Tuple):
                target, parent = parent, site.module.parents.get(parent)
            found.append(parent.value if isinstance(parent, ast.Assign) and target in parent.targets else None)
    return found


class _Apart:
    """Compares two inputs.

    Attributes:
        steps: what is added to one of them.
    """

    def __init__(self, program: Program, site: Site) -> None:
        self._program, self._site = program, site
        self.steps: list[ast.expr] = []

    def are(self, one: ast.expr, other: ast.expr, depth: int = _NAMES) -> bool | None:
        """Whether one is a step from the other; False where they are the same, None where it is not known."""
        if ast.dump(one) == ast.dump(other):
            return False
        if self._is_step(one, other) or self._is_step(other, one) or self._are_both_steps(one, other):
            return True
        if isinstance(one, ast.Call) and isinstance(other, ast.Call):
            return self.are_given(one, other, depth)
        if depth:
            plain = self._value(one), self._value(other)
            if plain[0] is not None and (found := self.are(plain[0], other, depth - 1)) is not None:
                return found
            if plain[1] is not None and (found := self.are(one, plain[1], depth - 1)) is not None:
                return found
            if plain[0] is not None and plain[1] is not None:
                return self.are(plain[0], plain[1], depth - 1)
        return None

    def are_given(self, one: ast.Call, other: ast.Call, depth: int) -> bool | None:
        """Whether two calls run the same, and one argument of one is a step from that of the other."""
        if ast.dump(one.func) != ast.dump(other.func) or len(one.args) != len(other.args):
            return None
        if [ast.dump(item) for item in one.keywords] != [ast.dump(item) for item in other.keywords]:
            return None
        apart = [self.are(a, b, depth) for a, b in zip(one.args, other.args, strict=True)]
        return None if None in apart or apart.count(True) > 1 else True in apart

    def _value(self, node: ast.expr) -> ast.expr | None:
        """What a variable holds that is assigned once, or the same in several loops."""
        found = _assigned(self._program, node.id, self._site) if isinstance(node, ast.Name) else []
        if not found or None in found or len({ast.dump(item) for item in found if item is not None}) > 1:
            return None
        return found[0]

    def _is_step(self, base: ast.expr, moved: ast.expr) -> bool:
        """``x`` and ``x + step``."""
        if not (isinstance(moved, ast.BinOp) and isinstance(moved.op, (ast.Add, ast.Sub))):
            return False
        if ast.dump(moved.left) == ast.dump(base):
            self.steps.append(moved.right)
            return True
        if isinstance(moved.op, ast.Add) and ast.dump(moved.right) == ast.dump(base):
            self.steps.append(moved.left)
            return True
        return False

    def _are_both_steps(self, one: ast.expr, other: ast.expr) -> bool:
        """``x + step`` and ``x - step``."""
        if not (isinstance(one, ast.BinOp) and isinstance(other, ast.BinOp)):
            return False
        signs = {type(one.op), type(other.op)}
        same = ast.dump(one.left) == ast.dump(other.left) and ast.dump(one.right) == ast.dump(other.right)
        if same and signs == {ast.Add, ast.Sub}:
            self.steps.append(one.right)
            return True
        return False


# ---- small steps -------------------------------------------------------------------------------------------------


def _is_small(program: Program, pair: _Pair, difference: Site) -> bool:
    if all(program.is_without_gradients(call) for call in (pair.one, pair.other)):
        return True
    if _is_divided(program, difference):
        return True
    return any(_has_small_number(program, step, pair.site) for step in pair.steps)


def _is_divided(program: Program, site: Site) -> bool:
    """``(f(x + step) - f(x)) / step``, at once or through a variable."""
    parent = site.module.parents.get(site.node)
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.Div) and parent.left is site.node and not _is_large(parent.right)
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name)):
        return False
    name = parent.targets[0].id
    for node in program.nodes_of(site.body):
        divided, by = None, None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            divided, by = node.left, node.right
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            divided, by = node.target, node.value
        if isinstance(divided, ast.Name) and divided.id == name and by is not None and not _is_large(by):
            return True
    return False


def _is_large(node: ast.expr) -> bool:
    """A number that makes the difference smaller: ``/ 2``."""
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and abs(node.value) >= 1


def _has_small_number(program: Program, step: ast.expr, site: Site) -> bool:
    """``1e-3 * noise``, where the number is written or is a variable of the same body."""
    for part in walk(step):
        values: list[ast.expr | None] = [part] if isinstance(part, ast.Constant) else []
        if isinstance(part, ast.Name):
            values = _assigned(program, part.id, site)
        number = literal(values[0]) if len(values) == 1 else None
        if isinstance(number, float) and 0 < number <= _SMALL:
            return True
    return False
