"""Where a file puts the state of optimizers into a checkpoint, and takes it out again."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from amp_rules.checks.common.calls import own_name_of
from amp_rules.checks.common.step_roles import is_optimizer, optimizer_names
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.idioms import NAMED_LOADING, NAMED_SAVING, NAMED_WHOLE_STATE

Test = Callable[[ast.expr], bool]
_HOLD_ALL = ("self", "trainer", "runner", "engine")
_NAMED_STATE = re.compile(r"extra|state|other|kwargs")
_PRINTING = frozenset({"print", "pprint", "format", "str", "repr", "debug", "info", "warning"})
_MAX_MEMBERS = 3
"""A state dictionary is at most so many expressions inside of the statement that makes the checkpoint."""


def optimizer_saves(module: ModuleFacts) -> list[ast.Call]:
    """Where a file saves the state of an optimizer, one place a function.

    That is ``optimizer.state_dict()``; in a file without it, a call that saves and is given the optimizer.
    """
    if not any(is_saving(call, module) for call in module.index.calls):
        return []
    calls = [
        call
        for call in module.index.named.get("state_dict", ())
        if _is_optimizers(call, module) and not _is_copied(call, module) and not _is_printed(call, module)
    ]
    if calls:
        calls = [call for call in calls if not _is_open(call, module)]
    else:
        calls = [
            call
            for call in module.index.calls
            if is_saving(call, module) and _is_given_optimizer(call, module) and not _takes_all(call)
        ]
    return _first_of_each(calls, module)


def _first_of_each(calls: list[ast.Call], module: ModuleFacts) -> list[ast.Call]:
    found: dict[ast.AST | None, ast.Call] = {}
    for call in calls:
        found.setdefault(module.index.scope(call), call)
    return list(found.values())


def optimizer_loads(module: ModuleFacts) -> list[ast.Call]:
    """Where a file loads the state of an optimizer out of a checkpoint, one place a function."""
    calls = [
        call
        for call in module.index.named.get("load_state_dict", ())
        if _is_optimizers(call, module) and not any(_calls(item, "state_dict") for item in call.args)
    ]
    return _first_of_each(calls, module)


def is_saving(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a function that is called writes checkpoints, as its name says."""
    name = own_name_of(module, call).lower()
    if NAMED_LOADING.match(name) or "checkpoint_sequential" in name:
        return False
    return bool(NAMED_SAVING.search(name))


def is_loading(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a function that is called reads checkpoints, as its name says."""
    name = own_name_of(module, call).lower()
    return bool(NAMED_LOADING.match(name)) or "checkpoint" in name


def state_of(module: ModuleFacts, is_it: Test, method: str) -> bool:
    """Whether a file calls ``x.state_dict()`` or ``x.load_state_dict(...)`` of what ``is_it``."""
    calls = module.index.named.get(method, ())
    return any(isinstance(call.func, ast.Attribute) and is_it(call.func.value) for call in calls)


def handed_on(module: ModuleFacts, is_it: Test, goes: Callable[[ast.Call, ModuleFacts], bool]) -> bool:
    """Whether what ``is_it`` is given to a function that saves, or put into a dictionary for one."""
    for item in walk(module.module.tree):
        if isinstance(item, ast.Call):
            if (goes(item, module) or last_name(item.func) in ("dict", "update")) and any(map(is_it, _given(item))):
                return True
        elif isinstance(item, ast.Dict):
            if any(is_it(value) for value in item.values):
                return True
    return False


def is_known_to(call: ast.Call, module: ModuleFacts, *words: str) -> bool:
    """Whether the function of the project that a call runs speaks of one of ``words`` itself."""
    found = module.project.resolve(module, module.dotted(call.func) or "")
    if found is None and isinstance(call.func, ast.Name):
        found = module.functions.get(call.func.id)
    if not isinstance(found, FunctionFacts):
        return False
    text = "\n".join(found.module.module.lines[found.node.lineno - 1 : found.node.end_lineno]).lower()
    return any(word in text for word in words)


def _given(call: ast.Call) -> list[ast.expr]:
    given = [*call.args, *(item.value for item in call.keywords)]
    return [part for item in given for part in (item.elts if isinstance(item, (ast.List, ast.Tuple)) else [item])]


def _is_given_optimizer(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether a call is given the optimizer, or what another call makes of it: ``save(pack(net, optimizer))``."""
    given = [*_given(call), *(part for item in _given(call) if isinstance(item, ast.Call) for part in _given(item))]
    return any(_may_be_optimizer(item, module) for item in given)


def _is_optimizers(call: ast.Call, module: ModuleFacts) -> bool:
    return isinstance(call.func, ast.Attribute) and _may_be_optimizer(call.func.value, module)


def _may_be_optimizer(node: ast.expr, module: ModuleFacts) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        return False
    # ``opt`` and ``opts`` are what a script was asked for as often as they are optimizers.
    name = last_name(node)
    return name in optimizer_names(module) or (name not in ("opt", "opts") and is_optimizer(None, node))


def _is_copied(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether the state goes into another optimizer or process, stays in memory, or one entry of it is looked at."""
    parent = module.index.parents.get(call)
    if isinstance(parent, ast.Subscript):
        return True
    if not isinstance(parent, ast.Call):
        return False
    name = last_name(parent.func)
    return name in ("load_state_dict", "deepcopy", "copy", "len") or "broadcast" in name


def _is_printed(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether the state is made into text, for people to read."""
    parent = module.index.parents.get(call)
    if isinstance(parent, ast.FormattedValue):
        return True
    return isinstance(parent, ast.Call) and last_name(parent.func) in _PRINTING


def _is_open(call: ast.Call, module: ModuleFacts) -> bool:
    """Whether the dictionary around a state holds what is not written there: ``{..., **others}``."""
    node: ast.AST = call
    for _ in range(_MAX_MEMBERS):
        parent = module.index.parents.get(node)
        if parent is None or isinstance(parent, ast.stmt):
            return False
        if isinstance(parent, ast.Dict) and None in parent.keys:
            return True
        if isinstance(parent, ast.Call) and _takes_all(parent):
            return True
        node = parent
    return False


def _takes_all(call: ast.Call) -> bool:
    """Whether a call is given what may hold all that there is: ``self``, ``trainer``, ``extra_state``, ``**others``."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(item.arg is None for item in call.keywords) or any(
        isinstance(item, ast.Starred) or NAMED_WHOLE_STATE.search(last_name(item)) for item in given
    )


def _calls(node: ast.expr, name: str) -> bool:
    return any(isinstance(item, ast.Call) and last_name(item.func) == name for item in walk(node))
