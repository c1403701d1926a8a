"""What a version of a script that no run of this program has made is made of: found in its text, not by running it.

Words that merely stand in a comment cost a run that shows nothing, and no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_RUNTIME = re.compile(rb"\bamp_runtime\b")
_LEVELS = re.compile(rb"\bAMP_OPT_LEVEL\b")
_TABLES = re.compile(rb"\bshard_embedding\b")
_QUANTIZES = re.compile(rb"\b(?:quantize|convert_quantized)\(")
_PRECISION = re.compile(rb"autocast|GradScaler|\bb?float16\b|\.half\(|\bamp\b|\bfp16\b|\bbf16\b")
_AUTOCAST = re.compile(rb"autocast|GradScaler")
# Frameworks that start or join processes for a script count: nothing is said of what they do.
_DISTRIBUTION = re.compile(
    rb"distributed|process_group|\bdist\.|mp\.spawn|accelerat|lightning|\bfabric\b|deepspeed|horovod|fsdp",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class HandMade:
    """What is in a version.

    Attributes:
        runtime: the runtime, whose levels it so has.
        levels: the variable that chooses levels, which a version in plain PyTorch reads by itself.
        precision: something of mixed precision.
        distribution: something of several processes.
    """

    runtime: bool
    levels: bool
    precision: bool
    distribution: bool


def look_at(texts: Iterable[bytes]) -> HandMade:
    """Look over the files of a version."""
    whole = b"\n".join(texts)
    return HandMade(*(bool(words.search(whole)) for words in (_RUNTIME, _LEVELS, _PRECISION, _DISTRIBUTION)))


def shares_tables(texts: Iterable[bytes]) -> bool:
    """Whether a version shares the rows of embedding tables out."""
    return any(_TABLES.search(text) for text in texts)


def quantizes(texts: Iterable[bytes]) -> bool:
    """Whether a version that uses the runtime may make int8 models with it."""
    return any(_QUANTIZES.search(text) for text in texts)


def has_autocast(texts: Iterable[bytes]) -> bool:
    """Whether a version uses torch's own autocast or GradScaler."""
    return any(_AUTOCAST.search(text) for text in texts)


def modules_of(script: Path) -> tuple[Path, ...]:
    """The script and the files of its project that its imports lead to."""
    from amp_rules.folder.import_lines import ImportGraph
    from amp_rules.source.files import Files

    files = Files()
    found, pending = [script], [script]
    while pending:
        graph = ImportGraph(pending, files)
        pending = sorted({target for targets in graph.imported.values() for target in targets}.difference(found))
        found += pending
    return tuple(found)
