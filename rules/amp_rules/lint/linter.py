"""Lints one file at a time: which rules, which functions."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from amp_rules.lattice.frame import Frame
from amp_rules.lattice.given_types import may_be_called
from amp_rules.lattice.known_values import KnownValues
from amp_rules.lattice.machine import Machine
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check, LintedFile
from amp_rules.lint.finding import Finding, by_place
from amp_rules.lint.triggers import Trigger, TriggerPlaces, Triggers, concerned, in_torchs_words, within
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.project_facts import ProjectFacts
from amp_rules.source.spans import Span
from amp_rules.source.syntax import last_name, walk
from amp_rules.source.text import SourceFile
from amp_rules.torch.frameworks import OTHERS_TENSORS

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""What is judged by itself."""
_TRAINING = (".backward(", "caler.", "amp.initialize(", "init_process_group(")
"""Texts without which a file has no order of events over several functions: it does not train."""
_COLLECT_AFTER = 8_000_000
"""Bytes of source after which abstract values that refer to each other are given back."""


@dataclass(frozen=True)
class LintResult:
    """What one file gave.

    Attributes:
        findings: by place. Suppression comments are not looked at here.
        dependencies: other files whose content the findings rest on, with the hash of each (None: looked for and
            not there).
        failures: what rules broke down over, which is a mistake in them and not in the file.
    """

    findings: tuple[Finding, ...]
    dependencies: Mapping[Path, str | None] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


class Linter:
    """Lints files in one mode with some rules; keeps parsed modules between files.

    Args:
        mode: in which the code is judged.
        checks: every rule there is, :func:`amp_rules.checks.all_checks`.
        codes: the rules to ask; None for all that are not in preview.
        in_regions: judge the statements of a file outside of functions as if they ran under autocast: who asks knows
            which of them do.
    """

    def __init__(
        self, mode: Mode, checks: Sequence[Check], codes: Collection[str] | None = None, in_regions: bool = False
    ) -> None:
        self.mode = mode
        self.checks = [
            check
            for check in checks
            if (check.code in codes if codes is not None else not check.preview) and check.applies(mode)
        ]
        self._in_regions = in_regions
        self.known = KnownValues()
        self.project = ProjectFacts(dropped=self.known.forget)
        self._read = 0
        self._operational = [
            check
            for check in self.checks
            if (check.operations or _overrides(check, "visit_function")) and check.sees_operations(mode)
        ]
        self._of_functions = [check for check in self.checks if _overrides(check, "visit_function")]
        self._of_classes = [check for check in self.checks if _overrides(check, "visit_class")]
        self._of_modules = [check for check in self.checks if _overrides(check, "visit_module")]
        self._settled = frozenset(check.code for check in self.checks if check.in_order or not check.operations)
        """Rules whose findings the types that callers give cannot put right."""
        self._in_order = frozenset(check.code for check in self.checks if check.in_order)
        self._asking: dict[Trigger, set[str]] = {}
        """The rules that ask for a trigger in functions."""
        self._asking_in_file: dict[Trigger, set[str]] = {}
        """The rules that ask for a trigger anywhere in a file."""
        for check in self._operational:
            for text in check.triggers:
                self._asking.setdefault(text, set()).add(check.code)
        for check in [*self._of_classes, *self._of_modules]:
            for text in check.file_triggers or check.triggers:
                self._asking_in_file.setdefault(text, set()).add(check.code)
        # Whether order matters in a function must not depend on which rules are asked.
        self._ordered = Triggers([text for check in checks if check.in_order for text in check.triggers])
        self._triggers = Triggers([*self._asking, *self._asking_in_file, *self._ordered])

    def lint(self, source: SourceFile) -> LintResult:
        """Judge one file.

        Raises:
            SourceError: it is not Python 3.
        """
        # Syntax trees hold no cycles, and looking for some after every few hundred nodes takes half of the time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._lint(source)
        finally:
            self._read += len(source.data)
            if self._read > _COLLECT_AFTER:
                self._read = 0
                gc.collect()
            if collecting:
                gc.enable()

    def _lint(self, source: SourceFile) -> LintResult:
        text = in_torchs_words(source.text)
        found = self._triggers.places(text)
        places = TriggerPlaces({trigger: lines for trigger, lines in found.items() if trigger in self._asking})
        asked = {code for trigger in found for code in self._asking_in_file.get(trigger, ())}
        if "torch" not in text and (not (places or asked) or OTHERS_TENSORS.search(text)):
            # Whether it parses is nothing to this linter.
            return LintResult(())
        module = self.project.start(source)
        machine = Machine(
            self.mode,
            self.project,
            self._operational,
            self.known,
            partial(concerned, triggers=self._ordered),
            self._in_regions,
        )
        file = LintedFile(module, self.mode, machine.findings)
        if places:
            ordered = sorted(line for trigger in self._ordered for line in found.get(trigger, ()))
            # What happens in the functions that one calls happens in an order that it decides.
            callers = machine.concerned(module) if ordered and any(map(text.__contains__, _TRAINING)) else frozenset()
            for function in module.all_functions():
                calls = function.name in callers
                if codes := self._asked_of(function.node, places) | (
                    self._asked_in_order(places) if calls else frozenset()
                ):
                    machine.select(codes)
                    machine.turns_twice = bool(ordered) and (calls or within(ordered, function.node))
                    self._judge(machine, function)
            machine.turns_twice = bool(ordered)
            self._judge_statements(machine, module, places, callers)
        for check in self._of_classes:
            if check.code in asked:
                for cls in module.classes.values():
                    _ask(machine, check, cls.node, partial(check.visit_class, cls, file))
        for check in self._of_modules:
            if check.code in asked:
                _ask(machine, check, None, partial(check.visit_module, file))
        # Of two at one place that with a fix comes first: a caller that leads there again has none to show.
        findings = sorted(dict.fromkeys(machine.findings), key=lambda item: (*by_place(item), item.fix is None))
        failures = tuple(machine.failures[code] for code in sorted(machine.failures))
        return LintResult(_once(findings), dict(self.project.used), failures)

    def _asked_of(self, node: ast.AST, places: TriggerPlaces) -> frozenset[str]:
        """The rules that have a trigger in the text of ``node``: no other rule sees it, whichever are asked."""
        return frozenset(code for trigger in places.inside(node) for code in self._asking[trigger])

    def _asked_in_order(self, places: TriggerPlaces) -> frozenset[str]:
        """The rules about the order of events that have a trigger in the file."""
        return frozenset(code for trigger in places.triggers for code in self._asking[trigger]) & self._in_order

    def _judge(self, machine: Machine, function: FunctionFacts) -> None:
        count = len(machine.findings)
        machine.by_name.clear()
        machine.is_in_doubt = False
        self._run(machine, function, machine.judge)
        self._doubt_names(machine, function, count)
        found = machine.findings[count:]
        doubtful = [item for item in found if item.code not in self._settled]
        if doubtful:
            # What other functions know is asked for only where it matters.
            del machine.findings[count:]
            lines = {item.span.start.line for item in doubtful}
            self._run(machine, function, partial(machine.judge_again, lines=lines))
            still = {(item.code, item.span) for item in machine.findings[count:]}
            machine.findings[count:] = [
                item for item in found if item.code in self._settled or (item.code, item.span) in still
            ]
        self._judge_given(machine, function, {(item.code, item.span) for item in found})

    def _judge_given(self, machine: Machine, function: FunctionFacts, before: set[tuple[str, Span]]) -> None:
        """Add what is wrong only because a call gives half tensors, which the function does not say itself."""
        codes, ordered = machine.codes, machine.turns_twice
        if not machine.is_in_doubt or codes <= self._settled or not may_be_called(function):
            return
        count = len(machine.findings)
        machine.select(codes - self._settled)
        machine.turns_twice = False
        self._run(machine, function, machine.suppose)
        supposed = {(item.code, item.span) for item in machine.findings[count:]} - before
        del machine.findings[count:]
        if supposed:
            self._run(machine, function, machine.judge_given)
            machine.findings[count:] = [item for item in machine.findings[count:] if (item.code, item.span) in supposed]
        machine.select(codes)
        machine.turns_twice = ordered

    def _doubt_names(self, machine: Machine, function: FunctionFacts, count: int) -> None:
        """Drop the findings since ``count`` that rest on the name of a parameter that is given something else."""
        if not any(item.code in self._in_order for item in machine.findings[count:]):
            return
        if not any(machine.given_to(parameter, module) for parameter, module in machine.by_name.items()):
            return
        found = machine.findings[count:]
        del machine.findings[count:]
        self._run(machine, function, machine.judge_by_callers)
        still = {(item.code, item.span) for item in machine.findings[count:]}
        machine.findings[count:] = [
            item for item in found if item.code not in self._in_order or (item.code, item.span) in still
        ]

    def _run(self, machine: Machine, function: FunctionFacts, judge: Callable[[FunctionFacts], Frame | None]) -> None:
        try:
            frame = judge(function)
        except RecursionError:
            # An expression nested this deeply is data, not arithmetic.
            return
        if frame is not None:
            self._ask_after(machine, function, frame)

    def _judge_statements(
        self, machine: Machine, module: ModuleFacts, places: TriggerPlaces, callers: frozenset[str]
    ) -> None:
        """Judge the statements that are in no function, all of them as one: what one does concerns those after it."""
        body = [item for item in module.module.tree.body if not isinstance(item, _DEFINITIONS)]
        codes = frozenset(code for item in body for code in self._asked_of(item, places))
        if callers and any(_calls_one(item, callers) for item in body):
            codes |= self._asked_in_order(places)
        if codes:
            machine.select(codes)
            self._ask_after(machine, None, machine.judge_statements(module, body))

    def _ask_after(self, machine: Machine, function: FunctionFacts | None, frame: Frame) -> None:
        """Ask the rules that judge what was run as a whole."""
        for check in self._of_functions:
            if check.code in machine.codes:
                node = function.node if function is not None else None
                _ask(machine, check, node, partial(check.visit_function, function, frame))


def _ask(machine: Machine, check: Check, node: ast.AST | None, question: Callable[[], None]) -> None:
    """Let a rule judge; one that breaks down takes nothing else along."""
    try:
        question()
    except Exception as error:
        machine.fail(check.code, node, error)


def _calls_one(statement: ast.stmt, names: frozenset[str]) -> bool:
    return any(isinstance(item, ast.Call) and last_name(item.func) in names for item in walk(statement))


def _overrides(check: Check, method: str) -> bool:
    return getattr(type(check), method) is not getattr(Check, method)


def _once(findings: list[Finding]) -> tuple[Finding, ...]:
    """One finding of a rule at a place: branches and turns of a loop may find it again."""
    found: dict[object, Finding] = {}
    for item in findings:
        found.setdefault((item.code, item.span), item)
    return tuple(found.values())
