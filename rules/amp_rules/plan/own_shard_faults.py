"""Own mixed precision beside ``FullyShardedDataParallel``: what looks at the gradients of one process alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.file_names import place_of
from amp_rules.plan.notes import OWN_STEP, note
from amp_rules.plan.plain_scalers import plain_scalers
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import last_name
from amp_rules.torch.gradients import CLIPS_BY_NORM
from amp_rules.torch.mixed_precision import SHARDED_SCALER
from amp_rules.torch.wrappers import FULLY_SHARDED

_IN_SHARDS = frozenset({"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
"""Strategies that keep a part of a gradient on each process; ``NO_SHARD`` averages all of it, as DDP does."""


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the first scaler, and for the first clipping, that knows of no shards.

    None where some strategy is not known, or where something of the script knows of shards: it may choose by itself.
    """
    wraps = program.calls_to(FULLY_SHARDED)
    if not wraps or not all(map(_is_in_shards, wraps)):
        return
    wrap = wraps[0]
    wrapped = f"`{last_name(getattr(wrap.node, 'func', wrap.node))}` ({place_of(program, wrap.module, wrap.node)})"
    scalers = plain_scalers(program)
    if (
        scalers
        and not program.calls_to(frozenset({SHARDED_SCALER}))
        and any(site.is_scaled for site in program.backwards)
    ):
        site = scalers[0]
        text = (
            f"`{site.module.text(site.node)}` looks for infinite gradients in the shard of its own process alone, "
            f"where {wrapped} wraps the model: one process leaves out a step that the others make, and their scales "
            f"part; use `{SHARDED_SCALER}`"
        )
        yield note(OWN_STEP, site.module, site.node, text)
    clips = [site for site in program.calls_to(CLIPS_BY_NORM) if _is_of_wrapped(program, site, wraps)]
    if clips and not _clips_by_itself(program):
        site = clips[0]
        text = (
            f"`{site.module.text(site.node)}` clips by the norm of the shard of its own process alone, where "
            f"{wrapped} wraps the model: the processes clip by other factors; use the method `clip_grad_norm_` of the "
            "wrapper"
        )
        yield note(OWN_STEP, site.module, site.node, text)


def _is_in_shards(wrap: Site) -> bool:
    """Whether a wrapper keeps shards for certain; without a strategy it does."""
    if not isinstance(wrap.node, ast.Call) or any(item.arg is None for item in wrap.node.keywords):
        return False
    strategy = argument_at(wrap.node, "sharding_strategy", 2)
    return strategy is None or last_name(strategy) in _IN_SHARDS


def _is_of_wrapped(program: Program, site: Site, wraps: list[Site]) -> bool:
    """Whether the parameters of a model that is wrapped are clipped."""
    given = argument_at(site.node, "parameters", 0) if isinstance(site.node, ast.Call) else None
    if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute) or given.func.attr != "parameters":
        return False
    held = program.flow.values(given.func.value, site.scope)
    if any(value.site is wrap.node for value in held for wrap in wraps):
        return True
    models = program.roles.modules(given.func.value, site.scope)
    inside = (argument_at(wrap.node, "module", 0) for wrap in wraps if isinstance(wrap.node, ast.Call))
    return any(
        item is not None and models & program.roles.modules(item, wrap.scope)
        for item, wrap in zip(inside, wraps, strict=True)
    )


def _clips_by_itself(program: Program) -> bool:
    """Whether the wrapper's own method is asked for somewhere: ``model.clip_grad_norm_(1.0)``."""
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "clip_grad_norm_"
        and not program.callee_names(call, scope) & CLIPS_BY_NORM
        for call, _, scope in program.calls()
    )
