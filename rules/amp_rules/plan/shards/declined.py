"""Why a model, or its tables, are not sharded, always with the way that is left: whole ones on each process."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.rule import Rule
from amp_rules.source.modules import Module


@dataclass(frozen=True)
class Asked:
    """What is to be shared out.

    Attributes:
        rule: the rule of its refusals.
        whole: how to go on without.
        once: what the shards do not bear comes about when this holds.
        state: what a state is that is asked for.
        is_plain: whether a state that is asked for holds whole tensors, which can be copied.
        part: what may be shared out already where a part of a model is given to another one.
    """

    rule: Rule
    whole: str
    once: str
    state: str
    part: str
    is_plain: bool

    def decline(self, module: Module, node: ast.AST | None, message: str, remedy: str = "") -> Declined:
        """The exception for a place that shards do not bear; ``remedy`` is what may be changed there."""
        recipe = f"{remedy}; or {self.whole}" if remedy else self.whole
        return declining.decline(self.rule, module, node, message, recipe)


MODELS = Asked(
    declining.NOT_SHARDED,
    "leave out --shard: each process then has the whole model",
    "it is sharded",
    "gives each process only its shards",
    "part",
    is_plain=False,
)
TABLES = Asked(
    declining.TABLES_NOT_SHARDED,
    "leave out --shard-embeddings: each process then has the whole tables",
    "the rows of its tables are sharded",
    "has copies of tables that all processes put together",
    "table",
    is_plain=True,
)


def not_sharded(module: Module, node: ast.AST | None, message: str, remedy: str = "") -> Declined:
    """The exception for a place that a sharded model does not bear."""
    return MODELS.decline(module, node, message, remedy)
