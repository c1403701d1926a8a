"""Which functions of the project each call can run, and which calls run each function."""

from __future__ import annotations

import ast

from amp_rules.flow.reached import Reached
from amp_rules.flow.store import Store
from amp_rules.flow.values import CallSite
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope


class CallGraph:
    """Callees by call, and callers by function."""

    def __init__(self, store: Store, reached: Reached) -> None:
        self._store = store
        self._reached = reached
        self._callees: dict[ast.Call, set[FunctionFacts]] = {}
        self._callers: dict[FunctionFacts, list[CallSite]] = {}
        self._sites: set[tuple[FunctionFacts, ast.Call]] = set()
        self._noted: set[tuple[ast.Call, Scope, FunctionFacts]] = set()

    def callees(self, call: ast.Call) -> set[FunctionFacts]:
        """Functions that the call can run."""
        return self._callees.get(call, set())

    def callers(self, info: FunctionFacts) -> list[CallSite]:
        """The calls that can run a function."""
        return self._callers.get(info, [])

    def add(self, call: ast.Call, scope: Scope, info: FunctionFacts) -> None:
        """Note that a call can run a function; calls that stand in no file are left out."""
        # Calls are evaluated again whenever something grows that they read.
        if self._store.frozen or (call, scope, info) in self._noted or not hasattr(call, "lineno"):
            return
        self._noted.add((call, scope, info))
        self._callees.setdefault(call, set()).add(info)
        site = self._site(call, scope)
        if (info, site.call) not in self._sites:
            self._sites.add((info, site.call))
            self._callers.setdefault(info, []).append(site)

    def take_over(self, call: ast.Call, whole: ast.Call) -> None:
        """Note that a call runs what the whole call runs that it stands for."""
        if not self._store.frozen:
            self._callees.setdefault(call, set()).update(self.callees(whole))

    def _site(self, node: ast.Call, scope: Scope) -> CallSite:
        """The call as it stands in the file: not its copy in the class of a registry."""
        call, body = self._reached.original(node), self._reached.original(scope.node)
        if isinstance(call, ast.Call) and body is not None:
            return CallSite(call, self._reached.scopes[body])
        return CallSite(node, scope)
