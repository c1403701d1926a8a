"""Why a model is not sharded, always with the way that is left: whole models on each process."""

from __future__ import annotations

import ast

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.source.modules import Module

_WHOLE = "leave out --shard: each process then has the whole model"


def not_sharded(module: Module, node: ast.AST | None, message: str, remedy: str = "") -> Declined:
    """The exception for a place that shards do not bear; ``remedy`` is what may be changed there."""
    recipe = f"{remedy}; or {_WHOLE}" if remedy else _WHOLE
    return declining.decline(declining.NOT_SHARDED, module, node, message, recipe)
