"""The table from the runtime's names to the functions that write them in torch's words."""

from __future__ import annotations

from amp_rules.plain_torch import (
    devices,
    loaders,
    loss_scaling,
    models,
    optimizers,
    precision,
    random_numbers,
    ranks,
    reductions,
)
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use

WORDS: dict[str, Translate] = {
    **precision.WORDS,
    **loss_scaling.WORDS,
    **optimizers.WORDS,
    **models.WORDS,
    **devices.WORDS,
    **loaders.WORDS,
    **ranks.WORDS,
    **reductions.WORDS,
    **random_numbers.WORDS,
}


def unknown(translation: Translation, use: Use) -> None:
    """Decline what has no words in torch."""
    translation.decline(
        use.module,
        use.node,
        f"torch has no counterpart of `{use.module.text(use.node)}`",
        "keep the runtime here (--target runtime), or write this place by hand",
        "precision",
    )
