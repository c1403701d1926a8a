"""The mode over autocast, which casts what the op policy, the lists and the registrations name.

torch's own tables differ by device, so that softmax is float32 on CUDA and half on the CPU. With
``cast_policy="torch"`` the mode gives the CPU the table of CUDA, and CUDA, which has it already, gets no mode.
With ``"apex"`` both get Apex's lists, and torch's for CUDA where Apex's are silent.

A mode sees the functions that Python code calls, not those that torch's C++ calls inside them.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from amp_runtime._core.context import CastPolicy, context
from amp_runtime._core.versions import COMPILES_FUNCTION_MODES
from amp_runtime._precision import apex_policy, cast_tables, recompute, rules
from amp_runtime._precision.lacking import lacking
from amp_runtime._precision.operations import Function, attribute_names, forms, python_functions
from amp_runtime._precision.rules import Rule


class Lists(NamedTuple):
    """Names of operations that run in a precision of somebody's choice."""

    half: frozenset[str] = frozenset()
    float: frozenset[str] = frozenset()
    promote: frozenset[str] = frozenset()


class Action(NamedTuple):
    """What a mode does with a function.

    Attributes:
        rule: what is done with the call; ``None`` is for a function written in Python, whose body is run under
            the mode.
        function: torch's function, or its body.
    """

    rule: Rule | None
    function: Function


class Table(NamedTuple):
    """The actions of a region, and the place of a function's action among them, or -1."""

    actions: list[Action]
    place: Callable[[Function], int]


# No subclass with defaults: torch.compile of torch 2.4 would read the defaults instead of what the thread has set.
_thread = threading.local()


def _mode() -> CastMode | None:
    """The mode that casts what this thread calls."""
    mode: CastMode | None = getattr(_thread, "mode", None)
    return mode


def _become(mode: CastMode | None) -> None:
    """Makes ``mode`` the one that casts what this thread calls."""
    _thread.mode, _thread.kind = mode, None if mode is None else mode.kind


def _disabled() -> int:
    """How many blocks of ``amp.disable_casts()`` this thread is in."""
    depth: int = getattr(_thread, "disabled", 0)
    return depth


class CastMode(TorchFunctionMode):
    """Casts the calls of one region of one thread.

    Args:
        kind: the device type of the region's autocast.
        table: what is done with which function.
    """

    def __init__(self, kind: str, table: Table) -> None:
        self.kind = kind
        self.actions, self.place = table

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        place = self.place(func)
        if place < 0 or _mode() is not self or not torch.is_autocast_enabled(self.kind):
            return func(*args, **kwargs) if kwargs else func(*args)
        rule, function = self.actions[place]
        if rule is not None:
            return rule(self.kind, function, args, kwargs or {})
        with self:
            return function(*args, **(kwargs or {}))


class Region(NamedTuple):
    """What :func:`begin` changed in this thread."""

    mode: CastMode | None
    before: CastMode | None


def begin(kind: str, layers: tuple[Lists, ...], policy: CastPolicy | None, enabled: bool = True) -> Region:
    """Casts as ``policy`` and ``layers`` say from here on, instead of what a surrounding region says.

    Args:
        kind: the device type of the autocast that is on.
        layers: lists whose later ones win over the earlier, and all over the policy.
        policy: ``None`` is ``"torch"``.
        enabled: ``False`` begins a region that casts nothing.
    """
    dtype = torch.get_autocast_dtype(kind)
    table = _table(kind, dtype, policy or "torch", layers, lacking(kind, dtype)) if enabled else None
    region = Region(CastMode(kind, table) if table is not None else None, _mode())
    if region.mode is not None:
        recompute.follow(remember)
        _push(region.mode)
    _become(region.mode)
    return region


def end(region: Region) -> None:
    """Undoes :func:`begin`."""
    _become(region.before)
    if region.mode is not None:
        region.mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def acting() -> bool:
    """Whether a mode casts what this thread calls now.

    It has to be among the modes in force as well: those are set aside while ``torch.compile`` traces a graph.
    """
    kind: str | None = getattr(_thread, "kind", None)  # not by the mode, at which torch.compile of torch 2.5 fails
    if kind is None or not torch.is_autocast_enabled(kind):
        return False
    if not COMPILES_FUNCTION_MODES and torch.compiler.is_compiling():
        return True  # there the graph is run under the mode
    return _mode() in torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]


def current() -> CastMode | None:
    """The mode of this thread's region, for :func:`resume` in another thread; None where autocast alone casts."""
    return _mode()


def resume(mode: CastMode) -> Region:
    """Has a mode of another thread cast what this one calls, until :func:`end`."""
    region = Region(mode, _mode())
    _push(mode)
    _become(mode)
    return region


def remember(function: Function) -> Function:
    """``function``, bound to run under the mode of this thread wherever it is called."""
    mode = _mode()
    if mode is None:
        return function

    def again(*args: Any, **kwargs: Any) -> Any:
        if _mode() is mode:
            return function(*args, **kwargs)
        region = resume(mode)
        try:
            return function(*args, **kwargs)
        finally:
            end(region)

    return again


def casting() -> bool:
    """Whether anything may be cast in this thread: a level above O0 and no ``amp.disable_casts()``."""
    return context.mixed and not _disabled()


@contextmanager
def disable_casts() -> Iterator[None]:
    """Runs a block without any cast: autocast off, decorated and registered functions as they were written.

    Regions of ``amp.autocast`` that begin in the block do nothing either. Tensors keep the types they have.
    It may be nested, and ends with an exception too. It holds for the thread that enters it. Apex's function
    of the same name is neither re-entrant nor safe under exceptions.
    """
    _thread.disabled = _disabled() + 1
    kinds = [kind for kind in {context.device_type(), "cpu"} if torch.is_autocast_enabled(kind)]
    regions = [torch.autocast(kind, enabled=False) for kind in kinds]
    for region in regions:
        region.__enter__()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for region in reversed(regions):
            region.__exit__(None, None, None)
        _thread.disabled -= 1


def forget_tables() -> None:
    """Has the tables made anew, because functions were registered or given back."""
    _table.cache_clear()


def _push(mode: CastMode) -> None:
    mode.__enter__()  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=64)
def _table(
    kind: str, dtype: torch.dtype, policy: CastPolicy, layers: tuple[Lists, ...], missing: frozenset[str]
) -> Table | None:
    """The table of a region, or ``None`` where autocast alone does what is asked for."""
    builder = _Builder(cast_tables.half_by_autocast(kind, dtype))
    if kind not in cast_tables.LIKE_CUDA:
        builder.follow_cuda()
    if policy == "apex":
        builder.follow_apex(cast_tables.CUDA_FLOAT if kind in cast_tables.LIKE_CUDA else frozenset())
    for layer in layers:
        builder.follow(layer)
    builder.spare(missing)  # after the lists: a wish for half gives the device no kernel
    builder.enter_bodies()
    return _frozen(builder.actions) if builder.actions else None


def _frozen(actions: Mapping[Function, Action]) -> Table:
    places = {function: place for place, function in enumerate(actions)}

    def place(function: Function) -> int:
        return places.get(function, -1)

    # torch.compile takes the answer for a constant; looking into a dict itself, it does not find operators
    place._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return Table(list(actions.values()), place)


class _Builder:
    """Collects actions by the names of operations; what is put later wins."""

    def __init__(self, native: Collection[str]) -> None:
        self.native = native
        self.actions: dict[Function, Action] = {}
        self.rules: dict[str, Rule] = {}

    def follow_cuda(self) -> None:
        """What torch's autocast does on CUDA and not on the CPU."""
        self.put(cast_tables.CUDA_HALF, rules.in_half)
        self.put(cast_tables.CUDA_FLOAT, rules.in_float)
        self.put(cast_tables.CUDA_INTERPOLATE, rules.in_float_but_area)
        self.put(cast_tables.CUDA_PROMOTE, rules.in_widest)
        self.put(cast_tables.CUDA_REFUSED, rules.refused)
        self.put(cast_tables.CPU_WIDENED, rules.in_type_of_input)

    def follow_apex(self, native_floats: Set[str]) -> None:
        """What Apex does at O1, but for what autocast runs in float32 as well."""
        apex_policy.follow(self, native_floats)
        power = torch.Tensor.__ipow__  # the operator is free to give another tensor
        self.actions[power] = Action(rules.in_float, power)

    def follow(self, layer: Lists) -> None:
        """What somebody chose."""
        self.put(layer.half, rules.in_half, rules.in_place_in_half)
        self.put(layer.float, rules.in_float, rules.in_place_in_float)
        self.put(layer.promote, rules.in_widest)

    def spare(self, missing: Iterable[str]) -> None:
        """Runs in float32 what would run in half and the device lacks."""
        wanted = [name for name in missing if self.rules.get(name, rules.in_half) is rules.in_half]
        self.put(wanted, rules.in_float_for_lack)

    def put(self, names: Iterable[str], rule: Rule | None, in_place: Rule | None = None) -> None:
        """Has every form of the operations follow ``rule``, and those that write in place ``in_place``."""
        for name in names:
            if rule is rules.in_half and name in self.native:
                # autocast does it, and keeps the weights that it cast for the next call
                self.rules.pop(name, None)
                for form in forms(name):
                    self.actions.pop(form.function, None)
                continue
            if rule is not None:
                self.rules[name] = rule
            for form in forms(name):
                chosen = in_place if form.in_place else rule
                if chosen is not None:
                    self.actions[form.function] = Action(chosen, form.original)

    def enter_bodies(self) -> None:
        """Has the bodies of Python functions that call a listed operation run under the mode."""
        spelled = {spelling for name in self.rules for spelling in attribute_names(name)}
        floats = {name for name, rule in self.rules.items() if rule is rules.in_float}
        bodies = _Bodies()
        for form in python_functions():
            called = _called(form.original)
            if called & spelled and not self._decided(form.function, form.original, called & floats):
                self.actions[form.function] = Action(None, bodies.of(form.original))

    def _decided(self, function: Function, original: Function, floats: Collection[str]) -> bool:
        action = self.actions.get(function)
        if action is None or _takes_inplace(original):  # whether it writes in place is decided inside
            return False
        return not (action.rule is rules.in_widest and floats)  # 1 / x is a reciprocal, in float32, and a product


class _Bodies:
    """Functions without their question for a mode, which would hand the call back to the mode for ever."""

    def __init__(self) -> None:
        self._globals: dict[int, dict[str, Any]] = {}

    def of(self, function: Function) -> Function:
        """A copy of a Python function that runs its own code."""
        held: dict[str, Any] = function.__globals__
        if id(held) not in self._globals:
            questions = [name for name in held if name.startswith("has_torch_function")]
            self._globals[id(held)] = {**held, **dict.fromkeys(questions, _no)}
        names = self._globals[id(held)]
        body = types.FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        body.__kwdefaults__ = function.__kwdefaults__
        return body


def _no(*_: Any) -> bool:
    return False


def _called(function: Function) -> set[str]:
    """The names that a function's code mentions."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return set() if code is None else set(code.co_names)


def _takes_inplace(function: Function) -> bool:
    code: types.CodeType = function.__code__
    return "inplace" in code.co_varnames[: code.co_argcount]
