"""What the abstract machine holds while it runs: the mode, who is shown operations, what is known; and what is not."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from amp_rules.lattice.abstract_values import (
    ASSUMED,
    F32,
    LOW,
    PARAMETER,
    ZERO_DIM,
    Value,
)  # fmt: skip
from amp_rules.lattice.autocast_switches import by_decorators, turns_off
from amp_rules.lattice.frame import CallListener, Frame, RunsFunctions
from amp_rules.lattice.given_types import GivenTypes
from amp_rules.lattice.half_precision import Casts
from amp_rules.lattice.known_values import KnownOfFile, KnownValues
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.observer import Observer
from amp_rules.lattice.parameter_flow import Given, ParameterFlow
from amp_rules.lattice.paths import START
from amp_rules.lattice.statement_runners import merge
from amp_rules.source.facts import ClassFacts, Definitions, FunctionFacts, ModuleFacts

_CONSTRUCTION = frozenset({"__init__", "reset_parameters", "init_weights", "_init_weights"})
"""Methods that run before training, outside of autocast."""


@lru_cache(maxsize=256)
def _hooks_of(observers: tuple[Observer, ...], codes: frozenset[str]) -> Mapping[str, Sequence[Observer]]:
    """The observers of ``codes`` that want to see an operation, by its name; the same for every file of a run."""
    hooks: dict[str, list[Observer]] = {}
    for observer in observers:
        for op in observer.operations if observer.code in codes else ():
            hooks.setdefault(op, []).append(observer)
    return hooks


def _none_concerned(module: ModuleFacts) -> frozenset[str]:
    """No function is about the order of events."""
    return frozenset()


class MachineState(RunsFunctions):
    """The state of a machine that runs functions in one mode and shows their operations to observers.

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

    # ---- observers -----------------------------------------------------------------------------------------------

    def select(self, codes: frozenset[str]) -> None:
        """Show operations to the observers of these codes only, until others are selected."""
        self.codes, self.hooks = codes, _hooks_of(self.observers, codes)

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

    # ---- what is known -------------------------------------------------------------------------------------------

    def known_of(self, module: ModuleFacts) -> KnownOfFile:
        """What is known of a file."""
        return self.known.of(module)

    def given_to(self, parameter: ast.arg, module: ModuleFacts) -> Given | None:
        """What the calls in a file give for a parameter of one of its functions; see :class:`Given`."""
        flow = self._flows.get(module)
        if flow is None:
            flow = self._flows[module] = ParameterFlow(module)
        return flow.given(parameter)

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

    # ---- autocast ------------------------------------------------------------------------------------------------

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

    def _is_uncast(self, function: FunctionFacts) -> bool:
        return self.thorough and function.node in self.uncast


def _is_switch(region: ast.AST | None) -> bool:
    """Whether ``enabled=`` of a region is a constant of the file, which users set to what they want."""
    given = [item.value for item in getattr(region, "keywords", ()) if item.arg == "enabled"]
    return any(isinstance(item, ast.Name) and item.id.isupper() for item in given)


def _may_be_half(value: Value) -> bool:
    """Whether a value may be a half tensor, and may be something else."""
    return bool(value.dtypes & LOW) and (value.dtypes != LOW or value.tensor == 1)
