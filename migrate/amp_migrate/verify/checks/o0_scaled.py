"""With a loss scale the numbers at O0 stay the same.

The loss is multiplied by a power of two, the gradients are divided by it before the step. In float32 both are exact, so
losses, steps, gradient norms and parameters are those of the run without a scale, bit for bit. They are not where
gradients are clipped or read before they are unscaled, where the optimizer steps on scaled gradients, and where a loss
is not scaled whose gradients are divided all the same: none of which shows at O0, nor in bfloat16, and all of which
ruins a training in float16.

The scale can itself leave float32's range: steps that are skipped or infinite, and a first difference below 2**-20,
which rounding of numbers below 1e-38 leaves, are no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from amp_migrate.verify.checks import ways
from amp_migrate.verify.checks.common import Traces, as_far, computes_in_half, together_in_words
from amp_migrate.verify.checks.differences import Difference, first_difference
from amp_migrate.verify.checks.repeats import unrepeatable
from amp_migrate.verify.evidence import Check, Verdict
from amp_migrate.verify.plan import O0, O0_SCALED, Asked
from amp_migrate.verify.traces import RankTrace

ID = "o0-scaled"
TITLE = "A loss scale changes no number"

ROUNDING = 2.0**-20
"""A first difference below this is rounding: far above that of one operation in float32, and far below any mistake."""


def check(traces: Traces, asked: Asked) -> Iterator[Check]:
    """Compare O0 without and with a loss scale."""
    plain, scaled = as_far(traces, O0, O0_SCALED)
    if plain is None or scaled is None:
        return
    scale = traces[O0_SCALED].loss_scale or max(step.scale for step in scaled.backwards)
    left_out = sorted({step.site or "a backward call" for step in scaled.backwards if step.scale == 1.0})
    is_scaled = any(step.scale != 1.0 for step in scaled.backwards)
    difference = first_difference(plain, scaled, "the run without it")
    if difference is None:
        if is_scaled:
            yield Check(ID, TITLE, "proved", _same(scale, left_out))
        elif asked.precision in ("migrated", "unknown") and not _needs_none(scaled, asked):
            message = (
                "No loss was scaled, so this run shows nothing. In float16 small gradients vanish without a scale: "
                f"write amp.scaler.scale(loss).backward() at {together_in_words(left_out)}."
            )
            yield Check(ID, TITLE, "unproved", message)
        return
    verdict, reason = _verdict(traces, plain, scaled, difference, scale)
    with_scale = f"With a loss scale of {scale:g} {difference.words}."
    yield Check(ID, TITLE, verdict, f"{with_scale} {reason}")


def _needs_none(scaled: RankTrace, asked: Asked) -> bool:
    """Whether a version without the runtime computes in bfloat16 alone, by name, which needs no loss scale."""
    if asked.types is not None:
        return "fp16" not in asked.types
    return asked.native and not {"in_fp16", "grad_scaler"} & set(scaled.events)


def _same(scale: float, left_out: list[str]) -> str:
    message = f"With a loss scale of {scale:g} all losses, gradient norms and parameters are the same to the last bit."
    if left_out:
        message += f" The loss at {together_in_words(left_out)} is not scaled: its gradients may vanish in float16."
    return message


def _verdict(
    traces: Traces, plain: RankTrace, scaled: RankTrace, difference: Difference, scale: float
) -> tuple[Verdict, str]:
    if scaled.skipped > plain.skipped or _not_finite(scaled) > _not_finite(plain):
        return "unproved", "The scale made float32 overflow, so this run shows nothing."
    if computes_in_half(plain):
        return "unproved", "At O0 the script computes in half itself, where a scale changes numbers."
    if difference.kind == "parameters" or difference.relative <= ROUNDING:
        return "unproved", "That is no more than rounding of numbers below float32's normal range, so it shows nothing."
    if reason := unrepeatable(traces):
        return "unproved", reason
    return "disproved", _reason(scaled, difference, scale)


def _not_finite(rank: RankTrace) -> int:
    numbers = [step.loss for step in rank.backwards] + [update.norm for update in rank.updates]
    return sum(not math.isfinite(number) for number in numbers)


def _reason(scaled: RankTrace, difference: Difference, scale: float) -> str:
    if difference.kind == "norm" and math.isclose(difference.ratio, scale, rel_tol=1e-3):
        return (
            "The optimizer steps on gradients that are still scaled. "
            "Step with amp.scaler.step(optimizer), or call amp.scaler.unscale_(optimizer) before."
        )
    unscaled = sorted({step.site for step in scaled.backwards[: difference.step] if step.scale == 1.0})
    if unscaled:
        return (
            f"The loss at {together_in_words(unscaled)} is not scaled, and its gradients are divided by the scale all "
            "the same. Write amp.scaler.scale(loss).backward() there."
        )
    sites = ways.changing_gradients(scaled, difference.step)
    where = f" Between the backward call and the step they are changed at {sites}." if sites else ""
    return (
        f"Gradients are clipped, read or changed while they are still scaled, or unscaled twice.{where} Call "
        "amp.scaler.unscale_(optimizer) once, after the last backward call and before gradients are touched."
    )
