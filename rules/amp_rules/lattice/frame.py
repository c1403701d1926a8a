"""One function while it is run abstractly, and what its evaluators ask of the machine that runs it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from amp_rules.lattice.abstract_values import IN_A_FEW_LINES, NUM, PARAMETER, TENSORS, Value
from amp_rules.lattice.half_precision import Casts
from amp_rules.lattice.known_values import KnownOfFile
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.parameter_flow import Given
from amp_rules.lattice.variable_uses import uses_in, uses_in_statements
from amp_rules.source.facts import ClassFacts, Definitions, FunctionFacts, ModuleFacts
from amp_rules.source.spans import Span


class Frame:
    """A running function.

    Attributes:
        machine: what runs it, with the mode and the observers.
        module: the file.
        function: what runs; None for the statements of a module or class.
        variables: local name to value; ``self.x`` under that very text.
        autocast: whether operations are cast here.
        caller: the frame that called this one in line.
        call: the call that did so.
        returned: the values it returned so far.
        given: the arguments of a call in line, by identity.
        left: the states (``$...``) in which the function may be left.
        alive: whether the present statement can be reached.
        loops: how many loops are around the present statement.
        contexts: dotted names of the context managers around the present statement, outermost first.
        evaluators: what evaluates each kind of expression; the machine's own.
        known: what is known of the file.
    """

    __slots__ = (
        "alive", "autocast", "call", "caller", "contexts", "evaluators", "function", "given", "known", "left", "loops",
        "machine", "module", "returned", "silent", "variables",
    )  # fmt: skip

    def __init__(
        self,
        machine: RunsFunctions,
        module: ModuleFacts,
        function: FunctionFacts | None,
        variables: dict[str, Value],
        autocast: bool,
        caller: Frame | None = None,
        call: ast.AST | None = None,
    ) -> None:
        self.machine = machine
        self.evaluators = machine.evaluators
        self.module = module
        self.known: KnownOfFile = machine.known_of(module)
        self.function = function
        self.variables = variables
        self.autocast = autocast
        self.caller = caller
        self.call = call
        self.returned: list[Value] = []
        self.alive = True
        self.loops = 0
        self.silent = False
        self.contexts: list[Value] = []
        self.given: dict[int, Value] = {}
        self.left: dict[str, Any] = {}

    # ---- what checks ask -----------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """The mode in which the code is judged."""
        return self.machine.mode

    @property
    def depth(self) -> int:
        """How many frames called this one."""
        count, frame = 0, self.caller
        while frame is not None:
            count, frame = count + 1, frame.caller
        return count

    def text(self, node: ast.AST | None) -> str:
        """The node's source, shortened."""
        return self.module.module.text(node) if node is not None else ""

    def span(self, node: ast.AST) -> Span:
        """The node's place."""
        return self.module.module.span(node)

    def is_tensor(self, value: Value) -> bool:
        """Whether something says that ``value`` is a tensor: how it was made, or how this function uses it."""
        if value.tensor == 2 or value.bits & PARAMETER:
            return True
        if value.tensor == 0:
            return False
        for item in value.behind(IN_A_FEW_LINES):
            if item.tensor == 2 and item.dtypes & TENSORS:
                return True
            if item.op in ("param", "element", "name", "attr") and self._used_as_tensor(item):
                return True
            if item.op == "param" and item.tensor and not item.dtypes & NUM and self._is_given_tensors:
                return True
        return False

    @property
    def _is_given_tensors(self) -> bool:
        """Whether what the function computes with are tensors: it is the forward pass of a module."""
        return self.function is not None and self.function.is_forward

    def _used_as_tensor(self, value: Value) -> bool:
        name = value.data if isinstance(value.data, str) else None
        return name is not None and self.used_as_tensor(name)

    def used_as_tensor(self, name: str) -> bool:
        """Whether this function uses the variable of that name as only a tensor can be used."""
        return self._evidence().get(name, 0) > 0

    def used_as_array(self, name: str) -> bool:
        """Whether this function gives the variable of that name to numpy."""
        return self._evidence().get(name, 0) < 0

    def _evidence(self) -> dict[str, int]:
        """Count, by name, the uses in this function that only a tensor allows, less those of an array."""
        if self.function is None:
            return uses_in_statements(self.module, self.known.uses).as_tensor
        return uses_in(self.function, self.known.uses).as_tensor

    def class_is(self, *suffixes: str) -> bool:
        """Whether the function is a method of a class whose name ends in one of ``suffixes``."""
        cls = self.function.cls if self.function else None
        return cls is not None and cls.name.endswith(suffixes)

    # ---- where a finding belongs -------------------------------------------------------------------------------

    def callers(self) -> Iterator[Frame]:
        """Yield the frames that led here, the nearest first."""
        frame = self.caller
        while frame is not None:
            yield frame
            frame = frame.caller

    def call_of(self, inner: Frame) -> ast.AST:
        """The call in this frame that led to ``inner``."""
        frame = inner
        while frame.caller is not None and frame.caller is not self:
            frame = frame.caller
        assert frame.call is not None
        return frame.call

    def given_by(self, culprit: Value | None) -> Value | None:
        """The argument of the call in line that ``culprit`` is, or None."""
        return self.given.get(id(culprit)) if culprit is not None else None

    def holds(self, node: ast.AST) -> bool:
        """Whether ``node`` stands in the text of this frame's function."""
        outer = self.function.node if self.function else None
        line = getattr(node, "lineno", 0)
        return outer is None or outer.lineno <= line <= (outer.end_lineno or line)


def evaluate(frame: Frame, node: ast.expr) -> Value:
    """What an expression may be."""
    function = frame.evaluators.get(node.__class__)
    if function is None:
        return Value("other", node)
    return function(frame, node)


Evaluators = Mapping[type, Callable[[Frame, Any], Value]]
"""Kind of expression to the function that evaluates it."""


class CallListener(Protocol):
    """Hears of the calls that a function makes."""

    def take(
        self, frame: Frame, node: ast.Call, function: FunctionFacts, args: list[Value], kwargs: dict[str, Value] | None
    ) -> None:
        """Note a call of a function of the project."""


class RunsFunctions(Protocol):
    """What evaluators of expressions and runners of statements ask of the machine.

    Attributes:
        mode: in which the code is judged.
        evaluators: what evaluates each kind of expression.
        project: finds definitions in the project's other files.
        table: the cast table that autocast follows.
        unknown_float: the types of an activation that nothing else is known of.
        unknown_any: the types of a value that nothing is known of.
        turns_twice: whether loops are run twice, for observers of the order of events.
        settling: whether a later turn of a loop is run for what it leaves behind.
        jumps: the variables at each ``continue`` and ``break`` of the present loop.
        heard: who hears of calls.
        handed: what all calls of a function give to its parameters, for the functions whose callers were asked.
        uncast: functions that are only called with autocast off.
        doubts_names: whether a parameter is asked about although its name says what it is.
        by_name: the parameters that were taken for what their names say.
        last_event: the operation that observers of the order of events were shown last, with what it means to them.
        notes: what observers remember about their states.
        numbers: a number for each test that was met, by what it asks.
        tests: what the test of each number asks.
        findings: what the observers found, in their own form.
    """

    mode: Mode
    evaluators: Evaluators
    project: Definitions
    table: Casts
    unknown_float: int
    unknown_any: int
    turns_twice: bool
    settling: bool
    jumps: list[dict[str, Value]] | None
    heard: CallListener | None
    handed: dict[ast.AST, dict[str, Value]]
    uncast: set[ast.AST]
    doubts_names: bool
    by_name: dict[ast.arg, ModuleFacts]
    last_event: tuple[Value, Any] | None
    notes: dict[Any, set[Any]]
    numbers: dict[Hashable, int]
    tests: list[Hashable]
    findings: list[Any]

    def known_of(self, module: ModuleFacts) -> KnownOfFile:
        """What is known of a file."""

    def given_to(self, parameter: ast.arg, module: ModuleFacts) -> Given | None:
        """What the calls in a file give for a parameter of one of its functions; see :class:`Given`."""

    def show(self, value: Value, frame: Frame) -> None:
        """Show an operation to the observers that asked for it."""

    def leave(self, frame: Frame) -> None:
        """Note that the function returns here."""

    def unknown(self, op: str, node: ast.AST, name: str | None) -> Value:
        """A value that nothing is known of."""

    def parameter(self, node: ast.AST, initial: Value | None) -> Value:
        """A weight of a module."""

    def autocast_enabled(self, context: Value) -> bool | None:
        """Whether a context manager turns autocast on or off; None where it is about something else."""

    def worth_running(self, args: Sequence[Value], kwargs: Mapping[str, Value] | None) -> bool:
        """Whether what a call is given can be the cause of a finding in another file."""

    def worth_following(self, name: str) -> bool:
        """Whether a function of another file may be about the order of events, as its dotted name says."""

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

    def run_nested(self, function: FunctionFacts, outer: Frame) -> None:
        """Run a function that is defined inside of another, with the variables that it sees there."""

    def run_lambda(self, frame: Frame, target: Value, args: list[Value], node: ast.AST) -> Value:
        """Call a lambda."""

    def listen(self, caller: FunctionFacts, handed: CallListener) -> None:
        """Run a function for what it gives to another one."""

    def module_value(self, module: ModuleFacts, node: ast.expr) -> Value:
        """The value of a module variable's expression."""

    def imported_constant(self, importer: ModuleFacts, dotted: str) -> Value | None:
        """The value of a module variable of another file of the project."""

    def class_attribute(self, cls: ClassFacts, name: str) -> Value | None:
        """What instances of a class hold under a name, as far as its ``__init__`` tells."""

    def attribute_of_self(self, frame: Frame, base: Value, attr: str, node: ast.AST) -> Value:
        """``self.x``: what this function left there, else what ``__init__`` did."""

    def register(self, frame: Frame, node: ast.AST, name: str, method: str, content: Value | None) -> None:
        """Note what ``self.register_buffer`` and ``self.register_parameter`` put under a name."""
