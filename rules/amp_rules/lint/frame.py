"""One function while it is run abstractly: its variables, its context, and where its findings go."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from amp_rules.lint.finding import Finding, Fix, Severity, TextEdit
from amp_rules.lint.mode import Mode
from amp_rules.lint.module import FunctionFacts, ModuleFacts
from amp_rules.lint.operations import TENSOR_ONLY
from amp_rules.lint.values import PARAMETER, TENSORS, Value
from amp_rules.report import Span

if TYPE_CHECKING:
    from amp_rules.lint.check import Check
    from amp_rules.lint.interpreter import Machine

_TENSOR_ATTRIBUTES = frozenset("shape dtype device requires_grad is_cuda grad ndim T mT".split())
_ARRAY_ATTRIBUTES = frozenset("shape dtype ndim T".split())
_CALLED = frozenset({"size", "dim"})
"""Methods of tensors that are attributes of arrays, or nothing, where they are not called."""


class Frame:
    """A running function.

    Attributes:
        machine: the interpreter, with mode, rules and library.
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
    """

    __slots__ = (
        "alive", "autocast", "call", "caller", "contexts", "function", "given", "left", "loops", "machine",
        "module", "returned", "silent", "variables",
    )  # fmt: skip

    def __init__(
        self,
        machine: Machine,
        module: ModuleFacts,
        function: FunctionFacts | None,
        variables: dict[str, Value],
        autocast: bool,
        caller: Frame | None = None,
        call: ast.AST | None = None,
    ) -> None:
        self.machine = machine
        self.module = module
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
        for item in value.behind(8):
            if item.tensor == 2 and item.dtypes & TENSORS:
                return True
            if item.op in ("param", "element", "name", "attr") and self._used_as_tensor(item):
                return True
        return False

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
        function = self.function
        if function is None:
            return {}
        if function.evidence is None:
            found: dict[str, int] = {}
            for item in function.nodes:
                if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
                    if item.attr in TENSOR_ONLY or item.attr in _TENSOR_ATTRIBUTES:
                        weight = 0 if item.attr in _ARRAY_ATTRIBUTES else 2
                        found[item.value.id] = found.get(item.value.id, 0) + weight
                    continue
                if not isinstance(item, ast.Call):
                    continue
                method = item.func
                if isinstance(method, ast.Attribute) and method.attr in _CALLED and isinstance(method.value, ast.Name):
                    found[method.value.id] = found.get(method.value.id, 0) + 2
                if item.args and isinstance(item.args[0], ast.Name):
                    name = self.module.dotted(method) or ""
                    if name.startswith(("torch.", "torch.nn.functional.")):
                        found[item.args[0].id] = found.get(item.args[0].id, 0) + 2
                    elif name.startswith(("numpy.", "np.")):
                        found[item.args[0].id] = found.get(item.args[0].id, 0) - 8
            function.evidence = found
        return function.evidence

    def class_is(self, *suffixes: str) -> bool:
        """Whether the function is a method of a class whose name ends in one of ``suffixes``."""
        cls = self.function.cls if self.function else None
        return cls is not None and cls.name.endswith(suffixes)

    # ---- findings ------------------------------------------------------------------------------------------------

    def report(
        self,
        check: Check,
        node: ast.AST,
        message: str,
        *,
        culprit: Value | None = None,
        severity: Severity | None = None,
        fix: Fix | None = None,
        advice: str = "",
        here: bool = False,
    ) -> None:
        """Take a finding.

        In a function that was called in line, only what a caller's argument brings about is a finding, and it stands
        at that argument: whatever is wrong regardless is found when the function itself is judged.

        Args:
            check: the rule.
            node: the expression or statement that is wrong.
            message: one sentence that names the user's variables, without a full stop.
            culprit: the value to blame.
            severity: other than the rule's.
            fix: how to mend it.
            advice: other than the rule's.
            here: what the callers did before is to blame: in a function of the same file that was called in line the
                finding stands at ``node``, in one of another file at the call that led there.
        """
        frame: Frame = self
        if here:
            while frame.caller is not None:
                frame = frame.caller
            if frame.module is not self.module:
                callee = self.function.qualname if self.function else "the call"
                node, message, fix = frame.call_of(self), f"{message}, in `{callee}`", None
        while frame.caller is not None:
            blamed = _given(frame, culprit)
            if blamed is None:
                return
            if frame.call is None or blamed.node is None:
                return
            callee = frame.function.qualname if frame.function else "the call"
            if frame is self:
                message = f"{message}, in `{callee}`"
            fix = None
            culprit, frame = blamed, frame.caller
            node = blamed.node if _contains(frame, blamed.node) else frame.call_of(self)
        frame.machine.take(
            Finding(
                path=frame.module.module.path,
                span=frame.span(node),
                code=check.code,
                name=check.name,
                severity=severity or check.severity,
                message=message,
                mode=str(self.mode),
                fix=fix,
                advice=advice or check.advice,
            ),
        )

    def call_of(self, inner: Frame) -> ast.AST:
        """The call in this frame that led to ``inner``."""
        frame = inner
        while frame.caller is not None and frame.caller is not self:
            frame = frame.caller
        assert frame.call is not None
        return frame.call

    def replace(self, title: str, safety: Any, *edits: tuple[ast.AST, str]) -> Fix:
        """A fix that puts an expression in place of each node."""
        return Fix(title, safety, tuple(TextEdit("replace", self.span(node), text) for node, text in edits))


def _given(frame: Frame, culprit: Value | None) -> Value | None:
    """The argument of the call that ``culprit`` is, or None."""
    return frame.given.get(id(culprit)) if culprit is not None else None


def _contains(frame: Frame, node: ast.AST) -> bool:
    """Whether ``node`` stands in the text of ``frame``'s function."""
    outer = frame.function.node if frame.function else None
    line = getattr(node, "lineno", 0)
    if outer is None:
        return True
    return outer.lineno <= line <= (outer.end_lineno or line) and frame.module is not None
