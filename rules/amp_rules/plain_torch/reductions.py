"""Sums and means over all processes."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate

WORDS: dict[str, Translate] = {}
