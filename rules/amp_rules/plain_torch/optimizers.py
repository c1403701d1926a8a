"""Optimizers: torch's own, with their fused kernels where there are any."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use


def _fused(translation: Translation, use: Use) -> None:
    """``amp.optim.AdamW(...)`` becomes ``torch.optim.AdamW(..., fused=USE_AMP or None)``."""
    translation.replace(use.module, use.node, "{torch}." + use.path)


WORDS: dict[str, Translate] = {f"optim.{name}": _fused for name in ("Adam", "AdamW", "SGD", "Adagrad")}
