"""From which forward passes the loss of a backward pass is computed, within one function."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plain_torch.step_runs import Frame, StepRun
from amp_rules.roles.gradient_paths import GradientPaths
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.syntax import COMPREHENSIONS, walk
from amp_rules.torch.gradients import GRADIENT_FUNCTIONS


@dataclass(frozen=True)
class Pass:
    """A forward pass that a loss is computed from, or a call of a function that makes some.

    Attributes:
        site: the call.
        frame: where it runs.
        values: the models that it may run.
        is_plain: whether it runs its model each time, and gradients of all its parameters come of it.
        is_repeated: whether it runs several times.
    """

    site: Site
    frame: Frame
    values: frozenset[Value]
    is_plain: bool
    is_repeated: bool


class LossPaths:
    """Answers for the backward passes of a program.

    Args:
        program: the program.
        forwards: forward passes of the models in question, with gradients.
    """

    def __init__(self, program: Program, forwards: list[Site]) -> None:
        self._program = program
        self._gradients = GradientPaths(program, sums=True)
        self._forwards = forwards
        self._known: dict[ast.AST, list[Pass] | None] = {}
        self._runs: dict[ast.AST, StepRun] = {}

    def passes(self, backward: Backward) -> list[Pass] | None:
        """The forward passes that a backward pass goes through; None where some may stand in other functions."""
        if backward.node not in self._known:
            self._known[backward.node] = self._find(backward)
        return self._known[backward.node]

    def run(self, backward: Backward) -> StepRun:
        """What runs around a backward pass."""
        if backward.node not in self._runs:
            self._runs[backward.node] = StepRun(self._program, backward)
        return self._runs[backward.node]

    def _find(self, backward: Backward) -> list[Pass] | None:
        run = self.run(backward)
        wanted = run.variables(run.own, self._reads(run.own, backward.loss))
        calls = [(run.own, call) for call in self._gradients.calls(backward.loss)]
        statements = [
            (frame, node)
            for frame in run.frames
            for node in self._program.nodes_of(frame.site.body)
            if isinstance(node, ast.stmt) and frame.end(node) <= run.own.start(backward.node)
        ]
        around = set(run.own.around(backward.node))
        for frame, statement in sorted(statements, key=lambda item: item[0].start(item[1]), reverse=True):
            paths = run.paths(frame, wanted)
            if isinstance(statement, (ast.For, ast.AsyncFor)) and blocks.touches(
                blocks.writes_target(statement), paths
            ):
                wanted = wanted | run.variables(frame, self._reads(frame, statement.iter))
                calls += [(frame, call) for call in self._gradients.calls(statement.iter)]
            if isinstance(statement, (*blocks.LOOPS, ast.If, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)):
                continue  # what they hold is among the statements
            if not self._gradients.assigns(statement, paths):
                continue
            calls += [(frame, call) for call in self._gradients.calls(statement)]
            above = {item for item in frame.around(statement) if not isinstance(item[1], ast.With)}
            if _replaces(statement, paths) and above <= around:
                wanted = wanted - run.variables(frame, blocks.writes(statement))
            wanted = wanted | run.variables(frame, self._reads(frame, statement))
        for known, path in wanted:
            if self._comes_from_elsewhere(path, known.site if isinstance(known, Frame) else backward):
                return None
        found = (self._pass(frame, call, backward) for frame, call in dict.fromkeys(calls))
        return [item for item in found if item is not None]

    def _reads(self, frame: Frame, node: ast.AST) -> set[str]:
        """What gradients flow out of, into what a node gives: of the object itself, what its methods read of it."""
        found = self._gradients.reads(node)
        info = self._program.function_of(frame.site.body)
        receiver = info.receiver if info is not None else None
        if info is None or receiver is None or receiver not in found or _is_given(receiver, node):
            return found
        found = found - {receiver}
        for call in self._gradients.calls(node):
            if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == receiver:
                for body in self._program.called_from([call]):
                    found |= {path for path in self._read_in(body, info) if path.startswith(f"{receiver}.")}
        return found

    def _read_in(self, body: ast.AST, method: FunctionFacts) -> set[str]:
        """What a method of the same object reads; nothing for other functions."""
        info = self._program.function_of(body)
        own, other = (self._program.flow.class_of(one) if one is not None else None for one in (method, info))
        if own is None or other is None or not (own in other.mro() or other in own.mro()):
            return set()
        statements = [node for node in self._program.nodes_of(body) if isinstance(node, ast.stmt)]
        return {path for statement in statements for path in self._gradients.reads(statement)}

    def _pass(self, frame: Frame, call: ast.Call, backward: Backward) -> Pass | None:
        own = next((site for site in self._forwards if site.node is call), None)
        loops = self._loops_between(frame, call, backward)
        if own is not None:
            return Pass(own, frame, self._values(own), True, loops)
        called = self._program.called_from([call])
        inner = [site for site in self._forwards if site.body in called]
        if not inner:
            return None
        values = frozenset(value for site in inner for value in self._values(site))
        is_plain = not self._differentiates(called) and all(self._runs_each_time(site) for site in inner)
        site = Site(frame.site.module, frame.site.scope, frame.site.body, call)
        return Pass(site, frame, values, is_plain, loops or len(inner) > 1 or any(map(_is_in_loop, inner)))

    def _values(self, site: Site) -> frozenset[Value]:
        assert isinstance(site.node, ast.Call)
        return frozenset(self._program.called_models(site.node, site.scope))

    def _loops_between(self, frame: Frame, call: ast.Call, backward: Backward) -> bool:
        around = set(self.run(backward).own.around(backward.node))
        return any(isinstance(parent, COMPREHENSIONS) for parent in frame.site.module.ancestors(call)) or any(
            isinstance(item[1], blocks.LOOPS) and item not in around for item in frame.around(call)
        )

    def _differentiates(self, bodies: set[ast.AST]) -> bool:
        """Whether one of the bodies takes gradients itself, of which some parameters get none."""
        return any(site.body in bodies for site in self._program.calls_to(GRADIENT_FUNCTIONS))

    def _runs_each_time(self, site: Site) -> bool:
        return not any(isinstance(item, (ast.If, ast.Try)) for item in blocks.enclosing(site.module, site.node))

    def _comes_from_elsewhere(self, path: str, site: Site) -> bool:
        """Whether a variable may hold what a forward pass of another function gave."""
        root = path.partition(".")[0]
        info = self._program.function_of(site.body)
        if info is not None and root in info.parameters and root != info.receiver:
            return any(
                self._may_carry(given, blocks.body_of(caller.scope.module, caller.call))
                for caller in self._program.flow.callers(info)
                for name, given in info.bound(caller.call)
                if name in (root, None)
            )
        variable = ast.parse(path, mode="eval").body
        key = self._program.flow.key(variable, site.scope)
        for node, body, scope in self._program.nodes():
            if body is site.body or not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            given = [item for target in targets for item in _flat(target)]
            if key is None:
                is_same = any(_attribute(item) == _attribute(variable) for item in given)
            else:
                is_same = key in {self._program.flow.key(blocks.reading(item), scope) for item in given}
            if is_same and node.value is not None and self._may_carry(node.value, body):
                return True
        return False

    def _may_carry(self, node: ast.expr, body: ast.AST) -> bool:
        """Whether what an expression gives may have come out of a forward pass."""
        pending = [node]
        seen: set[ast.AST] = set()
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            if any(self._runs_forward(call) for call in self._gradients.calls(current)):
                return True
            reads = self._gradients.reads(current)
            for other in self._program.nodes_of(body):
                if isinstance(other, ast.stmt) and not isinstance(other, (*blocks.LOOPS, ast.If, ast.With, ast.Try)):
                    if other not in seen and self._gradients.assigns(other, reads):
                        pending.append(other)  # type: ignore[arg-type]
        return False

    def _runs_forward(self, call: ast.Call) -> bool:
        if any(site.node is call for site in self._forwards):
            return True
        called = self._program.called_from([call])
        return any(site.body in called for site in self._forwards)


def _is_given(receiver: str, node: ast.AST) -> bool:
    """Whether an object is given away as a whole: ``loss_of(self)``."""
    owners = {part.value for part in walk(node) if isinstance(part, ast.Attribute)}
    return any(isinstance(part, ast.Name) and part.id == receiver and part not in owners for part in walk(node))


def _replaces(statement: ast.stmt, wanted: set[str]) -> bool:
    """Whether the statement gives the variables other values and leaves nothing of the old ones."""
    return isinstance(statement, (ast.Assign, ast.AnnAssign)) and bool(blocks.writes(statement) & wanted)


def _is_in_loop(site: Site) -> bool:
    return blocks.loop_around(site.module, site.node) is not None


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [item for element in target.elts for item in _flat(element)]
    return [target.value if isinstance(target, ast.Starred) else target]


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""
