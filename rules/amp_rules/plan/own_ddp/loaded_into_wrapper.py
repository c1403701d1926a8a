"""States without ``module.`` in their names that are loaded into ``DistributedDataParallel``, whose names have it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.asked_of_wrapper import is_in_wrapper, is_looked_after
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.stripped_names import lacks_prefix, strict_loads
from amp_rules.roles.file_paths import Paths
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name
from amp_rules.torch.checkpoints import LOADS, SAVES


def loaded_into_wrapper(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the loads that raise an error in several processes."""
    if not own.wraps:
        return
    saved: _Saved | None = None
    for site in strict_loads(own.program):
        assert isinstance(site.node, ast.Call) and isinstance(site.node.func, ast.Attribute)
        held = site.node.func.value
        if site.module not in own.modules or site.body in own.uncalled or own.program.is_model_code(site.body):
            continue
        if not is_in_wrapper(own, site, held) or is_looked_after(own, site, held):
            continue
        if not lacks_prefix(own.program, site):
            saved = saved or _Saved(own)
            if not saved.from_inside(site):
                continue
        name = site.module.text(held)
        text = (
            f"where `{name}` is in DistributedDataParallel, its names begin with `module.`, and those that are loaded "
            f"do not: this raises an error; load them into `{name}.module`"
        )
        yield site.module, site.node, text


class _Saved:
    """Which files hold what the model inside a wrapper has, by the names that it has there."""

    def __init__(self, own: OwnDdp) -> None:
        self._own = own
        self._paths = Paths(own.program)
        self._inside: dict[str, bool] = {}
        for site in own.program.calls_to(SAVES):
            assert isinstance(site.node, ast.Call)
            if len(site.node.args) > 1:
                inside = self._is_state_of_inside(site.node.args[0], site.scope)
                for text in self._paths.of(site.node.args[1], site.scope):
                    self._inside[text] = inside and self._inside.get(text, True)

    def from_inside(self, load: Site) -> bool:
        """Whether a call loads a file that the program saves, from models inside a wrapper alone."""
        assert isinstance(load.node, ast.Call)
        given = load.node.args[0]
        loads = [given] if isinstance(given, ast.Call) else assigned(self._own.program, given, load.scope)
        if not loads:
            return False
        for item in loads:
            located = self._own.program.locate(item) if isinstance(item, ast.Call) else None
            if located is None or not isinstance(item, ast.Call) or not item.args:
                return False
            if not self._own.program.callee_names(item, located[1]) & LOADS:
                return False
            texts = self._paths.of(item.args[0], located[1])
            if not texts or not all(text.strip("*/") and self._inside.get(text, False) for text in texts):
                return False
        return True

    def _is_state_of_inside(self, node: ast.expr, scope: Scope) -> bool:
        """``model.module.state_dict()``, and that of a variable for the model inside."""
        is_state = isinstance(node, ast.Call) and last_name(node.func) == "state_dict"
        return is_state and isinstance(node.func, ast.Attribute) and self._is_inside(node.func.value, scope)  # type: ignore[attr-defined]

    def _is_inside(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, ast.IfExp):
            return self._is_inside(node.body, scope) or self._is_inside(node.orelse, scope)
        if isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1:
            return literal(node.args[1]) == "module"
        if isinstance(node, ast.Name):
            values = assigned(self._own.program, node, scope)
            return bool(values) and all(
                not isinstance(value, ast.Name) and self._is_inside(value, scope) for value in values
            )
        return isinstance(node, ast.Attribute) and node.attr == "module"
