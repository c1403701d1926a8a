"""Whether each way to a training step leads past a place where its model is prepared: else nothing averages there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import CallSite, Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.own_ddp.commands import run_by_libraries
from amp_rules.plan.training_flags import Flag, flag_of
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import ends_process
from amp_rules.source.scopes import FunctionNode

_LEAVES = (ast.Return, ast.Break, ast.Continue)
_PERHAPS = (ast.IfExp, ast.BoolOp, ast.Lambda)
_LOOSE = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)
"""What ``not`` in front of it would not negate as a whole."""


@dataclass(frozen=True)
class Gap:
    """A place where a model is prepared, which some way to a training step leaves out.

    Attributes:
        site: the call that prepares the model.
        condition: the ``if`` under which it is reached, the nearest one; it may stand around a call of its function.
        is_else: whether it is reached where the test does not hold.
    """

    site: Site
    condition: Site
    is_else: bool

    @property
    def test(self) -> ast.expr:
        """What decides."""
        assert isinstance(self.condition.node, ast.If)
        return self.condition.node.test

    @property
    def told(self) -> str:
        """What holds where the model is prepared: the opposite of the test in a branch ``else``."""
        module, test = self.condition.module, self.test
        if not self.is_else:
            return module.text(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return module.text(test.operand)
        return f"not ({module.text(test)})" if isinstance(test, _LOOSE) else f"not {module.text(test)}"


def reasons(program: Program, preparing: frozenset[str]) -> Iterator[Declined]:
    """Conditions under which alone a model is prepared, though it is trained without them too."""
    for gap in gaps(program, preparing):
        yield declining.decline(
            declining.GRADIENTS_OUTSIDE,
            gap.condition.module,
            gap.condition.node,
            f"the model is prepared only where `{gap.told}` holds, but trained also where it does not hold",
            f"take `amp.prepare_model(...)` out of the condition; `amp.init(..., ddp=True, enabled={gap.told})` before "
            "it chooses the precision",
        )


def gaps(program: Program, preparing: frozenset[str]) -> Iterator[Gap]:
    """Places where a model is prepared, which some way to a training step leaves out.

    Args:
        program: the program, whose models are prepared already.
        preparing: the names of what prepares a model.
    """
    sites = program.calls_to(preparing)
    for site in sites:
        found = next(_conditions(program, site, frozenset()), None)
        if found is None:
            continue
        condition, is_else = found
        models = models_given(program, site)
        if models and not any(map(program.is_trained, models)):
            continue  # a teacher, which is frozen
        ways = Ways(program, {other.node for other in sites if other is site or models & models_given(program, other)})
        if condition.node in set(blocks.enclosing(site.module, site.node)):
            is_gap = not all(map(ways.lead_past, program.backwards))
        else:
            # A function that is called under a condition: a step to which no way is known may not be reached at all.
            is_gap = any(map(ways.are_left_out, program.backwards))
        if is_gap:
            yield Gap(site, condition, is_else)


def _conditions(program: Program, site: Site, seen: frozenset[ast.AST]) -> Iterator[tuple[Site, bool]]:
    """The conditions under which a place is reached, the nearest first; and whether it is so where they do not hold."""
    inner = site.statement
    for parent in blocks.enclosing(site.module, site.node):
        if _is_condition(parent):
            assert isinstance(parent, ast.If)
            yield Site(site.module, site.scope, site.body, parent), inner in parent.orelse
        inner = parent
    info = program.function_of(site.body)
    for caller in program.flow.callers(info) if info is not None and site.body not in seen else ():
        yield from _conditions(program, calling(caller), seen | {site.body})


def _is_condition(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and not is_main_guard(statement)


def models_given(program: Program, site: Site) -> set[Value]:
    """The models that a call prepares."""
    assert isinstance(site.node, ast.Call)
    given = (*site.node.args[:1], *(item.value for item in site.node.keywords if item.arg == "model"))
    return {model for item in given for model in program.roles.modules(item, site.scope)}


class Ways:
    """The ways from the start of the script to a place, and the statements that they lead past."""

    def __init__(self, program: Program, calls: Iterable[ast.AST]) -> None:
        self._program = program
        self._calls = set(calls)
        self._bodies: dict[ast.AST, bool] = {}

    def lead_past(self, site: Site) -> bool:
        """Whether one of the calls runs on every way before the site does."""
        return self._lead_past(site, frozenset(), _flag_around(self._program, site))

    def are_left_out(self, site: Site) -> bool:
        """Whether a way is known, from the start of the script, on which none of the calls runs before the site."""
        return self._are_left_out(site, frozenset(), _flag_around(self._program, site))

    def _are_left_out(self, site: Site, seen: frozenset[ast.AST], flag: Flag | None = None) -> bool:
        if any(map(self._runs, earlier(site))):
            return False
        info = self._program.function_of(site.body)
        if info is None:
            return True
        callers = self._training(info, flag) if site.body not in seen else []
        if not callers and site.body in self._commands:
            return True
        return any(self._are_left_out(calling(item), seen | {site.body}) for item in callers)

    @cached_property
    def _commands(self) -> frozenset[ast.AST]:
        """Functions with which the script starts, by a library: ``fire.Fire(main)``."""
        return frozenset(run_by_libraries(self._program))

    def _lead_past(self, site: Site, seen: frozenset[ast.AST], flag: Flag | None = None) -> bool:
        if any(map(self._runs, earlier(site))):
            return True
        info = self._program.function_of(site.body)
        if info is None:
            return False
        if site.body in seen:
            return True  # a function that calls itself was reached in another way first
        callers = self._training(info, flag)
        return bool(callers) and all(self._lead_past(calling(item), seen | {site.body}) for item in callers)

    def _training(self, info: FunctionFacts, flag: Flag | None) -> list[CallSite]:
        """The calls of a function that may lead on to the step: not those under ``no_grad``, or that say "test"."""
        return [
            caller
            for caller in self._program.flow.callers(info)
            if not self._program.is_without_gradients(caller.call)
            and not (flag is not None and _evaluates(info, flag, caller.call))
        ]

    def _runs(self, statement: ast.stmt) -> bool:
        """Whether one of the calls runs wherever the statement does; a loop counts as run."""
        if isinstance(statement, FunctionNode | ast.ClassDef):
            return False
        if isinstance(statement, ast.If):
            return self._computes(statement.test) or (
                self._suite_runs(statement.body) and self._suite_runs(statement.orelse)
            )
        if isinstance(statement, (*blocks.LOOPS, ast.With, ast.AsyncWith)):
            heads = [getattr(statement, "iter", None), getattr(statement, "test", None)]
            heads += [item.context_expr for item in getattr(statement, "items", [])]
            return any(map(self._computes, heads)) or self._suite_runs(statement.body)
        if isinstance(statement, ast.Try):
            return self._suite_runs(statement.body) or self._suite_runs(statement.finalbody)
        return not isinstance(statement, ast.Match) and self._computes(statement)

    def _suite_runs(self, suite: Sequence[ast.stmt]) -> bool:
        for statement in suite:
            if self._runs(statement) or _ends(statement):
                return True
            if any(isinstance(node, _LEAVES) for node in blocks.walk_own(statement)):
                return False
        return False

    def _computes(self, node: ast.AST | None) -> bool:
        """Whether one of the calls, or a function that runs one, is called in an expression whatever is true."""
        pending = [node] if node is not None else []
        while pending:
            part = pending.pop()
            if isinstance(part, ast.Call) and (part in self._calls or self._is_run_by(part)):
                return True
            if not isinstance(part, _PERHAPS):
                pending.extend(ast.iter_child_nodes(part))
            elif not isinstance(part, ast.Lambda):
                pending.append(part.test if isinstance(part, ast.IfExp) else part.values[0])
        return False

    def _is_run_by(self, call: ast.Call) -> bool:
        callees = self._program.flow.callees(call)
        return bool(callees) and all(self._body_runs(info.node) for info in callees)

    def _body_runs(self, body: ast.AST) -> bool:
        if body not in self._bodies:
            self._bodies[body] = False  # for a function that calls itself
            suite = getattr(body, "body", None)
            self._bodies[body] = self._suite_runs(suite) if isinstance(suite, list) else self._computes(suite)
        return self._bodies[body]


def earlier(site: Site) -> Iterator[ast.stmt]:
    """The statements of the same body that run before a site."""
    statement = site.statement
    for around in (statement, *blocks.enclosing(site.module, statement)):
        place = blocks.place(site.module, around)
        yield from place.suite[: place.index]


def _flag_around(program: Program, site: Site) -> Flag | None:
    """The flag by which the function of a backward pass trains or evaluates."""
    found = flag_of(program, site) if isinstance(site, Backward) else None
    return found[1] if found is not None else None


def _evaluates(info: FunctionFacts, flag: Flag, call: ast.Call) -> bool:
    """Whether a call gives a function's parameter the value with which it does not train."""
    if flag.name not in info.parameters or flag.name in blocks.writes(info.node):
        return False
    given = info.argument_or_default(call, flag.name)
    return isinstance(given, ast.Constant) and not flag.decide(given.value)


def _ends(statement: ast.stmt) -> bool:
    """Whether nothing of the script comes after the statement."""
    return isinstance(statement, ast.Raise) or (isinstance(statement, ast.Expr) and ends_process(statement.value))
