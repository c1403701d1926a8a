"""The calls of a file by what they call, whatever the file calls that."""

from __future__ import annotations

import ast
from collections.abc import Collection

from amp_rules.source.facts import ModuleFacts
from amp_rules.source.syntax import last_name


def calls_named(module: ModuleFacts, names: Collection[str]) -> list[ast.Call]:
    """The calls whose callee's own name is one of ``names``, also where an import gives it another one."""
    index = module.index
    aliases = {
        local
        for local, value in module.constants.items()
        if isinstance(value, (ast.Name, ast.Attribute)) and (module.dotted(value) or "").rpartition(".")[2] in names
    }
    return [call for name in sorted(aliases.union(names)) for call in index.named.get(name, ())]


def own_name_of(module: ModuleFacts, call: ast.Call) -> str:
    """The last part of the name of what is called, as its package calls it; empty where it has no name."""
    return (module.dotted(call.func) or "").rpartition(".")[2] or last_name(call.func)
