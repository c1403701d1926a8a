"""Give each process its own device.

## What it does
A device chosen by its index (`"cuda:0"`, `.cuda(args.gpu)`, `torch.cuda.set_device(n)`) goes through
`amp.device(...)`: alone it is that device, under torchrun it is the process's own. Plain `"cuda"` and
`.cuda()` stay: `amp.init` sets the current device.

## Why
Two processes on one device share its memory and gain nothing; NCCL refuses them.

## Before
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

## After
    device = amp.device("cuda:0" if torch.cuda.is_available() else "cpu")

## When it declines
Never.

## Leaving it out
No: NCCL refuses two processes on one device.

## Source
https://pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.context import Change, Context
from amp_rules.rewrite import Replace, Wrap, call_with, change_function
from amp_rules.rule import Rule

RULE = Rule("AMP201", "device-by-rank", "Each process uses its own device.", "distribution")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each device that is chosen by its index."""
    if context.distribution is None:
        return
    for site in context.distribution.devices:
        assert isinstance(site.node, ast.expr)
        function = context.code(site.module, "{amp}.device")
        is_constructor = isinstance(site.node, ast.Call) and site.module.text(site.node.func).endswith("device")
        edit = change_function(function) if is_constructor else call_with(function)
        message = f"`{site.module.text(site.node)}` alone, this process's own device under torchrun"
        yield Change(RULE, site.module, site.node, message, [Replace(site.node, edit)])
    for module, statement in context.distribution.visible_devices:
        target = module.text(statement).split("[")[0]
        message = "torchrun gives each process a device; all of them must stay visible"
        header = f'if "LOCAL_RANK" not in {target}:'
        yield Change(RULE, module, statement, message, [Wrap(statement, statement, header)], uses_runtime=False)
