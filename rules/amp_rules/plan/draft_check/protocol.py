"""The order in which new calls of the runtime must come, and the conditions under which they must stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_rules.plan.draft_check.matching import Defect, Draft
from amp_rules.plan.draft_check.naming import leaves
from amp_rules.plan.exchanged_gradients import ExchangedGradients
from amp_rules.plan.scale_free import is_scale_free
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import leaves as ends
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import own_name, spelling, walk

_BODIES = FunctionNode | ast.Module | ast.ClassDef
_BEFORE_THE_START = ("init", "device")
"""What may stand above the start: a device is that of the rank by the launcher's environment."""


@dataclass
class Protocol:
    """What the runtime asks of one file of a draft.

    Attributes:
        program: the program as it was.
        draft: the file.
        alias: the name that the runtime has in it.
        updating: own names of functions after whose call the scale is updated somewhere in the draft.
    """

    program: Program
    draft: Draft
    alias: str
    updating: set[str]

    def defects(self) -> Iterator[Defect]:
        """Yield what stands in a wrong order or under other conditions than what it serves."""
        for statement, call, name in self._calls:
            if name == "scaler.step":
                yield from self._step(statement, call)
            elif name == "scaler.unscale_" and statement in self.draft.added:
                yield from self._unscale(statement, call)
            elif name == "scaler.update" and statement in self.draft.added:
                yield from self._update(statement)
            elif name == "prepare_model" and statement in self.draft.added:
                yield from self._model(statement, call)
            elif name == "prepare_loader" and statement in self.draft.added:
                yield from self._loader(statement, call)
            elif name == "init" and statement in self.draft.added:
                yield from self._start(statement)
        yield from self._looks()

    @cached_property
    def _calls(self) -> list[tuple[ast.stmt, ast.Call, str]]:
        """The calls of the runtime, each with its innermost statement and its name in the runtime."""
        found = []
        for statement in walk(self.draft.tree):
            if not isinstance(statement, ast.stmt):
                continue
            for node in _head_nodes(statement):
                if isinstance(node, ast.Call):
                    name = self._name(node)
                    if name is not None:
                        found.append((statement, node, name))
        return found

    def _name(self, call: ast.Call) -> str | None:
        path = spelling(call.func)
        return path[len(self.alias) + 1 :] if path is not None and path.startswith(self.alias + ".") else None

    def _has(self, node: ast.AST, name: str) -> bool:
        """Whether running a node makes a call of the runtime, in its own body."""
        return any(isinstance(item, ast.Call) and self._name(item) == name for item in blocks.walk_own(node))

    def _defect(self, statement: ast.stmt, what: str) -> Defect:
        return Defect(self.draft.module, self.draft.place_of(statement), what)

    # ---- the step --------------------------------------------------------------------------------------------------

    def _step(self, statement: ast.stmt, call: ast.Call) -> Iterator[Defect]:
        """After a step the scale is updated, before the round can end."""
        text = ast.unparse(call)
        for current, suite, index in self._outwards(statement):
            for later in suite[index + 1 :]:
                if self._has(later, "scaler.update") or self._calls_updating(later):
                    return
                if leaves(later):
                    yield self._defect(
                        statement, f"can leave the iteration after `{text}` without an update of the loss scale"
                    )
                    return
            if isinstance(current, blocks.LOOPS) and current is not statement and self._runs_backward(current):
                yield self._defect(statement, f"ends the iteration after `{text}` without an update of the loss scale")
                return
            if self._has(current, "scaler.update") and current is not statement:
                return
        name = self._function_name(statement)
        if name is None or name not in self.updating:
            yield self._defect(statement, f"has no update of the scale after `{text}`")

    def _calls_updating(self, node: ast.AST) -> bool:
        """Whether running a node calls a function of the file that updates the scale."""
        called = {own_name(item.func) for item in blocks.walk_own(node) if isinstance(item, ast.Call)}
        return bool(called & self._functions_with_update)

    @cached_property
    def _functions_with_update(self) -> set[str]:
        return {
            node.name
            for node in walk(self.draft.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and any(self._has(item, "scaler.update") for item in node.body)
        }

    def _update(self, statement: ast.stmt) -> Iterator[Defect]:
        """An update follows a step of its round, or the calls that lead to it; or it ends a round that has none."""
        suite, index = self.draft.suite_of(statement)
        for earlier in reversed(suite[:index]):
            if self._has(earlier, "scaler.step") or self._leads_to_step(earlier):
                return
        if any(map(leaves, suite[index + 1 : index + 2])):
            for _, around, at in self._outwards(statement):
                if any(self._has(earlier, "scaler.unscale_") for earlier in around[:at]):
                    return
        yield self._defect(statement, "updates the scale where no step came before")

    def _leads_to_step(self, statement: ast.stmt) -> bool:
        old = self.draft.old.get(statement)
        if old is not None:
            return self.program.runs_step(old)
        return any(self._leads_to_step(item) for suite in blocks.suites(statement) for item in suite)

    def _runs_backward(self, statement: ast.stmt) -> bool:
        old = self.draft.old.get(statement)
        if old is not None:
            return self.program.runs_backward(old)
        return any(self._runs_backward(item) for suite in blocks.suites(statement) for item in suite)

    def _unscale(self, statement: ast.stmt, call: ast.Call) -> Iterator[Defect]:
        """Gradients are unscaled under the conditions on their optimizer under which it steps."""
        if not call.args:
            return
        optimizer = ast.unparse(call.args[0])
        body = self._body(statement)
        steps = [
            place
            for place, other, name in self._calls
            if name == "scaler.step" and self._body(place) is body and ast.unparse(other.args[0]) == optimizer
        ]
        if not steps:
            return
        mine = set(self._conditions(statement, optimizer))
        wanted = [set(self._conditions(place, optimizer)) for place in steps]
        missing = set.intersection(*wanted) - mine
        if missing:
            yield self._defect(
                statement, f"unscales `{optimizer}` without the condition `{min(missing)}`, under which it steps"
            )

    def _looks(self) -> Iterator[Defect]:
        """Gradients of a scaled loss are unscaled before anything looks at them."""
        accesses = gradient_accesses(self.program)
        exchanged = ExchangedGradients(self.program, accesses).in_any_unit
        looks = [access for access in accesses if access.node not in exchanged]
        looking = {access.statement for access in looks if not is_scale_free(self.program, access)}
        for statement, old in self.draft.old.items():
            if old in looking and self._sees_scaled(statement):
                yield self._defect(statement, f"lets `{ast.unparse(statement).split(chr(10))[0]}` see scaled gradients")

    def _sees_scaled(self, statement: ast.stmt) -> bool:
        """Whether gradients were scaled before a statement, in its body, and not unscaled for each optimizer since."""
        unscaled: set[str] = set()
        for current, suite, index in self._outwards(statement):
            for earlier in reversed(suite[:index]):
                unscaled |= self._arguments(earlier, "scaler.unscale_")
                if self._leads_to_step(earlier):
                    return False
                if self._has(earlier, "scaler.scale"):
                    return not unscaled or bool(self._stepping_after(statement) - unscaled)
            if isinstance(current, blocks.LOOPS) and self._runs_backward(current):
                return False
        return False

    def _stepping_after(self, statement: ast.stmt) -> set[str]:
        """The optimizers that step after a statement and before the next backward pass, in its body.

        Without those that are unscaled in between: for a look of their own, as in the branches of a choice.
        """
        found: set[str] = set()
        unscaled: set[str] = set()
        for current, suite, index in self._outwards(statement):
            for later in suite[index + 1 :]:
                if self._runs_backward(later):
                    return found
                unscaled |= self._arguments(later, "scaler.unscale_")
                found |= self._arguments(later, "scaler.step") - unscaled
            if isinstance(current, blocks.LOOPS):
                return found
        return found

    def _arguments(self, node: ast.AST, name: str) -> set[str]:
        """What calls of the runtime are given, in a node's own body."""
        calls = [item for item in blocks.walk_own(node) if isinstance(item, ast.Call) and self._name(item) == name]
        return {ast.unparse(call.args[0]) for call in calls if call.args}

    def _conditions(self, statement: ast.stmt, path: str) -> Iterator[str]:
        """The conditions on a value that hold where a statement stands."""
        for current, suite, index in self._outwards(statement):
            for earlier in suite[:index]:
                # `if optimizer is None: continue`
                if (
                    isinstance(earlier, ast.If)
                    and ends(earlier.body)
                    and not earlier.orelse
                    and _mentions(earlier.test, path)
                ):
                    yield _opposite(earlier.test)
            parent = self.draft.parents[current]
            if isinstance(parent, ast.If) and _mentions(parent.test, path):
                yield _plain(parent.test) if current in parent.body else _opposite(parent.test)

    # ---- models and data -------------------------------------------------------------------------------------------

    def _model(self, statement: ast.stmt, call: ast.Call) -> Iterator[Defect]:
        """A model is prepared before it is trained; that its optimizer may be built already is for the runtime."""
        if not call.args or not isinstance(statement, ast.Assign):
            return
        variable = ast.unparse(call.args[0])
        for earlier in self._since_bound(statement, variable):
            if self._runs_backward(earlier):
                yield self._defect(statement, f"prepares `{variable}` after it was trained")
                return

    def _loader(self, statement: ast.stmt, call: ast.Call) -> Iterator[Defect]:
        """A loader is shared out before the loop that trains on it."""
        if not call.args or not isinstance(statement, ast.Assign):
            return
        variable = ast.unparse(call.args[0])
        for earlier in self._since_bound(statement, variable):
            if self._runs_backward(earlier) and _mentions(earlier, variable):
                yield self._defect(statement, f"shares `{variable}` out after a loop that trains on it")
                return

    def _since_bound(self, statement: ast.stmt, variable: str) -> Iterator[ast.stmt]:
        """The statements of a suite before one of them, back to where a variable was bound."""
        suite, index = self.draft.suite_of(statement)
        for earlier in reversed(suite[:index]):
            if variable in blocks.writes(earlier):
                return
            yield earlier

    # ---- the start -------------------------------------------------------------------------------------------------

    def _start(self, statement: ast.stmt) -> Iterator[Defect]:
        """The runtime starts before anything of it is used, once."""
        for current, suite, index in self._outwards(statement):
            for earlier in suite[:index]:
                if not isinstance(earlier, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and self._uses(
                    earlier
                ):
                    yield self._defect(statement, "uses the runtime before it starts")
                    return
            if isinstance(current, blocks.LOOPS):
                yield self._defect(statement, "starts the runtime in a loop")
                return

    def _uses(self, statement: ast.stmt) -> bool:
        old = self.draft.old.get(statement)
        if old is not None and self._runs_new(old):
            return True
        return any(
            isinstance(node, ast.Call) and self._name(node) not in (None, *_BEFORE_THE_START)
            for node in blocks.walk_own(statement)
        )

    @cached_property
    def _runs_new(self):  # type: ignore[no-untyped-def]
        """Whether running a statement of the original would run new code."""
        served: set[ast.AST] = set()
        for statement, _, name in self._calls:
            if name in _BEFORE_THE_START:
                continue
            old = self.draft.old.get(statement)
            if old is None and statement in self.draft.added:
                old = self.draft.place_of(statement)
            if old is not None:
                served.add(old)
        return self.program.closure(lambda node: node in served)

    # ---- places ----------------------------------------------------------------------------------------------------

    def _outwards(self, statement: ast.stmt) -> Iterator[tuple[ast.stmt, Sequence[ast.stmt], int]]:
        """A statement and those around it within its body, each with its suite and its index there."""
        current: ast.AST = statement
        while isinstance(current, ast.stmt):
            suite, index = self.draft.suite_of(current)
            yield current, suite, index
            parent = self.draft.parents[current]
            if isinstance(parent, ast.ExceptHandler | ast.match_case):
                parent = self.draft.parents[parent]
            if isinstance(parent, _BODIES):
                return
            current = parent

    def _body(self, statement: ast.AST) -> ast.AST:
        current = self.draft.parents[statement]
        while not isinstance(current, _BODIES):
            current = self.draft.parents[current]
        return current

    def _function_name(self, statement: ast.stmt) -> str | None:
        body = self._body(statement)
        return body.name if isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _head_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that belong to no statement within it."""
    stack: list[ast.AST] = [item for item in ast.iter_child_nodes(statement)]
    while stack:
        node = stack.pop()
        if not isinstance(node, ast.stmt):
            yield node
            stack += list(ast.iter_child_nodes(node))


def _mentions(node: ast.AST, path: str) -> bool:
    return any(isinstance(item, ast.expr) and spelling(item) == path for item in walk(node))


def _plain(test: ast.expr) -> str:
    return ast.unparse(test)


def _opposite(test: ast.expr) -> str:
    """The source of the negated condition, without a double negation."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        turned = {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}.get(type(test.ops[0]))
        if turned is not None:
            return ast.unparse(ast.Compare(test.left, [turned()], test.comparators))
    return f"not {ast.unparse(test)}"
