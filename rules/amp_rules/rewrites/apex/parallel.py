"""Distribute with PyTorch where the script did with Apex.

## What it does
`apex.parallel.DistributedDataParallel` becomes `torch.nn.parallel.DistributedDataParallel`, `convert_syncbn_model` and
`create_syncbn_process_group` become the runtime's. Options that only tune the exchange go. Buffers are not broadcast,
as in Apex. `find_unused_parameters=True` is added where a step may leave parameters of the model out, of which Apex's
wrapper took no notice, and where another wrapper of the script asks for it or where Apex's had `delay_allreduce=True`.
Where such a wrapper's model runs several times for one backward pass, or a loss reads a parameter of it past the
forward pass (`model.module.scale`), where the model makes a part of itself float32 as it runs
(`self.head = self.head.float()`), and where the script switches the exchange by the wrapper's own methods
(`model.disable_allreduce()`), it comes from `amp_runtime.apex.parallel` as it is; with `--target torch` always
from PyTorch.

## Why
PyTorch's own wrapper overlaps the exchange with the backward pass. The runtime's synchronised batch norm also works on
the CPU. With `delay_allreduce=True` gradients are exchanged when the backward pass is over, whichever there are: models
whose parameters are not all used, or used by several forward passes, need that. PyTorch's wrapper does it in the
course of the backward pass, and searches only the graph of the last forward pass for unused parameters: that is enough
where each backward pass is of one forward pass.

## Before
    from apex.parallel import DistributedDataParallel as DDP
    model = DDP(model, message_size=2**22)

## After
    from torch.nn.parallel import DistributedDataParallel as DDP
    model = DDP(model, broadcast_buffers=False)

## When it declines
When gradients are summed instead of averaged, when a class derives from Apex's, or, with `--target torch`, when the
exchange is switched on and off by hand.

## Leaving it out
No: the class no longer exists.

## Source
https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.wrapping import WRAPPER, delays_exchange
from amp_rules.plan.context import Change
from amp_rules.plan.rule import Rule
from amp_rules.text.actions import ExpressionEdit, Replace
from amp_rules.text.expression_edits import change_function, substitute
from amp_rules.torch import apex as api

RULE = Rule(
    "AMP406", "apex-parallel", "PyTorch distributes where Apex did.", "distribution", ways=("idiom",), after=("AMP402",)
)

_TUNING = frozenset(
    {
        "message_size",
        "num_allreduce_streams",
        "retain_allreduce_buffers",
        "allreduce_trigger_params",
        "allreduce_communicators",
        "allreduce_always_fp32",
        "gradient_predivide_factor",
        "gradient_average_split_factor",
        "prof",
    }
)
_UNKNOWN_KEYWORDS = frozenset({"channel_last", "fuse_relu"})


def changes(file: ApexFile) -> Iterator[Change]:
    """Yield an edit for each use."""
    stays = delays_exchange(file)
    for use in file.references.uses:
        parent = file.module.parents[use.node]
        if use.target == WRAPPER and not stays and not _is_done(parent):
            yield from _wrapper(file, use.node, parent)
        elif use.target in api.PARALLEL:
            if isinstance(parent, ast.Call) and any(item.arg in _UNKNOWN_KEYWORDS for item in parent.keywords):
                raise file.not_understood(parent, "channels last and fused ReLU belong to Apex's own batch norm")
            if isinstance(parent, ast.ClassDef):
                raise file.not_understood(parent, "a class derives from Apex's")
            code = file.vocabulary.counterpart(file.module, use.target)
            if code is None:
                continue
            edit = Replace(use.node, substitute(code))
            yield Change(RULE, file.module, use.node, f"`{code}` does the same, on the CPU too", [edit])


def _is_done(parent: ast.AST) -> bool:
    """Whether the call has PyTorch's options already; its name may still be the imported one."""
    return isinstance(parent, ast.Call) and any(item.arg == "broadcast_buffers" for item in parent.keywords)


def _wrapper(file: ApexFile, node: ast.expr, parent: ast.AST) -> Iterator[Change]:
    if isinstance(parent, ast.ClassDef):
        raise file.not_understood(parent, "a class derives from Apex's DistributedDataParallel")
    if file.as_written.switched:
        raise file.not_understood(parent, f"`{file.as_written.switched}()` has no counterpart in PyTorch's wrapper")
    message = "PyTorch's wrapper averages the gradients"
    if file.as_written.left_out:
        message += f", and searches for unused parameters, because {file.as_written.left_out}"
    name = _name(file, node)
    if isinstance(parent, ast.Call) and parent.func is node:
        edits = [Replace(parent, _options(file, parent))]
        if name is not None:
            edits.append(Replace(parent, change_function(name)))
        yield Change(RULE, file.module, parent, message, edits)
    elif name is not None:
        yield Change(RULE, file.module, node, message, [Replace(node, substitute(name))])


def _name(file: ApexFile, node: ast.expr) -> str | None:
    """What ``apex.parallel.DistributedDataParallel`` is to be called; an imported name stays, see ``imports``."""
    return None if isinstance(node, ast.Name) else "torch.nn.parallel.DistributedDataParallel"


def _options(file: ApexFile, call: ast.Call) -> ExpressionEdit:
    unused = None
    kept = []
    if len(call.args) > 1 or any(item.arg is None for item in call.keywords):
        raise file.not_understood(call, "the options of DistributedDataParallel are made elsewhere")
    for item in call.keywords:
        if item.arg == "delay_allreduce":
            if not isinstance(item.value, ast.Constant):
                unused = file.source(item.value)
            elif item.value.value:
                unused = "True"
        elif item.arg == "gradient_average":
            if not (isinstance(item.value, ast.Constant) and item.value.value is True):
                raise file.not_understood(call, "gradients are summed over the processes, not averaged")
        elif item.arg == "module":
            kept.append(item)
        elif item.arg not in _TUNING:
            raise file.not_understood(call, f"`{item.arg}=` is no option of Apex's DistributedDataParallel")
    if file.as_written.left_out:
        unused = "True"
    code = ["broadcast_buffers=False", *([f"find_unused_parameters={unused}"] if unused else [])]

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        original = cst.ensure_type(node, cst.Call)
        first = [item for item in original.args if item.keyword is None or item.keyword.value == "module"]
        added = cst.ensure_type(cst.parse_expression(f"f(x, {', '.join(code)})"), cst.Call).args
        comma = added[0].comma
        return original.with_changes(
            args=[*(item.with_changes(comma=comma) for item in first), *added[1:]],
            whitespace_before_args=cst.SimpleWhitespace(""),
        )

    return edit
