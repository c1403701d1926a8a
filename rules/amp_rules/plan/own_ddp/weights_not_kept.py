"""Weights that one process means to put back out of a dictionary that holds the parameters themselves, and no copy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.plan.stripped_names import strict_loads
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module


def weights_not_kept(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield such a loading: ``kept = m.state_dict()``, ``m.load_state_dict(best)``, ``m.load_state_dict(kept)``."""
    loads: dict[ast.AST, list[Site]] = {}
    for site in strict_loads(own.program) if own.wraps else ():
        # With ``assign=True`` the parameters are others afterwards.
        if isinstance(site.node, ast.Call) and not site.node.keywords and site.module in own.modules:
            loads.setdefault(site.body, []).append(site)
    for sites in loads.values():
        for back in sites:
            kept = _kept(back)
            others = [
                site
                for site in sites
                if kept is not None and kept.lineno < site.line < back.line and _target(site) == _target(back)
            ]
            if kept is None or not others or any(_reads(site, _given(back)) for site in others):
                continue
            first = others[0]
            if blocks.exclude_each_other(back.module, first.statement, back.statement):
                continue
            if not _is_of_wrapped(own, back) or not own.is_of_first_alone(back.module, back.node):
                continue
            name, model = _given(back), _target(back)
            text = (
                f"`{name}` holds the weights themselves and no copy: line {first.told_line} changes it, too, and "
                f"`{back.module.text(back.node)}` brings nothing back, so that the one process that comes here goes on "
                "with other weights than the rest, to which DistributedDataParallel sends none again; keep "
                f"`copy.deepcopy({model}.state_dict())`"
            )
            yield back.module, back.node, text
            return


def _given(site: Site) -> str:
    assert isinstance(site.node, ast.Call)
    return blocks.path_of(site.node.args[0]) or ""


def _target(site: Site) -> str | None:
    """The path of the model that something is loaded into."""
    assert isinstance(site.node, ast.Call) and isinstance(site.node.func, ast.Attribute)
    return blocks.path_of(site.node.func.value)


def _reads(site: Site, name: str) -> bool:
    assert isinstance(site.node, ast.Call)
    return name in blocks.reads(site.node.args[0])


def _kept(back: Site) -> ast.Assign | None:
    """The one statement that gives a dictionary its value, which is the state of the model that it is loaded into."""
    assert isinstance(back.node, ast.Call)
    name = _given(back)
    if not isinstance(back.node.args[0], ast.Name) or isinstance(back.body, ast.Module):
        return None
    nodes = list(blocks.walk_body(back.body))
    # An element that is set, or another name, may hold what is loaded.
    if sum(isinstance(node, ast.Name) and node.id == name for node in nodes) != 2:
        return None
    for node in nodes:
        if not isinstance(node, ast.Assign) or [ast.unparse(item) for item in node.targets] != [name]:
            continue
        value = node.value
        is_state = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args
        if is_state and value.func.attr == "state_dict" and blocks.path_of(value.func.value) == _target(back):  # type: ignore[attr-defined]
            return node if node.lineno < back.line else None
    return None


def _is_of_wrapped(own: OwnDdp, back: Site) -> bool:
    """Whether a model that something is loaded into is wrapped: ``net.module``, or ``net`` itself."""
    assert isinstance(back.node, ast.Call) and isinstance(back.node.func, ast.Attribute)
    model = back.node.func.value
    parts = [model, model.value] if isinstance(model, ast.Attribute) else [model]
    return any(wrapped_by(own, part, back, own.wraps) for part in parts)
