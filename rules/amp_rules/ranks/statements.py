"""Runs statements: what they assign, which paths they leave, and what decides over the rest."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence

from amp_rules.flow.statements import is_main_guard
from amp_rules.ranks.elements import Elements
from amp_rules.ranks.frames import Frame, Loop, Raised, merged
from amp_rules.ranks.memory import LENGTH
from amp_rules.ranks.origins import NOWHERE, UNDECIDED, Decision, Kind, origins_of
from amp_rules.ranks.targets import Targets
from amp_rules.ranks.values import REPLICATED, UNKNOWN, RankValue
from amp_rules.ranks.world import World
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.syntax import called_name, children, is_text, own_name
from amp_rules.torch.command_lines import PARSING
from amp_rules.torch.file_access import FILE_ERRORS

_BUILTIN_ERRORS = frozenset(name for name in dir(builtins) if name.endswith(("Error", "Exception", "Iteration")))
_OF_FILES = "OSError"
"""What a call that fails with a file raises: this, or one of its kinds."""
_MAX_PASSES = 3
"""Rounds over a loop's body until its variables stay: a value goes through two or three names from round to round."""
_MAX_UNROLLED = 4
"""Constants that a loop goes through one by one, as ``for phase in ("train", "val")`` does."""
_TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))


class Statements:
    """Runs suites. Each method says whether the statement can end and hand on to the next."""

    def __init__(self, world: World, elements: Elements, targets: Targets) -> None:
        self._world = world
        self._memory = world.memory
        self._elements = elements
        self._targets = targets
        self._reduced: dict[ast.stmt, list[str]] = {}
        for statement, name in world.setting.reduced_before:
            self._reduced.setdefault(statement, []).append(name)
        self._rebound: dict[ast.stmt, list[str]] = {}
        for statement, name in world.setting.rebound:
            self._rebound.setdefault(statement, []).append(name)
        self._rebound_after: dict[ast.stmt, list[str]] = {}
        for statement, name in world.setting.rebound_after:
            self._rebound_after.setdefault(statement, []).append(name)
        self._failing: dict[ast.stmt, list[Decision]] = {}
        for module in world.flow.modules if world.setting.failing else ():
            for node in module.nodes:
                if node in world.setting.failing:
                    decision = Decision(module, node, world.origin(Kind.FAILURE, module, node))
                    self._failing.setdefault(blocks.statement_of(module, node), []).append(decision)
        self._by_class: dict[type[ast.AST], Callable[..., bool]] = {
            ast.Assign: self._assign,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.If: self._if,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.FunctionDef: self._definition,
            ast.AsyncFunctionDef: self._definition,
            ast.ClassDef: self._class,
            ast.ImportFrom: self._import_from,
            ast.Return: self._return,
            ast.Raise: self._raise,
            ast.Assert: self._assert,
            ast.Break: self._break,
            ast.Continue: self._continue,
            ast.Match: self._match,
            **dict.fromkeys(_TRIES, self._try),
        }

    def run(self, suite: Sequence[ast.stmt], frame: Frame) -> bool:
        """Run a suite; whether its end can be reached."""
        for statement in suite:
            self._world.note_decided(statement, frame)
            if statement in self._world.setting.seeded:
                frame.state.apart = True
            for name in self._reduced.get(statement, ()):
                frame.variables[name] = REPLICATED
            for name in self._rebound.get(statement, ()):
                self._rebind(statement, name, frame)
            falls = self._one(statement, frame)
            frame.raised[-1] |= {(_OF_FILES, decision) for decision in self._failing.get(statement, ())}
            if not falls:
                return False
            for name in self._rebound_after.get(statement, ()):
                self._rebind(statement, name, frame)
        return True

    def _one(self, statement: ast.stmt, frame: Frame) -> bool:
        run = self._by_class.get(statement.__class__, self._other)
        if statement not in self._world.setting.alike:
            return run(statement, frame)
        apart, frame.state.apart = frame.state.apart, False
        falls = run(statement, frame)
        frame.state.apart = apart
        return falls

    def _rebind(self, statement: ast.stmt, name: str, frame: Frame) -> None:
        """``loader = prepare_loader(loader)``."""
        expression = ast.parse(name, mode="eval").body
        value = self._world.evaluate(expression, frame)
        shared = self._elements.rebound(statement, name, value, frame)
        target = expression
        self._targets.assign(target, shared, frame)

    def _other(self, node: ast.stmt, frame: Frame) -> bool:
        for child in children(node):
            if isinstance(child, ast.expr):
                self._world.evaluate(child, frame)
        return True

    # ---- assignments ---------------------------------------------------------------------------------------------

    def _assign(self, node: ast.Assign, frame: Frame) -> bool:
        value = self._world.evaluate(node.value, frame)
        for target in node.targets:
            self._targets.assign(target, value, frame)
        return True

    def _annotated(self, node: ast.AnnAssign, frame: Frame) -> bool:
        if node.value is not None:
            self._targets.assign(node.target, self._world.evaluate(node.value, frame), frame)
        return True

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> bool:
        value = self._world.evaluate(node.value, frame)
        before = self._world.evaluate(blocks.reading(node.target), frame)
        if isinstance(node.op, ast.Add) and is_text(node.value):
            # A text is made anew: what it was put together from stays as it is.
            before = RankValue(self._memory.deep(before), before.size)
        both = RankValue(self._world.deep([before, value]), before.size | value.size, before.refs)
        taken = self._memory.deep(value) | frame.control_origins
        for ref in before.refs:
            if ref.view and _is_option(ref.site):
                continue  # a number or a text, of which another one is made
            if isinstance(literal(node.value), (int, float)) and self._elements.is_of_file(ref):
                continue  # ``self.step += 1`` of a count in a checkpoint
            # ``losses += [loss]`` and ``total += loss`` change the object itself.
            if taken:
                self._elements.copy(ref, RankValue(taken, NOWHERE, value.refs))
            lengthened = frame.control_origins | self._memory.length(value)
            if lengthened:
                self._memory.write(ref, LENGTH, RankValue(lengthened))
        self._targets.assign(node.target, both, frame)
        return True

    # ---- loops ---------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For | ast.AsyncFor, frame: Frame) -> bool:
        given = self._world.evaluate(node.iter, frame)
        counted = self._memory.length(given)
        before = frame.control
        if counted and node not in self._world.setting.together:
            frame.decide(Decision(frame.scope.module, node.iter, counted, counts=True))
        constants = _literals(node.iter)

        apart = frame.state.apart
        # While it has a batch, each rank draws numbers of its own; an iterator that the body asks lives on.
        is_pass = self._memory.is_pass(given)
        frame.state.apart = apart or is_pass

        loops: list[Loop] = []

        def begin() -> None:
            # What ended the loop on other ranks changes nothing in a round that this one runs.
            loop = frame.loops[-1]
            loops[:] = [loop]
            ended, loop.ended = loop.ended, UNDECIDED
            self._targets.assign(node.target, self._elements.of(given, node.iter, frame), frame)
            loop.ended = ended

        falls = self._rounds(node, frame, begin) if constants is None else self._unrolled(node, constants, frame)
        for loop in loops:
            self._stop_in_some_round(node, loop, frame)
        frame.control = before
        if is_pass:
            frame.state.apart = apart or self._world.setting.stays_apart
        return falls

    def _stop_in_some_round(self, node: ast.For | ast.AsyncFor, loop: Loop, frame: Frame) -> None:
        """Behind a loop its variable says in which round it ended."""
        origins = origins_of(loop.ended)
        for name in blocks.writes_target(node) if origins else ():
            owner = frame.scope.owner(name)
            value = frame.variables.get(name)
            if owner is frame.scope and value is not None:
                frame.give(name, value.with_origins(origins))
                self._memory.assign(owner.node, name, frame.variables[name])

    def _while(self, node: ast.While, frame: Frame) -> bool:
        before = frame.control

        def begin() -> None:
            test = self._world.evaluate(node.test, frame)
            origins = self._elements.truth(node.test, test, frame)
            if origins and node not in self._world.setting.together:
                frame.decide(Decision(frame.scope.module, node.test, origins))

        falls = self._rounds(node, frame, begin, is_endless=_is_true(node.test))
        frame.control = before
        return falls

    def _rounds(
        self,
        node: ast.For | ast.AsyncFor | ast.While,
        frame: Frame,
        begin: Callable[[], None],
        *,
        is_endless: bool = False,
    ) -> bool:
        """Run the body until its variables stay."""
        loop = Loop(together=node in self._world.setting.together)
        frame.loops.append(loop)
        entered = dict(frame.variables)
        for _ in range(_MAX_PASSES):
            before, ended, apart = dict(frame.variables), loop.ended, frame.state.apart
            loop.skipped = UNDECIDED
            loop.skipping = []
            begin()
            self.run(node.body, frame)
            frame.variables = merged(before, frame.variables)
            for left in loop.skipping:
                frame.variables = merged(frame.variables, left)
            has_parted = frame.state.apart and not apart
            if frame.variables == before and loop.ended == ended and not has_parted:
                break
        loop.skipped = UNDECIDED
        begin()
        frame.loops.pop()
        frame.variables = merged(entered, frame.variables)
        for left in loop.left:
            frame.variables = merged(frame.variables, left)
        falls = bool(loop.left) or not is_endless
        return self.run(node.orelse, frame) and falls if node.orelse and not is_endless else falls

    def _unrolled(self, node: ast.For | ast.AsyncFor, constants: list[ast.expr], frame: Frame) -> bool:
        loop = Loop()
        frame.loops.append(loop)
        context = frame.context
        for item in constants:
            # What one round makes is no object of another.
            frame.context = self._world.round_of(context, item)
            loop.skipped = UNDECIDED
            loop.skipping = []
            self._targets.assign(node.target, self._world.evaluate(item, frame), frame)
            before = dict(frame.variables)
            if not self.run(node.body, frame):
                frame.variables = merged(before, frame.variables)
            for left in loop.skipping:
                frame.variables = merged(frame.variables, left)
        frame.context = context
        frame.loops.pop()
        for left in loop.left:
            frame.variables = merged(frame.variables, left)
        return self.run(node.orelse, frame)

    def _break(self, node: ast.Break, frame: Frame) -> bool:
        if frame.loops:
            loop = frame.loops[-1]
            loop.left.append(dict(frame.variables))
            if not loop.together:
                loop.ended |= frame.deciding
        return False

    def _continue(self, node: ast.Continue, frame: Frame) -> bool:
        if frame.loops:
            frame.loops[-1].skipped |= frame.deciding
            frame.loops[-1].left.append(dict(frame.variables))
            frame.loops[-1].skipping.append(dict(frame.variables))
        return False

    # ---- branches ------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If, frame: Frame) -> bool:
        if is_main_guard(node):
            return self.run(node.body if frame.scope.module.is_entry else node.orelse, frame)
        test = self._world.evaluate(node.test, frame)
        setting = self._world.setting
        if test.constant is not UNKNOWN:
            return self.run(node.body if test.constant else node.orelse, frame)
        if node.test in setting.holding or node.test in setting.excluded:
            return self.run(node.body if node.test in setting.holding else node.orelse, frame)
        origins = self._elements.truth(node.test, test, frame)
        before = frame.control
        if origins:
            frame.decide(Decision(frame.scope.module, node.test, origins))
        falls = self._branches([node.body, node.orelse], frame)
        frame.control = before
        return falls

    def _branches(self, suites: Sequence[Sequence[ast.stmt]], frame: Frame) -> bool:
        """Run suites of which one is taken."""
        entered, state = frame.variables, frame.state
        after = None
        found = None
        for suite in suites:
            frame.variables, frame.state = dict(entered), state.copy()
            if self.run(suite, frame):
                found = frame.variables if found is None else merged(found, frame.variables)
                if after is None:
                    after = frame.state
                else:
                    after.merge(frame.state)
        frame.variables = entered if found is None else found
        frame.state = state if after is None else after
        return found is not None

    def _match(self, node: ast.Match, frame: Frame) -> bool:
        origins = self._memory.deep(self._world.evaluate(node.subject, frame))
        before = frame.control
        if origins:
            frame.decide(Decision(frame.scope.module, node.subject, origins))
        self._branches([*(case.body for case in node.cases), []], frame)
        frame.control = before
        return True

    def _with(self, node: ast.With | ast.AsyncWith, frame: Frame) -> bool:
        for item in node.items:
            value = self._world.evaluate(item.context_expr, frame)
            if item.optional_vars is not None:
                self._targets.assign(item.optional_vars, value, frame)
        return self.run(node.body, frame)

    def _try(self, node: ast.Try, frame: Frame) -> bool:
        entered = dict(frame.variables)
        handlers = [item for item in node.handlers if item not in self._world.setting.ending]
        frame.raised.append(frozenset())
        known: dict[str, bool] = {}

        def catches(name: str) -> bool:
            if name not in known:
                known[name] = any(handles(handler, name) for handler in handlers)
            return known[name]

        frame.catches.append(catches)
        falls = self.run(node.body, frame) and self.run(node.orelse, frame)
        frame.catches.pop()
        raised = frame.raised.pop()
        ends = [frame.variables] if falls else []
        met = merged(entered, frame.variables)
        before = frame.control
        for handler in node.handlers:
            frame.variables = dict(met)
            caught: Raised = frozenset(item for item in raised if handler in handlers and handles(handler, item[0]))
            frame.control = before | {decision for _, decision in caught}
            raised -= caught
            self._world.note_decided(handler, frame)
            if self.run(handler.body, frame):
                ends.append(frame.variables)
        frame.control = before
        frame.raised[-1] |= raised
        frame.variables = met
        for end in ends[:1]:
            frame.variables = end
        for end in ends[1:]:
            frame.variables = merged(frame.variables, end)
        return self.run(node.finalbody, frame) and bool(ends)

    # ---- ends ----------------------------------------------------------------------------------------------------

    def _return(self, node: ast.Return, frame: Frame) -> bool:
        value = self._world.evaluate(node.value, frame) if node.value is not None else RankValue(constant=None)
        frame.give_back(value.with_origins(frame.control_origins))
        if not any(loop.together for loop in frame.loops):
            frame.ended |= frame.deciding
        for loop in frame.loops:
            if not loop.together:
                loop.ended |= frame.deciding
        return False

    def _raise(self, node: ast.Raise, frame: Frame) -> bool:
        self._other(node, frame)
        name = called_name(node.exc) if node.exc is not None else ""
        frame.raised[-1] |= {(name, decision) for decision in frame.deciding}
        return False

    def _assert(self, node: ast.Assert, frame: Frame) -> bool:
        origins = self._elements.truth(node.test, self._world.evaluate(node.test, frame), frame)
        if origins:
            frame.raised[-1] |= {("AssertionError", Decision(frame.scope.module, node.test, origins))}
        return True

    # ---- definitions ---------------------------------------------------------------------------------------------

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> bool:
        for decorator in node.decorator_list:
            self._world.evaluate(decorator, frame)
        frame.variables.pop(node.name, None)
        return True

    def _class(self, node: ast.ClassDef, frame: Frame) -> bool:
        scope = self._world.flow.scopes.get(node)
        if scope is not None:
            inner = Frame(node, scope, frame.context, control=frame.control, state=frame.state)
            self.run(node.body, inner)
        return True

    def _import_from(self, node: ast.ImportFrom, frame: Frame) -> bool:
        found = self._world.flow.project.find(frame.scope.module, node.module or "", node.level)
        for alias in node.names:
            if found is not None and alias.name != "*":
                value = self._memory.variable(found.tree, alias.name)
                if value is not None:
                    self._targets.assign(ast.Name(alias.asname or alias.name, ast.Store()), value.unknown(), frame)
        return True


def _is_option(site: ast.AST) -> bool:
    """Whether what was made there are the options of the command line."""
    return isinstance(site, ast.Call) and called_name(site) in PARSING


def _literals(node: ast.expr) -> list[ast.expr] | None:
    """The few constants that a loop goes through."""
    if not isinstance(node, (ast.List, ast.Tuple)) or not 0 < len(node.elts) <= _MAX_UNROLLED:
        return None
    return node.elts if all(isinstance(item, ast.Constant) for item in node.elts) else None


def _is_true(test: ast.expr) -> bool:
    return isinstance(test, ast.Constant) and bool(test.value)


def handles(handler: ast.ExceptHandler, raised: str) -> bool:
    """Whether a handler catches what goes by a name; a class of the project may be caught by a base of it."""
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {own_name(item) for item in types}
    if names & {"Exception", "BaseException"} or raised in names or raised not in _BUILTIN_ERRORS | {_OF_FILES}:
        return True
    return raised == _OF_FILES and bool(names & FILE_ERRORS)
