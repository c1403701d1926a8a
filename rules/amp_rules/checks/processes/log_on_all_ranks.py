"""Records of a run that every process keeps."""

from __future__ import annotations

from amp_rules.checks.common.shared_files import STARTS, SharedFiles
from amp_rules.lint.check import Check, LintedFile


class LogOnAllRanks(Check):
    """Records of a run that every process keeps.

    ## What it does

    Finds `SummaryWriter`, `logging.FileHandler` and `wandb.init` in code that several processes run, where no test on
    the way from the start of the script asks for the rank and the folder is the same in all of them.

    ## Why

    With 8 processes there are 8 event files in one folder, and TensorBoard draws 8 curves as one that goes back and
    forth; a log file holds each line 8 times, some of them torn; `wandb.init` begins 8 runs.

    ## Example

        dist.init_process_group("nccl")
        writer = SummaryWriter("runs/first")

    ## Use instead

        dist.init_process_group("nccl")
        writer = SummaryWriter("runs/first") if dist.get_rank() == 0 else None

    ## When it is silent

    When the file neither makes processes nor is judged with `--ddp`; when anything on the way asks for the rank, the
    process or the device; when the folder has the rank or the time in it; and for `wandb.init` with a `group`, which
    is how a run of each process is asked for.

    ## Source

    https://docs.wandb.ai/guides/track/log/distributed-training
    """

    code = "AMP912"
    name = "log-on-all-ranks"
    severity = "warning"
    message = "Every process keeps a record of the run in the same place."
    advice = "Keep the record in one process only, as in `if dist.get_rank() == 0:`."
    triggers = STARTS

    def visit_module(self, file: LintedFile) -> None:
        """Judge what keeps a record."""
        for access in SharedFiles(file).by_every_process("log"):
            text = file.module.module.text(access.call.func)
            self.report_in(file, access.call, f"Every process makes a `{text}` of its own for the same place")
