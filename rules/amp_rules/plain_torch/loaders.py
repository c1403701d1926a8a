"""Loaders: DistributedSampler, and its epoch."""

from __future__ import annotations

from amp_rules.plain_torch.translation import Translate

WORDS: dict[str, Translate] = {}
