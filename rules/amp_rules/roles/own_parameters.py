"""Parameters that a module makes itself: ``self.kernel = nn.Parameter(x)``."""

from __future__ import annotations

import ast

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.roles.kinds import is_module
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.torch.functions import PARAMETER_MAKERS


def makes_own_parameter(value: Value, method: FunctionFacts, owner: ClassInfo) -> bool:
    """Whether a tensor is what the constructor of a class of modules makes a parameter of its objects.

    Args:
        value: the tensor.
        method: the method that makes it.
        owner: the class of the method.
    """
    if (
        value.site is None
        or method.name != "__init__"
        or value.ref not in PARAMETER_MAKERS
        or not is_module(Value("instance", owner))
    ):
        return False
    statement = method.module.module.parents.get(value.site)
    return isinstance(statement, ast.Assign) and all(
        isinstance(target, ast.Attribute) and blocks.path_of(target.value) == method.receiver
        for target in statement.targets
    )
