"""What a remark is recognised by from one commit to the next: not by its line number."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
Key = tuple[str, str, str]


def fingerprinted(items: Iterable[_Item], key: Callable[[_Item], Key]) -> Iterator[tuple[_Item, str]]:
    """Yield each item with its fingerprint; those of one key (file, rule, text) are told apart by their order."""
    seen: Counter[Key] = Counter()
    for item in items:
        known = key(item)
        text = "\0".join([*known, str(seen[known])])
        seen[known] += 1
        yield item, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
