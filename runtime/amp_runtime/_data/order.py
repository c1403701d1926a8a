"""Orders and numbers that Python makes anew for each process, made alike: those of sets, and hashes of strings.

Python hashes strings with a seed of the process's own, so that a set of them has another order in each. Nothing here
waits for another rank: scripts make their labels where ranks take turns, in workers, and before ``amp.init``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

from amp_runtime._core.context import context
from amp_runtime._distributed.launch import launched_world_size

T = TypeVar("T")


def same_order(elements: Iterable[T]) -> Iterable[T]:
    """The elements of a set in an order that is the same on every rank: ``list(amp.same_order(set(names)))``.

    Alone it is the set itself, in the order that Python gives it. In several processes it is a sorted list, also
    where ``amp.init`` comes later.

    Args:
        elements: a set, or something made of one, such as a dictionary with its elements as keys.

    Returns:
        The same elements. Those that no text tells apart, such as modules, keep the order that they have.
    """
    if not _several():
        return elements
    found = list(elements)
    texts = [repr(item) for item in found]
    if any(f" at {id(item):#x}" in text for item, text in zip(found, texts, strict=True)) or len({*texts}) < len(found):
        return found
    try:
        return sorted(found)  # type: ignore[type-var]
    except (TypeError, ValueError, RuntimeError):  # elements of several types, or that have no order
        return [item for _, item in sorted(zip(texts, found, strict=True), key=lambda pair: pair[0])]


def same_hash(value: Hashable) -> int:
    """A hash that is the same on every rank: ``amp.same_hash(word) % buckets``.

    Alone it is ``hash(value)``. In several processes strings, bytes, and tuples and frozen sets of them have a hash
    made of their content, which no process seeds; the hash of anything else is Python's.

    Args:
        value: anything that can be hashed.
    """
    return _hash(value) if _several() else hash(value)


def _hash(value: Any) -> int:
    if isinstance(value, tuple):
        return _of_bytes(repr([_hash(item) for item in value]).encode())
    if isinstance(value, frozenset):
        return _of_bytes(repr(sorted(_hash(item) for item in value)).encode())
    if isinstance(value, str):
        return _of_bytes(value.encode("utf-8", "surrogatepass"))
    return _of_bytes(value) if isinstance(value, bytes) else hash(value)


def _of_bytes(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True)


def _several() -> bool:
    if context.distributed:
        return True
    try:
        return launched_world_size() > 1
    except ValueError:
        return False  # the variable may belong to another program
