"""Files that every process writes or removes."""

from __future__ import annotations

from amp_rules.checks.common.file_writes import Kind
from amp_rules.checks.common.shared_files import STARTS, SharedFiles, is_one_machine, tells_machines_apart
from amp_rules.lint.check import Check, LintedFile

_MESSAGES: dict[Kind, str] = {
    "write": "`{}` runs in every process and writes one file",
    "remove": "`{}` runs in every process, and all but the first find nothing there",
    "folder": "`{}` runs in every process and raises in all but the first",
    "log": "`{}` runs in every process, and each keeps a record of the run in the same place",
}


class SaveOnAllRanks(Check):
    """Files that every process writes or removes.

    ## What it does

    Finds what changes files in code that several processes run, where no test on the way from the start of the script
    asks for the rank and the path is the same in all of them: `torch.save`, `save_pretrained`, `open(path, "w")`,
    `save_image`, `savefig` and other writers; `os.remove`, `shutil.rmtree` and others that remove; `os.makedirs`
    without `exist_ok=True`; `SummaryWriter`, `logging.FileHandler` and `wandb.init`. Where the file speaks of several
    machines (`nnodes`, `node_rank`), and with `--ddp` where it knows of a rank beside the local one, it also finds
    files that are changed behind a test of the local rank and nothing else.

    ## Why

    Two processes that open one path for writing truncate each other's file: a reader, or a crash, in between finds
    a torn archive. With 2 writers taking turns over a 64 KiB archive, the file is the one's head and the other's
    tail. 8 processes also write 8 times as much, which takes minutes where the model has gigabytes.

    The first process removes a file, and the second raises `FileNotFoundError`; the first makes a folder, and the
    second raises `FileExistsError`. Asking `os.path.exists` before does not help: all ask at the same time, and 7 of 8
    are told what is true no more. With 8 event files in one folder TensorBoard draws 8 curves as one.

    The local rank counts the processes of one machine. On 4 machines it is 0 in 4 processes: where they share a file
    system, which is what checkpoints are written to on clusters, 4 processes write one file.

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
    processes does not), be it by a setting that another file of the project sets so (`if rank == 0: args.log = True`),
    or lets processes on that are alone (`command == "export" or world_size <= 1`); when nobody in the file calls the
    function and it does not train; when the path has the rank, the time or a sample in it; for removing and making
    folders in a `try` with a handler, and with `missing_ok=True` or `ignore_errors=True`; for runs of `wandb` that have
    a group; for sharded models, of which every process saves its part; where a script makes as many processes as one
    machine has devices; and where a framework saves: of Accelerate's, `accelerator.save` does, and `torch.save` does
    not.

    ## Source

    https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    code = "AMP903"
    name = "save-on-all-ranks"
    severity = "warning"
    message = "Several processes change the same file."
    advice = "Write from one process only, as in `if dist.get_rank() == 0:`, and let the others wait before they read."
    triggers = STARTS

    def visit_module(self, file: LintedFile) -> None:
        """Judge each call that changes a file."""
        files = SharedFiles(file)
        text_of = file.module.module.text
        for kind, message in _MESSAGES.items():
            advice = "Make folders with `exist_ok=True`." if kind == "folder" else ""
            for call in files.by_every_process(kind):
                self.report_in(file, call, message.format(text_of(call)), advice=advice)
        if tells_machines_apart(file) and not is_one_machine(file):
            for kind in ("write", "remove"):
                for place, test in files.by_each_machine(kind):
                    text = f"`{text_of(place)}` runs on every machine: `{text_of(test)}` holds once on each"
                    self.report_in(file, place, text, advice="Ask for the global rank: `dist.get_rank() == 0`.")
