"""What a lint rule is: its code, its page, what it wants to see, and its judgement.

A rule is a subclass of :class:`Check` in a file of its own below :mod:`amp_rules.checks`. Its docstring is its public
page. The machine runs a function abstractly and shows each rule the operations that it names.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.finding import Finding, Fix, Safety, Severity, TextEdit
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts
from amp_rules.source.spans import Span


@dataclass(frozen=True)
class LintedFile:
    """A file while rules judge its classes and the whole of it.

    Attributes:
        module: its facts.
        mode: in which it is judged.
        findings: where findings go.
    """

    module: ModuleFacts
    mode: Mode
    findings: list[Finding]

    def span(self, node: ast.AST) -> Span:
        """The node's place."""
        return self.module.module.span(node)


class Check:
    """One lint rule.

    Attributes:
        code: as in ``AMP601``. AMP6xx are numbers, AMP7xx arithmetic and types, AMP8xx the training step and autograd,
            AMP9xx processes, performance and hardware.
        name: as in ``const-overflow-fill``.
        severity: of its findings, unless one says otherwise.
        message: one sentence that says what the rule finds.
        advice: one sentence that says what to do by hand.
        fix_title: what the fix does; empty where there is none.
        fix_safety: ``safe`` where float32 results change by no more than rounding.
        preview: why the rule has to be asked for; empty where it is on for everybody.
        triggers: texts of which one must occur in a function (for ``visit`` and ``visit_function``) or a file (for
            ``visit_class``, ``visit_module``) for the rule to find anything there; a compiled pattern where plain
            text is not enough. What holds none is not even looked at, which is why the linter is fast.
        file_triggers: the same for ``visit_class`` and ``visit_module`` alone, where that is another text.
        in_order: whether the rule is about the order of events, for which loops are run twice.
        states: the variables (``$...``) in which such a rule keeps its states; see :mod:`amp_rules.lattice.paths`.
        follows: texts in the names of functions and arguments for which a call is followed into another file by such a
            rule.
        operations: the canonical names of the operations that ``visit`` is shown.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity] = "warning"
    message: ClassVar[str]
    advice: ClassVar[str] = ""
    fix_title: ClassVar[str] = ""
    fix_safety: ClassVar[Safety | None] = None
    preview: ClassVar[str] = ""
    triggers: ClassVar[tuple[str | re.Pattern[str], ...]]
    file_triggers: ClassVar[tuple[str | re.Pattern[str], ...]] = ()
    in_order: ClassVar[bool] = False
    states: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[tuple[str, ...]] = ()
    operations: ClassVar[tuple[str, ...]] = ()

    @property
    def page(self) -> str:
        """The rule's documentation."""
        return type(self).__doc__ or ""

    def applies(self, mode: Mode) -> bool:
        """Whether the rule can find anything in ``mode``."""
        return True

    def sees_operations(self, mode: Mode) -> bool:
        """Whether ``visit`` can find anything in ``mode``: else no function is run for this rule."""
        return True

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge one operation; findings go to :meth:`report`."""

    def visit_function(self, function: FunctionFacts | None, frame: Frame) -> None:
        """Judge a function after it was run abstractly, or with None the statements of the file that are in none.

        Findings go to :meth:`report`.
        """

    def visit_class(self, cls: ClassFacts, file: LintedFile) -> None:
        """Judge a class; findings go to :meth:`report_in`."""

    def visit_module(self, file: LintedFile) -> None:
        """Judge a whole file; findings go to :meth:`report_in`."""

    def report(
        self,
        frame: Frame,
        node: ast.AST,
        message: str,
        *,
        culprit: Value | None = None,
        severity: Severity | None = None,
        fix: Fix | None = None,
        advice: str = "",
        here: bool = False,
        since: ast.AST | None = None,
    ) -> None:
        """Take a finding in a function that is run.

        In a function that was called in line, only what a caller's argument brings about is a finding, and it stands
        at that argument: whatever is wrong regardless is found when the function itself is judged.

        Args:
            frame: the function.
            node: the expression or statement that is wrong.
            message: one sentence that names the user's variables, without a full stop.
            culprit: the value to blame.
            severity: other than the rule's.
            fix: how to mend it.
            advice: other than the rule's.
            here: what the callers did before is to blame: in a function of the same file that was called in line the
                finding stands at ``node``, in one of another file at the call that led there.
            since: what was done before, with ``here``: where a caller did it, the finding stands at its call.
        """
        called = frame
        if here:
            while frame.caller is not None:
                frame = frame.caller
            where = _place_of(called, frame, since)
            if where is not called:
                node, message, fix = where.call_of(called), f"{message}, in `{_name_of(called)}`", None
        while frame.caller is not None:
            blamed = frame.given_by(culprit)
            if blamed is None or frame.call is None or blamed.node is None:
                return
            if frame is called:
                message = f"{message}, in `{_name_of(called)}`"
            fix = None
            culprit, frame = blamed, frame.caller
            node = blamed.node if frame.holds(blamed.node) else frame.call_of(called)
        file = LintedFile(frame.module, frame.mode, frame.machine.findings)
        self.report_in(file, node, message, severity=severity, fix=fix, advice=advice)

    def report_in(
        self,
        file: LintedFile,
        node: ast.AST,
        message: str,
        *,
        severity: Severity | None = None,
        fix: Fix | None = None,
        advice: str = "",
    ) -> None:
        """Take a finding in a file, whoever calls the function that it is in."""
        file.findings.append(
            Finding(
                path=file.module.module.path,
                span=file.span(node),
                code=self.code,
                name=self.name,
                severity=severity or self.severity,
                message=message,
                mode=str(file.mode),
                fix=fix,
                advice=advice or self.advice,
            )
        )


class HasSpans(Protocol):
    """A frame or a file."""

    def span(self, node: ast.AST) -> Span:
        """The node's place."""


def replacement(where: HasSpans, title: str, safety: Any, *edits: tuple[ast.AST, str]) -> Fix:
    """A fix that puts an expression in place of each node."""
    return Fix(title, safety, tuple(TextEdit("replace", where.span(node), text) for node, text in edits))


def _place_of(called: Frame, first: Frame, since: ast.AST | None) -> Frame:
    """The frame in whose function a finding stands: that of the judged file that is nearest to where it was made.

    All functions of the file that lead there then have the same finding.
    """
    own = [item for item in (called, *called.callers()) if item.module is first.module]
    if since is not None and since in first.module.module.parents:
        return next((item for item in own if item.holds(since)), own[0])
    return own[0]


def _name_of(frame: Frame) -> str:
    return frame.function.qualname if frame.function else "the call"
