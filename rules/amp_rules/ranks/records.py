"""What an evaluation of a body rests on, so that it is repeated only where something of that has grown."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from amp_rules.ranks.origins import Origins
from amp_rules.ranks.values import RankValue, Ref

Slot = tuple[str, object]
"""A part of an object: its kind, and the key."""


@dataclass(slots=True)
class Record:
    """What was read, each with what stood there at the first look. As everything only grows, what is the same at the
    end has been so all the time.

    Attributes:
        slots: slots of objects.
        variables: variables that other bodies assign.
        objects: objects of which all slots were asked for, with their versions.
        sites: places of which all objects were asked for, with the number.
        reached: what makes objects differ, with all that they hold.
        passes: the number of iterators over loaders, if any was asked for.
        calls: ways in which functions were called, with the versions of what they gave.
        is_partial: whether a bound was met, so that another evaluation may see more.
    """

    slots: dict[tuple[Ref, Slot], RankValue | None] = field(default_factory=dict)
    variables: dict[tuple[ast.AST, str], RankValue | None] = field(default_factory=dict)
    objects: dict[Ref, int] = field(default_factory=dict)
    sites: dict[ast.AST, int] = field(default_factory=dict)
    reached: dict[frozenset[Ref], Origins] = field(default_factory=dict)
    passes: int | None = None
    calls: dict[Any, int] = field(default_factory=dict)
    is_partial: bool = False
