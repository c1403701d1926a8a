"""The hash by which a file's content is known: to the linter, which says what its findings rest on, and to caches."""

from __future__ import annotations

from hashlib import blake2b

DIGEST_SIZE = 16
"""Bytes of a hash; it is written with two characters for each."""


def digest_of(data: bytes) -> str:
    """The hash by which a file's content is known."""
    return blake2b(data, digest_size=DIGEST_SIZE).hexdigest()
