"""The vocabulary of a migration, and the one place where it is chosen."""

from __future__ import annotations

from amp_rules.plan.options import Options
from amp_rules.text.runtime_vocabulary import RuntimeVocabulary
from amp_rules.text.vocabulary import Vocabulary


def chosen(options: Options) -> Vocabulary:
    """The vocabulary of one migration.

    Programs that become plain PyTorch are planned and written in the runtime's words, too: :mod:`amp_rules.plain_torch`
    takes them from there, since where a scaler is made and passed, or a sampler is told its epoch, is known only of the
    whole.
    """
    return RuntimeVocabulary()
