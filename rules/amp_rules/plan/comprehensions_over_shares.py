"""Numbers that a comprehension gets of the training batches of one process, and that are shown.

``losses = [step(x, y) for x, y in loader]``: no statement adds them up, so nothing else tells of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.rank_numbers import Told
from amp_rules.plan.ways_to_show import WaysToShow
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.syntax import COMPREHENSIONS

_OF_ONE = (
    "comes of the batches of one process, about 1/N of the data",
    "come of the batches of one process, about 1/N of the data",
)


def over_shares(processes: Distribution) -> Iterator[Told]:
    """Yield comprehensions over shared loaders of which something is shown."""
    ways: WaysToShow | None = None
    for use in processes.data.uses:
        loop = use.loop_around
        if not isinstance(loop, COMPREHENSIONS) or isinstance(use.module.parents[loop], (ast.For, ast.AsyncFor)):
            continue  # what a loop makes of them is told of as of other loops
        ways = ways or WaysToShow(processes)
        site = Site(use.module, use.scope, use.body, loop)
        if ways.of_value(site) is not None:
            yield Told(site, _kept_in(site.statement) or use.module.text(loop), *_OF_ONE)


def _kept_in(statement: ast.stmt) -> str | None:
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return blocks.path_of(parts[0]) if parts[0] is not None else None
