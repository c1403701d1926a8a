"""What is told of the edits, where torch's own words stand in the diff."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from amp_rules.plain_torch.own_words import in_own_words
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plan import notes
from amp_rules.plan.drafts import Draft
from amp_rules.plan.report import Edit, FileChange, Note, Refusal, Report, in_order
from amp_rules.rewrites import all_rules
from amp_rules.source.spans import Position, Span

_START = "AMP101"
_MODEL = "AMP108"
_SEVERAL_GPUS = "AMP203"
_STARTS = (_START, "AMP404")

# What rewrites say of the runtime, and what is true of torch's words in its place.
_SAID = {
    "the runtime's names": "what the new code reads",
    "gets its precision and joins the other ranks": "joins the other ranks, which average its gradients",
}
_AT_THE_STEP = re.compile(r"gradients are averaged at the step, because (.*?)(?=; |$)")
_IN_EACH_PASS = r"they are averaged in each backward pass, although \1: right, and slower than once a step"
_JOINING = "the processes join before the data is split"
_SWITCH = "AMP_OPT_LEVEL=O0 turns mixed precision off"

# Names in recipes; `amp.initialize` and `amp.scale_loss` are Apex's.
_OF_RUNTIME = re.compile(r"\bamp\.(?!initialize\b|scale_loss\b)\w")

# What they stand for here.
_IN_TORCH = {
    "amp.rank()": "dist.get_rank()",
    "amp.world_size()": "dist.get_world_size()",
    "amp.scaler.": "scaler.",
}

# As messages about a draft have them.
_LINE = re.compile(r"\(line (\d+)\)")

# Rewrites that change the statement that they are about, where others put something beside it.
_WITHIN = ("AMP103", "AMP202", "AMP301")

# Which rewrite writes a name of the runtime; of one that is not listed, the beginning of its path may be.
_CODES = {
    "init": _START,
    "autocast": "AMP102",
    "scaler.scale": "AMP103",
    "scaler.step": "AMP104",
    "scaler.update": "AMP104",
    "scaler.unscale_": "AMP105",
    "scaler": "AMP405",
    "float_function": "AMP106",
    "prepare_model": _MODEL,
    "at_least_float32": "AMP112",
    "in_this_region": "AMP114",
    "device": "AMP201",
    "prepare_loader": "AMP202",
    "keep_module_prefix": "AMP203",
    "unwrap": "AMP204",
    "is_main_process": "AMP205",
    "on_main": "AMP205",
    "barrier": "AMP205",
    "main_process_first": "AMP207",
    "seed_by_rank": "AMP208",
    "seed_alike": "AMP208",
    "reduce_mean": "AMP211",
    "from_main_process": "AMP211",
    "drawn_alike": "AMP215",
    "same_seed": "AMP215",
    "same_order": "AMP216",
    "same_hash": "AMP216",
    "seed_of_rank": "AMP217",
    "reduce_sum": "AMP220",
    "sum_of_shares": "AMP220",
    "share_of": "AMP221",
    "optim": "AMP301",
}


def of_migration(report: Report, changes: Sequence[FileChange], *, distributed: bool) -> tuple[Edit, ...]:
    """The edits of a migration in the words of what stands in the diff, without those of which nothing is left.

    Args:
        report: that of the migration to the runtime.
        changes: the files, with torch's words.
        distributed: whether several processes join.
    """
    touched = {change.path: _Touched(change) for change in changes}
    start = [_JOINING] * distributed + [_SWITCH] * (report.precision == "migrated")
    found = []
    for edit in report.edits:
        # Nothing of a model's preparation is left in one process.
        gone = edit.code == _MODEL and not distributed
        if not gone and edit.path in touched and touched[edit.path].by(edit):
            message = edit.message
            for said, true in _SAID.items():
                message = message.replace(said, true)
            # What must be averaged there is declined; what is left may be averaged at any time.
            message = _AT_THE_STEP.sub(_IN_EACH_PASS, message)
            if edit.code in _STARTS and message != _SAID["the runtime's names"]:
                message = "; ".join(start)
            found.append(replace(edit, message=message))
    return tuple(found)


def of_uses(uses: Iterable[Use]) -> tuple[Edit, ...]:
    """The edits that take the runtime out of a program: each named as the rewrite that wrote it."""
    names = {rule.code: rule.name for rule in all_rules()}
    found = []
    for use in uses:
        code = _CODES.get(use.path) or _CODES.get(use.path.partition(".")[0], _START)
        message = f"`{use.module.text(use.node)}` in PyTorch's own words"
        found.append(Edit(use.module.path, use.module.span(use.whole), code, names[code], message))
    return in_order(found)


def notes_of_migration(found: Iterable[Note]) -> tuple[Note, ...]:
    """The notes of a migration that are about what stands in the diff."""
    text = "the level stays the script's own, as it was given to amp.initialize: O0 turns mixed precision off"
    return tuple(
        replace(item, text=f"{text}, as AMP_OPT_LEVEL=O0 does{_of_options(item)}")
        if item.code == notes.APEX_LEVEL.code
        else item
        for item in found
    )


def _of_options(item: Note) -> str:
    """What a note on the level goes on to say of options that are not used."""
    return item.text.partition("AMP_OPT_LEVEL overrides it")[2]


def of_several_gpus(found: Iterable[Edit], translation: Translation) -> None:
    """Say that one process has one GPU, where it had all of them."""
    if any(True for _ in translation.uses_of("keep_module_prefix")):
        return  # DataParallel is still there alone
    modules = {module.path: module for module in translation.program.flow.modules}
    for path in dict.fromkeys(item.path for item in found if item.code == _SEVERAL_GPUS):
        translation.cannot_keep(
            modules.get(path, translation.program.entry),
            "several GPUs in one process, as `DataParallel` had them: started alone it uses one, at O0 too; torchrun "
            "starts a process for each",
        )


def refusals_of_migration(found: Iterable[Refusal]) -> tuple[Refusal, ...]:
    """The reasons for declining, with what to do by hand where only the runtime is left out."""
    return tuple(replace(item, recipe=_recipe(item.recipe)) for item in found)


def of_file(message: str, draft: Draft) -> str:
    """A message about a draft, with the lines and the words of the file on disk."""

    def line(found: re.Match[str]) -> str:
        place = Position(int(found[1]), 1)
        return f"(line {draft.place(Span(place, place)).start.line})"

    return in_own_words(_LINE.sub(line, message), draft.module)


def _recipe(recipe: str) -> str:
    if "--apex compat" in recipe:
        return recipe.replace("--apex compat", "--target runtime --apex compat")
    for said, own in _IN_TORCH.items():
        recipe = recipe.replace(said, own)
    if _OF_RUNTIME.search(recipe) and "--target runtime" not in recipe:
        return f"with --target runtime: {recipe}"
    return recipe


class _Touched:
    """The lines of a text that a change touches.

    Attributes:
        own: those that are not as they were.
        beside: those next to which new ones stand, apart by a blank line perhaps.
    """

    def __init__(self, change: FileChange) -> None:
        before, after = change.before.splitlines(), change.after.splitlines()
        self.own: set[int] = set()
        self.beside: set[int] = set()
        for tag, first, last, start, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
            if tag != "equal":
                self.own |= set(range(first + 1, last + 1))
                reach = 1 if tag == "insert" else 0
                if stop - start > last - first:
                    self.beside |= set(range(first - reach, last + 2 + reach))

    def by(self, edit: Edit) -> bool:
        """Whether something stands in the diff at the place of an edit."""
        lines = set(range(edit.span.start.line, edit.span.end.line + 1))
        return bool(lines & (self.own if edit.code in _WITHIN else self.own | self.beside))
