"""Folders and files that every process makes or removes."""

from __future__ import annotations

from amp_rules.checks.common.shared_files import STARTS, SharedFiles
from amp_rules.lint.check import Check, LintedFile


class RemoveOnAllRanks(Check):
    """Folders and files that every process makes or removes.

    ## What it does

    Finds `os.remove`, `shutil.rmtree`, `os.rename` and `Path.unlink`, and `os.makedirs` and `Path.mkdir` without
    `exist_ok=True`, in code that several processes run, where no test on the way from the start of the script asks
    for the rank.

    ## Why

    The first process removes the file, and the second raises `FileNotFoundError`; the first makes the folder, and the
    second raises `FileExistsError`. Asking `os.path.exists` before does not help: all processes ask at the same
    time, and 7 of 8 are told what is true no more. `shutil.rmtree` raises in the middle of a folder that another
    process empties as well, or removes what the first one has begun to write again.

    ## Example

        dist.init_process_group("nccl")
        if not os.path.exists(folder):
            os.makedirs(folder)

    ## Use instead

        dist.init_process_group("nccl")
        os.makedirs(folder, exist_ok=True)

    ## When it is silent

    When the file neither makes processes nor is judged with `--ddp`; when anything on the way asks for the rank, the
    process or the device; in a `try` with a handler, for `exist_ok=True`, `missing_ok=True` and `ignore_errors=True`;
    and when the path has the rank, the time or a sample in it.

    ## Source

    https://docs.python.org/3/library/os.html#os.makedirs
    """

    code = "AMP911"
    name = "remove-on-all-ranks"
    severity = "warning"
    message = "Every process makes or removes the same file or folder."
    advice = "Make folders with `exist_ok=True`; remove and rename in one process only, and let the others wait."
    triggers = STARTS

    def visit_module(self, file: LintedFile) -> None:
        """Judge what is made and removed."""
        files = SharedFiles(file)
        for access in files.by_every_process("folder"):
            text = file.module.module.text(access.call)
            self.report_in(file, access.call, f"`{text}` runs in every process and raises in all but the first")
        for access in files.by_every_process("remove"):
            text = file.module.module.text(access.call)
            self.report_in(file, access.call, f"`{text}` runs in every process, and one of them finds nothing there")
