"""What the constructor of torch's loader is given, by name and by place."""

from __future__ import annotations

import ast

from amp_rules.source.index import keyword

BY_PLACE = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler")
"""The first parameters of ``torch.utils.data.DataLoader``."""


def given_to_loader(call: ast.Call, name: str) -> ast.expr | None:
    """An argument of a loader's constructor."""
    given = keyword(call, name)
    if given is None and name in BY_PLACE and len(call.args) > BY_PLACE.index(name):
        given = call.args[BY_PLACE.index(name)]
    return given
