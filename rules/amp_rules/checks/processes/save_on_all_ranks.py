"""Files that every process writes."""

from __future__ import annotations

import ast

from amp_rules.checks.common.rank_branches import (
    every_process_runs,
    is_sharded,
    names_rank,
    says_it_is_distributed,
    training_runs,
    uses_accelerate,
    uses_framework,
)
from amp_rules.lint.check import Check, LintedFile
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import FileIndex, keyword
from amp_rules.source.syntax import last_name
from amp_rules.torch.writers import MODEL_WRITERS

_PATHS = ("f", "path", "file", "filename", "save_directory")
_SCRIPTED = ("torch.jit.script", "torch.jit.trace")
_LONG = 40


class SaveOnAllRanks(Check):
    """Files that every process writes.

    ## What it does

    Finds `torch.save`, `save_pretrained` and other writers of models in code that several processes run, where no
    test on the way from the start of the script asks for the rank and the path is the same in all of them.

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
    script to the call asks for the rank, the process or the device, in whatever words; when the function is not
    called in the file, unless it trains and asks for the process elsewhere; when the path has the rank in it; for
    sharded models, of which every process saves its part; and where a framework saves: of Accelerate's,
    `accelerator.save` does, and `torch.save` does not.

    ## Source

    https://pytorch.org/tutorials/intermediate/ddp_tutorial.html#save-and-load-checkpoints
    """

    code = "AMP903"
    name = "save-on-all-ranks"
    severity = "warning"
    message = "Every process writes the same file."
    advice = "Write from one process only, as in `if dist.get_rank() == 0:`, and let the others wait before they read."
    triggers = (
        "init_process_group", "DistributedDataParallel", "DistributedSampler", "torch.save", ".save_pretrained",
    )  # fmt: skip

    def visit_module(self, file: LintedFile) -> None:
        """Judge each call that writes."""
        module = file.module
        accelerated = uses_accelerate(module)
        several = accelerated or says_it_is_distributed(module)
        if not several and not (file.mode.ddp and "backward" in module.index.words):
            # Nobody converts checkpoints in several processes.
            return
        if is_sharded(module) or (uses_framework(module) and not accelerated):
            return
        index = module.index
        told: set[ast.AST] = set()
        for call in index.calls:
            suite = index.parents[index.statement(call)]
            if suite in told or not (_writes(module, call) or _helper_writes(module, call)):
                continue
            if not _has_own_path(index, call) and (every_process_runs(index, call) or training_runs(index, call)):
                told.add(suite)
                self.report_in(file, call, f"`{module.module.text(call)}` runs in every process and writes one file")


def _writes(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a call writes a model or a checkpoint to a path."""
    name = last_name(call.func)
    if name == "save_pretrained":
        return True
    if name == "save" and isinstance(call.func, ast.Attribute) and _is_scripted(module, call.func.value):
        return True
    return module.dotted(call.func) in MODEL_WRITERS


def _is_scripted(module: ModuleFacts, node: ast.expr) -> bool:
    values = module.index.values_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else []
    return any(isinstance(item, ast.Call) and module.dotted(item.func) in _SCRIPTED for item in values)


def _has_own_path(index: FileIndex, call: ast.Call) -> bool:
    """Whether each process may write a file of its own, or none."""
    given = [*call.args, *(item.value for item in call.keywords)]
    if any(names_rank(item) for item in given):
        return True
    if keyword(call, "is_main_process") is not None or keyword(call, "save_function") is not None:
        return True
    names = [item for part in given for item in ast.walk(part) if isinstance(item, (ast.Name, ast.Attribute))]
    if any(item.id in _of_batches(index, call) for item in names if isinstance(item, ast.Name)):
        return True
    return any(names_rank(value) for item in names for value in index.values_of(item) if not _is_model(value))


def _of_batches(index: FileIndex, call: ast.Call) -> set[str]:
    """The names that loops over data bind around a call: files named after the data are of different processes."""
    return {
        name.id
        for loop in index.loops_around(call)
        if isinstance(loop, ast.For) and not isinstance(loop.target, ast.Name)
        for name in ast.walk(loop.target)
        if isinstance(name, ast.Name) and "epoch" not in ast.unparse(loop).partition("\n")[0]
    }


def _is_model(value: ast.expr) -> bool:
    """Whether what is written was wrapped for several processes, which says nothing about the path."""
    return isinstance(value, ast.Call) and last_name(value.func).endswith(("DataParallel", "DDP"))


def _helper_writes(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a short function of another file does nothing but write where it is told to."""
    name = last_name(call.func)
    if "save" not in name or (isinstance(call.func, ast.Name) and call.func.id in module.functions):
        return False
    dotted = module.dotted(call.func)
    found = module.project.resolve(module, dotted) if dotted else None
    if not isinstance(found, FunctionFacts) or found.cls is not None:
        return False
    node = found.node
    if (node.end_lineno or 0) - node.lineno > _LONG or names_rank(node) or found.decorator_list:
        return False
    return any(_writes_always(found, item) for item in ast.walk(node) if isinstance(item, ast.Call))


def _writes_always(function: FunctionFacts, call: ast.Call) -> bool:
    if not _writes(function.module, call):
        return False
    index = function.module.index
    tests = [ast.unparse(test) for test, _ in index.branches(call)]
    return not tests or all("best" in item for item in tests)
