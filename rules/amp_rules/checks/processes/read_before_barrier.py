"""Files that one process writes and all read, with nothing in between that waits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.checks.common.file_writes import Access, access_of, is_shared
from amp_rules.checks.common.rank_paths import RankPaths, Reach
from amp_rules.checks.common.shared_files import STARTS, runs_in_several
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import before
from amp_rules.source.syntax import last_name
from amp_rules.torch.file_access import LOADERS

_WAITS = re.compile(r"barrier|synchron|wait|broadcast|all_?reduce|all_?gather|backward|sync_|rendezvous", re.I)
"""Calls that wait for other processes, by their names: a project's own are called after these as well."""


class ReadBeforeBarrier(Check):
    """Files that one process writes and all read, with nothing in between that waits.

    ## What it does

    Finds `torch.save(..., path)` in a branch of one rank, followed in the same function by `torch.load(path)` that
    every process runs, with no `barrier` or other call between the two that waits.

    ## Why

    The other processes do not enter the branch: they are at the `load` while rank 0 still writes. They find no file,
    the file of an earlier run, or the half of an archive that is on disk by then. Of a checkpoint of 1 GB that is
    written in 2 s, every process that comes within these 2 s reads a torn one.

    ## Example

        if dist.get_rank() == 0:
            torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path))

    ## Use instead

        if dist.get_rank() == 0:
            torch.save(model.state_dict(), path)
        dist.barrier()
        model.load_state_dict(torch.load(path))

    ## When it is silent

    When the file neither makes processes nor is judged with `--ddp`; when the reading asks for the rank, too; when
    anything between waits for other processes, by its name; when the paths are not written alike; and when the
    writing and the reading stand in different functions.

    ## Source

    https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    code = "AMP911"
    name = "read-before-barrier"
    severity = "warning"
    message = "Processes read a file that another may still be writing."
    advice = "Let the processes wait before they read: `dist.barrier()`."
    triggers = STARTS

    def visit_module(self, file: LintedFile) -> None:
        """Compare what is written by one process with what is read below."""
        module = file.module
        if not runs_in_several(file):
            return
        index, paths = module.index, RankPaths(module)
        for written in _written_by_one(module, paths):
            for read in index.calls:
                if not index.precedes(written.call, read) or not _reads(module, read, written):
                    continue
                if paths.decides_nothing(read) and not _waits_between(module, written.call, read):
                    text, other = (module.module.text(item) for item in (read, written.call))
                    self.report_in(file, read, f"`{text}` does not wait until `{other}` is done in another process")
                break


def _written_by_one(module: ModuleFacts, paths: RankPaths) -> Iterator[Access]:
    for call in module.index.calls:
        access = access_of(module, call)
        if access is not None and access.kind == "write" and access.path is not None:
            if paths.decides(call) is not Reach.EVERY and is_shared(module, access):
                yield access


def _reads(module: ModuleFacts, call: ast.Call, written: Access) -> bool:
    assert written.path is not None
    if module.dotted(call.func) not in LOADERS or not call.args:
        return False
    return ast.unparse(call.args[0]) == ast.unparse(written.path)


def _waits_between(module: ModuleFacts, first: ast.Call, second: ast.Call) -> bool:
    return any(
        before(first, call) and before(call, second) and _WAITS.search(last_name(call.func))
        for call in module.index.calls
    )
