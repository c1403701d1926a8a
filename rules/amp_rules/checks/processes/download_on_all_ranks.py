"""Data sets that every process downloads."""

from __future__ import annotations

import ast

from amp_rules.checks.common.origins import argument
from amp_rules.checks.common.rank_paths import RankPaths, Reach
from amp_rules.checks.common.shared_files import runs_in_several
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import literal
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.data import DOWNLOADED


class DownloadOnAllRanks(Check):
    """Data sets that every process downloads.

    ## What it does

    Finds `torchvision.datasets.CIFAR10(..., download=True)` and others of torch's data sets in code that several
    processes run, where no test on the way from the start of the script asks for the rank.

    ## Why

    All processes find the folder empty and write the same archive at once. Each opens it anew and truncates what the
    others have written: those that unpack it meanwhile raise, or find that the checksum is wrong. It happens at the
    first run alone, when the data is not there yet. 8 processes also fetch 8 times as much.

    ## Example

        dist.init_process_group("nccl")
        dataset = CIFAR10("data", download=True)

    ## Use instead

        dist.init_process_group("nccl")
        if dist.get_rank() == 0:
            CIFAR10("data", download=True)
        dist.barrier()
        dataset = CIFAR10("data")

    ## When it is silent

    When the file neither makes processes nor is judged with `--ddp`; when anything on the way asks for the rank, the
    process or the device; when `download` is not True for certain; and when `local_rank`, a barrier or a lock stands
    around it.

    ## Source

    https://pytorch.org/vision/stable/datasets.html
    """

    code = "AMP912"
    name = "download-on-all-ranks"
    severity = "warning"
    message = "Every process downloads the same data."
    advice = "Download in one process, let the others wait, and build the data set without `download=True` after that."
    triggers = ("download=True",)

    def visit_module(self, file: LintedFile) -> None:
        """Judge each data set that is downloaded."""
        module = file.module
        if not runs_in_several(file):
            return
        paths = RankPaths(module)
        told: set[ast.AST] = set()
        for call in module.index.calls:
            if not (module.dotted(call.func) or "").startswith(DOWNLOADED) or not _downloads(module, call):
                continue
            suite = module.index.parents[module.index.statement(call)]
            if suite in told or paths.reach(call) is not Reach.EVERY or _others_wait(paths, call):
                continue
            if not _locked(module, call):
                told.add(suite)
                text = f"`{module.module.text(call)}` downloads in every process, into one folder"
                self.report_in(file, call, text)


def _downloads(module: ModuleFacts, call: ast.Call) -> bool:
    given = argument(module, call, "download")
    return given is not None and literal(given.node) is True


def _others_wait(paths: RankPaths, call: ast.Call) -> bool:
    """Whether an `if rank != 0: barrier()` stands above, which the first process gets to when it has downloaded."""
    for place in paths.index.ancestors(call):
        for _, suite in ast.iter_fields(paths.index.parents[place]) if isinstance(place, ast.stmt) else ():
            if not isinstance(suite, list) or place not in suite:
                continue
            for above in suite[: suite.index(place)]:
                if isinstance(above, ast.If) and paths.says(above.test, True) is not Reach.EVERY:
                    if any(isinstance(item, ast.Call) and last_name(item.func) == "barrier" for item in walk(above)):
                        return True
    return False


def _locked(module: ModuleFacts, call: ast.Call) -> bool:
    return any(
        isinstance(item, ast.With) and "lock" in ast.unparse(part.context_expr).lower()
        for item in module.index.ancestors(call)
        if isinstance(item, ast.With)
        for part in item.items
    )
