"""Processes: what only one of them does, what they do in turns, and where they wait."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.hoisting import Hoisting
from amp_rules.plain_torch.joining import join as join
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.text.actions import Unwrap
from amp_rules.text.expression_edits import substitute

_FROM_MAIN_PROCESS = Helper(
    "from_main_process",
    """\
def from_main_process(value):
    \"\"\"Return the value of the first process on all processes.\"\"\"
    values = [value]
    if {WORLD_SIZE} > 1:
        {dist}.broadcast_object_list(values)
    return values[0]""",
)

_BARRIER = "if {WORLD_SIZE} > 1:\n    {dist}.barrier()"
_OTHERS_WAIT = "if {RANK} != 0:\n    {dist}.barrier()  # the first process makes the files, the others find them"
_OTHERS_FOLLOW = "if {WORLD_SIZE} > 1 and {RANK} == 0:\n    {dist}.barrier()"

_TIGHT = (ast.Compare, ast.BinOp, ast.Attribute, ast.Subscript, ast.Await, ast.Starred, ast.comprehension)
"""What binds its parts more tightly than a comparison, or takes no bare condition."""


def from_main_process(translation: Translation, use: Use) -> str:
    """The name of the helper function that gives all processes the first one's value."""
    return translation.helper(use, _FROM_MAIN_PROCESS, "distribution")


def put(translation: Translation, module: Module, node: ast.expr, template: str) -> None:
    """Put a comparison or a conditional expression in the place of an expression, in parentheses if need be."""
    parent = module.parents[node]
    is_operand = isinstance(parent, _TIGHT) or (isinstance(parent, ast.Call) and parent.func is node)
    if isinstance(parent, ast.Subscript) and parent.slice is node:
        is_operand = False
    translation.replace(module, node, f"({template})" if is_operand else template)


def _is_main_process(translation: Translation, use: Use) -> None:
    """``amp.is_main_process()`` becomes ``RANK == 0``, and its contrary ``RANK != 0``."""
    if use.call is None:
        _decline_value(translation, use)
        return
    parent = use.module.parents[use.call]
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        put(translation, use.module, parent, "{RANK} != 0")
    else:
        put(translation, use.module, use.call, "{RANK} == 0")


def _number(constant: str) -> Translate:
    """``amp.rank()`` becomes ``RANK``."""

    def translate(translation: Translation, use: Use) -> None:
        if use.call is None:
            _decline_value(translation, use)
        else:
            translation.replace(use.module, use.call, constant)

    return translate


def _barrier(translation: Translation, use: Use) -> None:
    """``amp.barrier()`` waits where there are others."""
    if use.is_statement:
        translation.put_for(use, _BARRIER)
    else:
        _decline_value(translation, use)


def _from_main_process(translation: Translation, use: Use) -> None:
    """``amp.from_main_process(path)`` becomes a call of a function that broadcasts."""
    if use.call is None or len(use.call.args) != 1 or use.call.keywords:
        _decline_value(translation, use)
        return
    translation.replace(use.module, use.node, substitute(from_main_process(translation, use)))


def _main_process_first(translation: Translation, use: Use) -> None:
    """``with amp.main_process_first():`` becomes two barriers: the others wait at one, the other lets them go on."""
    module, block = use.module, use.statement
    is_plain = isinstance(block, ast.With) and len(block.items) == 1 and block.items[0].context_expr is use.call
    if not is_plain:
        _decline_value(translation, use)
        return
    assert isinstance(block, ast.With)
    last = block.body[-1]
    leaves = [
        node for item in block.body for node in blocks.walk_own(item) if _goes_elsewhere(node) and node is not last
    ]
    if leaves or (_goes_elsewhere(last) and not (isinstance(last, ast.Return) and last.value is not None)):
        _decline_turns(translation, use, "leaves the block before its end")
        return
    if any(isinstance(parent, ast.Try) for parent in blocks.enclosing(module, block)):
        _decline_turns(translation, use, "may end in an error that is caught: the others would hang")
        return
    translation.do(module, Unwrap(block))
    translation.insert(module, block, _OTHERS_WAIT)
    if isinstance(last, ast.Return):
        assert last.value is not None
        translation.part(Hoisting).hoist(module, last.value, "result", below=_OTHERS_FOLLOW)
    else:
        translation.insert(module, block, _OTHERS_FOLLOW, after=True)
    translation.cannot_keep(
        module,
        "a download on each of several machines (the first process alone fetches the files before all others)",
        order=1,
    )


def _goes_elsewhere(node: ast.AST) -> bool:
    return isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise))


def _decline_turns(translation: Translation, use: Use, why: str) -> None:
    translation.decline(
        use.module,
        use.node,
        f"what the first process does before the others {why}",
        "download the files before the training, or keep the runtime (--target runtime)",
        "distribution",
    )


def _decline_value(translation: Translation, use: Use) -> None:
    translation.decline(
        use.module,
        use.node,
        f"`{use.module.text(use.whole)}` is used in a way that is not understood",
        "call it in a plain statement or condition, or keep the runtime (--target runtime)",
        "distribution",
    )


WORDS: dict[str, Translate] = {
    "is_main_process": _is_main_process,
    "rank": _number("{RANK}"),
    "local_rank": _number("{LOCAL_RANK}"),
    "world_size": _number("{WORLD_SIZE}"),
    "barrier": _barrier,
    "from_main_process": _from_main_process,
    "main_process_first": _main_process_first,
}
