"""How a new variable gets to all its uses."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from amp_rules.flow.values import CallSite
from amp_rules.plain_torch.passing import Obstacle
from amp_rules.source.facts import ClassFacts, FunctionFacts


@dataclass
class Way:
    """How the variable gets to all its uses.

    Attributes:
        holder: the class whose objects hold it; None where it is a variable.
        functions: what gets it as a parameter.
        calls: the calls that pass it.
        bodies: the bodies that have it, by whether they read it from ``self``.
        obstacles: why it does not get to some of them.
    """

    holder: ClassFacts | None = None
    functions: dict[FunctionFacts, None] = field(default_factory=dict)
    calls: dict[ast.Call, CallSite] = field(default_factory=dict)
    bodies: dict[ast.AST, str | None] = field(default_factory=dict)
    obstacles: dict[Obstacle, None] = field(default_factory=dict)

    def copy(self) -> Way:
        """One to try something with."""
        return Way(self.holder, dict(self.functions), dict(self.calls), dict(self.bodies), dict(self.obstacles))
