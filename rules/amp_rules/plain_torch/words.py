"""The table from the runtime's names to the functions that write them in torch's words."""

from __future__ import annotations

from amp_rules.plain_torch import (
    devices,
    loaders,
    loss_scaling,
    models,
    on_main,
    optimizers,
    precision,
    random_numbers,
    ranks,
    reductions,
)
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.unwritten import UNWRITTEN
from amp_rules.plain_torch.uses import Use
from amp_rules.plan.report import Unit

WORDS: dict[str, Translate] = {
    **precision.WORDS,
    **loss_scaling.WORDS,
    **optimizers.WORDS,
    **models.WORDS,
    **devices.WORDS,
    **loaders.WORDS,
    **ranks.WORDS,
    **on_main.WORDS,
    **reductions.WORDS,
    **random_numbers.WORDS,
}


def unknown(translation: Translation, use: Use) -> None:
    """Decline what has no words in torch."""
    lacking, recipe, unit = UNWRITTEN.get(use.path, UNWRITTEN.get(use.path.split(".")[0], _ANYTHING))
    message = f"`{use.module.text(use.node)}` has no words in torch" + (f": {lacking}" if lacking else "")
    translation.decline(use.module, use.node, message, f"{recipe}; or keep the runtime (--target runtime)", unit)


_ANYTHING: tuple[str, str, Unit] = ("", "write this place by hand", "precision")
