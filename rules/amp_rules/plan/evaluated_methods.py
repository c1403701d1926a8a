"""Evaluations by what no prepared model casts back: methods of a model, parts of it, and frozen networks before it.

A method gets a region where it is known what it gives: nothing that is half, or one tensor, which is made float32
again. What only the statements of a region read is computed in that region, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.lattice.half_precision import fate
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.operation_names import function_named
from amp_rules.plan.method_results import MethodResults, Result
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.plan.model_parts import has_weights
from amp_rules.plan.unprepared import holds_another
from amp_rules.roles.evaluation_regions import EvaluationRegions, only_prepares
from amp_rules.roles.kinds import is_without_parameters
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.roles.statement_runs import StatementRun
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.devices import MOVING

_HALF = Mode("O1", "fp16")
_MAX_REGIONS = 2
"""Regions in one method: an evaluation that is a method has one, or one each for two inputs."""
_FORWARD = frozenset({"forward", "__call__"})
_OF_ANY_TYPE = frozenset({"float", "double", "argmax", "argmin", "argsort", "shape", "size", "numel", "long", "int"})
"""Attributes of a tensor that are the same whatever type it has, or make it one that is not half."""
_PRODUCTS = frozenset(
    {"matmul", "mm", "bmm", "mv", "einsum", "dot", "inner", "tensordot", "linear", "addmm", "baddbmm"}
)


class EvaluatedMethods:
    """The regions that evaluations by methods get.

    Args:
        program: the program.
        training: the regions of the training steps.
        runs: all regions that there are without these.
        full_precision: what must not run in a region.
        homes: where models are prepared.

    Attributes:
        found: the regions that come to ``runs``, and those of ``runs`` that begin earlier now.
        widened: the calls whose results are to be made float32.
        left: the calls that stay in full precision, because what they give is not known.
    """

    def __init__(
        self,
        program: Program,
        training: list[StatementRun],
        runs: list[StatementRun],
        full_precision: list[StatementRun],
        homes: list[Home],
    ) -> None:
        self._program = program
        self._homes = homes
        self._regions = EvaluationRegions(program)  # what such a region gives needs no longer one
        self._results = MethodResults(program)
        self._training = {node for run in training for item in run.statements() for node in walk(item)}
        self._covered = self._training | {node for run in runs for item in run.statements() for node in walk(item)}
        self._apart = {node for run in full_precision for item in run.statements() for node in walk(item)}
        self._apart |= {blocks.body_of(run.module, run.first) for run in full_precision} | set(program.looks.bodies)
        self._prepared = set(Homes(program).roots())
        self.widened: list[Site] = []
        self.left: list[Site] = []
        starts = {run.first for run in training}
        self.found = [run if run.first in starts else self._from_its_inputs(run) for run in runs]
        for run in self.found:
            self._covered.update(node for item in run.statements() for node in walk(item))
        inside = program.called_from(self._covered)
        for site in self._sites(inside, in_models=False):
            if site.node not in self._covered and site.body not in inside:
                inside |= self._take(site, inside)
                if site.node not in self._covered:
                    self.left.append(site)
        for sites in self._by_body(inside):
            inside |= self._take_all(sites, inside)
        begun = {blocks.body_of(run.module, run.first) for run in self.found}
        ran = {site.node: program.called_from([site.node]) for site in self.left if site.node not in self._covered}
        self.left = [
            site
            for site in self.left
            if site.node in ran
            and begun.isdisjoint(ran[site.node])
            and not any(site.body in bodies for bodies in ran.values())
        ]

    def _by_body(self, inside: set[ast.AST]) -> list[list[Site]]:
        """The calls that stand in methods of models which are no part of a forward pass, by the method."""
        found: dict[ast.AST, list[Site]] = {}
        for site in self._sites(inside, in_models=True):
            found.setdefault(site.body, []).append(site)
        return list(found.values())

    def _take_all(self, sites: list[Site], inside: set[ast.AST]) -> set[ast.AST]:
        """Find the regions of a method's calls; none where one of them stays outside, or they are many.

        A sampler that goes through the layers of its model by itself is left as a whole.
        """
        before = len(self.found), len(self.widened), set(self._covered)
        ran: set[ast.AST] = set()
        for site in sites:
            if site.node not in self._covered:
                ran |= self._take(site, inside | ran)
        if all(site.node in self._covered for site in sites) and len(self.found) - before[0] <= _MAX_REGIONS:
            return ran
        self._covered = before[2]
        del self.found[before[0] :], self.widened[before[1] :]
        self.left += sites
        return set()

    def _take(self, site: Site, inside: set[ast.AST]) -> set[ast.AST]:
        """Find the region of a call; give the functions that run in it."""
        result = self._result(site)
        run = self._regions.evaluation_run(site, inside) if result is not None else None
        if run is not None and self._is_covered(run) and isinstance(site.statement, ast.Assign):
            # It goes on to a region that is there: what only gives that its input has one of its own above it.
            run = StatementRun(site.module, site.statement, site.statement)
        if run is None or self._is_covered(run):
            return set()
        if any(map(_multiplies, run.statements())):
            return set()  # what was made float32 would be rounded again
        nodes = {node for item in run.statements() for node in walk(item)}
        others = [(other, self._result(other)) for other in self._sites_in(nodes, site)]
        if any(given is None for _, given in others):
            return set()
        self.found.append(run)
        self._covered |= nodes
        for item, given in [(site, result), *others]:
            if given == "half" and not self._is_dropped(item) and not self._is_used_in(item, run):
                self.widened.append(item)
        return self._program.called_from(nodes)

    def _is_covered(self, run: StatementRun) -> bool:
        return any(node in self._covered for item in run.statements() for node in walk(item))

    def _sites_in(self, nodes: set[ast.AST], site: Site) -> Iterator[Site]:
        for node in nodes:
            if isinstance(node, ast.Call) and node is not site.node:
                if self._is_of_model(node, site.scope):
                    yield Site(site.module, site.scope, site.body, node)

    def _result(self, site: Site) -> Result | None:
        call = site.node
        assert isinstance(call, ast.Call)
        return self._results.of(call, site.scope)

    def _sites(self, inside: set[ast.AST], *, in_models: bool) -> Iterator[Site]:
        """Yield the calls of methods and parts of models that stand in no region."""
        for call, body, scope in self._program.calls():
            if call in self._covered or body in inside or isinstance(body, ast.Lambda) or self._is_idle(scope, body):
                continue
            if body in uncalled(self._program):
                continue  # for other scripts, which start no runtime
            if call in self._apart or not self._apart.isdisjoint({body, *self._program.called_from([call])}):
                continue
            if self._program.is_model_code(body) is not in_models or (in_models and not self._is_called_alone(body)):
                continue
            if self._is_of_model(call, scope):
                yield Site(scope.module, scope, body, call)

    def _is_idle(self, scope: Scope, body: ast.AST) -> bool:
        """Whether a call stands in a function that nothing calls, or in one within."""
        idle = uncalled(self._program)
        return bool(idle) and (body in idle or not idle.isdisjoint(scope.module.ancestors(body)))

    def _is_of_model(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call computes with a method or a part of a model that is trained, or of one that is frozen."""
        if not isinstance(call.func, (ast.Attribute, ast.Name)) or not self._program.runs_model(call):
            return False
        called = self._program.called_models(call, scope)
        if called:
            return not all(map(is_without_parameters, called)) and self._program.forwards(call, scope)
        if not isinstance(call.func, ast.Attribute) or blocks.path_of(call.func.value) is None:
            return False  # ``model(x).detach()`` is a method of a tensor
        owners = self._program.roles.modules(call.func.value, scope)
        if not owners or all(map(is_without_parameters, owners)):
            return False
        # A network that only measures, as for the distance of two sets of images, keeps its precision.
        return any(map(self._program.is_trained, owners)) or not owners.isdisjoint(self._beside_training)

    def _is_called_alone(self, body: ast.AST) -> bool:
        """Whether a method of a model is no part of a forward pass: only what is no model calls it."""
        info = self._program.function_of(body)
        if info is None or info.name in _FORWARD:
            return False
        callers = self._program.flow.callers(info)
        return bool(callers) and all(
            caller.call not in self._covered and not self._program.is_model_code(caller.scope.node)
            for caller in callers
        )

    def _is_dropped(self, site: Site) -> bool:
        """Whether nothing sees the type of what a call gives, or a prepared model makes it float32 itself."""
        call = site.node
        assert isinstance(call, ast.Call)
        called = self._program.called_models(call, site.scope)
        is_prepared = bool(called) and called <= self._prepared and not _is_by_name(call)
        if is_prepared and not holds_another(self._program, self._homes, site.module, call):
            return True
        parent = site.module.parents.get(site.node)
        if isinstance(parent, ast.Attribute):
            return parent.attr in _OF_ANY_TYPE
        return isinstance(parent, ast.Expr)

    def _is_used_in(self, site: Site, run: StatementRun) -> bool:
        """Whether a call gives what a region alone uses: another model, or an operation that computes in FP32."""
        parent = site.module.parents.get(site.node)
        if isinstance(parent, ast.Call) and site.node in parent.args:
            names = self._program.callee_names(parent, site.scope)
            if any(fate(function_named(name) or name, _HALF, autocast=True) == "float32" for name in names):
                return True
            return bool(self._program.called_models(parent, site.scope))
        statement = site.statement
        return isinstance(parent, ast.Assign) and parent is statement and self._is_read_within(statement, run)

    # ---- what a region is given ----------------------------------------------------------------------------

    def _from_its_inputs(self, run: StatementRun) -> StatementRun:
        """The region from the statements right above it on that compute what it alone reads, over views of that."""
        where = blocks.place(run.module, run.first)
        first: ast.stmt = run.first
        for above in reversed(where.suite[: where.index]):
            longer = StatementRun(run.module, above, run.last)
            if self._is_input(above, longer):
                first = above
            elif not _moves(above) and not (only_prepares(above) and self._is_read_within(above, longer)):
                break
        return run if first is run.first else StatementRun(run.module, first, run.last)

    def _is_input(self, statement: ast.stmt, run: StatementRun) -> bool:
        if not isinstance(statement, ast.Assign) or statement in self._covered or self._regions.ends(statement):
            return False
        located = self._program.locate(statement)
        if located is None or not any(
            isinstance(node, ast.Call) and self._gives_input(node, located[1]) for node in blocks.walk_own(statement)
        ):
            return False
        return self._is_read_within(statement, run)

    def _is_read_within(self, statement: ast.stmt, run: StatementRun) -> bool:
        """Whether what a statement writes is read in a region alone."""
        located = self._program.locate(statement)
        names = blocks.writes(statement)
        if located is None or not names or not all(name.isidentifier() for name in names):
            return False
        inner = {node for item in run.statements() for node in walk(item)}
        reads = [
            node
            for node in blocks.walk_body(located[0])
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
            if not _reads_another(located[1].module, node, statement)
        ]
        return bool(reads) and all(node in inner for node in reads)

    def _gives_input(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call is of a method of a model, or of a frozen network that gives the training step its inputs."""
        called = self._program.called_models(call, scope)
        if not called:
            return self._is_of_model(call, scope)
        if any(map(self._program.is_trained, called)) or not all(has_weights(self._program, item) for item in called):
            return False
        return bool(called & self._frozen_in_training)

    @cached_property
    def _beside_training(self) -> set[Value]:
        """The networks that the functions use which train, by their forward passes or by other methods."""
        bodies = {located[0] for node in self._training if (located := self._program.locate(node)) is not None}
        found: set[Value] = set()
        for body in bodies:
            for node in self._program.nodes_of(body):
                located = self._program.locate(node) if isinstance(node, ast.Call) else None
                if located is not None and isinstance(node, ast.Call):
                    found |= self._program.called_models(node, located[1])
                    if isinstance(node.func, ast.Attribute):
                        found |= self._program.roles.modules(node.func.value, located[1])
        return found

    @cached_property
    def _frozen_in_training(self) -> set[Value]:
        found: set[Value] = set()
        for node in self._training:
            located = self._program.locate(node) if isinstance(node, ast.Call) else None
            if located is not None and isinstance(node, ast.Call):
                found |= self._program.called_models(node, located[1])
        return found


def _moves(statement: ast.stmt) -> bool:
    """``labels = labels.to(device)``."""
    call = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in MOVING
        and isinstance(call.func.value, ast.Name)
        and blocks.path_of(statement.targets[0]) == call.func.value.id  # type: ignore[attr-defined]
    )


def _reads_another(module: Module, read: ast.Name, statement: ast.stmt) -> bool:
    """Whether a variable is read above the statement that gives it anew: no round of a loop brings that value there."""
    if read.lineno >= statement.lineno:
        return False
    loops = [item for item in blocks.enclosing(module, statement) if isinstance(item, blocks.LOOPS)]
    if not loops:
        return True
    # The head of the nearest loop gives the variable a value in each round.
    head = loops[0].target if isinstance(loops[0], (ast.For, ast.AsyncFor)) else None
    is_given = head is not None and any(isinstance(item, ast.Name) and item.id == read.id for item in walk(head))
    return is_given and (len(loops) == 1 or loops[0] in blocks.enclosing(module, read))


def _is_by_name(call: ast.Call) -> bool:
    """``model.forward(x)``, which runs no hooks of the model."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "forward"


def _multiplies(statement: ast.stmt) -> bool:
    """Whether a statement multiplies matrices itself."""
    for node in walk(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _PRODUCTS:
            return True
    return False
