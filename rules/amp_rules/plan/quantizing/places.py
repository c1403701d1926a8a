"""Where a script's training has ended, and lines may follow that need its model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from amp_rules.flow.values import Value
from amp_rules.plan.gradient_averaging import runs_once
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.quantizing.calibrating import Spot
from amp_rules.plan.quantizing.evaluating import EvaluationCall
from amp_rules.plan.quantizing.known_names import KnownNames
from amp_rules.plan.quantizing.why_not import Apart, NotQuantized
from amp_rules.plan.training_loops import TrainingLoop
from amp_rules.roles.file_effects import file_effects
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.syntax import COMPREHENSIONS, walk
from amp_rules.torch.models import RETURNS_RECEIVER

_MAX_CALLERS = 4
"""Functions through which training is called; trainers have two."""


class Place:
    """Where the training has ended, in the body in which an evaluation is called, or in that of the model's variable.

    Attributes:
        at: what the reader is pointed to: the evaluation, or where the variable is given the model.
        model: the source of the model there.
        call: the evaluation; None where there is none to be called once more.
        statement: what the new lines follow.
        trained: the statement that trains.
        is_behind: whether the script evaluates there itself, behind all that changes the model.
        loads: whether weights are loaded behind the training.
        known: what has a value behind the statement.
    """

    statement: ast.stmt
    trained: ast.stmt
    known: KnownNames

    def __init__(self, program: Program, at: Site, model: str, models: set[Value], call: EvaluationCall | None) -> None:
        self._program = program
        self._models = models
        self.at = at
        self.model = model
        self.call = call
        self.is_behind = False
        self.loads = False

    @classmethod
    def of_call(cls, program: Program, call: EvaluationCall, models: set[Value]) -> Place:
        """That of an evaluation."""
        return cls(program, call, call.module.code(call.given), models, call)

    @classmethod
    def of_variables(
        cls, program: Program, home: Home, loops: Sequence[TrainingLoop], models: set[Value]
    ) -> Iterator[Place]:
        """Those of variables of the model: of that by which it is prepared, and of those around its training."""
        site = Site(home.module, home.scope, home.body, home.statement)
        yield cls(program, site, home.variable, models, None)
        for loop in loops:
            around: list[Site] = [loop]
            while len(around) <= _MAX_CALLERS:
                info = program.function_of(around[-1].body)
                callers = program.flow.callers(info) if info is not None else []
                if len(callers) != 1:
                    break
                around.append(calling(callers[0]))
            for at in reversed(around):  # the outermost first, where the script may go on with the model
                path = _path_in(program, at, models)
                if path is not None and at.body is not home.body:
                    yield cls(program, at, path, models, None)

    @property
    def spot(self) -> Spot:
        """Where a loader is needed, to calibrate with."""
        return Spot(self.module, self.body, self.known, "where the training has ended")

    @property
    def on_training_data(self) -> bool:
        """Whether the evaluation is given a loader of the training."""
        return self.call is not None and self.call.on_training_data

    @property
    def module(self) -> Module:
        """The file."""
        return self.at.module

    @property
    def body(self) -> ast.AST:
        """What the statement stands in."""
        return self.at.body

    def checked(self) -> Place:
        """The place itself.

        Raises:
            NotQuantized: there is none for this evaluation.
        """
        module, body = self.module, self.body
        top = body.body if hasattr(body, "body") and isinstance(body.body, list) else []
        suite, index = self._end_of_training(top)
        trained = self.trained = suite[index]
        if not runs_once(self._program, module, trained) or self._is_repeated(trained):
            raise NotQuantized(module, trained, f"{self._text} stands where the training may run again")
        inside = self._program.called_from(self._program.nodes_of(body)) | {body}
        for site in self._program.backwards:
            if site.body not in inside:
                raise NotQuantized(site.module, site.node, "training goes on elsewhere, too")
        last = self._last(suite, index, self._loads)
        self.loads = last > index
        own = self._own_evaluation(suite)
        if own is not None and own >= last and own > index:
            last, self.is_behind = own, True
        # Should something fail here, all that the training was for is on the disk.
        written = {effect.call for effect in file_effects(self._program)}
        last = self._last(suite, last, lambda node: node in written)
        self._check_saved(suite[: last + 1])
        self.statement = suite[last]
        if isinstance(self.statement, (ast.Return, ast.Raise)):
            raise NotQuantized(module, self.statement, "the training ends with leaving the function")
        self._check_model(suite[index : last + 1])
        self.known = KnownNames(self._program, Site(module, self.at.scope, body, self.statement))
        if self.call is not None:
            self._check_call(self.call)
        elif (unknown := self.known.unknown(ast.parse(self.model, mode="eval").body)) is not None:
            raise NotQuantized(module, self.at.node, f"`{unknown}` may have no value behind the training")
        return self

    @property
    def _text(self) -> str:
        return f"`{self.model if self.call is None else self.module.text(self.call.call)}`"

    def _check_call(self, call: EvaluationCall) -> None:
        """What the evaluation is given must be known, and the same when it is asked for again."""
        module = call.module
        unknown = self.known.unknown(call.call)
        if unknown is not None:
            raise NotQuantized(
                module, call.call, f"{self._text} needs `{unknown}`, which may have no value behind the "
                "training", "evaluate once more behind the training loop, with what is known there",
            )  # fmt: skip
        for item in [*call.call.args, *(keyword.value for keyword in call.call.keywords)]:
            if any(isinstance(part, (ast.Call, ast.Lambda, ast.Await, ast.NamedExpr)) for part in walk(item)):
                raise NotQuantized(module, item, f"`{module.text(item)}` may be another one when it is made again")

    def _end_of_training(self, suite: list[ast.stmt]) -> tuple[list[ast.stmt], int]:
        module = self.module
        found = [
            index
            for index, item in enumerate(suite)
            if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and self._program.runs_backward(item)
        ]
        if not found:
            what = "stands" if self.call is None else "is called"
            raise Apart(
                module, self.at.node, f"{self._text} {what} apart from the training, whose end is not seen there"
            )
        last = suite[found[-1]]
        if isinstance(last, ast.If):
            branches = [branch for branch in (last.body, last.orelse) if any(map(self._program.runs_backward, branch))]
            if len(branches) != 1:
                raise NotQuantized(module, last, "the training is in one of two branches")
            return self._end_of_training(branches[0])
        if isinstance(last, (ast.With, ast.AsyncWith)):
            raise NotQuantized(module, last, f"the training is within `{module.text(last.items[0].context_expr)}`")
        if isinstance(last, ast.Return):
            raise NotQuantized(module, last, "the training ends with leaving the function")
        return suite, found[-1]

    def _is_repeated(self, node: ast.AST) -> bool:
        """Whether a comprehension or a function without a name may run it several times."""
        pending: list[tuple[Module, ast.AST]] = [(self.module, node)]
        seen: set[FunctionFacts] = set()
        while pending:
            module, item = pending.pop()
            if any(isinstance(parent, (*COMPREHENSIONS, ast.Lambda)) for parent in module.ancestors(item)):
                return True
            info = self._program.function_of(blocks.body_of(module, item))
            if info is not None and info not in seen:
                seen.add(info)
                pending += [(caller.scope.module, caller.call) for caller in self._program.flow.callers(info)]
        return False

    def _last(self, suite: list[ast.stmt], index: int, direct: Callable[[ast.AST], bool]) -> int:
        """The last statement behind another that can run what is asked for; that other one if there is none."""
        runs = self._program.closure(direct)
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        behind = range(index + 1, len(suite))
        return max([index, *(k for k in behind if not isinstance(suite[k], definitions) and runs(suite[k]))])

    def _loads(self, node: ast.AST) -> bool:
        """Whether a call loads the model's weights."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        located = self._program.locate(node) if node.func.attr == "load_state_dict" else None
        return located is not None and bool(self._models & self._program.flow.values(node.func.value, located[1]))

    def _check_saved(self, statements: list[ast.stmt]) -> None:
        """No checkpoint may come later: it would be lost with whatever failed before it."""
        inside = {node for item in statements for node in walk(item)}
        called = self._program.called_from(inside)
        for site in self._program.calls_to(frozenset({"torch.save"})):
            if site.node not in inside and site.body not in called and self._program.runs(site.body):
                text = "a checkpoint is written later, and would be lost should the model not be quantized"
                raise NotQuantized(site.module, site.node, text, "save the model where its training ends")

    def _own_evaluation(self, suite: list[ast.stmt]) -> int | None:
        """The statement of a suite that the evaluation stands in, where it always runs."""
        if self.call is None:
            return None
        statement = blocks.statement_of(self.module, self.call.call)
        if statement in suite and isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)):
            return suite.index(statement)
        return None

    def _check_model(self, statements: list[ast.stmt]) -> None:
        """The variable must hold the one model from the training on."""
        module, path = self.module, self.model
        for item in statements:
            for node in blocks.walk_own(item):
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, (ast.Store, ast.Del)):
                    if blocks.path_of(node) == path:
                        raise NotQuantized(module, node, f"`{path}` is given another model")
        for item in statements[1:]:
            for node in blocks.walk_own(item):
                if isinstance(node, ast.Attribute) and node.attr in RETURNS_RECEIVER - {"train", "eval"}:
                    if blocks.path_of(node.value) == path:
                        text = f"`{module.text(node)}` may move the model away from the data of the evaluation"
                        raise NotQuantized(module, node, text, "save a copy, and let the model stay where it is")


def _path_in(program: Program, site: Site, models: set[Value]) -> str | None:
    """A variable of the model that a body reads."""
    for node in program.nodes_of(site.body):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            values, path = program.flow.values(node, site.scope), blocks.path_of(node)
            if path is not None and values and values <= models:
                return path
    return None
