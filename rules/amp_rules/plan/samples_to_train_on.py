"""Numbers of samples that end a training: each process counts those of its own batches alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.cells import CellKey
from amp_rules.plan import notes
from amp_rules.plan.batch_loops import BatchLoop
from amp_rules.plan.counts_of_loaders import is_length
from amp_rules.plan.distribution import Distribution
from amp_rules.plan.kept_numbers import is_made_of, loops_of_batches, made_of_batch
from amp_rules.plan.rank_numbers import of_the_share
from amp_rules.plan.report import Note
from amp_rules.plan.training_loops import TrainingLoop, added_to
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import walk

_LEAVING = (ast.Break, ast.Return)


def of_samples(processes: Distribution) -> Iterator[Note]:
    """Yield each counter of samples, ``seen += len(x)``, that a way out of its loops asks: ``while seen < limit:``."""
    told: set[CellKey] = set()
    for loop in loops_of_batches(processes):
        counters = _counters(processes, loop)
        for site in _ways_out(processes, loop) if counters else ():
            asked = {
                key: node
                for node in walk(site.node)
                if isinstance(node, (ast.Name, ast.Attribute))
                if (key := processes.program.flow.key(node, site.scope)) in counters and key not in told
            }
            if not asked or _asks_length(processes, site):
                continue
            told |= counters & asked.keys()
            yield notes.note(
                notes.STEPS,
                site.module,
                site.node,
                f"`{site.module.text(next(iter(asked.values())))}` counts the samples of one process: where "
                f"`{site.module.text(site.node)}` ends the loop, N processes have trained on N times as many",
            )


def _counters(processes: Distribution, loop: TrainingLoop | BatchLoop) -> set[CellKey]:
    """What a loop adds the size of its batch to."""
    made = made_of_batch(processes, loop)
    found = (
        processes.program.flow.key(blocks.target_of(item), loop.scope) for item, _ in _counting(processes, loop, made)
    )
    return {key for key in found if key is not None}


def counters_over_epochs(processes: Distribution, loop: BatchLoop) -> set[str]:
    """The variables that count samples from the first epoch on."""
    counted = {path for _, path in _counting(processes, loop, made_of_batch(processes, loop))}
    return counted - loop.begun_before


def _counting(
    processes: Distribution, loop: TrainingLoop | BatchLoop, made: set[str]
) -> Iterator[tuple[ast.Assign | ast.AugAssign, str]]:
    """Yield the statements that add the size of a batch to a variable."""
    for item in of_the_share(processes, loop):
        if not isinstance(item, (ast.Assign, ast.AugAssign)):
            continue
        for path in added_to(item):
            others = made - {path}
            if blocks.touches(others, blocks.reads(item.value)) and not is_made_of(item.value, others):
                yield item, path


def _ways_out(processes: Distribution, loop: TrainingLoop | BatchLoop) -> Iterator[Site]:
    """Yield the tests that end a loop over batches, or one around it."""
    place = BatchLoop(loop.module, loop.scope, loop.body, loop.loop, loop.loop)
    around = {item.node: item for item in processes.batches.loops_of(place)}
    for site in ({loop.loop: place} | around).values():
        tests = [site.node.test] if isinstance(site.node, ast.While) else []
        tests += [
            part.test
            for part in blocks.walk_own(site.node)
            if isinstance(part, ast.If) and any(isinstance(item, _LEAVING) for item in part.body)
        ]
        for test in tests:
            yield Site(site.module, site.scope, site.body, test)


def _asks_length(processes: Distribution, site: Site) -> bool:
    """Whether a test compares with the length of the data, which a process's share never reaches."""
    lengths = processes.whole_lengths
    parts = [part for part in walk(site.node) if isinstance(part, ast.expr)]
    return any(is_length(lengths, part, site.scope) or lengths.count(part, site.scope) for part in parts)
