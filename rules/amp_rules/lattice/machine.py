"""The abstract machine: runs functions, remembers what classes hold, calls the project's functions in line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    F32,
    LEFT_OUT,
    LOW,
    NUM,
    OTHER,
    PARAMETER,
    POSITION,
    ZERO_DIM,
    Value,
    constant,
    join,
)  # fmt: skip
from amp_rules.lattice.autocast_switches import by_decorators, turns_off
from amp_rules.lattice.call_evaluators import call
from amp_rules.lattice.callers import learn
from amp_rules.lattice.expression_evaluators import EXPRESSIONS, global_value
from amp_rules.lattice.frame import CallListener, Evaluators, Frame, RunsFunctions, evaluate
from amp_rules.lattice.given_types import GivenTypes
from amp_rules.lattice.half_precision import Casts
from amp_rules.lattice.known_values import KnownOfFile, KnownValues
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.observer import Observer
from amp_rules.lattice.parameter_flow import Given, ParameterFlow
from amp_rules.lattice.parameter_types import narrow
from amp_rules.lattice.paths import START
from amp_rules.lattice.statement_runners import merge, run
from amp_rules.source.facts import ClassFacts, Definitions, FunctionFacts, ModuleFacts
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import is_none
from amp_rules.torch.half_precision import FLOAT16

_CONSTRUCTION = frozenset({"__init__", "reset_parameters", "init_weights", "_init_weights"})
"""Methods that run before training, outside of autocast."""
_MAX_DEPTH = 3
"""Calls within calls that are run in line: a helper and what it calls. Few arguments get farther as they were."""
_MAX_LINES = 120
"""Longer functions are the training loop or a whole model, and no helper; they are judged by themselves."""
_EVENT_LINES = 4 * _MAX_LINES
"""The same for functions about the order of events: a step of training may be most of a long function."""
_MAX_CALLS = 150
"""Functions called in line for each function that is judged."""


@lru_cache(maxsize=256)
def _hooks_of(observers: tuple[Observer, ...], codes: frozenset[str]) -> Mapping[str, Sequence[Observer]]:
    """The observers of ``codes`` that want to see an operation, by its name; the same for every file of a run."""
    hooks: dict[str, list[Observer]] = {}
    for observer in observers:
        for op in observer.operations if observer.code in codes else ():
            hooks.setdefault(op, []).append(observer)
    return hooks


EVALUATORS: Evaluators = {**EXPRESSIONS, ast.Call: call}
"""What evaluates each kind of expression."""


def _none_concerned(module: ModuleFacts) -> frozenset[str]:
    """No function is about the order of events."""
    return frozenset()


class Machine(RunsFunctions):
    """Runs functions in one mode and shows their operations to observers, mostly lint rules.

    Args:
        mode: in which the code is judged.
        project: finds definitions in the project's other files.
        observers: who is shown operations.
        known: what machines of the same mode found out about files before.
        concerned: the names of the functions of a file that are about the order of events.
        in_regions: whether statements outside of functions run under autocast.

    Attributes:
        hooks: the observers that want to see an operation, by its name.
        starting: the states (``$...``) of observers of the order of events at the start of a function.
        failures: over what observers broke down, by their code.
    """

    def __init__(
        self,
        mode: Mode,
        project: Definitions,
        observers: Sequence[Observer] = (),
        known: KnownValues | None = None,
        concerned: Callable[[ModuleFacts], frozenset[str]] = _none_concerned,
        in_regions: bool = False,
    ) -> None:
        self.mode = mode
        self._in_regions = in_regions
        self.evaluators = EVALUATORS
        self.project = project
        self.observers = tuple(observers)
        self.known = known if known is not None else KnownValues()
        self.codes: frozenset[str] = frozenset()
        self.hooks: Mapping[str, Sequence[Observer]] = {}
        self.select(frozenset(observer.code for observer in observers))
        self.table = Casts(mode.device)
        self.unknown_float = LOW | F32 if mode.autocast else LOW
        self.unknown_any = LOW | F32
        self.jumps: list[dict[str, Value]] | None = None
        self.turns_twice = False
        self.settling = False
        in_order = [observer for observer in observers if observer.in_order]
        self.starting: dict[str, Any] = {item: START for observer in in_order for item in observer.states}
        self._followed = tuple(text for observer in in_order for text in observer.follows)
        self._names_concerned = concerned
        self._concerned: dict[int, frozenset[str]] = {}
        self.last_event: tuple[Value, Any] | None = None
        self.notes: dict[Any, set[Any]] = {}
        self.numbers: dict[Hashable, int] = {}
        self.tests: list[Hashable] = []
        self.findings: list[Any] = []
        self.failures: dict[str, str] = {}
        self.thorough = False
        """Whether functions of other files are run in line whatever they are given."""
        self.muted = False
        """Whether observers are shown nothing."""
        self.is_in_doubt = False
        """Whether observers were shown something that may be a half tensor, or may not."""
        self.heard: CallListener | None = None
        self.handed: dict[ast.AST, dict[str, Value]] = {}
        self.uncast: set[ast.AST] = set()
        self.doubts_names = False
        self.by_name: dict[ast.arg, ModuleFacts] = {}
        self._given = GivenTypes(self)
        self._supposing: ast.AST | None = None
        self._flows: dict[ModuleFacts, ParameterFlow] = {}
        self._calls = 0
        self._running: list[ast.AST] = []
        self._summaries: dict[Any, Value | None] = {}
        self._imported: dict[tuple[int, str], Value | None] = {}
        self._bodies: dict[ClassFacts, dict[str, Value]] = {}

    # ---- running -------------------------------------------------------------------------------------------------

    def select(self, codes: frozenset[str]) -> None:
        """Show operations to the observers of these codes only, until others are selected."""
        self.codes, self.hooks = codes, _hooks_of(self.observers, codes)

    def known_of(self, module: ModuleFacts) -> KnownOfFile:
        """What is known of a file."""
        return self.known.of(module)

    def given_to(self, parameter: ast.arg, module: ModuleFacts) -> Given | None:
        """What the calls in a file give for a parameter of one of its functions; see :class:`Given`."""
        flow = self._flows.get(module)
        if flow is None:
            flow = self._flows[module] = ParameterFlow(module)
        return flow.given(parameter)

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

    def _is_uncast(self, function: FunctionFacts) -> bool:
        return self.thorough and function.node in self.uncast

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

    def _run(self, frame: Frame, node: FunctionNode, body: list[ast.stmt]) -> None:
        self._running.append(node)
        kept, self.jumps = self.jumps, None
        try:
            run(frame, body)
        finally:
            self.jumps = kept
            self._running.pop()

    def show(self, value: Value, frame: Frame) -> None:
        """Show an operation to the observers that asked for it."""
        hooks = self.hooks.get(value.op)
        if hooks is not None and not frame.silent and not self.muted:
            if not self.is_in_doubt:
                self.is_in_doubt = any(_may_be_half(item) for item in (value, *value.args))
            for observer in hooks:
                try:
                    observer.visit(value, frame)
                except RecursionError:
                    raise
                except Exception as error:
                    self.fail(observer.code, value.node, error)

    def fail(self, code: str, node: ast.AST | None, error: Exception) -> None:
        """Note that an observer broke down, which costs its finding here and nothing else."""
        line = getattr(node, "lineno", 0)
        self.failures.setdefault(code, f"{code} failed at line {line}: {type(error).__name__}: {error}")

    def leave(self, frame: Frame) -> None:
        """Note that the function returns here."""
        states = {name: value for name, value in frame.variables.items() if name[0] == "$"}
        if states:
            frame.left = merge(frame.left, states)

    # ---- what is not known ---------------------------------------------------------------------------------------

    def unknown(self, op: str, node: ast.AST, name: str | None) -> Value:
        """A value that nothing is known of."""
        made = Value(op, node, (), self.unknown_any, 1)
        made.data = name
        return made

    def parameter(self, node: ast.AST, initial: Value | None) -> Value:
        """A weight of a module."""
        low = not self.mode.autocast
        made = Value("parameter", node, (initial,) if initial is not None else (), LOW if low else F32, 2, PARAMETER)
        if initial is not None:
            made.bits |= initial.bits & ZERO_DIM
        if low:
            made.bits |= ASSUMED
        return made

    def autocast_in(self, function: FunctionFacts) -> bool:
        """Whether operations of a function are cast when it starts."""
        decorated = by_decorators(function, self.project) if function.decorator_list else None
        if decorated is not None:
            return decorated
        if not self.mode.autocast:
            return False
        cls = function.cls
        if cls is None:
            return True
        if function.name in _CONSTRUCTION:
            return False
        if cls.is_autograd_function and function.name == "backward":
            return function.has_decorator("custom_bwd")
        return not cls.is_optimizer

    def autocast_enabled(self, context: Value) -> bool | None:
        """Whether a context manager turns autocast on or off; None where it is about something else."""
        if context.op == "result":
            return self.autocast_enabled(context.args[0])
        if context.op == "join":
            # A helper that gives ``nullcontext()`` where there is nothing to turn off.
            return False if any(self.autocast_enabled(item) is False for item in context.args) else None
        if context.op == "call" and context.args and isinstance(context.args[0].data, FunctionFacts):
            # A context manager of the project.
            return False if turns_off(context.args[0].data) else None
        if context.op != "autocast":
            return None
        given = context.kwargs.get("enabled") if context.kwargs else None
        if given is None:
            given = next((item for item in context.args if item.is_const and isinstance(item.const, bool)), None)
        if given is not None and given.is_const and _is_switch(context.node):
            return True  # The mode says what a switch at the head of a script is to be.
        if any(item.sym == "torch.float32" for item in [*context.args, *(context.kwargs or {}).values()]):
            return False  # Autocast to float32 casts nothing down.
        # A parameter that is False unless the caller says otherwise turns nothing off for certain.
        return not (given is not None and given.is_const and given.const is False and given.op != "param")

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

    # ---- module variables ----------------------------------------------------------------------------------------

    def module_value(self, module: ModuleFacts, node: ast.expr) -> Value:
        """The value of a module variable's expression."""
        frame = Frame(self, module, None, {}, False)
        frame.silent = True
        kept, self.thorough = self.thorough, False
        try:
            return evaluate(frame, node)
        finally:
            self.thorough = kept

    def imported_constant(self, importer: ModuleFacts, dotted: str) -> Value | None:
        """The value of a module variable of another file of the project."""
        key = (id(importer), dotted)
        if key not in self._imported:
            found = self.project.module_of_constant(importer, dotted)
            value = None
            if found is not None:
                frame = Frame(self, found[0], None, {}, False)
                frame.silent = True
                value = global_value(frame, found[1], found[0].constants[found[1]])
            self._imported[key] = value
        return self._imported[key]

    # ---- classes -------------------------------------------------------------------------------------------------

    def class_attribute(self, cls: ClassFacts, name: str) -> Value | None:
        """What instances of a class hold under a name, as far as its ``__init__`` tells."""
        for owner in cls.lineage:
            held = self._attributes(owner)
            if name in held:
                return held[name]
        return None

    def _attributes(self, cls: ClassFacts) -> dict[str, Value]:
        known = self.known_of(cls.module).attributes
        found = known.get(cls.node)
        if found is None:
            init = cls.methods.get("__init__")
            if init is not None and init.node in self._running:
                # What it leaves in ``self`` is not known before it has run.
                return self._of_class_body(cls)
            known[cls.node] = {}
            held = dict(self._of_class_body(cls))
            if init is not None:
                inner = Frame(self, cls.module, init, {}, False)
                inner.silent = True
                kept, self._calls = (self._calls, self.thorough), 0
                # What is kept for all must not depend on who asked first.
                self.thorough = self.thorough and bool(self.handed.get(init.node))
                self._bind_parameters(inner, init)
                self._run(inner, init.node, init.body)
                self._calls, self.thorough = kept
                for name, value in inner.variables.items():
                    if name.startswith("self."):
                        held[name[5:]] = value
            found = known[cls.node] = held
        return found

    def _of_class_body(self, cls: ClassFacts) -> dict[str, Value]:
        """What the class itself holds."""
        held = self._bodies.get(cls)
        if held is None:
            frame = Frame(self, cls.module, None, {}, False)
            frame.silent = True
            run(frame, [item for item in cls.node.body if isinstance(item, (ast.Assign, ast.AnnAssign))])
            held = self._bodies[cls] = frame.variables
        return held

    def register(self, frame: Frame, node: ast.AST, name: str, method: str, content: Value | None) -> None:
        """Note what ``self.register_buffer`` and ``self.register_parameter`` put under a name."""
        made = self._buffer(node, content) if method == "register_buffer" else self.parameter(node, content)
        made.data = name
        frame.variables[f"self.{name}"] = made
        self.show(made, frame)

    def _buffer(self, node: ast.AST, content: Value | None) -> Value:
        made = Value("buffer", node, (content,) if content is not None else (), self.unknown_any, 2)
        if content is not None and content.tensor:
            made.dtypes, made.lo, made.hi = content.dtypes, content.lo, content.hi
            made.bits = content.bits & (POSITION | ZERO_DIM)
        if not self.mode.autocast and made.dtypes & (LOW | F32):
            # ``model.half()`` converts buffers that hold floats.
            made.dtypes = made.dtypes & ~F32 | LOW
            made.bits |= ASSUMED
        return made

    def attribute_of_self(self, frame: Frame, base: Value, attr: str, node: ast.AST) -> Value:
        """``self.x``: what this function left there, else what ``__init__`` did."""
        key = f"self.{attr}"
        held = frame.variables.get(key)
        if held is not None:
            return held
        cls = base.data if isinstance(base.data, ClassFacts) else None
        if cls is not None:
            item = cls.method(attr)
            if item is not None:
                made = Value("function", node)
                made.data = item
                return made
            value = self.class_attribute(cls, attr)
            if value is not None and value.is_const and any(attr in item.reassigned for item in cls.lineage):
                # Another method may have given it another value.
                value, initial = Value("attr", node, (value,), self.unknown_any | NUM | OTHER, 1), value
                value.dtypes |= initial.dtypes
                value.data = attr
            if value is not None:
                if value.op == "param" and not value.is_const:
                    value = self._of_init(value, node, attr)
                frame.variables[key] = value
                return value
        made = self.unknown("attr", node, attr)
        if attr == "dtype" and cls is not None and cls.is_module:
            # Libraries give modules a property of that name: the type of their parameters.
            made = Value("dtype", node, (self.parameter(node, None),))
        if attr in ("weight", "bias") and cls is not None and cls.is_module and _is_layer(cls):
            made = self.parameter(node, None)
        elif attr == "dtype" and cls is not None and cls.is_module:
            # Libraries that give modules a type mean that of their weights.
            made = Value("dtype", node, (self.parameter(node, None),))
        frame.variables[key] = made
        return made

    def _of_init(self, value: Value, node: ast.AST, attr: str) -> Value:
        """An argument of ``__init__`` that was kept: a setting more often than a tensor."""
        made = self.unknown("attr", node, attr)
        made.dtypes |= NUM | OTHER
        made.args = (value,)
        return made


def _is_switch(region: ast.AST | None) -> bool:
    """Whether ``enabled=`` of a region is a constant of the file, which users set to what they want."""
    given = [item.value for item in getattr(region, "keywords", ()) if item.arg == "enabled"]
    return any(isinstance(item, ast.Name) and item.id.isupper() for item in given)


def _is_layer(cls: ClassFacts) -> bool:
    """Whether a class extends a layer of torch, which has weights of its own."""
    return any(name.startswith("torch.nn.") and name != "torch.nn.Module" for name in cls.external_bases)


def _may_be_half(value: Value) -> bool:
    """Whether a value may be a half tensor, and may be something else."""
    return bool(value.dtypes & LOW) and (value.dtypes != LOW or value.tensor == 1)


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
