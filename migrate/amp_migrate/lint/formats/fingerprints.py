"""What a finding is recognised by from one commit to the next: not by its line number."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

from amp_migrate.lint.diagnostics import Diagnostic
from amp_migrate.problems import shown


def fingerprinted(diagnostics: Iterable[Diagnostic]) -> Iterator[tuple[Diagnostic, str]]:
    """Yield each finding with its fingerprint; equal ones are told apart by their order."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for item in diagnostics:
        key = (shown(item.finding.path), item.finding.code, item.line_text)
        text = "\0".join([*key, str(seen[key])])
        seen[key] += 1
        yield item, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
