"""The abstract machine: runs functions, remembers what classes hold, calls the project's functions in line."""

from __future__ import annotations

import ast

from amp_rules.lattice.attributes import HoldsAttributes
from amp_rules.lattice.call_evaluators import call
from amp_rules.lattice.callers import learn
from amp_rules.lattice.expression_evaluators import EXPRESSIONS
from amp_rules.lattice.frame import CallListener, Evaluators, Frame
from amp_rules.lattice.statement_runners import run
from amp_rules.source.facts import FunctionFacts, ModuleFacts

EVALUATORS: Evaluators = {**EXPRESSIONS, ast.Call: call}
"""What evaluates each kind of expression."""


class Machine(HoldsAttributes):
    """Runs functions for their findings; :class:`MachineState` says what it is given and what it holds."""

    evaluators = EVALUATORS

    def judge_by_callers(self, function: FunctionFacts) -> Frame:
        """Run a function again, taking no parameter for what its name says where callers say something else."""
        self.doubts_names = True
        try:
            return self.judge(function)
        finally:
            self.doubts_names = False

    def judge(self, function: FunctionFacts) -> Frame:
        """Run a function for its findings."""
        self._calls = 0
        autocast = self.autocast_in(function) and not self._is_uncast(function)
        frame = Frame(self, function.module, function, {}, autocast)
        self._bind_parameters(frame, function)
        if self.turns_twice:
            frame.variables.update(self.starting)
        self._run(frame, function.node, function.body)
        if self.turns_twice and frame.alive:
            self.leave(frame)
        return frame

    def judge_again(self, function: FunctionFacts, lines: set[int]) -> Frame:
        """Run a function that is in doubt once more, knowing its callers and what other files' helpers do.

        Args:
            function: what was judged before.
            lines: where in it something was found.
        """
        kept, self._summaries, self.thorough = self._summaries, {}, True
        cls = function.cls
        known = self.known_of(function.module).attributes
        attributes = known.get(cls.node) if cls is not None else None
        try:
            learn(self, function, lines)
            init = cls.methods.get("__init__") if cls is not None else None
            if cls is not None and init is not None and self.handed.get(init.node):
                known.pop(cls.node, None)
            return self.judge(function)
        finally:
            self._summaries, self.thorough = kept, False
            if cls is not None:
                known.pop(cls.node, None)
                if attributes is not None:
                    known[cls.node] = attributes

    def suppose(self, function: FunctionFacts) -> Frame:
        """Run a function as if it were given half tensors."""
        self._supposing = function.node
        try:
            return self.judge(function)
        finally:
            self._supposing = None

    def judge_given(self, function: FunctionFacts) -> Frame | None:
        """Run a function with what a call in its file gives; None where none gives half tensors."""
        kept, self._summaries, self.thorough = self._summaries, {}, True
        handed = self.handed.get(function.node)
        try:
            given = self._given.to(function)
            if given is None:
                return None
            self.handed[function.node] = given
            return self.judge(function)
        finally:
            self._summaries, self.thorough = kept, False
            self.handed.pop(function.node, None)
            if handed is not None:
                self.handed[function.node] = handed

    def listen(self, caller: FunctionFacts, handed: CallListener) -> None:
        """Run a function for what it gives to another one."""
        kept = self.muted, self.heard, self.turns_twice
        self.muted, self.heard, self.turns_twice = True, handed, False
        try:
            self.judge(caller)
        finally:
            self.muted, self.heard, self.turns_twice = kept

    def judge_statements(self, module: ModuleFacts, body: list[ast.stmt]) -> Frame:
        """Run statements of a file outside of functions and classes."""
        self._calls = 0
        # Apex changes the functions of torch, wherever they are called.
        apex = any(name.partition(".")[0] == "apex" for name in module.imports.values())
        variables = dict(self.starting) if self.turns_twice else {}
        frame = Frame(self, module, None, variables, self.mode.autocast and (apex or self._in_regions))
        for item in body:
            try:
                run(frame, [item])
            except RecursionError:
                # An expression nested this deeply is data, not arithmetic.
                continue
        if self.turns_twice and frame.alive:
            self.leave(frame)
        return frame
