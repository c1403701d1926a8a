"""Models: batch norm over all processes, DistributedDataParallel, and the model itself where its wrapper stands."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plain_torch.wrapped_models import ON_THE_CPU, WrappedModels
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.text.actions import Remove
from amp_rules.text.expression_edits import call_with, first_argument

_KINDS = frozenset({("isinstance", "Module"), ("hasattr", "'parameters'")})


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
    """``model = amp.prepare_model(model)``, with the test for a model around it that has nothing else."""
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
        and _asks_for_model(parent.test, ast.unparse(use.argument))
        and not _is_elif(use, parent)
    )
    return parent if is_guard and isinstance(parent, ast.If) else statement


def _asks_for_model(test: ast.expr, variable: str) -> bool:
    """``model is not None``, ``isinstance(model, nn.Module)``."""
    is_kind = isinstance(test, ast.Call) and len(test.args) == 2 and ast.unparse(test.args[0]) == variable
    if is_kind and isinstance(test, ast.Call):
        return (ast.unparse(test.func), ast.unparse(test.args[1]).rpartition(".")[2]) in _KINDS
    return ast.unparse(test) == f"{variable} is not None"


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


def _module_prefix(translation: Translation, use: Use) -> None:
    """``amp.keep_module_prefix(model)``: DataParallel, as it was; DistributedDataParallel gives the same names."""
    if use.call is None or len(use.call.args) != 1:
        message = f"`{use.module.text(use.whole)}` is no plain call for one model"
        translation.decline(use.module, use.node, message, "call it with the model alone", "precision")
        return
    model = use.argument
    if any(isinstance(item, ast.If) for item in blocks.enclosing(use.module, use.whole)) and translation.is_distributed:
        translation.decline(
            use.module,
            use.whole,
            f"`{use.module.text(model)}` has the names of DataParallel under a condition, and those of "
            "DistributedDataParallel, which are the same, in any case",
            "save and load the model itself, `model.module`, so that no name rests on the number of GPUs",
            "distribution",
        )
    code = translation.code(use.module, "{torch}.nn.DataParallel")
    devices = translation.code(use.module, "device_ids=[{LOCAL_RANK}] if {WORLD_SIZE} > 1 else None")
    more = [devices] if translation.is_distributed else []
    translation.replace(use.module, use.whole, lambda node: call_with(code, *more)(first_argument(node)))


def _synchronised(translation: Translation, use: Use) -> None:
    """``amp.convert_sync_batchnorm(model)``: torch's own, on CUDA, which alone has it."""
    if use.call is None or len(use.call.args) != 1 or use.call.keywords:
        message = f"`{use.module.text(use.whole)}` is no plain call for one model"
        translation.decline(use.module, use.node, message, "call it with the model alone", "precision")
        return
    translation.cannot_keep(use.module, ON_THE_CPU, order=1)
    statement = use.statement
    own = ast.unparse(use.argument)
    function = "{torch}.nn.SyncBatchNorm.convert_sync_batchnorm(" + own + ")"
    if isinstance(statement, ast.Assign) and statement.value is use.call and ast.unparse(statement.targets[-1]) == own:
        if len(statement.targets) == 1:
            translation.put_for(use, f"if {{torch}}.cuda.is_available():\n    {own} = {function}")
            return
    if blocks.path_of(use.argument) is None or isinstance(use.argument, ast.Subscript):
        message = f"`{use.module.text(use.whole)}`: torch synchronises batch norm on CUDA only"
        translation.decline(use.module, use.whole, message, "give the model a variable first", "precision")
        return
    parent = use.module.parents[use.whole]
    code = f"{function} if {{torch}}.cuda.is_available() else {own}"
    is_bare = isinstance(parent, (ast.Assign, ast.Return, ast.Call))
    translation.replace(use.module, use.whole, code if is_bare else f"({code})")


def _sync_batch_norm(translation: Translation, use: Use) -> None:
    """``amp.SyncBatchNorm``: torch's own."""
    translation.cannot_keep(use.module, ON_THE_CPU, order=1)
    translation.replace(use.module, use.node, "{torch}.nn.SyncBatchNorm")


WORDS: dict[str, Translate] = {
    "prepare_model": _prepared,
    "unwrap": _unwrapped,
    "keep_module_prefix": _module_prefix,
    "convert_sync_batchnorm": _synchronised,
    "SyncBatchNorm": _sync_batch_norm,
}
