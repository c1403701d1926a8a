"""Completing a script's own processes, in drafts, before anything else is decided about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from amp_rules import rewrites
from amp_rules.plan import declining, left_unfollowed, notes, own_processes
from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.local_ranks import LocalRanks
from amp_rules.plan.apex.stages import is_part_of_apex
from amp_rules.plan.context import Change
from amp_rules.plan.drafts import Draft, apart, drafted, edits_of, joined
from amp_rules.plan.own_ddp.group import is_own, joins_torch_alone
from amp_rules.plan.own_ddp.launchers import Starts
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.written_ranks import is_of_one, written_ranks
from amp_rules.plan.report import Note, Refusal, Report
from amp_rules.plan.selection import Selection
from amp_rules.plan.shards.embeddings import has_large
from amp_rules.roles.absent import never_runs
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import OPTION_OF_LAUNCHERS

if TYPE_CHECKING:
    from amp_rules.plan.own_ddp.faults import Fault

_MAX_ROUNDS = 6
"""What one round writes the next may have to add to: a new sampler is told the epoch."""

_SYNC_BATCH_NORM = "AMP230"
_STATISTICS = (
    "now computes its mean and variance over the batches of all processes, so the results of "
    "training change; --no-sync-bn turns this off"
)


@dataclass
class Extended:
    """A program whose own processes have what they need.

    Attributes:
        program: the program, changed.
        drafts: the files that were changed.
        told: what was left as it is, at its places in the changed files.
    """

    program: Program
    drafts: dict[Path, Draft] = field(default_factory=dict)
    told: list[Note] = field(default_factory=list)

    def joined(self, report: Report) -> Report:
        """The report of the changed program as one of the program before."""
        report = replace(report, notes=(*report.notes, *self.told))
        # Reading the rank as torchrun gives it lets them run as before.
        pieces = {rewrite.rule.code for rewrite in rewrites.of_own_processes()} if self.drafts else set()
        is_extended = any(edit.code in pieces for draft in self.drafts.values() for edit in draft.edits)
        if report.distribution == "already" and is_extended:
            refusals = tuple(item for item in report.refusals if item.unit != "distribution")
            report = replace(report, distribution="extended", refusals=refusals)
        elif report.distribution == "already" and self.told:
            report = replace(report, refusals=tuple(map(_with_what_is_left, report.refusals)))
        report = joined(self.drafts, report)
        return replace(report, notes=notes.in_order([*report.notes, *self._statistics()]))

    def _statistics(self) -> Iterator[Note]:
        """Yield what synchronising batch norm changes, at the first place where it is written."""
        edits = [edit for edit in edits_of(self.drafts.values()) if edit.code == _SYNC_BATCH_NORM]
        for edit in edits[:1]:
            rule = notes.BATCH_SIZE
            is_certain = any("if there is any" not in item.message for item in edits)
            norm = "batch norm" if is_certain else "batch norm, if the model has any,"
            yield Note(edit.path, edit.span, rule.code, rule.name, f"{norm} {_STATISTICS}", edit.cell)


def _with_what_is_left(refusal: Refusal) -> Refusal:
    """A refusal that does not say that nothing lacks, where notes name what does."""
    if refusal.code != declining.OWN_DISTRIBUTION.code or refusal.recipe != own_processes.COMPLETE:
        return refusal
    left = "notes AMP288 name what was found missing; the rest stays as it is"
    return replace(refusal, recipe=left)


def extended(program: Program, selection: Selection) -> Extended:
    """The program with what its own processes lacked; itself where it has none."""
    found = Extended(program)
    options = selection.options
    if not options.ddp or options.shard:
        return found
    if not program.backwards:
        return _with_ranks_of_torchrun(found, selection) if _may_train(program) else found
    if not is_own(program) or has_large(program, options):
        return found
    # Sixty files, which scripts without processes of their own do not need.
    from amp_rules.plan.own_ddp.faults import faults

    for _ in range(_MAX_ROUNDS):
        modules = [module for module in found.program.flow.modules if not is_part_of_apex(found.program, module)]
        own = OwnDdp(found.program, selection.options, frozenset(modules))
        if is_of_one(own):
            # Tests of the rank would be about no other process; where distribution declines for it, that says all.
            if not own_processes.lacks_a_part(own.program):
                found.told = _told(own, selection, written_ranks(own))
            break
        changes = _round(own, modules, selection, found.drafts)
        if not changes:
            found.told = _told(own, selection, faults(own))
            break
        _drafted(found, changes)
    else:
        found.told = _told(own, selection, faults(own))
    # What declines leaves no trace.
    return Extended(program) if found.drafts and own_processes.lacks_a_part(found.program) else found


def _may_train(program: Program) -> bool:
    """Whether a program without a backward pass may train in processes of its own, in what could not be followed."""
    return joins_torch_alone(program) and next(left_unfollowed.reasons(program), None) is not None


def _with_ranks_of_torchrun(found: Extended, selection: Selection) -> Extended:
    """The program with its local rank as torchrun gives it: nothing else is certain where the training is unknown."""
    own = OwnDdp(found.program, selection.options, frozenset(found.program.flow.modules))
    modules = [module for module in found.program.flow.modules if not is_part_of_apex(found.program, module)]
    changes = _settled(_ranks_of_torchrun(own, modules), selection, found.drafts)
    return _drafted(found, changes) if changes else found


def _drafted(found: Extended, changes: dict[Module, list[Change]]) -> Extended:
    for module, todo in changes.items():
        draft = found.drafts.get(module.path) or Draft.of(module, frozenset())
        draft.module = module  # the same text, parsed for the program of this round
        draft.make(todo)
        found.drafts[module.path] = draft
    found.program = drafted(found.program, found.drafts)
    return found


def _round(
    own: OwnDdp, modules: list[Module], selection: Selection, drafts: dict[Path, Draft]
) -> dict[Module, list[Change]]:
    """What all rewrites would do to the program as it stands."""
    found = _settled(_first(own, modules), selection, drafts)
    if not found:
        # What comes last rests on all that it writes being made together.
        last = [rewrite for rewrite in rewrites.of_own_processes() if rewrite.rule.last]
        found = _settled((change for rewrite in last for change in rewrite.changes(own)), selection, drafts)
    return found


def _told(own: OwnDdp, selection: Selection, wrong: Iterable[Fault]) -> list[Note]:
    """What is left as it is, and what is wrong in the script itself."""
    for module, node, text in wrong:
        if not never_runs(own.program.flow, module, node):
            own.tell(module, node, text)
    return [note for note in own.told if selection.wants(_code_of(note))]


def _code_of(note: Note) -> str:
    """The code of the rewrite that would have completed a place; of what none completes that of the note."""
    code = note.text.partition(":")[0]
    return code if code.startswith("AMP") and code[3:].isdigit() else note.code


def _first(own: OwnDdp, modules: list[Module]) -> Iterator[Change]:
    """The changes that may wait for another round where they touch others."""
    for rewrite in rewrites.of_own_processes():
        if not rewrite.rule.last:
            yield from rewrite.changes(own)
    yield from _ranks_of_torchrun(own, modules)


def _ranks_of_torchrun(own: OwnDdp, modules: list[Module]) -> Iterator[Change]:
    # What starts the processes itself gives each its number, whatever the option says.
    launched = not Starts(own.program, own.joins).by_script_alone
    ranks = LocalRanks(own.program)
    for module in modules if launched else ():
        if any(name.strip("-") in module.source.text for name in OPTION_OF_LAUNCHERS):
            file = ApexFile(module, own.options, local_ranks=ranks)
            for rewrite_of_file in rewrites.of_apex("own processes"):
                yield from rewrite_of_file.changes(file)


def _settled(changes: Iterable[Change], selection: Selection, drafts: dict[Path, Draft]) -> dict[Module, list[Change]]:
    """The changes that are asked for, by their files."""
    found: defaultdict[Module, list[Change]] = defaultdict(list)
    for change in changes:
        found[change.module].append(change)
    kept = {module: _kept(todo, selection, _draft(module, drafts)) for module, todo in found.items()}
    return {module: apart(todo) for module, todo in kept.items() if todo}


_ALIKE = {"AMP234": "AMP205", "AMP236": "AMP206", "AMP237": "AMP210", "AMP239": "AMP209"}
"""What does the same for processes that the migration writes: a comment that keeps a place from one is for both."""


def _kept(changes: list[Change], selection: Selection, draft: Draft) -> list[Change]:
    found = []
    for change in selection.settled(changes, draft=draft):
        code = _ALIKE.get(change.rule.code)
        if code is not None and selection.wants(code):
            alike = replace(change, rule=replace(change.rule, code=code))
            if not selection.settled([alike], draft=draft):
                continue
        found.append(change)
    return found


def _draft(module: Module, drafts: dict[Path, Draft]) -> Draft:
    draft = drafts.get(module.path)
    if draft is None:
        return Draft.of(module, frozenset())
    draft.module = module
    return draft
