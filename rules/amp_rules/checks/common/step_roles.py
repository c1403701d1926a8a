"""What things are in a training step: scalers, optimizers, schedules; by what makes, gives and uses them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.source.facts import ClassFacts, ModuleFacts
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import NAMED_OPTIMIZER, NAMED_STEP_PART, NAMED_WRAPPER, SCALER, SCHEDULER
from amp_rules.torch.mixed_precision import SCALERS_OF_DATA, is_scaler_name, may_scale_losses
from amp_rules.torch.optimizers import is_optimizer_name, is_scheduler_name


def made_of(value: Value, frame: Frame | None = None) -> str:
    """The name of the torch thing that a value was constructed from."""
    if value.op == "call":
        return value.data if isinstance(value.data, str) else (value.args[0].sym or "") if value.args else ""
    if value.op == "name" and frame is not None and isinstance(value.data, str):
        # A variable of the file, seen from one of its functions.
        made = frame.module.constants.get(value.data)
        if isinstance(made, ast.Call):
            return frame.module.dotted(made.func) or ""
    return value.sym or ""


@dataclass(frozen=True)
class _Role:
    """What something may be in the training step, and how to tell from what makes it.

    Attributes:
        made_by: whether what the dotted name stands for makes one.
        may_be: whether it may make one that this linter does not know.
        has: whether a class of the project is one.
        sign: what the text of a file holds that makes one.
    """

    made_by: Callable[[str], bool]
    may_be: Callable[[str], bool]
    has: Callable[[ClassFacts], bool]
    sign: str


def _holds_scaler(cls: ClassFacts) -> bool:
    """Whether a class is a scaler, or passes on to one what it is asked."""
    if cls.inherits(is_scaler_name):
        return True
    rows = cls.module.module.lines[cls.node.lineno - 1 : cls.node.end_lineno]
    return any("GradScaler" in row for row in rows)


def _never(name: str) -> bool:
    return False


_SCALER = _Role(is_scaler_name, may_scale_losses, _holds_scaler, "Scaler")
_OPTIMIZING = _Role(is_optimizer_name, lambda name: "optim" in name.lower(), lambda cls: cls.is_optimizer, "ptim")
_SCHEDULING = _Role(is_scheduler_name, _never, lambda cls: cls.inherits(is_scheduler_name), "LR")


def _given(item: Value, node: ast.AST | None, frame: Frame | None, role: _Role) -> bool | None:
    """Whether callers in the file give something in that role for a parameter; None where they do not say.

    Where the parameter's name says what it is they are asked only when a finding rests on it.
    """
    if frame is None:
        return None
    if item.op == "attr" and item.args and role.sign in frame.module.module.source.text:
        # An argument of ``__init__`` that was kept.
        item = item.args[0]
    if item.op != "param" or not isinstance(item.node, ast.arg):
        return None
    module = _file_of(item.node, frame)
    if module is None:
        return None
    if NAMED_STEP_PART.search(f"{item.node.arg} {last_name(node)}".lower()) and not frame.machine.doubts_names:
        frame.machine.by_name[item.node] = module
        return None
    given = frame.machine.given_to(item.node, module)
    if given is None:
        return None
    if any(map(role.made_by, given.made_by)) or any(map(role.has, given.classes)):
        return True
    is_other = given.complete and (given.made_by or given.classes) and not any(map(role.may_be, given.made_by))
    return False if is_other else None


def _file_of(parameter: ast.arg, frame: Frame) -> ModuleFacts | None:
    """The file whose function has a parameter: that of the frame or of one that called it."""
    inner: Frame | None = frame
    while inner is not None:
        if parameter in inner.module.module.parents:
            return inner.module
        inner = inner.caller
    return None


# ---- what the whole file says of a name ------------------------------------------------------------------------


@lru_cache(maxsize=8)
def scaler_names(module: ModuleFacts) -> frozenset[str]:
    """The names of the scalers of a file: what it makes one, and what it calls ``x.scale(loss).backward()`` of."""
    return _made_here(module, is_scaler_name) | frozenset(_used_as_scalers(module))


def scales_losses(module: ModuleFacts) -> bool:
    """Whether a file makes a scaler, or uses one."""
    makes = any(is_scaler_name(module.dotted(call.func) or "") for call in module.index.calls)
    return makes or bool(scaler_names(module))


def _used_as_scalers(module: ModuleFacts) -> Iterator[str]:
    """Nothing else has a method ``scale`` whose result is backpropagated."""
    for call in module.index.named.get("backward", ()):
        scaled = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(scaled, ast.Call) and isinstance(scaled.func, ast.Attribute) and scaled.func.attr == "scale":
            yield last_name(scaled.func.value)


@lru_cache(maxsize=8)
def optimizer_names(module: ModuleFacts) -> frozenset[str]:
    """The names of the optimizers of a file: what it makes one, steps and has forget gradients, or gives a scaler."""
    stepped, zeroed = ({_holder(call) for call in module.index.named.get(name, ())} for name in ("step", "zero_grad"))
    used = {name for name in stepped & zeroed if name and not NAMED_WRAPPER.search(name.lower()) and name != "self"}
    scalers, steps = scaler_names(module), module.index.named.get("step", ())
    given = {last_name(call.args[0]) for call in steps if call.args and _holder(call) in scalers}
    return _made_here(module, is_optimizer_name) | used | given


def _holder(call: ast.Call) -> str:
    return last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""


@lru_cache(maxsize=8)
def scheduler_names(module: ModuleFacts) -> frozenset[str]:
    """The names of the schedules that a file makes."""
    return _made_here(module, is_scheduler_name)


def _made_here(module: ModuleFacts, makes: Callable[[str], bool]) -> frozenset[str]:
    """The names that are given nothing but what a function makes, or None."""
    made: set[str] = set()
    others: set[str] = set()
    for target, value, _ in module.index.assignments:
        if isinstance(target, (ast.Name, ast.Attribute)):
            if isinstance(value, ast.Call) and makes(module.dotted(value.func) or ""):
                made.add(last_name(target))
            elif isinstance(value, ast.Call):
                others.add(last_name(target))
    return frozenset(made - others)


# ---- roles -----------------------------------------------------------------------------------------------------


def is_scaler(value: Value | None, node: ast.AST | None = None, frame: Frame | None = None) -> bool:
    """Whether something is a ``GradScaler``, by what made it, by what callers give, or by its name."""
    for item in alternatives(value) if value is not None else ():
        origin = made_of(item, frame)
        if is_scaler_name(origin):
            return True
        if origin.startswith(SCALERS_OF_DATA):
            return False
        if item.op == "instance":
            return isinstance(item.data, ClassFacts) and item.data.inherits(is_scaler_name)
        if item.op == "call" and origin.rpartition(".")[2][:1].isupper() and not may_scale_losses(origin):
            found = frame.machine.project.resolve(frame.module, origin) if frame is not None else None
            return isinstance(found, ClassFacts) and _holds_scaler(found)
        given = _given(item, node, frame, _SCALER)
        if given is not None:
            return given
        if isinstance(item.data, str) and item.op != "call" and SCALER in item.data.lower():
            return True
    name = last_name(node)
    return SCALER in name.lower() or (frame is not None and name in scaler_names(frame.module))


def is_disabled(value: Value | None) -> bool:
    """Whether a scaler was made with ``enabled=False``."""
    given = value.kwargs.get("enabled") if value is not None and value.kwargs else None
    return given is not None and given.is_const and given.const is False


def is_optimizer(value: Value | None, node: ast.AST | None = None, frame: Frame | None = None) -> bool:
    """Whether something is an optimizer, by what made it, by what callers give, or by its name."""
    name = last_name(node)
    for item in alternatives(value) if value is not None else ():
        origin = made_of(item, frame)
        if is_optimizer_name(origin):
            return True
        if is_scheduler_name(origin):
            return False
        if item.op == "instance":
            return isinstance(item.data, ClassFacts) and item.data.is_optimizer
        given = _given(item, node, frame, _OPTIMIZING)
        if given is not None:
            return given
        if isinstance(item.data, str) and item.op in ("param", "attr", "name", "element"):
            name = name or item.data
    if NAMED_OPTIMIZER.search(name):
        return SCHEDULER not in name.lower()
    return frame is not None and name in optimizer_names(frame.module)


def is_scheduler(value: Value | None, node: ast.AST | None = None, frame: Frame | None = None) -> bool:
    """Whether something schedules learning rates."""
    for item in alternatives(value) if value is not None else ():
        if is_scheduler_name(made_of(item, frame)):
            return True
        given = _given(item, node, frame, _SCHEDULING)
        if given is not None:
            return given
    name = last_name(node)
    return SCHEDULER in name.lower() or (frame is not None and name in scheduler_names(frame.module))


def key_of(value: Value | None, node: ast.AST | None = None) -> Hashable:
    """What is equal for the same object, in whatever function it is met."""
    if value is None:
        return ast.dump(node) if node is not None else None
    if value.op == "join":
        keys = {key_of(item) for item in value.args if not (item.is_const and item.const is None)}
        return keys.pop() if len(keys) == 1 else value
    if value.op == "attr" and isinstance(value.data, str):
        return ("attr", key_of(value.args[0]) if value.args else "self", value.data)
    if value.op == "name":
        return ("name", value.sym or value.data)
    return value
