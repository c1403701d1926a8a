"""The protocol of a training step: what happens to gradients, in which order.

Operations that the interpreter shows become events about scalers, optimizers and gradients; a rule is an automaton over
these events that is run along the paths of a function (:mod:`amp_rules.lattice.paths`).
"""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from amp_rules.checks.common.calls import own_name_of
from amp_rules.checks.common.step_roles import is_optimizer, is_scaler, is_scheduler, key_of, made_of
from amp_rules.lattice.abstract_values import IN_ONE_FORMULA, Value, alternatives, source_of
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lattice.paths import LOST, Path, is_about_precision, unite
from amp_rules.lint.check import Check
from amp_rules.lint.finding import Fix, TextEdit
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.syntax import COMPREHENSIONS, is_none, last_name
from amp_rules.torch.frameworks import WRAPPING_PACKAGES
from amp_rules.torch.gradients import CLIP_METHODS
from amp_rules.torch.idioms import NAMED_WRAPPER, SCALER
from amp_rules.torch.mixed_precision import has_loss_scale

SCALED, PLAIN, EITHER, APEX, WRAPPED = "scaled", "plain", "either", "apex", "wrapped"
"""What a backward pass is of: a loss times the scale, a loss, one or the other, a loss in ``amp.scale_loss``, or what a
library that does all this by itself makes of it."""

OWN = "own"
"""How gradients are clipped by a method of the optimizer."""

GRAD_OPS = frozenset("norm vector_norm clamp clamp_min clamp_max add sign mean max std var".split())
IMPORTS_OF_WRAPPERS = re.compile(rf"^(?:from|import)\s+(?:{'|'.join(WRAPPING_PACKAGES)})\b", re.MULTILINE)
SCALED_BACKWARD = re.compile(r"\.scale\([^\n]*\)\.backward\(")
"""A trigger that holds whatever the scaler is called."""
TRIGGERS = (".backward(", "clip_grad_", "scaler.scale(", "scaler.step(", "scaler.update(", "scaler.unscale_(")


@dataclass(frozen=True)
class Event:
    """Something that happens to gradients.

    Attributes:
        kind: ``scale backward unscale clip gradient step scaler_step update zero_grad schedule escape``.
        node: the call.
        scaler: which scaler it is about.
        optimizer: which optimizer it is about.
        how: of a backward pass, what of.
        value: the operation.
    """

    kind: str
    node: ast.AST
    scaler: Hashable = None
    optimizer: Hashable = None
    how: str = ""
    value: Value | None = None


# ---- events ------------------------------------------------------------------------------------------------------


def event_of(op: Value, frame: Frame) -> Event | None:
    """What an operation means for the training step; the last answer is kept, as several rules ask."""
    machine = frame.machine
    kept = machine.last_event
    if kept is not None and kept[0] is op:
        known: Event | None = kept[1]
        return known
    event = _event(op, frame)
    machine.last_event = (op, event)
    return event


def _event(op: Value, frame: Frame) -> Event | None:
    node = op.node
    if op.op in GRAD_OPS:
        return _of_gradient(op)
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else own_name_of(frame.module, node)
    receiver = op.args[0] if op.op in ("method", "backward") and op.args else None
    holder = function.value if isinstance(function, ast.Attribute) else None
    if op.op == "unfollowed":
        return _escape(op, node, frame)
    if name in CLIP_METHODS or name.lstrip("_") in CLIP_METHODS:
        return _clip(op, node, name, holder, frame)
    if op.op == "call" and op.args and isinstance(op.args[0].data, FunctionFacts):
        # It is run in line, or shown as unfollowed.
        return None
    if holder is not None:
        reader = _READERS.get(name)
        found: Event | None = reader(op, node, receiver, holder, frame) if reader is not None else None
        if found is not None:
            return found
    return _escape(op, node, frame) if op.op in ("call", "method") else None


def _of_gradient(op: Value) -> Event | None:
    """A gradient is looked at, or changed by more than a factor."""
    held = op.args[0] if op.args else None
    if held is None or op.node is None or (op.op == "add" and not op.inplace):
        return None
    return Event("gradient", op.node, value=op) if source_of(held).op == "grad" else None


def _backward(op: Value, node: ast.Call, receiver: Value | None, holder: ast.expr, frame: Frame) -> Event | None:
    given = [item for item in node.args if not is_none(item)]
    if NAMED_WRAPPER.search(last_name(holder).lower()) or (given and is_optimizer(receiver, holder)):
        return Event("backward", node, how=WRAPPED, value=receiver)
    if last_name(holder) == "autograd" or (given and receiver is not None and receiver.op in ("self", "context")):
        return Event("backward", node, how=EITHER, value=receiver)
    how, scaler = scaling_of(receiver, frame)
    if receiver is None:
        how = EITHER
    return Event("backward", node, scaler=scaler, how=how, value=receiver)


def scaling_of(value: Value | None, frame: Frame | None = None) -> tuple[str, Hashable]:
    """Whether a value is a loss times the scale, and of which scaler."""
    answers = set()
    scaler: Hashable = None
    for item in alternatives(value) if value is not None else ():
        answer = PLAIN
        for made in item.behind(IN_ONE_FORMULA):
            if _is_scaling(made, frame):
                answer, scaler = SCALED, key_of(made.args[0] if made.op == "method" else None, _holder(made))
            elif made_of(made).endswith("amp.scale_loss") or "scaled_loss" in str(made.data or ""):
                answer = APEX
            elif made.op == "join" and made is not item:
                inner = scaling_of(made, frame)
                answer, scaler = (EITHER, inner[1]) if inner[0] in (EITHER, SCALED) else (answer, scaler)
                break
        answers.add(answer)
    return (answers.pop() if len(answers) == 1 else EITHER), scaler


def _is_scaling(made: Value, frame: Frame | None) -> bool:
    if made.op not in ("method", "call") or not made.args:
        return False
    holder = _holder(made)
    name = made.node.func.attr if holder is not None else ""  # type: ignore[union-attr]
    return name == "scale" and is_scaler(made.args[0] if made.op == "method" else None, holder, frame)


def _holder(value: Value) -> ast.AST | None:
    function = getattr(value.node, "func", None)
    return function.value if isinstance(function, ast.Attribute) else None


def _scale(op: Value, node: ast.Call, receiver: Value | None, holder: ast.expr, frame: Frame) -> Event | None:
    if is_scaler(receiver, holder, frame) and node.args:
        return Event("scale", node, scaler=key_of(receiver, holder), value=op)
    return None


def _unscale(op: Value, node: ast.Call, receiver: Value | None, holder: ast.expr, frame: Frame) -> Event | None:
    if not is_scaler(receiver, holder, frame):
        return Event("escape", node)
    return Event("unscale", node, key_of(receiver, holder), _argument(op, node, frame), value=op)


def _argument(op: Value, node: ast.Call, frame: Frame) -> Hashable:
    """The optimizer that ``scaler.step(optimizer)`` is given; another each time for one of several."""
    given = op.arg(1, "optimizer")
    if given is not None and any(isinstance(item, COMPREHENSIONS) for item in _around(given, frame)):
        return op
    return key_of(given, node.args[0] if node.args else node)


def _around(value: Value, frame: Frame) -> Iterator[ast.AST]:
    """What stands around the place where a value is made, in the file that is looked at."""
    index = frame.module.index
    return index.ancestors(value.node) if value.node in index.module.parents else iter(())


def _step(op: Value, node: ast.Call, receiver: Value | None, holder: ast.expr, frame: Frame) -> Event | None:
    if is_scaler(receiver, holder, frame):
        return Event("scaler_step", node, key_of(receiver, holder), _argument(op, node, frame), value=op)
    if is_scheduler(receiver, holder, frame):
        return Event("schedule", node, value=op)
    if is_optimizer(receiver, holder, frame):
        return Event("step", node, optimizer=key_of(receiver, holder), value=receiver)
    return None


def _update(op: Value, node: ast.Call, receiver: Value | None, holder: ast.expr, frame: Frame) -> Event | None:
    # Meters and dictionaries are given more than a new scale; many functions are handed some.
    if is_scaler(receiver, holder, frame if len(node.args) <= 1 else None):
        return Event("update", node, key_of(receiver, holder), value=op)
    return None


def _zero_grad(op: Value, node: ast.Call, receiver: Value | None, holder: ast.expr, frame: Frame) -> Event | None:
    return Event("zero_grad", node, optimizer=key_of(receiver, holder), value=receiver)


_READERS: dict[str, Any] = {
    "backward": _backward,
    "scale": _scale,
    "unscale_": _unscale,
    "step": _step,
    "update": _update,
    "zero_grad": _zero_grad,
}


def _clip(op: Value, node: ast.Call, name: str, holder: ast.expr | None, frame: Frame) -> Event | None:
    called = op.args[0].data if op.op in ("call", "unfollowed") and op.args else None
    if isinstance(called, FunctionFacts):
        text = called.module.module.source.text
        if "unscale" in text or SCALER in text or op.op == "unfollowed":
            return _escape(op, node, frame)
        return None if _clips(called) else Event("clip", node, value=op)
    if holder is not None and NAMED_WRAPPER.search(last_name(holder).lower()):
        return Event("escape", node)
    if holder is not None and last_name(holder) in ("self", "cls"):
        return Event("escape", node)
    if any(_knows_scale(item) for item in [*op.args[1:], *(op.kwargs or {}).values()]):
        # The limit is multiplied by the scale as the gradients are.
        return None
    if holder is not None and is_optimizer(None, holder, frame):
        # An optimizer knows of no scaler, but one that is made for it may be around another.
        return Event("clip", node, how=OWN, value=op)
    if any(is_scaler(None, item) for item in node.args):
        return Event("escape", node)
    return Event("clip", node, value=op)


def _knows_scale(limit: Value) -> bool:
    """Whether a limit is made of the loss scale, or of a variable that is called so."""
    return any("scale" in str(item.data or "").lower() for item in limit.behind(IN_ONE_FORMULA))


def _clips(function: FunctionFacts) -> bool:
    """Whether a function of the project clips by calling what torch offers, which is seen when it is run in line."""
    return any(
        isinstance(item, ast.Call) and own_name_of(function.module, item) in CLIP_METHODS
        for item in ast.walk(function.node)
    )


def _escape(op: Value, node: ast.Call, frame: Frame) -> Event | None:
    """A call that may do anything to the gradients that a rule follows."""
    called = op.args[0] if op.args else None
    facts = called.data if called is not None else None
    if isinstance(facts, FunctionFacts):
        module = facts.module.module
        text = "\n".join(module.lines[facts.node.lineno - 1 : facts.node.end_lineno])
        if any(word in text for word in ("scale", ".step(", "clip_grad", "backward", "zero_grad")):
            return Event("escape", node)
    elif called is not None and called.op == "super":
        return Event("escape", node)
    function = node.func
    if isinstance(function, ast.Attribute):
        holder = function.value
        if isinstance(holder, ast.Name) and holder.id == "self" and function.attr not in frame.variables:
            if op.op == "call" and _concerns(function.attr):
                return Event("escape", node)
        if NAMED_WRAPPER.search(last_name(holder).lower()):
            return Event("escape", node)
    elif is_scaler(called, function) and not has_loss_scale(frame.module.dotted(function) or ""):
        # ``loss_scaler(loss, optimizer)`` does the whole step; ``GradScaler()`` makes a scaler.
        return Event("escape", node)
    given = [*node.args, *(item.value for item in node.keywords)]
    for item in given:
        if isinstance(item, ast.Name) and item.id in ("self", "trainer", "runner", "engine"):
            return Event("escape", node)
        if isinstance(item, ast.Starred) or SCALER in last_name(item).lower():
            return Event("escape", node)
    return None


def _concerns(name: str) -> bool:
    return any(
        word in name for word in ("step", "backward", "clip", "grad", "scale", "optim", "update", "hook", "call")
    )


# ---- rules -------------------------------------------------------------------------------------------------------


class StepCheck(Check):
    """A rule about the order of events of a training step.

    ``advance`` says what becomes of one path's state; a state that ``is_bad`` at the event, with no path on which
    the author did what should be done, is reported.

    Attributes:
        slack: how many tests, other than those around the first event, may stand between it and the wrong one.
    """

    code = "AMP800"
    in_order = True
    follows = ("scaler", "optim", "clip", "grad")
    triggers: ClassVar[tuple[str | re.Pattern[str], ...]] = TRIGGERS
    operations: ClassVar[tuple[str, ...]] = ("method", "call", "backward", "unfollowed")
    slack: ClassVar[int] = 0

    def applies(self, mode: Mode) -> bool:
        """Scaling is for float16."""
        return mode.fp16

    @property
    def key(self) -> str:
        """Where the paths are kept."""
        return self.states[0]

    def visit(self, op: Value, frame: Frame) -> None:
        """Advance along all paths."""
        event = event_of(op, frame)
        if event is None:
            return
        paths = frame.variables.get(self.key)
        if not paths:
            return
        wrong: list[Path] = []
        others: list[Path] = []
        following = set()
        for item in paths:  # type: ignore[attr-defined]
            if item.state is LOST:
                return
            bad, state = self.advance(item.state, event, frame)
            if state != item.state:
                frame.machine.notes.setdefault((self.code, state), set()).update(item.assumed)
            following.add(Path(item.assumed, state))
            if bad is not None:
                (wrong if bad else others).append(item)
        frame.variables[self.key] = unite(frozenset(following))  # type: ignore[assignment]
        if wrong and self._certain(wrong, others, len(paths) - len(wrong), frame):  # type: ignore[arg-type]
            if not is_wrapped(frame.module):
                # Which of several is told of must not hang on the order of a set.
                first = min(wrong, key=lambda item: str(item.state[0]) if isinstance(item.state, tuple) else "")
                self.found(first.state, event, frame)

    def _certain(self, wrong: list[Path], others: list[Path], rest: int, frame: Frame) -> bool:
        """Whether one of the wrong paths is taken for certain, whatever else a script may know about its tests."""
        if not rest:
            return True
        if others and not self.slack:
            return False
        for item in wrong:
            since = item.assumed - frame.machine.notes.get((self.code, item.state), set())
            if len(since) <= self.slack or self.is_wrong_alone(item, frame):
                if not any(hangs_on_precision(frame.machine.tests[number], came_out) for number, came_out in since):
                    return True
        return False

    def is_wrong_alone(self, path: Path, frame: Frame) -> bool:
        """Whether nothing in the file could make up for that path, however many tests stand on it."""
        return False

    @abstractmethod
    def advance(self, state: Any, event: Event, frame: Frame) -> tuple[bool | None, Any]:
        """Whether the event is wrong (True), right (False) or neither (None) in a state, and the state after it."""

    @abstractmethod
    def found(self, state: Any, event: Event, frame: Frame) -> None:
        """Report."""


def hangs_on_precision(test: Hashable, came_out: bool) -> bool:
    """Whether a test came out as it did because of the precision, as far as can be told.

    Of ``i % 100 == 0 and fp16`` the first part alone may be false.
    """
    if isinstance(test, tuple) and len(test) > 2 and test[0] == "BoolOp" and (test[1] == ("And",)) is not came_out:
        return all(is_about_precision(part) for part in test[2:])
    return is_about_precision(test) and not _counts(test)


def _counts(test: Hashable) -> bool:
    """Whether a test is of a remainder: ``(i + 1) % grad_steps == 0`` has a word of precision, and counts."""
    return isinstance(test, tuple) and ("Mod" in test or any(map(_counts, test)))


def is_wrapped(module: ModuleFacts) -> bool:
    """Whether the file leaves the training step to a library that does all this by itself."""
    return bool(IMPORTS_OF_WRAPPERS.search(module.module.source.text))


def statement_of(frame: Frame, node: ast.AST) -> ast.stmt | None:
    """The statement that holds an expression."""
    outer: ast.AST = frame.function.node if frame.function is not None else frame.module.module.tree
    found = None
    stack: list[ast.AST] = [outer]
    while stack:
        item = stack.pop()
        for child in ast.iter_child_nodes(item):
            if child is node:
                return item if isinstance(item, ast.stmt) else found
            first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
            if first is None or first <= node.lineno <= (last or first):  # type: ignore[attr-defined]
                if isinstance(child, ast.stmt):
                    found = child
                stack.append(child)
    return None


def insert_before(frame: Frame, node: ast.AST, text: str, title: str, safety: Any = "safe") -> Fix | None:
    """A fix that puts a statement before the one that holds ``node``."""
    statement = statement_of(frame, node)
    if statement is None:
        return None
    return Fix(title, safety, (TextEdit("insert before", frame.span(statement), text),))
