"""Devices: the GPU of the process where the script names one by its number."""

from __future__ import annotations

import ast
import re

from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.text.expression_edits import change_function

_TAKES_ANY = frozenset({"cuda", "to", "set_device"})
"""Functions to which a device may be given as a text or a number."""

_OWN_DEVICE = Helper(
    "own_device",
    '''\
def own_device(device):
    """The device that the script names; in several processes, the own GPU of each in place of any."""
    device = {torch}.device(device)
    return {torch}.device("cuda", {LOCAL_RANK}) if {WORLD_SIZE} > 1 and device.type == "cuda" else device''',
)


def _device(translation: Translation, use: Use) -> None:
    """``amp.device("cuda:0")`` becomes ``torch.device(f"cuda:{LOCAL_RANK}")``."""
    if use.call is None or len(use.call.args) != 1 or use.call.keywords:
        translation.decline(
            use.module,
            use.node,
            f"`{use.module.text(use.whole)}` names no device",
            'name one: `"cuda" if torch.cuda.is_available() else "cpu"`',
            "precision",
        )
        return
    if not translation.is_distributed:
        translation.replace(use.module, use.node, "{torch}.device")
        return
    given = use.argument
    found = _of_process(given)
    parent = use.module.parents[use.whole]
    is_text = isinstance(parent, ast.Call) and ast.unparse(parent.func) == "str" and parent.args == [use.whole]
    if found is None:
        name = translation.helper(use, _OWN_DEVICE, "distribution")
        translation.replace(use.module, use.whole, change_function(name))
        return
    is_device = found.startswith("{torch}.device(")
    if is_text and isinstance(parent, ast.Call) and not is_device and not _is_number(given):
        translation.replace(use.module, parent, found)
    elif is_device or (not is_text and _is_given_to(parent, use.whole)):
        translation.replace(use.module, use.whole, found)
    else:
        translation.replace(use.module, use.whole, "{torch}.device(" + found + ")")


def _of_process(node: ast.expr) -> str | None:
    """The device with the number of the process in the place of its own, as a template; None where it is not known."""
    if isinstance(node, ast.Constant):
        return _of_constant(node.value)
    if isinstance(node, ast.IfExp):
        body, orelse = _of_process(node.body), _of_process(node.orelse)
        return None if body is None or orelse is None else f"{body} if {_code(node.test)} else {orelse}"
    if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
        head, number = node.values
        if isinstance(head, ast.Constant) and head.value == "cuda:" and isinstance(number, ast.FormattedValue):
            if number.conversion == -1 and number.format_spec is None and '"' not in ast.unparse(number.value):
                return 'f"cuda:{{LOCAL_RANK} if {WORLD_SIZE} > 1 else ' + _code(number.value) + '}"'
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.device" and not node.keywords:
        return _of_constructor(node)
    return None


def _of_constructor(node: ast.Call) -> str | None:
    if len(node.args) == 2 and isinstance(node.args[0], ast.Constant) and node.args[0].value == "cuda":
        number = node.args[1]
        own = "{LOCAL_RANK}" if _is_zero(number) else "{LOCAL_RANK} if {WORLD_SIZE} > 1 else " + _code(number)
        return '{torch}.device("cuda", ' + own + ")"
    if len(node.args) == 1:
        inner = _of_process(node.args[0])
        return None if inner is None else "{torch}.device(" + inner + ")"
    return None


def _of_constant(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    if isinstance(value, int):
        return "{LOCAL_RANK}" if value == 0 else "{LOCAL_RANK} if {WORLD_SIZE} > 1 else " + str(value)
    if value in ("cpu", "cuda"):
        return f'"{value}"'
    found = re.fullmatch(r"cuda:(\d+)", value)
    if found is None:
        return None
    if found.group(1) == "0":
        return 'f"cuda:{{LOCAL_RANK}}"'
    return 'f"cuda:{{LOCAL_RANK} if {WORLD_SIZE} > 1 else ' + found.group(1) + '}"'


def _code(node: ast.expr) -> str:
    return ast.unparse(node)


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _is_given_to(parent: ast.AST, node: ast.expr) -> bool:
    """Whether it is the argument of ``x.cuda(...)``, ``x.to(...)`` or ``torch.cuda.set_device(...)``."""
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Attribute)
        and parent.func.attr in _TAKES_ANY
        and node in parent.args
    )


WORDS: dict[str, Translate] = {"device": _device}
