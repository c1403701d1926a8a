"""An original that is not the training in float32 that the migrated script has to repeat."""

from __future__ import annotations

from amp_migrate.verify.checks.common import Traces, computes_in_half, first_rank, together_in_words
from amp_migrate.verify.plan import ORIGINAL
from amp_migrate.verify.traces import LACKS


def another_training(traces: Traces) -> str:
    """Why the original trains otherwise here, as a sentence; empty if nothing is known that would."""
    return _without_apex(traces) or _in_half_before(traces)


def _without_apex(traces: Traces) -> str:
    """What the original did without because Apex is not there, as a sentence; empty if nothing."""
    original = first_rank(traces, ORIGINAL)
    lacking = [event.removeprefix(LACKS) for event in original.events if event.startswith(LACKS)] if original else []
    if not lacking:
        return ""
    return (
        f"But the original went on without {together_in_words(lacking)}, which is not installed and has no stand-in, "
        "so it is no longer the same training. Install Apex, or choose arguments that do not ask for it."
    )


def _in_half_before(traces: Traces) -> str:
    """That the original computes in half by itself, as a sentence; empty if it does not."""
    original = first_rank(traces, ORIGINAL)
    if original is None or not computes_in_half(original):
        return ""
    return (
        "But the original computes in half itself, so it has no run in float32 to compare with. Turn that off by its "
        "own arguments."
    )
