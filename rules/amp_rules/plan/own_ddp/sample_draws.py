"""Where the samples of a training are drawn: the augmentations of a data set of the project's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.absent import never_runs
from amp_rules.roles.loader_arguments import given_to_loader
from amp_rules.roles.sites import Site
from amp_rules.source.syntax import walk
from amp_rules.torch.replication import NOISE, SEEDED_BY_CONSTRUCTOR, SEEDS

_DRAWS = ("random.", "numpy.random.")
_SEEDED = frozenset({"worker_init_fn", "generator"})
"""Arguments of a loader by which its workers may draw other numbers."""


def draws_of_samples(own: OwnDdp) -> Iterator[Site]:
    """Yield the draws that getting a sample of the training comes to, by the generators of the process."""
    bodies: set[ast.AST] = set()
    for value in sorted({value for use in own.data.uses for value in use.values}, key=_line):
        located = own.program.locate(value.site) if isinstance(value.site, ast.Call) else None
        if located is None or not isinstance(value.site, ast.Call):
            continue
        if any(given_to_loader(value.site, name) is not None for name in _SEEDED) or _has_unknown(value.site):
            return
        given = given_to_loader(value.site, "dataset")
        for data in own.program.flow.values(given, located[1]) if given is not None else ():
            method = data.ref.find_method("__getitem__") if data.kind == "instance" else None
            if method is not None:
                bodies |= {method.node, *own.program.called_from(walk(method.node))}
    if any(site.body in bodies and not site.node.args for site in own.program.calls_to(SEEDS)):  # type: ignore[attr-defined]
        return  # the system chooses
    for call, body, scope in own.program.calls() if bodies else ():
        if body not in bodies or scope.module not in own.modules or never_runs(own.program.flow, scope.module, call):
            continue
        names = own.program.callee_names(call, scope) - SEEDS - SEEDED_BY_CONSTRUCTOR
        if any(name in NOISE or name.startswith(_DRAWS) for name in names):
            yield Site(scope.module, scope, body, call)


def _line(value: object) -> int:
    line: int = getattr(getattr(value, "site", None), "lineno", 0)
    return line


def _has_unknown(call: ast.Call) -> bool:
    """Whether arguments of a call are not written there: ``DataLoader(data, **options)``."""
    return any(item.arg is None for item in call.keywords)
