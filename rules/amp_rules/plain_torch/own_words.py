"""What a script itself says where a draft has calls of the runtime, for messages about the draft."""

from __future__ import annotations

import ast
import re

from amp_rules.source.modules import Module
from amp_rules.text.runtime_vocabulary import imported_runtime

# Code in a message; a code span in Markdown has no line break.
_CODE = re.compile(r"`([^`\n]+)`")

_STEP = "scaler.step"
_OPTIMIZERS = "optim."

# What the runtime puts around something of the script.
_AROUND = frozenset(
    """
    scaler.scale prepare_model prepare_loader unwrap keep_module_prefix convert_sync_batchnorm at_least_float32 device
    reduce_mean reduce_sum from_main_process drawn_alike same_seed same_order same_hash seed_of_rank sum_of_shares
    share_of float_function
    """.split()
)


def in_own_words(message: str, module: Module) -> str:
    """A message about a draft with the code that the script has: ``loss.backward()``.

    Args:
        message: the message, with code in backquotes.
        module: the draft.
    """
    alias = imported_runtime(module)
    if alias is None:
        return message

    def written(found: re.Match[str]) -> str:
        if f"{alias}." not in found[1]:
            return found[0]
        try:
            node = ast.parse(found[1])
        except SyntaxError:  # shortened
            return found[0].replace(f"{alias}.{_OPTIMIZERS}", f"torch.{_OPTIMIZERS}")
        before = ast.unparse(node)
        text = ast.unparse(_Own(alias).visit(node))
        return found[0] if text == before else f"`{text}`"

    return _CODE.sub(written, message)


class _Own(ast.NodeTransformer):
    """Takes the runtime's calls off."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``amp.scaler.scale(loss)`` is ``loss``, ``amp.scaler.step(optimizer)`` is ``optimizer.step()``."""
        self.generic_visit(node)
        path = self._path(node.func)
        if path in _AROUND and node.args:
            return node.args[0]
        if path == _STEP and node.args:
            return ast.Call(ast.Attribute(node.args[0], "step", ast.Load()), node.args[1:], node.keywords)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``amp.optim.SGD`` is ``torch.optim.SGD``."""
        self.generic_visit(node)
        path = self._path(node)
        if path.startswith(_OPTIMIZERS):
            return ast.parse(f"torch.{path}", mode="eval").body
        return node

    def _path(self, node: ast.expr) -> str:
        """The name within the runtime; empty for what is none of its."""
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        return text.removeprefix(f"{self._alias}.") if text.startswith(f"{self._alias}.") else ""
