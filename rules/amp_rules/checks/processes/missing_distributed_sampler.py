"""Loaders that give every process the whole data set."""

from __future__ import annotations

import ast

from amp_rules.checks.common.calls import calls_named
from amp_rules.checks.common.origins import Origin, argument, origins
from amp_rules.checks.common.rank_branches import is_guarded, names_rank, uses_framework
from amp_rules.checks.common.wrapping import is_ddp
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import FileIndex, keyword, literal
from amp_rules.source.syntax import last_name, spelling
from amp_rules.torch.data import DISTRIBUTED_SAMPLERS
from amp_rules.torch.file_access import OF_THIS_MOMENT
from amp_rules.torch.idioms import EXACT_RANK, NAMED_SHARE

_POSITIONS = {"shuffle": 2, "sampler": 3, "batch_sampler": 4}
_OF_NUMBERS = frozenset({"int", "abs", "round", "hash"})
_SHARES = ("broadcast", "all_gather", "all_reduce", "scatter", "sync")


class MissingDistributedSampler(Check):
    """Loaders that give every process the whole data set.

    ## What it does

    Finds a `DataLoader` with `shuffle=True` in a file that wraps its model in `DistributedDataParallel`, or that trains
    and is judged with `--ddp`, and in which nothing splits the data among the processes; and a `DistributedSampler`
    whose `seed` is computed from the rank or from the clock.

    ## Why

    Each process goes through all of the data. With 4 processes an epoch is 4 times as many samples as the data set
    has and takes as long as with 1. Where the processes have the same seed, they even draw the same batches: the
    averaged gradient of 4 equal gradients is the gradient of 1, and nothing is gained.

    Each process shuffles all of the data and takes its share. With seeds of their own these are shares of different
    orders: of 1000 samples on 4 processes, about 316 are in no share at all and about 262 in several.

    ## Example

        model = DistributedDataParallel(model)
        loader = DataLoader(dataset, batch_size=32, shuffle=True)

    ## Use instead

        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    ## When it is silent

    When the file mentions a sampler, shards, iterable data sets or the rank beside its data; when the loader is made
    in a branch that asks for the rank or the number of processes; when the data set is the project's own and could
    split itself; and for loaders that do not shuffle. For seeds, where a function shares the number that it draws
    (`broadcast`), and where the sampler is given a rank other than the one that the seed depends on.

    ## Source

    https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
    """

    code = "AMP907"
    name = "missing-distributed-sampler"
    severity = "warning"
    message = "Every process goes through the whole data set."
    advice = "Give the loader a DistributedSampler, and call its `set_epoch` in each epoch."
    triggers = ("DistributedDataParallel", ".backward(", "DistributedSampler(")

    def visit_module(self, file: LintedFile) -> None:
        """Judge the loaders of a file that trains in several processes."""
        module = file.module
        index = module.index
        if "DistributedSampler" in index.words:
            self._judge_seeds(file)
        if any(NAMED_SHARE.search(word) for word in index.words) or uses_framework(module):
            return
        asked = file.mode.ddp and "backward" in index.words
        if not asked and not any(is_ddp(module, call) for call in index.calls):
            return
        for call in calls_named(module, ("DataLoader",)):
            if (module.dotted(call.func) or "").startswith("torch.utils.data.") and self._is_whole(module, call):
                text = f"Every process goes through all of `{module.module.text(call.args[0])}`: nothing splits it"
                self.report_in(file, call, text)

    def _judge_seeds(self, file: LintedFile) -> None:
        """Look for samplers that shuffle in an order of their own."""
        module = file.module
        for call in calls_named(module, ("DistributedSampler",)):
            if module.dotted(call.func) not in DISTRIBUTED_SAMPLERS:
                continue
            seed = argument(module, call, "seed", 4)
            shuffle = argument(module, call, "shuffle", 3)
            if seed is None or (shuffle is not None and literal(shuffle.node) is False):
                continue
            cause = _own_number(seed, argument(module, call, "rank", 2))
            if cause:
                text = f"The seed depends on {cause}: each process shuffles in its own order, and the shares overlap"
                self.report_in(file, keyword(call, "seed") or call, text, advice="Give every process the same seed.")

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


_DEEPEST = 5
"""Names between a seed and what it is computed from; numbers are not handed on further than that."""


def _own_number(place: Origin, rank: Origin | None, depth: int = _DEEPEST) -> str:
    """What makes a number another one in each process: "`rank`", or empty where nothing does for certain."""
    module, node = place
    if isinstance(node, ast.BinOp):
        parts = [Origin(module, node.left), Origin(module, node.right)]
        return next((cause for cause in (_own_number(item, rank, depth) for item in parts) if cause), "")
    if isinstance(node, ast.Call):
        if module.dotted(node.func) in OF_THIS_MOMENT:
            return "" if _is_shared(module, node) else f"`{module.module.text(node)}`"
        if isinstance(node.func, ast.Name) and node.func.id in _OF_NUMBERS and node.args:
            return _own_number(Origin(module, node.args[0]), rank, depth)
    given = spelling(rank.node) if rank is not None else None
    if _is_rank(module, node) or (given is not None and spelling(node) == given):
        # A rank within a machine or group is that of the sampler, or the groups have orders of their own.
        sure = rank is None or isinstance(node, ast.Call) or spelling(node) == given
        return f"`{module.module.text(node)}`" if sure else ""
    if depth and isinstance(node, (ast.Name, ast.Attribute)):
        causes = [_own_number(item, rank, depth - 1) if item.node is not node else "" for item in origins(module, node)]
        return causes[0] if causes and all(causes) else ""
    return ""


def _is_rank(module: ModuleFacts, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return module.dotted(node.func) == "torch.distributed.get_rank" and not node.args and not node.keywords
    return isinstance(node, (ast.Name, ast.Attribute)) and EXACT_RANK.search(last_name(node)) is not None


def _is_shared(module: ModuleFacts, node: ast.expr) -> bool:
    """Whether the function that draws a number tells it to the other processes."""
    scope = module.index.scope(node)
    return any(
        any(part in last_name(call.func) for part in _SHARES)
        for call in module.index.calls
        if module.index.scope(call) is scope
    )
