"""The files that several processes change at once, in one file of the project."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.checks.common.file_writes import Access, Kind, access_of, is_shared, is_text
from amp_rules.checks.common.origins import functions_called
from amp_rules.checks.common.rank_branches import (
    is_sharded,
    names_rank,
    says_it_is_distributed,
    starts_interpreters,
    uses_accelerate,
    uses_framework,
)  # fmt: skip
from amp_rules.checks.common.rank_paths import RankPaths, Reach, method_called
from amp_rules.lint.check import LintedFile
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.syntax import last_name
from amp_rules.torch.idioms import EXACT_FIRST_RANK, EXACT_RANK, NAMED_FILE_WRITER

STARTS = (
    "init_process_group", "DistributedDataParallel", "DistributedSampler", "Accelerator(", "init_dist", "setup_dist",
    "initialize_dist", "_ddp", ".backward(", "get_rank()", "is_main", "is_master",
)  # fmt: skip
"""Texts without which nothing says that several processes run a file."""

_HELPERS = ("save", "dump", "write", "export", "checkpoint", "mkdir", "makedirs", "make_dir", "ensure_dir")
"""Parts of the names of functions of other files that are looked into."""
_LONG = 60
"""A longer helper does more than to write where it is told to."""


class SharedFiles:
    """What a file writes, removes and keeps open where several processes run.

    Args:
        file: that is judged.
    """

    def __init__(self, file: LintedFile) -> None:
        self.module = file.module
        self.paths = RankPaths(file.module, file.mode.ddp)
        self.is_distributed = runs_in_several(file)
        self._sharded = is_sharded(file.module)

    def by_every_process(self, kind: Kind) -> list[ast.Call]:
        """The calls by which every process makes changes of one kind, the first of each suite.

        Where other calls of the same function ask for the process, those that do not are to blame.
        """
        found: dict[ast.Call, None] = {}
        for access, reach in self._reached(kind):
            if reach is Reach.EVERY:
                found.update(dict.fromkeys(self.paths.unguarded_callers(access.call) or [access.call]))
        return list(found)

    def by_each_machine(self, kind: Kind) -> list[tuple[ast.AST, ast.expr]]:
        """The calls by which one process of each machine does, each behind a test of the local rank."""
        reached = [access.call for access, reach in self._reached(kind) if reach is Reach.EACH_NODE]
        return [found for call in reached if (found := self.paths.deciding(call)) is not None]

    def _reached(self, kind: Kind) -> Iterator[tuple[Access, Reach]]:
        if not self.is_distributed:
            return
        index = self.module.index
        told: set[ast.AST] = set()
        for call in index.calls:
            access = access_of(self.module, call) or (None if self._sharded else self._by_helper(call, kind))
            if access is None or access.kind != kind:
                continue
            if self._sharded and kind == "write" and not is_text(self.module, access):
                continue
            if starts_interpreters(self.module, call):
                continue
            suite = index.parents[index.statement(call)]
            if suite in told or _is_tried(self.module, call, kind):
                continue
            reach = self.paths.reach(call)
            if reach >= Reach.EACH_NODE and is_shared(self.module, access):
                told.add(suite)
                yield access, reach

    def _by_helper(self, call: ast.Call, kind: Kind) -> Access | None:
        """A call of a short function of another file that does nothing but change the file it is told to."""
        name = last_name(call.func).lower()
        if not any(part in name for part in _HELPERS):
            return None
        functions = functions_called(self.module, call)
        method = method_called(self.module, call) if not functions else None
        for function in [*functions, *([method] if method is not None else [])]:
            if function.module is not self.module and changes_always(function, kind):
                return Access(call, kind, None)
        if self.paths.ddp and kind == "write" and not functions and NAMED_FILE_WRITER.search(name):
            # What is not part of the project is known by its name, and by the path that is put together for it.
            return next((Access(call, kind, item) for item in call.args if _is_path(item)), None)
        return None


def _is_path(node: ast.expr) -> bool:
    """``join(folder, name)``, ``"losses.json"``, ``folder / "losses.json"``."""
    if isinstance(node, ast.Call):
        return last_name(node.func) in ("join", "joinpath")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_path(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value[-6:]


_MAX_HELPERS = 3
"""Helpers that call each other until one writes: ``save_best``, ``save_model``, ``save_file``."""


def changes_always(function: FunctionFacts, kind: Kind, depth: int = _MAX_HELPERS) -> bool:
    """Whether a short function changes a file whatever the process, itself or by another such function."""
    node = function.node
    if (node.end_lineno or 0) - node.lineno > _LONG or names_rank(node) or function.decorator_list:
        return False
    paths = RankPaths(function.module)
    for item in function.nodes:
        if not isinstance(item, ast.Call) or _is_tried(function.module, item, kind):
            continue
        access = access_of(function.module, item)
        if access is None:
            changes = depth > 0 and _calls_helper(function.module, item, kind, depth - 1)
        else:
            changes = access.kind == kind and is_shared(function.module, access)
        if changes and paths.decides_nothing(item):
            return True
    return False


def _calls_helper(module: ModuleFacts, call: ast.Call, kind: Kind, depth: int) -> bool:
    """Whether a call runs a function of the project that says what it does by its name, and always does it."""
    if not isinstance(call.func, ast.Name) or not any(part in call.func.id.lower() for part in _HELPERS):
        return False
    return any(changes_always(item, kind, depth) for item in functions_called(module, call))


def runs_in_several(file: LintedFile) -> bool:
    """Whether several processes run a file, and look after what they write themselves."""
    module = file.module
    accelerated = uses_accelerate(module)
    several = accelerated or says_it_is_distributed(module) or _asks_for_rank(module)
    if not several and not (file.mode.ddp and "backward" in module.index.words):
        # Nobody converts checkpoints in several processes.
        return False
    return accelerated or not uses_framework(module)


def _asks_for_rank(module: ModuleFacts) -> bool:
    """Whether a file asks which process it is run by."""
    return any(item == "get_rank" or EXACT_FIRST_RANK.search(item) for item in module.index.words)


def _is_tried(module: ModuleFacts, call: ast.Call, kind: Kind) -> bool:
    """Whether the one that comes second is caught."""
    if kind not in ("remove", "folder"):
        return False
    child: ast.AST = call
    for item in module.index.ancestors(call):
        if isinstance(item, ast.Try) and child in item.body and any(map(_catches, item.handlers)):
            return True
        if isinstance(item, (ast.With, ast.AsyncWith)) and any(
            isinstance(part.context_expr, ast.Call) and last_name(part.context_expr.func) == "suppress"
            for part in item.items
        ):
            return True
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        child = item
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler may be for an error of the file system."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or not _OTHER_ERRORS.search(last_name(kind)) for kind in kinds)


_OTHER_ERRORS = re.compile(r"^(KeyboardInterrupt|SystemExit|(Value|Type|Key|Index|Attribute|Import|Assertion)Error)$")
"""Errors that no call about files raises."""
_NODES = frozenset("nnodes node_rank n_nodes SLURM_NNODES SLURM_NODEID NODE_RANK GROUP_RANK machine_rank".split())
"""Words of scripts that run on several machines."""


def tells_machines_apart(file: LintedFile) -> bool:
    """Whether a file is made for several machines, or knows of a rank beside the local one."""
    words = file.module.index.words
    return bool(words & _NODES) or (
        file.mode.ddp and any(EXACT_RANK.search(item) and "local" not in item.lower() for item in words)
    )


def is_one_machine(file: LintedFile) -> bool:
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
