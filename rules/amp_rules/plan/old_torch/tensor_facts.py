"""What is known of a tensor: its rank, its type, whether it can be part of a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What an expression certainly gives.

    Attributes:
        tensor: a tensor.
        number: a number or something else that is no tensor and has no gradient.
        plain: nothing that belongs to a graph or asks for a gradient.
        fresh: an object that nothing else holds.
        boolean: a tensor of ``torch.bool``.
        byte: a tensor of ``torch.uint8``.
        inverted: one of ``torch.uint8`` in which ``~`` has turned every bit over, or may have.
        rank: its number of dimensions, if it is known.
        items: of a tuple, what each element is.
    """

    tensor: bool = False
    number: bool = False
    plain: bool = False
    fresh: bool = False
    boolean: bool = False
    byte: bool = False
    inverted: bool = False
    rank: int | None = None
    items: tuple[Facts | None, ...] | None = None


UNKNOWN = Facts()
NUMBER = Facts(number=True, plain=True, rank=0)


def join(one: Facts | None, other: Facts | None) -> Facts | None:
    """What holds for both; None stands for a value that is never there."""
    if one is None or other is None:
        return other if one is None else one
    items = None
    if one.items is not None and other.items is not None and len(one.items) == len(other.items):
        items = tuple(join(a, b) for a, b in zip(one.items, other.items, strict=True))
    return Facts(
        tensor=one.tensor and other.tensor,
        number=one.number and other.number,
        plain=one.plain and other.plain,
        fresh=one.fresh and other.fresh,
        boolean=one.boolean and other.boolean,
        byte=one.byte and other.byte,
        inverted=one.inverted or other.inverted,
        rank=one.rank if one.rank == other.rank else None,
        items=items,
    )
