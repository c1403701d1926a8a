"""Models: batch norm over all processes, DistributedDataParallel, and the model itself where its wrapper stands."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plain_torch.wrapped_models import WrappedModels, first_argument
from amp_rules.roles.steps import Site
from amp_rules.text.actions import Remove


def _prepared(translation: Translation, use: Use) -> None:
    """``amp.prepare_model(model)``: nothing for precision, DistributedDataParallel for several processes."""
    if use.call is None or len(use.call.args) != 1 or not _are_known(use.call.keywords):
        translation.decline(
            use.module,
            use.node,
            f"`{use.module.text(use.whole)}` is no plain call for one model",
            "call it with the model alone",
            "precision",
        )
    elif translation.is_distributed:
        translation.part(WrappedModels).wrap(use)
    elif (statement := _line_of_its_own(use)) is not None:
        translation.do(use.module, Remove(statement, keep_comments=True))
    else:
        translation.replace(use.module, use.whole, first_argument)


def _line_of_its_own(use: Use) -> ast.stmt | None:
    """``model = amp.prepare_model(model)``, with the ``if model is not None:`` around it that has nothing else."""
    statement = use.statement
    if not isinstance(statement, ast.Assign) or statement.value is not use.call or len(statement.targets) != 1:
        return None
    if ast.unparse(statement.targets[0]) != ast.unparse(use.argument):
        return None
    parent = use.module.parents[statement]
    is_guard = (
        isinstance(parent, ast.If)
        and parent.body == [statement]
        and not parent.orelse
        and ast.unparse(parent.test) == f"{ast.unparse(use.argument)} is not None"
        and not _is_elif(use, parent)
    )
    return parent if is_guard and isinstance(parent, ast.If) else statement


def _are_known(keywords: list[ast.keyword]) -> bool:
    """Whether nothing but ``delay_allreduce=True`` is said of the exchange."""
    return all(item.arg == "delay_allreduce" and isinstance(item.value, ast.Constant) for item in keywords)


def _is_elif(use: Use, node: ast.If) -> bool:
    parent = use.module.parents[node]
    return isinstance(parent, ast.If) and parent.orelse == [node]


def _unwrapped(translation: Translation, use: Use) -> None:
    """``amp.unwrap(model)``: the model itself."""
    if use.call is None or len(use.call.args) != 1:
        message = f"`{use.module.text(use.whole)}` is no plain call for one model"
        translation.decline(use.module, use.node, message, "call it with the model alone", "distribution")
    elif translation.is_distributed:
        translation.replace(use.module, use.whole, first_argument)
        translation.part(WrappedModels).reads.take_itself(Site(use.module, use.scope, use.body, use.argument))
    else:
        translation.replace(use.module, use.whole, first_argument)


WORDS: dict[str, Translate] = {"prepare_model": _prepared, "unwrap": _unwrapped}
