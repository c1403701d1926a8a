"""What runs under autocast in a migrated program, and in which modes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.mode import HALF_TYPES, Mode
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.in_regions import nodes_in
from amp_rules.roles.sites import Site
from amp_rules.roles.statement_runs import StatementRun


def sites_in_regions(translation: Translation) -> list[Site]:
    """Every node that runs within a region of autocast, functions that are called there included."""
    return nodes_in(translation.program, list(runs_in_regions(translation)))


def sites_beside(translation: Translation) -> list[Site]:
    """Every node of the regions, and of the functions that hold one: what a region gives is used there."""
    inside = sites_in_regions(translation)
    known = {site.node for site in inside}
    bodies = {use.body for use in regions(translation)}
    return inside + [
        Site(scope.module, scope, body, node)
        for node, body, scope in translation.program.nodes()
        if body in bodies and node not in known
    ]


def regions(translation: Translation) -> Iterator[Use]:
    """Yield the uses that open a region of autocast around statements."""
    for use in translation.uses_of("autocast"):
        if isinstance(use.statement, (ast.With, ast.AsyncWith)) and use.keyword("enabled") is None:
            yield use


def runs_in_regions(translation: Translation) -> Iterator[StatementRun]:
    """Yield the statements of each region."""
    for use in regions(translation):
        body = use.statement.body  # type: ignore[attr-defined]
        yield StatementRun(use.module, body[0], body[-1])


def modes(translation: Translation) -> list[Mode]:
    """The modes in which the script may run."""
    dtype = translation.start.dtype if translation.start is not None else translation.options.dtype
    return [Mode("O1", kind, device) for kind in HALF_TYPES if dtype in ("auto", kind) for device in ("cuda", "cpu")]
