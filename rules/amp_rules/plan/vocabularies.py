"""The vocabularies that there are, and the one place where one is chosen."""

from __future__ import annotations

from collections.abc import Callable

from amp_rules.plan.options import Options
from amp_rules.text.runtime_vocabulary import RuntimeVocabulary
from amp_rules.text.vocabulary import Vocabulary

VOCABULARIES: dict[str, Callable[[], Vocabulary]] = {"runtime": RuntimeVocabulary}


def chosen(options: Options) -> Vocabulary:
    """The vocabulary of one migration."""
    return VOCABULARIES[options.words]()
