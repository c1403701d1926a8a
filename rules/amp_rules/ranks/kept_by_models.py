"""What models keep of a pass in attributes: hidden states, masks, running statistics.

``self.hidden = torch.zeros(...)`` before a pass, and ``output, self.hidden = self.rnn(x, self.hidden)`` in it. An
attribute has what any assignment gives it; but what training leaves there of its passes is no part of an evaluation
that assigns it too. What training alone fills, prototypes or a bank of features, an evaluation reads as it was left.
"""

from __future__ import annotations

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.ranks.frames import Frame
from amp_rules.ranks.memory import Memory, attribute, evaluated
from amp_rules.ranks.origins import Kind, Origins
from amp_rules.ranks.values import RankValue, Ref, join
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program

_OF_PASSES = (Kind.BATCH, Kind.DRAW)
"""What differs from one pass to the next: the batch, and the masks that dropout draws."""


class KeptByModels:
    """Reads the attributes of objects, those of models as a pass in training or in evaluation finds them."""

    def __init__(self, program: Program, memory: Memory) -> None:
        self._program = program
        self._memory = memory
        self._models: dict[ClassInfo, bool] = {}

    def is_model(self, ref: Ref) -> bool:
        """Whether an object is a module of the project."""
        if ref.cls is None:
            return False
        known = self._models.get(ref.cls)
        if known is None:
            known = self._models[ref.cls] = is_module(Value("instance", ref.cls))
        return known

    def attribute(self, ref: Ref, name: str, frame: Frame) -> RankValue | None:
        """What an attribute of an object holds where the frame is."""
        held = self._memory.read(ref, attribute(name))
        if held is None or not self.is_model(ref):
            return held
        given = self._memory.read(ref, evaluated(name))
        if given is None:
            return held
        if frame.state.training:
            refs = frozenset(one for one in held.refs if one not in given.refs or not self._is_of_a_pass(one))
            return held if len(refs) == len(held.refs) else held._replace(refs=refs)
        found = held._replace(
            content=_without_passes(held.content),
            size=_without_passes(held.size),
            refs=frozenset(one for one in held.refs if not self._is_of_a_pass(one)),
            rows=None if held.rows is None else _without_passes(held.rows),
        )
        return join(found, given)

    def _is_of_a_pass(self, ref: Ref) -> bool:
        """Whether an object is a tensor or a list that a method makes anew, and no part of the model."""
        if ref.cls is not None:
            return False
        located = self._program.locate(ref.site)
        return located is not None and getattr(located[0], "name", "__init__") != "__init__"


def _without_passes(origins: Origins) -> Origins:
    return frozenset(origin for origin in origins if origin.kind not in _OF_PASSES)
