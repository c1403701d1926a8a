"""The start, regions of autocast, and what computes in FP32."""

from __future__ import annotations

from amp_rules.plain_torch.loss_scaling import LossScaling
from amp_rules.plain_torch.ranks import join
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use


def _init(translation: Translation, use: Use) -> None:
    """``amp.init(...)``: the processes join, and the scaler is made."""
    lines = []
    if translation.is_distributed:
        lines += join(translation, use.module)
    lines += translation.part(LossScaling).made_at_start(use.module)
    if lines:
        translation.put_for(use, "\n".join(lines))
    else:
        translation.take_out(use)


def _autocast(translation: Translation, use: Use) -> None:
    """``amp.autocast()`` becomes ``torch.autocast(DEVICE_TYPE, dtype=AMP_DTYPE, enabled=USE_AMP)``."""
    enabled = use.keyword("enabled")
    if enabled is None:
        code = "{torch}.autocast({DEVICE_TYPE}, dtype={AMP_DTYPE}, enabled={USE_AMP})"
    else:
        code = "{torch}.autocast({DEVICE_TYPE}, enabled=False)"
    translation.replace(use.module, use.whole, code)


WORDS: dict[str, Translate] = {"init": _init, "autocast": _autocast}
