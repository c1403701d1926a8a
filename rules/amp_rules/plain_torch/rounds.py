"""What torch's scaler asks of a training step, and the runtime's does not.

Between two updates each optimizer is unscaled at most once and stepped at most once, an update follows a step, and
gradients of one loss never meet those that are true already, or that have another scale. The program is run abstractly
from its start, through all paths; a place where one of these may not hold declines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.flow.values import Value
from amp_rules.plain_torch.clearing import Clearing
from amp_rules.plain_torch.merged_unscales import Merged, merged_unscales
from amp_rules.plain_torch.round_conditions import Assumed, RoundConditions
from amp_rules.plain_torch.scaler_states import FIRST, ONTO, Gradients, Leaving, Stage, State, any_of, same
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plan.gradient_owners import GradientOwners
from amp_rules.roles.kinds import is_module, is_optimizer
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.torch.gradients import CLIP_FUNCTIONS

_MAX_ROUNDS = 8
"""Times that a loop is gone through. States only grow, and each has few: it settles in three or four."""


class Rounds:
    """Follows the rounds of a program."""

    def __init__(self, translation: Translation, is_fixed: bool) -> None:
        self._translation = translation
        self._program = translation.program
        self._owners = GradientOwners(translation.program)
        self._is_fixed = is_fixed
        uses = [use for use in translation.uses if use.path.startswith("scaler.") and use.call is not None]
        self._events = {use.call: use for use in uses}
        self._clearing = Clearing(self._program, self._owners, uses)
        self._modules = {use.module: use.module for use in uses}
        self._assumed: Assumed = {}
        self._optimizers = self._all_optimizers(uses)
        self._has_events = self._program.closure(self._is_event)
        scales = {use.call for use in uses if use.path == "scaler.scale"}
        self._has_scale = self._program.closure(lambda node: node in scales)
        self._conditions = RoundConditions(self._program, self._modules.values(), self._has_events).assumptions()
        self._running: list[FunctionFacts] = []
        self._visited: set[ast.AST] = set()
        self._merged = Merged({}, frozenset())
        self._found: dict[ast.AST, tuple[Module, str, str]] = {}

    def check(self) -> Merged | None:
        """Decline what torch's scaler would refuse or get wrong; say where one ``unscale_`` stands for several."""
        self._follow()
        merged = merged_unscales(self._events.values(), self._has_scale) if self._found else None
        if merged is not None:
            before, self._found, self._merged = self._found, {}, merged
            self._follow()
            if self._found:
                self._found, merged = before, None
        for node, (module, message, recipe) in self._found.items():
            self._translation.decline(module, node, message, recipe, "precision")
        return merged

    def _follow(self) -> None:
        start = self._translation.start
        first = State(tuple((item, FIRST) for item in self._optimizers), frozenset({False}))  # type: ignore[misc]
        bodies = [start.use.body] if start is not None else []
        bodies += [use.body for use in self._events.values() if use.body not in bodies]
        for assumed in self._conditions:
            self._assumed = assumed
            self._visited.clear()
            for body in bodies:
                if body not in self._visited:
                    self._body(body, first)
        self._require_whole_norms()

    def _require_whole_norms(self) -> None:
        """torch's scaler makes the gradients true that an optimizer holds; others' would be scaled in a norm."""
        for site in self._program.calls_to(CLIP_FUNCTIONS):
            call = site.node
            if not isinstance(call, ast.Call) or not call.args:
                continue
            values = self._program.flow.values(call.args[0], site.scope)
            for value in values:
                model = value.ref if value.kind == "parameters" else None
                if isinstance(model, Value) and is_module(model) and not self._owners.hold_all_of(model):
                    text = site.module.text(call.args[0])
                    message = f"no optimizer holds some of `{text}`, and torch's scaler makes no others' gradients true"
                    recipe = "clip what the optimizer holds, or keep the runtime (--target runtime)"
                    self._found.setdefault(call, (site.module, message, recipe))

    def _all_optimizers(self, uses: Iterable[Use]) -> list[Value]:
        found: dict[Value, None] = {}
        for use in uses:
            if use.path in ("scaler.step", "scaler.unscale_") and use.call is not None and use.call.args:
                values = self._owners.at(use.argument, use.scope)
                found |= dict.fromkeys(sorted(values, key=repr))
                self._require_optimizers(use)
        return list(found)

    def _require_optimizers(self, use: Use) -> None:
        """torch's scaler looks into the groups of an optimizer, and takes no object around one."""
        values = self._program.flow.values(use.argument, use.scope)
        if values and not any(map(is_optimizer, values)) and any(value.kind == "instance" for value in values):
            text = use.module.text(use.argument)
            message = f"`{text}` is an object around an optimizer, which torch's scaler does not step"
            self._translation.decline(
                use.module,
                use.node,
                message,
                "step the optimizer inside of it by hand, or --target runtime",
                "precision",
            )

    # ---- walking ---------------------------------------------------------------------------------------------------

    def _is_event(self, node: ast.AST) -> bool:
        return node in self._events or (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "zero_grad"
        )

    def _body(self, body: ast.AST, state: State) -> State | None:
        self._visited.add(body)
        leaving = Leaving([], [], [])
        if isinstance(body, ast.Lambda):
            return self._expression(body.body, state)
        after = self._suite(getattr(body, "body", ()), state, leaving)
        return any_of([after, *leaving.returns])

    def _suite(self, suite: Iterable[ast.stmt], state: State | None, leaving: Leaving) -> State | None:
        for statement in suite:
            if state is None:
                return None
            state = self._statement(statement, state, leaving)
        return state

    def _statement(self, node: ast.stmt, state: State, leaving: Leaving) -> State | None:
        for use in self._merged.above.get(node, ()):
            state = self._event(use, state)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return state
        if isinstance(node, ast.If):
            return self._branch(node, self._expression(node.test, state), leaving)
        if isinstance(node, blocks.LOOPS):
            return self._loop(node, state, leaving)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                state = self._expression(item.context_expr, state)
            return self._suite(node.body, state, leaving)
        if isinstance(node, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            return self._try(node, state, leaving)  # type: ignore[arg-type]  # or TryStar, which is like it
        if isinstance(node, ast.Match):
            state = self._expression(node.subject, state)
            return any_of([state, *(self._suite(case.body, state, leaving) for case in node.cases)])
        state = self._expression(node, state)
        if isinstance(node, ast.Return):
            leaving.returns.append(state)
        elif isinstance(node, ast.Break):
            leaving.breaks.append(state)
        elif isinstance(node, ast.Continue):
            leaving.continues.append(state)
        return None if isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise)) else state

    def _branch(self, node: ast.If, state: State, leaving: Leaving) -> State | None:
        if self._is_absence(node.test) and not any(map(self._has_events, node.body)):
            return self._suite(node.orelse, state, leaving)
        known = self._assumed.get((blocks.body_of(self._module_of(node), node), ast.unparse(node.test)))
        if known is not None:
            return self._suite(node.body if known else node.orelse, state, leaving)
        then, otherwise = self._suite(node.body, state, leaving), self._suite(node.orelse, state, leaving)
        asked = self._optimizers_asked_for(node.test)
        if asked and then is not None and otherwise is not None:
            # Where there is no such optimizer, nothing happens to it.
            joined = then.joined(otherwise)
            return State(joined.with_({item: then.of(item) for item in asked}).optimizers, then.is_due)
        return any_of([then, otherwise])

    def _is_absence(self, test: ast.expr) -> bool:
        """Whether a condition asks whether there is no optimizer: nothing happens to it then."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return bool(self._optimizers_asked_for(test.operand))
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is):
            return bool(self._optimizers_asked_for(test.left))
        return False

    def _module_of(self, node: ast.AST) -> Module:
        found = self._program.module_of(node)
        assert found is not None
        return found

    def _optimizers_asked_for(self, test: ast.expr) -> set[Value]:
        """The optimizers whose presence a condition asks for: ``if optimizer is not None``."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
            test = test.left
        located = self._program.locate(test) if isinstance(test, (ast.Name, ast.Attribute)) else None
        if located is None:
            return set()
        return {value for value in self._program.flow.values(test, located[1]) if is_optimizer(value)}

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, state: State, leaving: Leaving) -> State | None:
        state = self._expression(node.test if isinstance(node, ast.While) else node.iter, state)
        if isinstance(node, ast.For) and (cleared := self._clearing.by_loop(node)):
            return state.with_({item: frozenset(("none", stage) for _, stage in state.of(item)) for item in cleared})
        if not self._has_events(node):
            return state
        own = Leaving([], [], leaving.returns)
        if isinstance(node, (ast.For, ast.AsyncFor)) and self._is_over_optimizers(node):
            return any_of([self._suite(node.body, state, own), *own.continues, *own.breaks])
        for _ in range(_MAX_ROUNDS):
            own.continues.clear()
            after = any_of([self._suite(node.body, state, own), *own.continues])
            following = state.joined(after)
            if same(following, state):
                break
            state = following
        left = self._suite(node.orelse, state, leaving)
        return any_of([left, *own.breaks])

    def _is_over_optimizers(self, node: ast.For | ast.AsyncFor) -> bool:
        """Whether a loop goes once over optimizers, of which there is one at least."""
        located = self._program.locate(node.iter)
        if located is None:
            return False
        elements = self._program.flow.elements(self._program.flow.values(node.iter, located[1]))
        elements |= {
            item for value in elements if value.kind == "sequence" for item in self._program.flow.elements({value})
        }
        return any(map(is_optimizer, elements))

    def _try(self, node: ast.Try, state: State, leaving: Leaving) -> State | None:
        after = self._suite(node.body, state, leaving)
        failed = state.joined(after)
        after = self._suite(node.orelse, after, leaving)
        after = any_of([after, *(self._suite(item.body, failed, leaving) for item in node.handlers)])
        return self._suite(node.finalbody, after, leaving)

    # ---- expressions -----------------------------------------------------------------------------------------------

    def _expression(self, node: ast.AST, state: State) -> State:
        """What evaluating a node leaves: its parts first, then its own call."""
        if isinstance(node, FunctionNode):
            return state
        if isinstance(node, ast.IfExp):
            state = self._expression(node.test, state)
            return self._expression(node.body, state).joined(self._expression(node.orelse, state))
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                state = state.joined(self._expression(value, state))
            return state
        for child in ast.iter_child_nodes(node):
            state = self._expression(child, state)
        return self._call(node, state) if isinstance(node, ast.Call) else state

    def _call(self, node: ast.Call, state: State) -> State:
        use = self._events.get(node)
        if use is not None:
            return state if use in self._merged.gone else self._event(use, state)
        callees = self._program.flow.callees(node)
        if not callees:
            cleared = self._clearing.by_call(node)
            if cleared:
                return state.with_(
                    {item: frozenset(("none", stage) for _, stage in state.of(item)) for item in cleared}
                )
        outcomes = []
        for info in callees:
            if info in self._running or not any(map(self._has_events, blocks.own_parts(info.node))):
                outcomes.append(state)
                continue
            self._running.append(info)
            outcomes.append(self._body(info.node, state) or state)
            self._running.pop()
        found = any_of(outcomes)
        return state if found is None else found

    # ---- events ----------------------------------------------------------------------------------------------------

    def _event(self, use: Use, state: State) -> State:
        method = use.path.partition(".")[2]
        if method == "scale":
            every = {item: frozenset((ONTO[g], s) for g, s in known) for item, known in state.optimizers}
            return state.with_(every)
        if method in ("unscale_", "step") and use.call is not None and use.call.args:
            changed = {item: self._unscaled(use, method, state.of(item)) for item in self._at(use)}
            return State(state.with_(changed).optimizers, frozenset({True}))
        if method == "update":
            return self._updated(use, state)
        return state

    def _at(self, use: Use) -> frozenset[Value]:
        return self._owners.at(use.argument, use.scope)

    def _unscaled(
        self, use: Use, method: str, known: frozenset[tuple[Gradients, Stage]]
    ) -> frozenset[tuple[Gradients, Stage]]:
        optimizer = use.module.text(use.argument)
        found: set[tuple[Gradients, Stage]] = set()
        for gradients, stage in known:
            if stage == "stepped" or (stage == "unscaled" and method == "unscale_"):
                what = "steps" if method == "step" else "is unscaled"
                self._stop(
                    use,
                    f"`{optimizer}` {what} here a second time before an update, which torch's scaler refuses",
                    "step it once a round",
                )
            if gradients in ("mixed", "old") or (stage == "unscaled" and gradients == "scaled"):
                self._stop(
                    use,
                    f"gradients of `{optimizer}` may be left here from an earlier round, or were unscaled before the "
                    "last backward pass: torch's scaler would unscale them twice",
                    "clear them after each step, and unscale only when all are there",
                )
            after: Stage = "stepped" if method == "step" else "unscaled"
            found.add(("none" if gradients == "none" else "true", after))
        return frozenset(found)

    def _updated(self, use: Use, state: State) -> State:
        if use.call is not None and use.call.args:
            return state  # declined where it is written
        if False in state.is_due and not self._is_fixed:
            self._stop(
                use,
                "a round may come here without a step, and torch's scaler cannot be updated then",
                "update where the optimizer steps",
            )
        aged: dict[Gradients, Gradients] = {} if self._is_fixed else {"scaled": "old"}
        changed = {
            item: frozenset((aged.get(gradients, gradients), "ready") for gradients, _ in known)
            for item, known in state.optimizers
        }
        return State(state.with_(changed).optimizers, frozenset({False}))  # type: ignore[arg-type]

    def _stop(self, use: Use, message: str, recipe: str) -> None:
        self._found.setdefault(use.node, (use.module, message, f"{recipe}, or keep the runtime (--target runtime)"))
