"""What reads a model after DistributedDataParallel was put around it, which hands no attribute through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_rules.plain_torch.translation import Translation

if TYPE_CHECKING:
    from amp_rules.plain_torch.wrapped_models import Wrapped


class ModelReads:
    """The reads of the wrapped models of a program."""

    def __init__(self, translation: Translation, models: list[Wrapped]) -> None:
        self._translation = translation
        self._models = models

    def rewrite(self) -> None:
        """Have the model itself asked for what its wrapper lacks."""
