"""What makes a model, and sets the weights that it begins with: no part of a training step."""

from __future__ import annotations

from amp_rules.roles.program import Program
from amp_rules.roles.sites import calling
from amp_rules.source.facts import FunctionFacts

SETS_UP = frozenset(
    {"weight", "bias", "in_features", "out_features", "apply", "parameters", "named_parameters", "modules",
     "named_modules", "requires_grad_", "reset_parameters", "init_weights"}
)  # fmt: skip
"""What a constructor takes of a layer to set what it begins with."""


def only_builds(program: Program, info: FunctionFacts) -> bool:
    """Whether a method makes the model, or runs for that alone: what it goes over takes no part in a step."""
    return info.name == "__init__" or _is_run_by_constructors(program, info, frozenset())


def _is_run_by_constructors(program: Program, info: FunctionFacts, above: frozenset[FunctionFacts]) -> bool:
    """Whether only constructors call a function, or such helpers of theirs."""
    callers = [program.function_of(calling(item).body) for item in program.flow.callers(info)]
    return bool(callers) and all(
        caller is not None
        and caller not in above
        and (caller.name == "__init__" or _is_run_by_constructors(program, caller, above | {info}))
        for caller in callers
    )
