"""Arguments that ``amp.initialize`` refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.checks.common.apex_scripts import apex_calls
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import keyword, literal
from amp_rules.torch.apex import INITIALIZE_PARAMETERS, INITIALIZE_PARAMETERS_OF_ASCEND
from amp_rules.torch.wrappers import DISTRIBUTED_DATA_PARALLEL

_LEVELS = ("O0", "O1", "O2", "O3")
_NOT_AT_O1 = ("keep_batchnorm_fp32", "master_weights")
_DISTRIBUTED = DISTRIBUTED_DATA_PARALLEL | {"apex.parallel.DistributedDataParallel"}


class ApexInitializeArguments(Check):
    """`amp.initialize` is given arguments that it does not take, or that contradict each other.

    ## What it does

    Finds keywords that `amp.initialize` does not have, levels other than "O0" to "O3", tuples for models or optimizers,
    `keep_batchnorm_fp32` and `master_weights` at O1, `patch_torch_functions=True` at other levels, and `combine_ddp` of
    Ascend's Apex beside `DistributedDataParallel` or without `combine_grad`.

    ## Why

    All but one raise when the script starts: unknown keywords and tuples `TypeError`, the others `RuntimeError`. Those
    of Ascend's Apex (`combine_grad`, `combine_ddp`) are unknown to NVIDIA's. With `combine_ddp` Ascend's Apex averages
    the gradients over all processes itself; a wrapper around the model does it a second time.

    ## Example

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1", keep_batchnorm_fp32=True)

    ## Use instead

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

    ## When it is silent

    Where an argument is computed.

    ## Source

    https://nvidia.github.io/apex/amp.html#apex.amp.initialize
    """

    code = "AMP846"
    name = "apex-initialize-arguments"
    severity = "error"
    message = "Apex is given arguments that `amp.initialize` refuses."
    advice = "Leave the argument out, or choose the level that it belongs to."
    triggers = ("amp.initialize(",)

    def visit_module(self, file: LintedFile) -> None:
        """Look at each call."""
        for call in apex_calls(file.module, "amp.initialize"):
            for node, message in _problems(call, file.module):
                self.report_in(file, node, message)


def _problems(call: ast.Call, module: ModuleFacts) -> Iterator[tuple[ast.AST, str]]:
    yield from _keywords(call, module)
    for position, name in enumerate(("models", "optimizers")):
        given = call.args[position] if len(call.args) > position else keyword(call, name)
        if isinstance(given, ast.Tuple) and len(given.elts) > 1:
            yield given, f"`{name}` is a tuple, which `amp.initialize` refuses; it takes a list"
    level = keyword(call, "opt_level") or (call.args[3] if len(call.args) > 3 else None)
    chosen = literal(level) if level is not None else "O1"
    if level is not None and isinstance(chosen, str) and chosen not in _LEVELS:
        yield level, f"there is no level {chosen!r}, so `amp.initialize` raises; the levels are O0, O1, O2 and O3"
    if chosen == "O1":
        for name in _NOT_AT_O1:
            value = literal(keyword(call, name))
            if value is not ... and value is not None:
                yield keyword(call, name) or call, f"`{name}` is given at O1, which `amp.initialize` refuses"
    elif chosen in _LEVELS and literal(keyword(call, "patch_torch_functions")) is True:
        message = f"`patch_torch_functions` is given at {chosen}, which `amp.initialize` refuses"
        yield keyword(call, "patch_torch_functions") or call, message


def _keywords(call: ast.Call, module: ModuleFacts) -> Iterator[tuple[ast.AST, str]]:
    known = {*INITIALIZE_PARAMETERS, *INITIALIZE_PARAMETERS_OF_ASCEND}
    ascend = _is_for_ascend(module)
    for item in call.keywords:
        if item.arg is not None and item.arg not in known:
            yield item.value, f"`amp.initialize` has no argument `{item.arg}`, so it raises"
        elif item.arg in INITIALIZE_PARAMETERS_OF_ASCEND and not ascend:
            yield item.value, f"`{item.arg}` is an argument of Ascend's Apex; NVIDIA's raises"
    combined = keyword(call, "combine_ddp")
    if combined is None or literal(combined) is not True:
        return
    if ascend and keyword(call, "combine_grad") is None:
        yield combined, "`combine_ddp` needs `combine_grad=True`"
    if ascend and any(module.dotted(item.func) in _DISTRIBUTED for item in module.index.calls):
        yield combined, "`combine_ddp` averages the gradients that DistributedDataParallel averages already"


def _is_for_ascend(module: ModuleFacts) -> bool:
    return any("npu" in word for word in module.index.words)
