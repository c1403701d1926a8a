"""Files that one process of each machine writes."""

from __future__ import annotations

import ast

from amp_rules.checks.common.shared_files import STARTS, SharedFiles
from amp_rules.lint.check import Check, LintedFile


class SaveOnEachNode(Check):
    """Files that one process of each machine writes.

    ## What it does

    Finds `torch.save` and other writers, removed files and folders behind a test of the local rank and of nothing
    else.

    ## Why

    The local rank counts the processes of one machine. On 4 machines it is 0 in 4 processes: where they share a file
    system, which is what checkpoints are written to on clusters, 4 processes write one file.

    ## Example

        if args.local_rank == 0:
            torch.save(model.module.state_dict(), "model.pt")

    ## Use instead

        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "model.pt")

    ## When it is silent

    When the file is not judged with `--ddp` and does not speak of several machines (`nnodes`, `node_rank`); when it
    makes as many processes as one machine has devices; when another test asks for the global rank; and for paths
    with the rank, the machine, the time or a sample in them.

    ## Source

    https://pytorch.org/docs/stable/elastic/run.html#environment-variables
    """

    code = "AMP913"
    name = "save-on-each-node"
    severity = "warning"
    message = "One process of each machine writes the same file."
    advice = "Ask for the global rank, as in `if dist.get_rank() == 0:`; the local rank is 0 on every machine."
    triggers = STARTS

    def visit_module(self, file: LintedFile) -> None:
        """Judge what depends on the local rank."""
        words = file.module.index.words
        if not (file.mode.ddp or words & _NODES) or _is_one_machine(file):
            return
        files = SharedFiles(file)
        for kind in ("write", "remove"):
            for access, test in files.by_each_node(kind):
                text, asked = (file.module.module.text(item) for item in (access.call, test))
                message = f"`{text}` runs on every machine: `{asked}` holds once on each"
                self.report_in(file, access.call, message)


_NODES = frozenset("nnodes node_rank n_nodes SLURM_NNODES SLURM_NODEID NODE_RANK GROUP_RANK machine_rank".split())
"""Words of scripts that run on several machines."""


def _is_one_machine(file: LintedFile) -> bool:
    """Whether the number of all processes is that of one machine's devices, or the port is on this one."""
    module = file.module
    for call in module.index.named.get("init_process_group", ()):
        for item in call.keywords:
            if item.arg in ("world_size", "init_method") and _is_local(file, item.value):
                return True
    return False


def _is_local(file: LintedFile, node: ast.expr) -> bool:
    values = [node, *(file.module.index.values_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ())]
    return any(
        "device_count" in text or "localhost" in text or "127.0.0.1" in text for text in map(ast.unparse, values)
    )
