"""Loaders that give every process the whole data set."""

from __future__ import annotations

import ast

from amp_rules.checks.common.calls import calls_named
from amp_rules.checks.common.rank_branches import is_guarded, names_rank, uses_framework
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import FileIndex, keyword, literal
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import NAMED_SHARE

_POSITIONS = {"shuffle": 2, "sampler": 3, "batch_sampler": 4}


class MissingDistributedSampler(Check):
    """Loaders that give every process the whole data set.

    ## What it does

    Finds a `DataLoader` with `shuffle=True` in a file that wraps its model in `DistributedDataParallel`, or that trains
    and is judged with `--ddp`, and in which nothing splits the data among the processes.

    ## Why

    Each process goes through all of the data. With 4 processes an epoch is 4 times as many samples as the data set
    has and takes as long as with 1. Where the processes have the same seed, they even draw the same batches: the
    averaged gradient of 4 equal gradients is the gradient of 1, and nothing is gained.

    ## Example

        model = DistributedDataParallel(model)
        loader = DataLoader(dataset, batch_size=32, shuffle=True)

    ## Use instead

        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    ## When it is silent

    When the file mentions a sampler, shards, iterable data sets or the rank beside its data; when the loader is made
    in a branch that asks for the rank or the number of processes; when the data set is the project's own and could
    split itself; and for loaders that do not shuffle.

    ## Source

    https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    code = "AMP907"
    name = "missing-distributed-sampler"
    severity = "warning"
    message = "Every process goes through the whole data set."
    advice = "Give the loader a DistributedSampler, and tell it the epoch."
    triggers = ("DistributedDataParallel", ".backward(")

    def visit_module(self, file: LintedFile) -> None:
        """Judge the loaders of a file that trains in several processes."""
        module = file.module
        index = module.index
        if any(NAMED_SHARE.search(word) for word in index.words) or uses_framework(module):
            return
        asked = file.mode.ddp and "backward" in index.words
        if not asked and not any(is_ddp(module, call) for call in index.calls):
            return
        for call in calls_named(module, ("DataLoader",)):
            if (module.dotted(call.func) or "").startswith("torch.utils.data.") and self._is_whole(module, call):
                text = f"Every process goes through all of `{module.module.text(call.args[0])}`: nothing splits it"
                self.report_in(file, call, text)

    def _is_whole(self, module: ModuleFacts, call: ast.Call) -> bool:
        index = module.index
        if not call.args or literal(_given(call, "shuffle")) is not True or is_guarded(index, call):
            return False
        if _given(call, "sampler") is not None or _given(call, "batch_sampler") is not None:
            return False
        return not _may_split(index, call.args[0]) and not any(item.arg is None for item in call.keywords)


def _given(call: ast.Call, name: str) -> ast.expr | None:
    position = _POSITIONS[name]
    return keyword(call, name) or (call.args[position] if len(call.args) > position else None)


def _may_split(index: FileIndex, dataset: ast.expr) -> bool:
    """Whether a data set may be the part of one process."""
    values = index.values_of(dataset) if isinstance(dataset, (ast.Name, ast.Attribute)) else [dataset]
    if not values:
        # A parameter: whoever calls this knows what it is.
        return True
    for value in values:
        if names_rank(value) or not isinstance(value, ast.Call):
            return True
        if last_name(value.func) in index.functions:
            return True
    return False
