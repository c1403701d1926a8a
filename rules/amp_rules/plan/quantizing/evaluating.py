"""Evaluations that can be called once more, with another model: functions of the project that are given theirs."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plan.evaluation.calls import Calls
from amp_rules.plan.quantizing.why_not import NotQuantized
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import COMPREHENSIONS

_MODES = frozenset({"train", "eval"})
_LOOPS = (ast.For, *COMPREHENSIONS)


@dataclass(frozen=True)
class EvaluationCall(Site):
    """A call that evaluates the model.

    Attributes:
        given: the argument that is the model.
        gives: whether the function gives a result back.
        on_training_data: whether it is given a loader of the training.
    """

    given: ast.expr
    gives: bool
    on_training_data: bool

    @property
    def call(self) -> ast.Call:
        """The call itself."""
        assert isinstance(self.node, ast.Call)
        return self.node

    def text(self, model: str) -> str:
        """The source of the call with another model."""
        module = self.module
        arguments = [model if item is self.given else module.code(item) for item in self.call.args]
        arguments += [
            f"{item.arg}={model if item.value is self.given else module.code(item.value)}"
            for item in self.call.keywords
        ]
        return f"{module.code(self.call.func)}({', '.join(arguments)})"


class EvaluationCalls:
    """Finds them.

    Args:
        program: the program.
        models: what the trained model's variable may hold.
        data: the loaders that are trained on.
    """

    def __init__(self, program: Program, models: set[Value], data: set[Value]) -> None:
        self._program = program
        self._models = models
        self._data = data
        self._calls = _Evaluates(program)
        self._judged: dict[tuple[FunctionFacts, str], NotQuantized | None] = {}

    @cached_property
    def _all(self) -> tuple[list[EvaluationCall], list[NotQuantized]]:
        found, reasons = [], []
        for call, body, scope in self._program.calls():
            if self._program.is_model_code(body) or not self._evaluates(call):
                continue
            try:
                found.append(self._read(Site(scope.module, scope, body, call)))
            except NotQuantized as reason:
                reasons.append(reason)
        return found, reasons

    @property
    def found(self) -> list[EvaluationCall]:
        """The calls that may be made once more."""
        return self._all[0]

    def reason(self) -> NotQuantized | None:
        """Why one of the script's evaluations is none of them, if there is one."""
        return next(iter(self._all[1]), None)

    def _evaluates(self, call: ast.Call) -> bool:
        """Whether a function of the project is called that runs the model, and no backward pass."""
        callees = self._program.flow.callees(call)
        if not callees or any(self._program.is_model_code(info.node) for info in callees):
            return False
        if self._program.runs_backward(call):
            return False
        nodes = [node for info in callees for node in info.nodes]
        if any(_set_to_evaluation(node) is not None for node in nodes):
            return any(isinstance(node, ast.Call) and self._program.runs_forward(node) for node in nodes)
        return any(isinstance(node, _LOOPS) and self._program.runs_forward(node) for node in nodes)

    def _read(self, site: Site) -> EvaluationCall:
        call = site.node
        assert isinstance(call, ast.Call)
        module = site.module
        callees = self._program.flow.callees(call)
        text = f"`{module.text(call.func)}`"
        if len(callees) != 1:
            raise NotQuantized(module, call, f"{text} may be several functions")
        info = next(iter(callees))
        arguments = [*call.args, *(item.value for item in call.keywords)]
        if any(isinstance(item, ast.Starred) for item in arguments) or any(item.arg is None for item in call.keywords):
            raise NotQuantized(module, call, f"it is not known what {text} is given")
        given = [item for item in arguments if self._is_model(item, site.scope)]
        if len(given) != 1 or not isinstance(given[0], (ast.Name, ast.Attribute)):
            raise NotQuantized(
                module,
                call,
                f"{text} evaluates, and is not given its model: it cannot be called with another",
                "let the evaluation take the model as an argument",
            )
        parameter = next((name for name, value in info.bound(call) if value is given[0]), None)
        if parameter is None:
            raise NotQuantized(module, call, f"it is not known what {text} is given")
        if (info, parameter) not in self._judged:
            self._judged[info, parameter] = self._problem(info, parameter)
        problem = self._judged[info, parameter]
        if problem is not None:
            raise problem
        trains_on = any(
            values and values <= self._data
            for values in (self._program.flow.values(item, site.scope) for item in arguments)
        )
        return EvaluationCall(module, site.scope, site.body, call, given[0], bool(info.returns), trains_on)

    def _is_model(self, node: ast.expr, scope: Scope) -> bool:
        values = self._program.flow.values(node, scope)
        return bool(values) and values <= self._models

    def _problem(self, info: FunctionFacts, parameter: str) -> NotQuantized | None:
        """Why a function cannot be called once more with another model."""
        module = info.module.module
        text = f"`{info.name}`"
        left = self._calls.leaves(info, shows=True)
        if left is not None:
            return NotQuantized(module, info.node, f"{text} cannot be called once more: {left}")
        bodies = {info.node} | {
            body for body in self._program.called_from(info.nodes) if not self._program.is_model_code(body)
        }
        modes = False
        for body in bodies:
            scope = self._program.flow.scopes[body]
            for node in self._program.nodes_of(body):
                mode = _set_to_evaluation(node)
                modes = modes or (mode is not None and self._reads(mode, scope))
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                    if self._reads(node, scope) and (problem := self._of_use(node, scope)) is not None:
                        return NotQuantized(module, node if scope.module is module else info.node, problem)
        if not modes:
            return NotQuantized(
                module,
                info.node,
                f"{text} does not put its model into evaluation mode, as int8 is",
                "call `eval()` on the model there",
            )
        return None

    def _reads(self, node: ast.expr, scope: Scope) -> bool:
        return not self._models.isdisjoint(self._program.flow.values(node, scope))

    def _of_use(self, node: ast.Name | ast.Attribute, scope: Scope) -> str | None:
        """What is done with the model besides calling it, or where it comes from if not from an argument."""
        module = scope.module
        parent = module.parents[node]
        if not isinstance(node, ast.Name) or scope.owner(node.id) is not scope:
            return f"`{module.text(node)}` is the model, and no argument: another model would not be evaluated"
        if isinstance(parent, ast.Attribute) and parent.attr not in (*_MODES, "training"):
            return f"`{module.text(parent)}` is asked of the model, which an int8 one may not have"
        return None


def standing_alone(program: Program, models: set[Value]) -> NotQuantized | None:
    """Why an evaluation that stands in the script itself, or is none of a loader, cannot be called once more."""
    for call, body, scope in program.calls():
        if program.is_model_code(body) or not program.called_models(call, scope) & models:
            continue
        module = scope.module
        loop = blocks.loop_around(module, call)
        is_apart = loop is not None and not program.runs_backward(loop)
        if not (is_apart and program.without_gradients(module, call, body)) and not _is_set_before(module, call):
            continue
        return NotQuantized(
            module,
            loop if loop is not None and is_apart else call,
            "the evaluation stands in the script itself, where it cannot be called once more",
            "run these lines with the int8 model in place of the float one, or let them be a function of the model",
        )
    return None


def _is_set_before(module: Module, node: ast.AST) -> bool:
    """Whether the mode that was set last, in the suites around a node, is that of evaluation."""
    for suite, index in blocks.suites_around(module, blocks.statement_of(module, node)):
        for item in reversed(suite[:index]):
            modes = [part for part in blocks.walk_own(item) if _sets_mode(part)]
            if modes:
                return _set_to_evaluation(modes[-1]) is not None
    return False


def _sets_mode(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MODES


class _Evaluates(Calls):
    """What calls leave behind, where the mode of the model does not count: each evaluation begins by setting it."""

    def obstacle(self, call: ast.Call, scope: Scope, fresh: set[str]) -> str | None:
        """See :meth:`Calls.obstacle`."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in _MODES and not self._program.flow.callees(call):
            if self._program.roles.modules(call.func.value, scope):
                return None
        return super().obstacle(call, scope, fresh)


def _set_to_evaluation(node: ast.AST) -> ast.expr | None:
    """What ``eval()`` or ``train(False)`` is called of."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_false = any(isinstance(item, ast.Constant) and item.value is False for item in given)
    evaluates = not given if node.func.attr == "eval" else node.func.attr == "train" and is_false
    return node.func.value if evaluates else None
