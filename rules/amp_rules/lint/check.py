"""What a lint rule is: its code, its page, what it wants to see, and its judgement.

A rule is a subclass of :class:`Check` in a file of its own below :mod:`amp_rules.checks`. Its docstring is its public
page. The interpreter runs a function abstractly and shows each rule the operations that it names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from amp_rules.lint.finding import Safety, Severity
from amp_rules.lint.mode import Mode

if TYPE_CHECKING:
    from amp_rules.lint.frame import Frame
    from amp_rules.lint.module import ClassFacts, FunctionFacts, ModuleFacts
    from amp_rules.lint.values import Value

_CODE = re.compile(r"AMP[6-9][0-8]\d")


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
        preview: whether the rule has to be asked for.
        triggers: texts of which one must occur in a function (for ``visit`` and ``visit_function``) or a file (for
            ``visit_class``, ``visit_module``) for the rule to find anything there; a compiled pattern where plain
            text is not enough. What holds none is not even looked at, which is why the linter is fast.
        file_triggers: the same for ``visit_class`` and ``visit_module`` alone, where that is another text.
        in_order: whether the rule is about the order of events, for which loops are run twice.
        states: the variables (``$...``) in which such a rule keeps its states; see :mod:`amp_rules.lint.paths`.
        follows: texts in the names of arguments for which a call is followed into another file by such a rule.
        operations: the canonical names of the operations that ``visit`` is shown.
    """

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity] = "warning"
    message: ClassVar[str]
    advice: ClassVar[str] = ""
    fix_title: ClassVar[str] = ""
    fix_safety: ClassVar[Safety | None] = None
    preview: ClassVar[bool] = False
    triggers: ClassVar[tuple[str | re.Pattern[str], ...]]
    file_triggers: ClassVar[tuple[str | re.Pattern[str], ...]] = ()
    in_order: ClassVar[bool] = False
    states: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[tuple[str, ...]] = ()
    operations: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Refuse a code outside the scheme."""
        if not _CODE.fullmatch(cls.code):
            raise ValueError(f"a check's code is AMP600 to AMP989, not {cls.code!r}")

    @property
    def page(self) -> str:
        """The rule's documentation."""
        return type(self).__doc__ or ""

    def applies(self, mode: Mode) -> bool:
        """Whether the rule can find anything in ``mode``."""
        return True

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge one operation; findings go to ``frame.report``."""

    def visit_function(self, function: FunctionFacts, frame: Frame) -> None:
        """Judge a function after it was run abstractly; findings go to ``frame.report``."""

    def visit_class(self, cls: ClassFacts, module: ModuleFacts) -> None:
        """Judge a class; findings go to ``module.report``."""

    def visit_module(self, module: ModuleFacts) -> None:
        """Judge a whole file; findings go to ``module.report``."""
