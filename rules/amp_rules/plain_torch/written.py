"""Processes that a migration to plain PyTorch wrote: they have what they need, and a second one leaves them alone."""

from __future__ import annotations

from amp_rules.roles.program import Program
from amp_rules.roles.written_processes import is_for_several
from amp_rules.torch.distributed import JOINS


def joins_as_written(program: Program) -> bool:
    """Whether processes are joined under the test, and by the constant, that this package writes.

    Who has written exactly that by hand keeps processes that may lack something: less is done, and nothing is wrong.
    """
    joins = program.calls_to(JOINS)
    return bool(joins) and all(is_for_several(site.module, site.node) for site in joins)
