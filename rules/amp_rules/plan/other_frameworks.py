"""Scripts that train with another framework than PyTorch: said as that, with where to go."""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.left_unfollowed import unfound_imports
from amp_rules.plan.library_uses import first_import, first_use, imports_torch
from amp_rules.roles.program import Program
from amp_rules.torch.frameworks import OTHER_FRAMEWORKS


def reasons(program: Program) -> Iterator[Declined]:
    """Yield that another framework trains: where torch is not imported, or where only that framework has gradients."""
    has_torch = imports_torch(program)
    if has_torch and program.backwards:
        return
    # A module that is not there may train with torch.
    is_of_others = not has_torch and not any(unfound_imports(program))
    for framework in OTHER_FRAMEWORKS:
        found = first_use(program, framework.training)
        seen = "trains here"
        if found is None and is_of_others:
            found = first_import(program, framework.packages)
            seen = "is imported and torch is not"
        if found is not None:
            module, node, name = found
            yield declining.decline(
                declining.OTHER_FRAMEWORK,
                module,
                node,
                f"`{name}` {seen}: this is a script of {framework.name}, and scripts of PyTorch are migrated",
                f"in {framework.name}, {framework.advice}; once it trains with PyTorch, migrate it",
            )
