"""Random numbers that all processes draw alike, or each for itself."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate

WORDS: dict[str, Translate] = {}
