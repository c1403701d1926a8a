"""``apex.contrib.xentropy.softmax_xentropy``: cross entropy with smoothed labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class SoftmaxCrossEntropyLoss:
    """``apex.contrib.xentropy.SoftmaxCrossEntropyLoss``, of which scripts call ``apply``."""

    @staticmethod
    def apply(
        logits: torch.Tensor,
        labels: torch.Tensor,
        smoothing: float = 0.0,
        padding_idx: int = 0,
        half_to_float: bool = False,
    ) -> torch.Tensor:
        """The loss of each row; 0 where the label is ``padding_idx``.

        Args:
            logits: floating, of shape ``(rows, classes)``.
            labels: int64, of shape ``(rows,)``.
            smoothing: the part of a label's weight that all classes share, of [0, 1].
            padding_idx: the label of rows that do not count; 0 by default, so pass -100 where 0 is a class.
            half_to_float: return float32 for half logits.

        Returns:
            A tensor ``(rows,)`` in the type of the logits, or float32. It is computed in float32 at least.
        """
        wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        with torch.autocast(logits.device.type, enabled=False):
            losses = F.cross_entropy(
                wide, labels, reduction="none", label_smoothing=smoothing, ignore_index=padding_idx
            )
        return losses if half_to_float else losses.to(logits.dtype)
