"""Functions that the abstract machine runs where they are called: what their parameters are, and what they give."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    F32,
    LEFT_OUT,
    LOW,
    Value,
    constant,
    join,
)  # fmt: skip
from amp_rules.lattice.autocast_switches import by_decorators
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.lattice.machine_state import MachineState
from amp_rules.lattice.parameter_types import narrow
from amp_rules.lattice.statement_runners import run
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import is_none
from amp_rules.torch.half_precision import FLOAT16

_MAX_DEPTH = 3
"""Calls within calls that are run in line: a helper and what it calls. Few arguments get farther as they were."""
_MAX_LINES = 120
"""Longer functions are the training loop or a whole model, and no helper; they are judged by themselves."""
_EVENT_LINES = 4 * _MAX_LINES
"""The same for functions about the order of events: a step of training may be most of a long function."""
_MAX_CALLS = 150
"""Functions called in line for each function that is judged."""


class CallsInLine(MachineState):
    """Runs functions of the project, by themselves or with what a call gives."""

    def _run(self, frame: Frame, node: FunctionNode, body: list[ast.stmt]) -> None:
        self._running.append(node)
        kept, self.jumps = self.jumps, None
        try:
            run(frame, body)
        finally:
            self.jumps = kept
            self._running.pop()

    # ---- parameters ----------------------------------------------------------------------------------------------

    def _bind_parameters(self, frame: Frame, function: FunctionFacts) -> None:
        arguments = function.node.args
        for item in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
            if item.arg == function.receiver:
                made = Value("self", item)
                made.data = function.cls
                if function.cls is not None and function.cls.is_autograd_function:
                    made = Value("context", item)
            else:
                made = self._parameter_value(frame, function, item, function.defaults.get(item.arg))
            frame.variables[item.arg] = made
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                frame.variables[star.arg] = Value("starargs", star)

    def _parameter_value(self, frame: Frame, function: FunctionFacts, item: ast.arg, default: ast.expr | None) -> Value:
        handed = self.handed.get(function.node) if self.thorough else None
        if handed and item.arg in handed:
            return handed[item.arg]
        made = Value("param", item, (), self.unknown_float, 1)
        made.data = item.arg
        if not self.mode.autocast:
            made.bits |= ASSUMED
        if function.is_forward:
            made.tensor = 1
        known = default is not None and evaluate(frame, default)
        if isinstance(known, Value) and known.is_const and known.const is not None:
            made.const, made.is_const = known.const, True
            made.lo, made.hi = known.lo, known.hi
            made.dtypes, made.tensor = known.dtypes, 0
            made.bits = known.bits
        narrow(made, item, function, self.unknown_float, frame.known)
        if self._supposing is function.node and made.tensor and made.dtypes & LOW:
            made.dtypes, made.tensor = LOW, 2
        if function.cls is not None and function.cls.is_optimizer and self.mode.opt_level != "O3":
            made.dtypes = F32
        if self.mode.opt_level == "O2" and made.tensor and _is_loss(function):
            # O2 gives the model's results back in float32.
            made.dtypes = made.dtypes & ~LOW | F32
        return made

    def run_nested(self, function: FunctionFacts, outer: Frame) -> None:
        """Run a function that is defined inside of another, with the variables that it sees there."""
        if outer.caller is not None or outer.silent or function.node in self._running:
            return
        autocast = self.autocast_in(function) if function.decorators or function.cls else outer.autocast
        autocast = autocast and not self._is_uncast(function)
        frame = Frame(self, outer.module, function, dict(outer.variables), autocast)
        for name in [name for name in frame.variables if name[0] == "$"]:
            del frame.variables[name]
        self._bind_parameters(frame, function)
        if self.turns_twice:
            frame.variables.update(self.starting)
        self._run(frame, function.node, function.body)

    def run_lambda(self, frame: Frame, target: Value, args: list[Value], node: ast.AST) -> Value:
        """Call a lambda."""
        function = target.node
        assert isinstance(function, ast.Lambda)
        names = [item.arg for item in function.args.args]
        if len(args) > len(names) or function in self._running or any(item.op == "starred" for item in args):
            return self.unknown("call", node, None)
        kept, frame.variables = frame.variables, {**target.data, **dict(zip(names, args, strict=False))}
        self._running.append(function)
        try:
            return evaluate(frame, function.body)
        finally:
            self._running.pop()
            frame.variables = kept

    # ---- calls in line -------------------------------------------------------------------------------------------

    def worth_running(self, args: Sequence[Value], kwargs: Mapping[str, Value] | None) -> bool:
        """Whether what a call is given can be the cause of a finding in another file."""
        if self.thorough:
            return True
        given = [*args, *(kwargs.values() if kwargs else ())]
        if self.turns_twice and any(isinstance(item.data, str) and self._is_followed(item.data) for item in given):
            return True
        return any(is_remarkable(item) for item in given)

    def worth_following(self, name: str) -> bool:
        """Whether a function of another file may be about the order of events, as its dotted name says."""
        return self.turns_twice and self._is_followed(name.rpartition(".")[2])

    def _is_followed(self, name: str) -> bool:
        lowered = name.lower()
        return any(text in lowered for text in self._followed)

    def concerned(self, module: ModuleFacts) -> frozenset[str]:
        """The names of the functions of a file that are about the order of events, or call one that is."""
        key = id(module)
        if key not in self._concerned:
            self._concerned[key] = self._names_concerned(module)
        return self._concerned[key]

    def call_function(
        self,
        frame: Frame,
        node: ast.Call,
        function: FunctionFacts,
        args: list[Value],
        kwargs: dict[str, Value] | None,
        receiver: Value | None,
    ) -> Value | None:
        """Run a function of the project in line; None where that leads nowhere."""
        definition = function.node
        states = {name: value for name, value in frame.variables.items() if name[0] == "$"}
        if states and function.name not in self.concerned(function.module):
            states = {}
        size = (definition.end_lineno or definition.lineno) - definition.lineno
        if (
            self._calls >= _MAX_CALLS
            or size > (_EVENT_LINES if states else _MAX_LINES)
            or frame.depth >= _MAX_DEPTH
            or definition in self._running
            or any(item.op == "starred" for item in args)
            or function.is_generator
        ):
            return None
        remarkable = self.worth_running(args, kwargs)
        silent = not (remarkable or states)
        # What ``__init__`` has its own methods do is part of it.
        building = receiver is not None and receiver.op == "self" and _is_init(frame)
        key = None
        if silent and not building:
            given = [*args, *(kwargs[name] for name in sorted(kwargs or {}))]  # type: ignore[index]
            key = (
                definition,
                frame.autocast,
                receiver.data if receiver is not None else None,
                tuple(sorted(kwargs)) if kwargs else (),
                tuple(
                    (item.dtypes, item.tensor, item.bits, item.sym, item.const if item.is_const else item.op == "const")
                    for item in given
                ),
            )
            try:
                if key in self._summaries:
                    return _copied(self._summaries[key], node)
            except TypeError:
                key = None
        self._calls += 1
        inner = Frame(self, function.module, function, {}, frame.autocast, frame, node)
        inner.silent = silent or frame.silent
        inner.loops = frame.loops if states else 0
        inner.contexts = list(frame.contexts) if states else []
        decorated = by_decorators(function, self.project) if function.decorator_list else None
        if decorated is not None:
            inner.autocast = decorated
        self._bind_parameters(inner, function)
        if not self._bind_arguments(inner, function, args, kwargs, receiver):
            return None
        inner.variables.update(states)
        if building:
            inner.variables.update(_held(frame))
        self._run(inner, definition, function.body)
        if building:
            frame.variables.update(_held(inner))
        if states:
            if inner.alive:
                self.leave(inner)
            frame.variables.update(inner.left)
        result: Value | None = None
        for value in inner.returned:
            result = value if result is None else join(result, value)
        if result is None:
            result = constant(None, node)
        if key is not None:
            self._summaries[key] = result
            return _copied(result, node)
        return result

    def _bind_arguments(
        self,
        inner: Frame,
        function: FunctionFacts,
        args: list[Value],
        kwargs: dict[str, Value] | None,
        receiver: Value | None,
    ) -> bool:
        arguments, names = function.node.args, function.positional
        if function.receiver is not None and receiver is not None:
            made = receiver
            if receiver.op == "instance":
                made = Value("self", receiver.node)
                made.data = receiver.data
            inner.variables[function.receiver] = made
        if len(args) > len(names) and arguments.vararg is None:
            return False
        accepted = {*names, *(item.arg for item in arguments.kwonlyargs)}
        for name, value in [*zip(names, args, strict=False), *(kwargs or {}).items()]:
            if name not in accepted:
                if arguments.kwarg is None:
                    return False
                continue
            inner.variables[name] = value
            inner.given[id(value)] = value
        for name, default in function.defaults.items():
            if is_none(default) and not _is_given(name, names, args, kwargs):
                # This call gives nothing, so it is nothing, and no test for it says otherwise.
                inner.variables[name] = left_out = constant(None, default)
                left_out.data = LEFT_OUT
        return True


_LARGE = FLOAT16.largest_exact_integer
"""float16 holds no larger integers exactly."""


_SMALL = 2e-5
"""Below a third of float16's smallest normal number, 6.1e-5, epsilons lose digits or become 0."""


def is_remarkable(value: Value) -> bool:
    """Whether a value is a number that half precision may not hold, or a limit of a type."""
    if value.op.startswith("finfo"):
        return True
    number = value.number
    return number is not None and (abs(number) > _LARGE or 0 < abs(number) < _SMALL)


def _held(frame: Frame) -> dict[str, Value]:
    """What a frame knows of ``self``."""
    return {name: value for name, value in frame.variables.items() if name[:5] == "self."}


def _is_given(name: str, names: Sequence[str], args: list[Value], kwargs: Mapping[str, Value] | None) -> bool:
    return name in names[: len(args)] or (kwargs is not None and name in kwargs)


def _is_init(frame: Frame) -> bool:
    return frame.function is not None and frame.function.name == "__init__"


def _copied(value: Value | None, node: ast.AST) -> Value | None:
    """A summary's result at another call."""
    if value is None:
        return None
    made = Value("result", node, (value,), value.dtypes, value.tensor, value.bits)
    made.lo, made.hi, made.sym, made.data = value.lo, value.hi, value.sym, value.data
    if value.op in ("tuple", "list", "layer", "instance", "self", "dict", "function"):
        made.op, made.args = value.op, value.args
    if value.is_const:
        made.const, made.is_const = value.const, True
    return made


def _is_loss(function: FunctionFacts) -> bool:
    name = (function.cls.name if function.cls else function.name).lower()
    return "loss" in name or "criterion" in name
