"""The private names of torch that a program uses, and where a release of torch defines them.

Private names are found in the syntax: those that hang on what a file imports of torch, and attributes of objects.
Whose these are no syntax tells; ``OWNERS`` says it.
"""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

USERS = ("runtime/amp_runtime", "migrate/amp_migrate/verify/recorder")
"""The folders of this project that use torch."""

_MODULE = "torch.nn.modules.module.Module"
_TENSOR = "torch._C.TensorBase"
_SCALER = "torch.amp.grad_scaler.GradScaler"
_LOADER = "torch.utils.data.dataloader.DataLoader"

OWNERS = {
    **dict.fromkeys(
        (
            "_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks",
            "_load_state_dict_post_hooks", "_non_persistent_buffers_set", "_register_state_dict_hook",
            "_register_load_state_dict_pre_hook",
        ),
        _MODULE,
    ),
    **dict.fromkeys(("_backward_hooks", "_values", "_version"), _TENSOR),
    **dict.fromkeys(("_check_inf_per_device", "_get_scale_async", "_per_optimizer_states", "_scale"), _SCALER),
    **dict.fromkeys(("_get_iterator", "_iterator"), _LOADER),
    **dict.fromkeys(("_rebuild_buckets", "_reset_state"), "torch._C._distributed_c10d.Reducer"),
    "_active_ddp_module": "torch.nn.parallel.distributed.DistributedDataParallel",
    "_BaseDataLoaderIter": "torch.utils.data.dataloader",
    "_BatchNorm": "torch.nn.modules.batchnorm",
    "_dynamo_marked_constant": "torch._dynamo.decorators.fn",
    "_flat_weights": "torch.nn.modules.rnn.RNNBase",
    "_foreach_norm": "torch",
    "_IterableDatasetFetcher": "torch.utils.data._utils.fetch",
    "_join_config": "torch.distributed.algorithms.join.Joinable",
    "_MapDatasetFetcher": "torch.utils.data._utils.fetch",
    "_metadata": "torch.nn.modules.module.destination",
    "_num_samples": "torch.utils.data.sampler.RandomSampler",
    "_num_workers": "torch.utils.data.dataloader._BaseDataLoaderIter",
    "_opt_called": "torch.optim.lr_scheduler.opt",
    "_post_accumulate_grad_hooks": "torch._tensor.Tensor",
    "_orig_mod": "torch._dynamo.eval_frame.OptimizedModule",
    "_step_supports_amp_scaling": "torch.optim.adam.Adam",
}  # fmt: skip
"""Whose a private attribute of an object is: a class, a module, or the variable through which torch sets it."""

SET_FOR_TORCH = {"_step_supports_amp_scaling"}
"""What a program writes on objects of its own, because torch reads it there."""

NOT_OF_TORCH = {
    "_make": "of named tuples",
    "_core": "of NumPy",
    "_initializing": "of import specs",
    "_amp_state": "of Apex",
    "_loss_idx": "of Apex",
    "_loss_scaler": "of Apex",
    "_in_closure": "of the runtime's scaler",
    "_unit": "of the runtime's scaler",
    "_input_metadata": "of nodes of a graph, made in C++; asked with a default",
    "_saved_training": "of nodes of a graph, made in C++; asked with a default",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(folders: list[Path]) -> dict[str, list[str]]:
    """Each private name of torch that is used below ``folders``, as a dotted path, with ``file:line`` of its uses.

    An attribute whose owner is not known is listed with ``?`` for it.
    """
    files = {path: ast.parse(path.read_text("utf-8")) for folder in folders for path in sorted(folder.rglob("*.py"))}
    defined = {name for tree in files.values() for name in _defined(tree)}
    found: dict[str, list[str]] = {}
    for path, tree in files.items():
        for name, line in _used(tree, defined):
            found.setdefault(name, []).append(f"{path.name}:{line}")
    return found


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _used(tree: ast.AST, defined: set[str]) -> Iterator[tuple[str, int]]:
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                imported[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                imported[alias.asname or alias.name] = name = f"{node.module}.{alias.name}"
                if name.startswith("torch.") and any(map(is_private, name.split("."))):
                    yield name, node.lineno
    own = set(_defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in OWNERS:
            yield f"{OWNERS[node.value]}.{node.value}", node.lineno
        if not isinstance(node, ast.Attribute):
            continue
        first, *rest = _path(node)
        if rest[-2:-1] == ["_C"] and first == "torch":  # all of torch's C++ module is private
            yield ".".join([first, *rest]), node.lineno
        if not is_private(node.attr) or node.attr in NOT_OF_TORCH or rest[-2:-1] == ["_C"]:
            continue
        if first in imported and imported[first].partition(".")[0] == "torch":
            yield ".".join([imported[first], *rest]), node.lineno
        elif first in ("self", "cls") and len(rest) == 1 and node.attr in own and node.attr not in SET_FOR_TORCH:
            continue
        elif node.attr in OWNERS:
            yield f"{OWNERS[node.attr]}.{node.attr}", node.lineno
        elif node.attr not in defined and first not in imported:
            yield f"?.{node.attr}", node.lineno


def _path(node: ast.expr) -> list[str]:
    """``a.b.c`` as a list; what is not a name at its root is ``?``."""
    if isinstance(node, ast.Attribute):
        return [*_path(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else "?"]


class Sources:
    """The Python files of a release of torch, in a wheel or where it is installed."""

    def __init__(self, place: Path) -> None:
        """``place`` is a wheel, or the folder that holds the folder ``torch``."""
        self._wheel = zipfile.ZipFile(place) if place.is_file() else None
        self._folder = place
        self._names = set(self._wheel.namelist()) if self._wheel else set()
        self._read: dict[str, str] = {}

    def has(self, path: str) -> bool:
        return path in self._names if self._wheel else (self._folder / path).is_file()

    def below(self, folder: str) -> list[str]:
        """The Python files in a folder of a wheel."""
        return sorted(name for name in self._names if name.startswith(folder) and name.endswith(".py"))

    def text(self, path: str) -> str:
        if path not in self._read:
            read = self._wheel.read(path) if self._wheel else (self._folder / path).read_bytes()
            self._read[path] = read.decode("utf-8")
        return self._read[path]

    def defined_at(self, name: str) -> str | None:
        """Where ``name``, a dotted path, is defined, as ``file:line``; ``None`` if it is not."""
        for file, rest in self._files(name):
            if not rest:
                return f"{file}:1"
            if len(rest) > 2:
                continue
            line = _line_of(self.text(file), rest[0] if len(rest) == 2 else None, rest[-1])
            if line:
                return f"{file}:{line}"
            for origin in self._origins(file, rest[0]) if len(rest) == 2 else ():
                place = self.defined_at(f"{origin}.{rest[-1]}")
                if place:
                    return place
        return None

    def _origins(self, file: str, name: str) -> Iterator[str]:
        """What the full name of a class may be that a file takes over from another."""
        package = file.split("/")[:-1]
        for node in ast.parse(self.text(file)).body:
            if isinstance(node, ast.ImportFrom) and {name, "*"} & {alias.asname or alias.name for alias in node.names}:
                module = package[: len(package) - node.level + 1] if node.level else []
                yield ".".join([*module, *filter(None, [node.module]), name])

    def _files(self, name: str) -> Iterator[tuple[str, list[str]]]:
        """The files that may define ``name``, the most special first, with what is left of the path inside them."""
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            stem = "/".join(parts[:cut])
            for file in (f"{stem}.py", f"{stem}.pyi", f"{stem}/__init__.py", f"{stem}/__init__.pyi"):
                if self.has(file):
                    yield file, parts[cut:]
        functions = "torch/_C/_VariableFunctions.pyi"  # which torch takes over from its C++ module
        if len(parts) == 2 and self.has(functions):
            yield functions, parts[1:]


def _line_of(text: str, owner: str | None, name: str) -> int | None:
    """The line on which ``name`` is defined: at the left margin, or by or on the class ``owner``."""
    lines = text.splitlines()
    inside = owner is None
    word = re.escape(name)
    at_margin = re.compile(rf"(class|def) {word}\b|{word}\s*[:=]|from .* import .*\b{word}\b|import .* as {word}\b")
    in_class = re.compile(rf"\s+((class|def|async def) {word}\b|{word}\s*[:=]|(self|cls)\.{word}\s*[:=])")
    # torch renamed the class of what all tensors have.
    heading = owner and re.compile(rf"class {'_?TensorBase' if owner == 'TensorBase' else re.escape(owner)}\b")
    for number, line in enumerate(lines, 1):
        if owner is None:
            if at_margin.match(line):
                return number
            continue
        if heading and heading.match(line):
            inside = True
        elif inside and line[:1].strip() and not line.startswith((")", "#", "@")):
            inside = False
        if (inside and in_class.match(line)) or re.match(rf"\s*{re.escape(owner)}\.{word}\s*[:=]", line):
            return number
    return None
