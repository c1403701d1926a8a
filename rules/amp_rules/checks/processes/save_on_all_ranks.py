"""Files that every process writes."""

from __future__ import annotations

from amp_rules.checks.common.shared_files import STARTS, SharedFiles
from amp_rules.lint.check import Check, LintedFile


class SaveOnAllRanks(Check):
    """Files that every process writes.

    ## What it does

    Finds `torch.save`, `save_pretrained`, `open(path, "w")`, `save_image`, `savefig` and other writers in code that
    several processes run, where no test on the way from the start of the script asks for the rank and the path is the
    same in all of them.

    ## Why

    Two processes that open one path for writing truncate each other's file: a reader, or a crash, in between finds
    a torn archive. With 2 writers taking turns over a 64 KiB archive, the file is the one's head and the other's
    tail. 8 processes also write 8 times as much, which takes minutes where the model has gigabytes.

    ## Example

        model = DistributedDataParallel(model)
        for epoch in range(epochs):
            train(model, epoch)
            torch.save(model.module.state_dict(), "model.pt")

    ## Use instead

        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), "model.pt")

    ## When it is silent

    When the file neither makes processes nor is judged with `--ddp`; when anything on the way from the start of the
    script to the call asks for the rank, the process or the device, in whatever words (a test for there being several
    processes does not); when nobody in the file calls the function and it does not train; when the path has the rank,
    the time or a sample in it; for sharded models, of which every process saves its part; and where a framework saves:
    of Accelerate's, `accelerator.save` does, and `torch.save` does not.

    ## Source

    https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    code = "AMP903"
    name = "save-on-all-ranks"
    severity = "warning"
    message = "Every process writes the same file."
    advice = "Write from one process only, as in `if dist.get_rank() == 0:`, and let the others wait before they read."
    triggers = STARTS

    def visit_module(self, file: LintedFile) -> None:
        """Judge each call that writes."""
        for access in SharedFiles(file).by_every_process("write"):
            text = file.module.module.text(access.call)
            self.report_in(file, access.call, f"`{text}` runs in every process and writes one file")
