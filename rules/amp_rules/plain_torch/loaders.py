"""Loaders: each process reads its share of the training data, through DistributedSampler."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.epochs import Epochs
from amp_rules.plain_torch.loader_arguments import moved_source
from amp_rules.plain_torch.loader_copies import own_copy
from amp_rules.plain_torch.shared_loaders import Made, SharedLoaders
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.source import blocks
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import first_argument
from amp_rules.text.sampler_edits import with_sampler

_BY_HAND = "make the loader with a `DataLoader(...)` whose arguments stand in the call, or keep the runtime"


def _prepared(translation: Translation, use: Use) -> None:
    """``amp.prepare_loader(...)``: a sampler for the constructor, or a loader of the process's own beside another."""
    shared = translation.part(SharedLoaders)
    if not translation.is_distributed:
        _left_out(translation, use)
        return
    if use not in shared.decided:
        translation.decline(use.module, use.node, shared.reasons[use], _BY_HAND, "distribution")
        return
    made = shared.decided[use]
    if made:
        for item in made:
            _share(translation, item)
        _left_out(translation, use)
    else:
        own_copy(translation, use)
    translation.part(Epochs).write()
    translation.cannot_keep(
        use.module,
        "each sample exactly once an epoch: DistributedSampler repeats a few where the processes cannot share all "
        "samples evenly",
    )


def _left_out(translation: Translation, use: Use) -> None:
    """What stands in the call alone; nothing where the statement would only assign a variable to itself."""
    argument, statement = use.argument, use.statement
    if isinstance(statement, ast.Assign) and statement.value is use.whole and len(statement.targets) == 1:
        if ast.dump(blocks.reading(statement.targets[0])) == ast.dump(argument):
            translation.take_out(use)
            return
    if not translation.is_distributed or not translation.part(SharedLoaders).is_edited(argument):
        translation.do(use.module, Replace(use.whole, first_argument))


def _share(translation: Translation, made: Made) -> None:
    """Give a constructor the sampler, and put the sampler above it."""
    module, data = made.module, made.dataset
    if translation.part(SharedLoaders).is_written(made):
        return
    lines = []
    name = source_of(module, data)
    if made.hoisted is not None:
        name = made.hoisted
        lines.append(f"{name} = {moved_source(module, data, len(name) + len(' = '))}")
    more = "" if made.shuffle == "True" else f", shuffle={made.shuffle}"
    lines.append(f"{made.sampler} = {{sampler}}({name}{more}) if {{WORLD_SIZE}} > 1 else None")
    translation.insert(module, made.statement, "\n".join(lines))
    given = with_sampler(made.sampler, made.shuffle, made.hoisted)
    node = made.wrapper or made.call
    edit = given if made.wrapper is None else lambda wrapper: given(wrapper.args[0].value)
    translation.do(module, Replace(node, edit, moves_comments=made.hoisted is not None))


WORDS: dict[str, Translate] = {"prepare_loader": _prepared}
