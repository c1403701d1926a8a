"""Whether DistributedDataParallel averages what the training steps of a program compute."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use

if TYPE_CHECKING:
    from amp_rules.plain_torch.wrapped_models import Wrapped


class AveragedPasses:
    """Decides for the models of a program.

    Attributes:
        options: the options of each wrapper as code, ``", find_unused_parameters=True"``; models that are declined are
            not among them.
    """

    def __init__(self, translation: Translation, models: list[Wrapped]) -> None:
        self._translation = translation
        self.options: dict[Use, str] = {}
        for item in models:
            delayed = item.use.keyword("delay_allreduce")
            if isinstance(delayed, ast.Constant) and delayed.value is True:
                translation.decline(item.use.module, item.use.whole, "not yet", "", "distribution")
            else:
                self.options[item.use] = ""
