"""Models: batch norm over all processes, DistributedDataParallel, and the model itself where its wrapper stands."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use


def _prepared(translation: Translation, use: Use) -> None:
    """``amp.prepare_model(model)``."""
    argument = use.argument
    translation.replace(use.module, use.whole, lambda node: node.args[0].value)  # type: ignore[attr-defined]
    if translation.is_distributed:
        translation.decline(use.module, argument, "not yet", "", "distribution")


WORDS: dict[str, Translate] = {"prepare_model": _prepared}
