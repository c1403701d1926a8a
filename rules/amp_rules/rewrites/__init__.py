"""The rewrites, one a file; what the file declares is all that is needed.

A rewrite's file has a docstring, which is its public page, a ``RULE``, and a function ``changes(context)`` that yields
its edits; in ``distribution``, a function ``reasons(context)``, if there is one, yields why the whole unit
is declined, and in ``precision`` and ``distribution`` a function ``notes(context)`` what a reader has to know besides
(:mod:`amp_rules.plan.notes`). The context is that of the folder: a :class:`~amp_rules.plan.context.Context` for
``precision`` and ``distribution``, a :class:`~amp_rules.plan.apex.file.ApexFile` for ``apex``, a
:class:`~amp_rules.plan.old_torch.old.OldProgram` for ``old_torch``, an
:class:`~amp_rules.plan.own_ddp.program.OwnDdp` for ``own_processes``, and a
:class:`~amp_rules.plan.own_half.edits.HalfProgram` for ``own_half``. See :mod:`amp_rules.rewrites.loading` for what is
checked, and :class:`~amp_rules.plan.rule.Rule` for how a rewrite says when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from amp_rules.plan.rule import Rule
from amp_rules.rewrites.loading import Rewrite, check_unique, load

if TYPE_CHECKING:
    from amp_rules.plan.apex.file import ApexFile
    from amp_rules.plan.context import Change, Context
    from amp_rules.plan.declining import Declined
    from amp_rules.plan.old_torch.old import OldProgram
    from amp_rules.plan.own_ddp.program import OwnDdp
    from amp_rules.plan.own_half.edits import HalfProgram
    from amp_rules.plan.report import Note


@lru_cache(maxsize=1)
def of_steps() -> tuple[Rewrite[Context], ...]:
    """The rewrites for mixed precision and for several processes, in order."""
    from amp_rules.rewrites import distribution, precision

    return load(precision, distribution)


@lru_cache(maxsize=1)
def _of_apex() -> tuple[Rewrite[ApexFile], ...]:
    from amp_rules.rewrites import apex

    return load(apex)


def of_apex(way: str) -> list[Rewrite[ApexFile]]:
    """The rewrites of older interfaces for mixed precision that take part in a way of handling them, in order."""
    return [rewrite for rewrite in _of_apex() if way in rewrite.rule.ways]


@lru_cache(maxsize=1)
def of_old_torch() -> tuple[Rewrite[OldProgram], ...]:
    """The rewrites of old PyTorch, in order."""
    from amp_rules.rewrites import old_torch

    return load(old_torch)


@lru_cache(maxsize=1)
def of_own_processes() -> tuple[Rewrite[OwnDdp], ...]:
    """The rewrites of processes that a script joins itself, in order."""
    from amp_rules.rewrites import own_processes

    return load(own_processes)


def of_own_half() -> tuple[Rewrite[HalfProgram], ...]:
    """The rewrites of half precision by hand, in order."""
    from amp_rules.rewrites import own_half

    return load(own_half)


@lru_cache(maxsize=1)
def _all() -> tuple[Rule, ...]:
    families = (of_steps(), of_own_processes(), _of_apex(), of_own_half(), of_old_torch())
    found = [rewrite.rule for rewrites in families for rewrite in rewrites]
    check_unique(found)
    return tuple(sorted(found, key=lambda rule: rule.code))


def all_rules() -> list[Rule]:
    """Every rewrite's rule, by code.

    Raises:
        Misdeclared: a rewrite is not declared as it must be.
    """
    return list(_all())


def all_documented() -> list[Rule]:
    """All that has a page: the rewrites, then the reasons for which something is left alone, then the notes."""
    from amp_rules.plan.note_pages import all_noted
    from amp_rules.plan.refusal_pages import all_reasons

    return [*all_rules(), *all_reasons(), *all_noted()]


def all_changes(context: Context, settled: Callable[[Iterable[Change]], list[Change]]) -> list[Change]:
    """Every edit that the decisions in ``context`` ask for.

    Args:
        context: the program and the decisions; what was made is noted there for the rewrites that come later.
        settled: leaves out what can be and is not asked for.
    """
    context.made = []
    for rewrite in _needed(context):
        if not rewrite.rule.last:
            context.made.extend(rewrite.changes(context))
    # By code, whatever the order in which they were found: it decides which of several new lines comes first.
    made = context.made = settled(sorted(context.made, key=lambda change: change.rule.code))
    last = [change for rewrite in _needed(context) if rewrite.rule.last for change in rewrite.changes(context)]
    return [*settled(last), *made]


def all_refused(context: Context) -> Iterator[Declined]:
    """What stands against the edits, from each rewrite whose file has a function ``reasons``."""
    for rewrite in sorted(_needed(context), key=lambda rewrite: rewrite.rule.code):
        if rewrite.reasons is not None:
            yield from rewrite.reasons(context)


def all_notes(context: Context) -> Iterator[Note]:
    """What a reader has to know besides the edits, from each rewrite whose file has a function ``notes``."""
    for rewrite in sorted(_needed(context), key=lambda rewrite: rewrite.rule.code):
        if rewrite.notes is not None:
            yield from rewrite.notes(context)


def _needed(context: Context) -> Iterator[Rewrite[Context]]:
    """The rewrites of the units that are migrated, and those that both rest on."""
    for rewrite in of_steps():
        unit, shared = rewrite.rule.unit, rewrite.rule.shared
        if context.distribution is not None if unit == "distribution" else not context.keeps_precision or shared:
            yield rewrite
