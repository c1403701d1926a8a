"""Exchanges whose results the abstract run of the ranks knows, so that nothing has to be guessed about them."""

from __future__ import annotations

import ast

from amp_rules.plan.arrays import assigned_above
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.ranks.libraries import exchanged
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none
from amp_rules.torch.distributed import BROADCASTS, EXCHANGES, GIVES_ALIKE, INTO_ANOTHER, MADE_ALIKE

_SHARING = frozenset(
    {
        "contiguous", "cpu", "cuda", "detach", "detach_", "double", "expand", "flatten", "float", "long", "ravel",
        "requires_grad_", "reshape", "squeeze", "t", "to", "type", "unsqueeze", "view", "view_as",
    }
)  # fmt: skip
"""Methods that may give a tensor with the numbers of their own: what is done to one in place is done to both."""


def followed_exchanges(own: OwnDdp) -> frozenset[ast.AST]:
    """The calls of torch's exchanges that write to local variables, which hold the same on all from there on.

    Not those of a part of an object, or of what shares its numbers with another variable.
    """
    return frozenset(site.node for site in own.program.calls_to(EXCHANGES - BROADCASTS) if _is_followed(own, site))


def _is_followed(own: OwnDdp, site: Site) -> bool:
    call = site.node
    names = own.program.callee_names(call, site.scope) if isinstance(call, ast.Call) else set()
    return bool(names) and all(name in GIVES_ALIKE or _writes_own(own, site, name) for name in names)


def _writes_own(own: OwnDdp, site: Site, name: str) -> bool:
    """Whether an exchange of this name writes to variables of the function, and to no other."""
    assert isinstance(site.node, ast.Call)
    written = exchanged(site.node, name) if name in MADE_ALIKE else []
    return bool(written) and all(
        isinstance(item, ast.Name)
        and (name in INTO_ANOTHER or _is_copied_above(item, site) or _is_alone(own, site, item.id))
        for item in written
    )


def _is_copied_above(variable: ast.Name, site: Site) -> bool:
    """Whether a variable, a parameter maybe, is computed anew above: ``value = value.clone()``."""
    value = assigned_above(variable, site.scope)
    return value is not None and _is_computed(value, "")


def _is_alone(own: OwnDdp, site: Site, name: str, *, is_given: bool = False) -> bool:
    """Whether no other variable has the numbers of one: it is made by what computes or copies them.

    A parameter is what the callers' variables are: ``def sync(total): dist.all_reduce(total)``.
    """
    made = [
        value
        for node in own.program.nodes_of(site.body)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for item, value in blocks.unpacked(target, node.value)
        if isinstance(item, ast.Name) and item.id == name
    ]
    info = own.program.function_of(site.body)
    if info is None or name not in info.parameters:
        return bool(made) and all(_is_computed(value, name) for value in made)
    callers = own.program.flow.callers(info) if not made and not is_given else []
    given = [(calling(item), info.argument(item.call, name)) for item in callers]
    return bool(given) and all(
        isinstance(value, ast.Name) and _is_alone(own, caller, value.id, is_given=True) for caller, value in given
    )


def _is_computed(value: ast.expr, name: str) -> bool:
    while True:
        if isinstance(value, ast.Attribute) and value.attr == "data":
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _SHARING:
            value = value.func.value
        else:
            break
    if isinstance(value, ast.Name):
        return value.id == name
    return is_none(value) or not isinstance(value, (ast.Attribute, ast.Subscript, ast.Starred))
