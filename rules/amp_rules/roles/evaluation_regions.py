"""The statements that evaluate a model, and those that compute what is differentiated by hand."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cached_property

from amp_rules.roles.evaluation_losses import losses_of_methods
from amp_rules.roles.kinds import is_module, is_without_parameters
from amp_rules.roles.prepared_models import PreparedModels
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.roles.statement_runs import StatementRun, merged, outermost
from amp_rules.roles.uncalled import uncalled
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.functions import OTHER_SHAPE
from amp_rules.torch.models import FORWARD_HOOKS

_MAX_CALLERS = 4
"""Callers of callers in which a place outside of a region is looked for, as deep as trainers go; beyond that the place
stays as it is, and is evaluated in full precision."""


_SHAPE_QUESTIONS = frozenset({"shape", "size", "ndim", "dim", "numel"})

_AS_IT_IS = OTHER_SHAPE - _SHAPE_QUESTIONS
"""Methods after which the numbers of a tensor are the same, in another shape or place."""


class EvaluationRegions:
    """Where autocast belongs besides the training step, and where it must be off.

    Args:
        program: the program.
        over_losses: whether a region goes on to a loss a few lines below, over what prepares its arguments: outside of
            the region it would be computed in half, where nothing makes the outputs of models float32.
    """

    def __init__(self, program: Program, *, over_losses: bool = False) -> None:
        self.program = program
        self._over_losses = over_losses
        self._losses: set[ast.AST] = set()

    def ends(self, node: ast.AST) -> bool:
        """Whether no region goes on over a node: it runs a backward pass, or a step."""
        return self.program.runs_backward(node) or self.program.runs_step(node) or self.program.runs_look(node)

    def with_evaluation(self, runs: list[StatementRun]) -> list[StatementRun]:
        """Add runs for the other places that call a trained model."""
        found = list(runs)
        self._losses = self._called_by(run.last for run in runs)
        covered = {node for run in runs for item in run.statements() for node in walk(item)}
        inside = self.program.called_from(covered)
        prepared = PreparedModels(self.program)
        idle = uncalled(self.program)
        for call, body, scope in self.program.calls():
            if call in covered or isinstance(body, ast.Lambda) or self.program.is_model_code(body) or body in idle:
                continue
            if not any(self.program.is_trained(value) for value in self.program.called_models(call, scope)):
                if not self._takes_output(call, body, scope) and not prepared.is_called(call, scope):
                    continue
            for site in self._outside(Site(scope.module, scope, body, call), inside, covered, 0, call.func):
                if site.body in self.program.looks.bodies:
                    continue  # gradients that are not scaled come from what is computed there
                run = self.evaluation_run(site, inside)
                if run is None or any(node in covered for node in run.statements()):
                    continue
                found.append(run)
                covered |= {node for item in run.statements() for node in walk(item)}
        found += losses_of_methods(self.program, found[len(runs) :], covered, inside)
        return merged(outermost(found))

    def _takes_output(self, call: ast.Call, body: ast.AST, scope: Scope) -> bool:
        """Whether a method of a trained model is given what another one computed, which may be half there.

        One that is given data alone runs in FP32 outside of regions: what it gives is not cast back.
        """
        if self.program.called_models(call, scope) or not self.program.forwards(call, scope):
            return False
        if self.program.runs_part_of_unseen(call, scope):
            return False  # so does all that leads to it
        wanted = {path for item in [*call.args, *(word.value for word in call.keywords)] for path in blocks.reads(item)}
        before = [
            node
            for node in self.program.nodes_of(body)
            if isinstance(node, ast.Assign) and node.lineno < call.lineno and blocks.body_of(scope.module, node) is body
        ]
        for node in reversed(before):
            written = blocks.writes(node)
            if blocks.touches(written, wanted):
                if isinstance(node.value, ast.Call) and self.program.forwards(node.value, scope):
                    return True
                wanted = (wanted - written) | blocks.reads(node.value)
        return False

    def _outside(
        self, site: Site, inside: set[ast.AST], covered: set[ast.AST], depth: int, model: ast.expr | None = None
    ) -> Iterable[Site]:
        """The site, or its callers outside of regions when its function also runs within one.

        Args:
            site: what calls the model, or leads to a call.
            inside: the functions that run in regions.
            covered: the nodes of regions.
            depth: how many callers lie between.
            model: what the site calls or gives on as the model.
        """
        if site.body not in inside:
            return [site]
        info = self.program.function_of(site.body)
        if info is None or depth > _MAX_CALLERS:
            return []
        name = _parameter_in(info, model)
        found: list[Site] = []
        for caller in self.program.flow.callers(info):
            outer = calling(caller)
            if caller.call not in covered and not self.program.is_model_code(outer.body):
                given = _given(info, caller.call, name, model)
                if given is None or self._may_be_trained(given, caller.scope, outer.body):
                    found.extend(self._outside(outer, inside, covered, depth + 1, given))
        return found

    def _may_be_trained(self, given: ast.expr, scope: Scope, body: ast.AST, depth: int = 0) -> bool:
        """Whether a call may give on a model that is trained: no copy that nothing prepares, and somebody gives it."""
        if isinstance(given, ast.Constant):
            return False
        values = self.program.flow.values(given, scope)
        if any(map(self.program.is_trained, values)):
            return True
        info = self.program.function_of(body)
        name = _parameter_in(info, given) if info is not None else None
        if info is None or name is None or depth > _MAX_CALLERS:
            return not values or not all(map(is_module, values))
        callers = self.program.flow.callers(info)
        arguments = [(caller, _argument(info, caller.call, name)) for caller in callers]
        return any(
            argument is None or self._may_be_trained(argument, caller.scope, calling(caller).body, depth + 1)
            for caller, argument in arguments
        )

    def evaluation_run(self, site: Site, inside: set[ast.AST]) -> StatementRun | None:
        """The statement that calls a model and those right after it that compute with its output.

        Args:
            site: the call.
            inside: the functions that run in other regions, losses of training among them.
        """
        statement = site.statement
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)):
            return None
        if self.ends(statement) or self._is_for_hooks(site) or is_for_shapes(site):
            return None
        if isinstance(site.node, ast.expr) and asks_for_shape(site.module, site.node):
            return None
        where = blocks.place(site.module, statement)
        last: ast.stmt = statement
        tainted = blocks.writes(statement)
        for following in where.suite[where.index + 1 :]:
            if self.ends(following):
                break
            if not isinstance(following, (ast.Assign, ast.AugAssign)) or not self._computes(following, inside):
                # One region holds other views on the way to a loss, too, as it does in the training step.
                if only_prepares(following) and (self._over_losses or not _multiplies(following)):
                    if blocks.touches(blocks.reads(following), tainted):
                        tainted |= blocks.writes(following)
                    continue
                break
            is_another = self._over_losses and self.program.runs_forward(following)
            if not is_another and not blocks.touches(blocks.reads(following), tainted):
                break
            tainted |= blocks.writes(following)
            last = following
        return StatementRun(site.module, statement, last)

    def _computes(self, statement: ast.stmt, inside: set[ast.AST]) -> bool:
        """Whether a statement computes with a model or, where regions go on to losses, as training does."""
        if self.program.runs_model(statement):
            return True
        if self._over_losses:
            return not inside.isdisjoint(self.program.called_from(walk(statement)))
        return not self._losses.isdisjoint(self._called_by([statement]))

    def _called_by(self, statements: Iterable[ast.stmt]) -> set[ast.AST]:
        """The functions that statements call themselves."""
        calls = (node for item in statements for node in walk(item) if isinstance(node, ast.Call))
        return {info.node for call in calls for info in self.program.flow.callees(call)}

    @cached_property
    def _runs_weights(self) -> Callable[[ast.AST], bool]:
        """Whether running a node runs a trained model or a part with parameters: not the loss that the model keeps."""

        def direct(node: ast.AST) -> bool:
            located = self.program.locate(node) if isinstance(node, ast.Call) else None
            if located is None or not isinstance(node, ast.Call) or not self.program.forwards(node, located[1]):
                return False
            called = self.program.called_models(node, located[1])
            return not called or not all(map(is_without_parameters, called))

        return self.program.closure(direct)

    def computation_before(self, site: Site, paths: set[str]) -> StatementRun | None:
        """The run from the first statement that computes ``paths`` with a model to the site's own statement.

        A loss may be given backward in between, with its graph kept, or a condition may stand around the site: the run
        ends before that.
        """
        wanted = set(paths)
        first: ast.stmt | None = site.statement if self.program.runs_model(site.node) else None
        last: ast.stmt | None = site.statement
        for suite, index in blocks.suites_around(site.module, site.statement):
            for previous in reversed(suite[:index]):
                # What comes before a step of the weights cannot be differentiated behind it.
                if self.program.runs_step(previous) or (first is not None and self.ends(previous)):
                    return self._run(site, first, last)
                if self.ends(previous):
                    last = None
                elif blocks.touches(blocks.writes(previous), wanted):
                    wanted |= blocks.read_for(previous, wanted)
                    last = last or previous
                    if self.program.runs_model(previous):
                        first = previous
                    if self._runs_weights(previous) and not self._calls_part(previous, site):
                        # What the model is given comes from elsewhere and keeps the precision it has.
                        return self._run(site, first, last)
            if first is not None:
                break
            last = None
        return self._run(site, first, last)

    @staticmethod
    def _run(site: Site, first: ast.stmt | None, last: ast.stmt | None) -> StatementRun | None:
        return StatementRun(site.module, first, last) if first is not None and last is not None else None

    def _is_for_hooks(self, site: Site) -> bool:
        """Whether a forward pass is run for what hooks take out of it: with its output dropped, or hooks set beside it.

        What hooks take would be half in a region, and nothing casts it back as a prepared model's output is. Where no
        hooks are set a pass whose output is dropped warms up or is timed.
        """
        if is_dropped(site) and (self._sets_hooks or any(map(_sets_hook, site.module.nodes))):
            return True
        return any(map(_sets_hook, blocks.walk_body(site.body)))

    @cached_property
    def _sets_hooks(self) -> bool:
        return any(_sets_hook(call.func) for call, _, _ in self.program.calls())

    def _calls_part(self, statement: ast.stmt, site: Site) -> bool:
        """Whether a statement calls a part of a model by itself: it casts nothing, so what it is given must be FP32."""
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Attribute, ast.Subscript))
            and self.program.called_models(node, site.scope)
            and any(map(self.program.is_trained, self.program.roles.modules(node.func.value, site.scope)))
            for node in blocks.walk_own(statement)
        )


def is_dropped(site: Site) -> bool:
    """Whether nothing reads what a pass gives: it stands by itself, or is given names that the function never reads."""
    statement = site.statement
    if isinstance(statement, ast.Expr):
        return statement.value is site.node
    if not isinstance(statement, ast.Assign) or statement.value is not site.node:
        return False
    targets = [part for target in statement.targets for part in walk(target)]
    if not isinstance(site.body, FunctionNode) or any(
        not isinstance(part, (ast.Name, ast.Tuple, ast.expr_context)) for part in targets
    ):
        return False
    names = {part.id for part in targets if isinstance(part, ast.Name)}
    if any(site.scope.owner(name) is not site.scope for name in names):
        return False
    return not any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names for node in walk(site.body)
    )


def is_for_shapes(site: Site) -> bool:
    """Whether a pass is run for the shapes of its output, which say how wide what is made next has to be."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or statement.value is not site.node or len(statement.targets) != 1:
        return False
    names = {item.id for item in walk(statement.targets[0]) if isinstance(item, ast.Name)}
    if any(not isinstance(item, (ast.Name, ast.Tuple, ast.expr_context)) for item in walk(statement.targets[0])):
        return False
    if any(isinstance(item, blocks.LOOPS) for item in blocks.enclosing(site.module, statement)):
        return False  # it is timed, or its numbers are looked at elsewhere
    given = {
        node.id: node
        for node in blocks.walk_body(site.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names
        if blocks.statement_of(site.module, node) is not statement
    }
    names -= given.keys() & {"_"}
    reads = [
        node
        for node in blocks.walk_body(site.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
    ]
    return bool(reads) and not given.keys() & names and all(asks_for_shape(site.module, node) for node in reads)


def asks_for_shape(module: Module, node: ast.expr) -> bool:
    """``x.shape``, ``x[-1].size(1)``, ``x.view(1, -1).size(1)``, ``[part.shape[1] for part in x]``."""
    parent = module.parents.get(node)
    while (whole := _as_it_is(module, node, parent)) is not None:
        node, parent = whole, module.parents.get(whole)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _SHAPE_QUESTIONS
    if isinstance(parent, ast.comprehension) and parent.iter is node and isinstance(parent.target, ast.Name):
        around = module.parents.get(parent)
        inner = [
            item
            for item in (walk(around) if around is not None else ())
            if isinstance(item, ast.Name) and item.id == parent.target.id and isinstance(item.ctx, ast.Load)
        ]
        return bool(inner) and all(asks_for_shape(module, item) for item in inner)
    return False


def _as_it_is(module: Module, node: ast.expr, parent: ast.AST | None) -> ast.expr | None:
    """``x[-1]`` or ``x.view(1, -1)`` around ``x``."""
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return parent
    call = module.parents.get(parent) if isinstance(parent, ast.Attribute) and parent.attr in _AS_IT_IS else None
    return call if isinstance(call, ast.Call) and call.func is parent else None


def _given(info: FunctionFacts, call: ast.Call, name: str | None, model: ast.expr | None) -> ast.expr | None:
    """What a call gives that is or holds the model: an argument, or the object whose attribute ``self.model`` is."""
    if name is not None:
        return _argument(info, call, name)
    if isinstance(model, ast.Attribute) and isinstance(model.value, ast.Name) and model.value.id == info.receiver:
        return call.func if info.name == "__call__" else None
    return None


def _argument(info: FunctionFacts, call: ast.Call, name: str) -> ast.expr | None:
    """What a parameter is in a call; None where that is not known, as behind ``*args``."""
    place = info.positional.index(name) if name in info.positional else len(call.args)
    if place < len(call.args) and not any(isinstance(item, ast.Starred) for item in call.args[: place + 1]):
        return call.args[place]
    return info.argument_or_default(call, name)


def _parameter_in(info: FunctionFacts, node: ast.expr | None) -> str | None:
    """The parameter that an expression is made of: of ``model``, and of ``self.wrap(model)``."""
    names = {item.id for item in walk(node) if isinstance(item, ast.Name)} if node is not None else set()
    found = names & set(info.parameters) - {info.receiver}
    return found.pop() if len(found) == 1 else None


def _sets_hook(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in FORWARD_HOOKS


def _multiplies(statement: ast.stmt) -> bool:
    """Whether a statement multiplies matrices: in a region that is done in half, all other arithmetic as outside."""
    return any(isinstance(node, ast.MatMult) for node in walk(statement))


def only_prepares(statement: ast.stmt) -> bool:
    """Whether a statement computes nothing but other views of tensors, or refuses wrong sizes."""
    if isinstance(statement, ast.If):
        return all(isinstance(item, ast.Raise) for item in statement.body) and not statement.orelse
    if not isinstance(statement, ast.Assign) or not all(
        isinstance(part, (ast.Name, ast.Tuple, ast.expr_context)) for item in statement.targets for part in walk(item)
    ):
        return False
    calls = [node for node in ast.walk(statement.value) if isinstance(node, ast.Call)]
    return all(isinstance(call.func, ast.Attribute) and call.func.attr in OTHER_SHAPE for call in calls)
