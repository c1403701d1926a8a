"""``apex.contrib.focal_loss.focal_loss``: the loss of RetinaNet (https://arxiv.org/abs/1708.02002)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def focal_loss(
    cls_output: torch.Tensor,
    cls_targets_at_level: torch.Tensor,
    num_positive_sum: torch.Tensor,
    num_real_classes: int,
    alpha: float,
    gamma: float,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The focal loss of class scores, summed and divided by the number of positives.

    Args:
        cls_output: logits, floating, of shape ``(..., classes)``, where classes from ``num_real_classes`` on are
            padding.
        cls_targets_at_level: int64, of shape ``(...)``: the class; -1 for background, -2 for anchors to ignore.
        num_positive_sum: what to divide by, a tensor of one element.
        num_real_classes: the number of classes that count.
        alpha: weight of the positive class; the others have ``1 - alpha``.
        gamma: the exponent that lets well classified ones count less.
        label_smoothing: half of it goes to the wrong side of each binary label.

    Returns:
        A float32 scalar (float64 for float64 logits).
    """
    with torch.autocast(cls_output.device.type, enabled=False):
        scores = cls_output[..., :num_real_classes]
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        classes = torch.arange(num_real_classes, device=scores.device)
        positive = cls_targets_at_level.unsqueeze(-1) == classes
        chance = scores.sigmoid()
        half = label_smoothing / 2
        label = torch.where(positive, 1.0 - half, half)
        entropy = F.softplus(-scores) + (1.0 - label) * scores
        weight = torch.where(positive, alpha * (1 - chance) ** gamma, (1 - alpha) * chance**gamma)
        counted = (cls_targets_at_level != -2).unsqueeze(-1)
        return (weight * entropy * counted).sum() / num_positive_sum.to(scores.dtype).reshape(())


class FocalLoss:
    """``apex.contrib.focal_loss.FocalLoss``, of which scripts call ``apply`` with the arguments of the function."""

    apply = staticmethod(focal_loss)
