"""What of the rewrites is asked for: by ``select`` and ``ignore``, and by comments that keep code as it is.

A rewrite that is optional is left out where it is not asked for. Any other is part of a whole, a training step or its
several processes: without it the whole is declined, since half of it would be wrong.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.notes import IDLE_COMMENT, note_at_line
from amp_rules.plan.options import Options
from amp_rules.plan.report import Note, Outcome, Refusal, Unit
from amp_rules.plan.rule import Rule
from amp_rules.plan.skip_comments import Skip, first_line, skips_in
from amp_rules.plan.wanted import APEX, DISTRIBUTION, PRECISION, effective, wants, wants_any
from amp_rules.source.modules import Module
from amp_rules.source.spans import Position, Span
from amp_rules.text.actions import Action, Insert, Wrap

if TYPE_CHECKING:
    from amp_rules.plan.context import Change
    from amp_rules.plan.drafts import Draft


@dataclass(frozen=True)
class _Unwanted:
    """A change that is not asked for, with what says so."""

    change: Change
    skip: Skip | None
    path: Path
    span: Span


@dataclass
class Selection:
    """What one migration was asked for, and which comments had a say in it."""

    options: Options
    _skips: dict[Module, tuple[Skip, ...]] = field(default_factory=dict)
    _used: set[tuple[Path, int]] = field(default_factory=set)
    _touched: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, options: Options) -> Selection:
        """What the options ask for, see :func:`effective`."""
        return cls(effective(options))

    @property
    def precision(self) -> bool:
        """Whether anything of mixed precision is asked for."""
        return wants_any(self.options, PRECISION)

    def wants(self, code: str) -> bool:
        """Whether a rewrite is asked for."""
        return wants(self.options, code)

    def skips(self, module: Module) -> tuple[Skip, ...]:
        """The comments in a file."""
        if module not in self._skips:
            self._skips[module] = skips_in(module)
        return self._skips[module]

    def settled(self, changes: Iterable[Change], unit: Unit | None = None, draft: Draft | None = None) -> list[Change]:
        """The changes without those that can be left out and are not asked for.

        Args:
            changes: what the rewrites would do.
            unit: the unit that they belong to, if all belong to one.
            draft: the file on its way that they are made in, if it is one: the comments are those of the file on disk.

        Raises:
            Declined: one that cannot be left out is not asked for; of two units the precision is named first.
        """
        kept: list[Change] = []
        needed: list[_Unwanted] = []
        left_out: set[tuple[Module, str]] = set()
        if draft is not None:
            self._touched.add(draft.original.path)
        for change in changes:
            found = self._unwanted(change, draft)
            if found is None:
                kept.append(change)
            elif not change.is_optional:
                needed.append(found)
            elif change.rule.together:
                left_out.add((change.module, change.rule.code))
        if needed:
            # A comment speaks of one place and so says more than an option.
            first = min(needed, key=lambda item: ((unit or item.change.rule.unit) != "precision", item.skip is None))
            raise Declined(_refusal(first, _reason(first.change.rule, unit), self.options))
        return [change for change in kept if (change.module, change.rule.code) not in left_out]

    def asked_for(self, changes: Iterable[Change]) -> list[Change]:
        """The changes that are asked for, of some that can all be left out: what others leave behind."""
        return [change for change in changes if self._unwanted(change, None) is None]

    def _unwanted(self, change: Change, draft: Draft | None) -> _Unwanted | None:
        """Why a change is not asked for, if it is not; all comments that say so are marked as used."""
        code = change.rule.code
        span = change.module.span(change.node)
        places = [_lines(action) for action in change.actions]
        module = change.module
        if draft is not None:
            module, span = draft.original, draft.place(span)
            places = [(*_on_disk(draft, first, last), is_insert) for first, last, is_insert in places]
        self._touched.add(module.path)
        found: Skip | None = None
        for number, skip in enumerate(self.skips(module)):
            if skip.names(code) and any(_holds(skip, code, *place) for place in places):
                # By its number: other rewrites may have moved it to another line by now.
                self._used.add((module.path, number))
                found = found or skip
        if found is None and wants(self.options, code, shared=change.rule.shared):
            return None
        return _Unwanted(change, found, module.path, span)

    def notes(self, modules: Iterable[Module], precision: Outcome, distribution: Outcome) -> Iterator[Note]:
        """What is to be said about the comments of the files: those that nobody can follow, and those that are idle."""
        for module in modules:
            # A file that nothing is done to says nothing about what its comments would keep.
            judged = precision == "migrated" and module.path in self._touched
            for number, skip in enumerate(self.skips(module)):
                problem = skip.problem
                if not problem and judged and (module.path, number) not in self._used:
                    problem = self._idle(skip, distribution)
                if problem:
                    yield note_at_line(IDLE_COMMENT, module, skip.line, f"`{skip.text}` {problem}")

    def _idle(self, skip: Skip, distribution: Outcome) -> str:
        """What to say of a comment that leaves nothing out; nothing where it is meant for other runs."""
        if skip.codes and not any(wants_any(self.options, item[:4]) for item in skip.codes):
            return ""
        if distribution == "not requested":
            for_processes = bool(skip.codes) and all(item.startswith(DISTRIBUTION) for item in skip.codes)
            return "" if for_processes else "leaves nothing out (without --ddp)"
        return "leaves nothing out" if distribution in ("migrated", "extended") else ""


def _holds(skip: Skip, code: str, first: int, last: int, is_insert: bool) -> bool:
    if not skip.holds_for(first, last):
        return False
    if is_insert and skip.scope == "body":
        return first > skip.first  # next to the definition is not in it
    # The start of the runtime and its import go to a line of their own, which may be next to any statement.
    return not (is_insert and skip.scope == "line" and code == "AMP101")


def _lines(action: Action) -> tuple[int, int, bool]:
    """The lines that an action is about: first, last, and whether it only puts new ones beside them."""
    if isinstance(action, Insert):
        first = first_line(action.statement)
        return first, first, True
    if isinstance(action, Wrap):
        return first_line(action.first), action.last.end_lineno or action.last.lineno, False
    node = getattr(action, "node", None) or getattr(action, "statement", None) or getattr(action, "definition", None)
    assert isinstance(node, (ast.expr, ast.stmt))
    return first_line(node), node.end_lineno or node.lineno, False


def _on_disk(draft: Draft, first: int, last: int) -> tuple[int, int]:
    """The lines of the file on disk that some lines of a draft stand for."""
    span = draft.place(Span(Position(first, 1), Position(last, 1)))
    return span.start.line, span.end.line


# ---- what the user is told ---------------------------------------------------------------------------------

_REASONS: dict[Unit, Rule] = {"precision": declining.ASKED_PRECISION, "distribution": declining.ASKED_DISTRIBUTION}


def _reason(rule: Rule, unit: Unit | None) -> Rule:
    return declining.ASKED_APEX if rule.code.startswith(APEX) else _REASONS[unit or rule.unit]


def _refusal(found: _Unwanted, reason: Rule, options: Options) -> Refusal:
    rule = found.change.rule
    needs = f"`{_shown(found.change)}` needs {rule.code} ({rule.name})"
    if found.skip is not None and not found.skip.codes:
        message = f"skipped by `{found.skip.text}` ({rule.code} {rule.name})"
        recipe = ""
    elif found.skip is not None:
        message = f"{needs}, but `{found.skip.text}` {_where(found.skip, found.change.module)} as it is"
        recipe = (
            "take the comment away, or let it name only what can be left out, as in `# amp: skip[AMP301]`; or rewrite "
            f"by hand as the page of {rule.code} shows: amp-lint --explain {rule.code}"
        )
    else:
        message = f"{needs}, which {_said(options, rule.code)}"
        recipe = _recipe(reason, rule)
    return Refusal(found.path, found.span, reason.code, reason.name, reason.unit, message, recipe)


_LONGEST = 80  # of code in a message: more would fill a second line at the terminal


def _shown(change: Change) -> str:
    """What a change is about, without comments that stand in it."""
    node = change.node
    if getattr(node, "lineno", 0) == getattr(node, "end_lineno", 0):
        return change.module.text(node)
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _where(skip: Skip, module: Module) -> str:
    if skip.scope == "file":
        return "at the head of the file keeps it"
    if skip.scope == "line":
        return "keeps the line"
    heads = (row.strip() for row in module.lines[skip.first - 1 : skip.last])
    head = next((row for row in heads if row.startswith(("def ", "async def ", "class "))), "")
    return f"at `{head.partition('#')[0].rstrip().rstrip(':')}` keeps its body"


def _said(options: Options, code: str) -> str:
    ignored = sorted((item for item in options.ignore if code.startswith(item)), key=len)
    if ignored:
        return f"--ignore {ignored[-1]} leaves out"
    return f"--select {','.join(options.select)} does not name"


def _recipe(reason: Rule, rule: Rule) -> str:
    if reason is declining.ASKED_DISTRIBUTION:
        return (
            f"ask for {rule.code} as well, or use --no-ddp; for distributed training in full precision use --ddp "
            "--opt-level O0"
        )
    if reason is declining.ASKED_APEX:
        return f"ask for {rule.code} as well, or leave Apex as it is with --ignore AMP4 and replace it by hand"
    return (
        f"ask for {rule.code} as well, or leave mixed precision out altogether with --ignore AMP1; for distributed "
        "training in full precision use --ddp --opt-level O0"
    )


def without_step(path: Path) -> Refusal:
    """Why several processes are declined where nothing of mixed precision is asked for."""
    reason = declining.ASKED_DISTRIBUTION
    return Refusal(
        path,
        None,
        reason.code,
        reason.name,
        reason.unit,
        "distributed training needs the rewrites of the training step, AMP1, which are not selected",
        "ask for AMP1 as well; --opt-level O0 keeps full precision",
    )


def step_for_apex(path: Path) -> Refusal:
    """Why what ``amp.initialize`` prepares is not rewritten where nothing of mixed precision is asked for."""
    reason = declining.ASKED_APEX
    return Refusal(
        path,
        None,
        reason.code,
        reason.name,
        reason.unit,
        "without Apex the training step needs the rewrites of AMP1, which are not asked for",
        "ask for AMP1 as well, or for Apex's interface from the runtime with --apex compat",
    )
