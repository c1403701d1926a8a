"""What is known of one model that DistributedDataParallel wraps."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.values import Value
from amp_rules.plain_torch.uses import Use
from amp_rules.roles.sites import Site


@dataclass(frozen=True)
class Moved(Site):
    """The call that puts a model on its device, where its wrapper is made.

    Attributes:
        variable: what holds it after that statement.
    """

    variable: str

    @classmethod
    def of(cls, site: Site, variable: str) -> Moved:
        """One at a place."""
        return cls(site.module, site.scope, site.body, site.node, variable)


@dataclass(frozen=True)
class Wrapped:
    """One model.

    Attributes:
        use: the call of ``prepare_model``.
        values: what it is.
        variable: what holds it after the call, as in ``self.model``; None where the call stands in an expression.
        moved: the call that moves it later, where it is wrapped then.
    """

    use: Use
    values: frozenset[Value]
    variable: str | None
    moved: Moved | None = None

    @property
    def place(self) -> Site:
        """The call that gives the wrapper."""
        return self.moved or Site(self.use.module, self.use.scope, self.use.body, self.use.whole)

    @property
    def has_own_line(self) -> bool:
        """Whether the call is a line of its own, ``model = amp.prepare_model(model)``."""
        return self.variable is not None and ast.unparse(self.use.argument) == self.variable
