"""Projects of several files, put together at random: where the pieces of a program lie and how they are imported.

Everything is drawn from one :class:`random.Random`, so that a seed names a project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

from decoration import decorated
from programs import Piece, Pieces


@dataclass
class Generated:
    """The files of a project, by path, and the script that trains."""

    files: dict[str, bytes]
    entry: str
    shape: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"# {self.shape}", f"# entry: {self.entry}"]
        for name, data in self.files.items():
            parts += [f"# ---- {name}", data.decode("utf-8", "replace")]
        return "\n".join(parts)


LIBRARY = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "import torch.nn.functional as F",
    "DataLoader": "from torch.utils.data import DataLoader",
    "TensorDataset": "from torch.utils.data import TensorDataset",
    "Dataset": "from torch.utils.data import Dataset",
    "argparse": "import argparse",
    "dataclass": "from dataclasses import dataclass",
    "SimpleNamespace": "from types import SimpleNamespace",
    "clip_grad_norm_": "from torch.nn.utils import clip_grad_norm_",
    "importlib": "import importlib",
    "sys": "import sys",
    "functools": "import functools",
    "partial": "from functools import partial",
}

STEMS = {
    "config": ("config", "options", "settings"),
    "model": ("model", "net", "modeling"),
    "data": ("data", "loaders", "input_pipeline"),
    "loop": ("engine", "loop", "trainer"),
    "utils": ("utils", "helpers", "common"),
}
HOMES = {
    "config": "config",
    "base": "model",
    "model": "model",
    "registry": "registry",
    "factory": "model",
    "dataset": "data",
    "data": "data",
    "groups": "utils",
    "optimizer": "utils",
    "loss": "utils",
    "clip": "utils",
    "meter": "utils",
    "save": "utils",
    "evaluate": "loop",
    "step": "loop",
    "loop": "loop",
    "trainer": "loop",
}


@dataclass(eq=False)
class File:
    """One module: where it lies and what is in it."""

    parts: tuple[str, ...]
    pieces: list[Piece] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    @property
    def dotted(self) -> str:
        return ".".join(self.parts)


class Layout:
    """Draws where the pieces lie and how they reach each other."""

    def __init__(self, random: Random, pieces: list[Piece], shape: dict[str, object]) -> None:
        self.random, self.pieces, self.shape = random, pieces, shape
        kind = self.kind = random.choice(["flat", "package", "namespace", "src", "nested", "module"])
        shape["layout"] = kind
        self.package: tuple[str, ...] = () if kind == "flat" else ("proj",)
        # Run with ``python -m``: the entry lies in the package and may import relatively.
        self.entry = File((*self.package, "train") if kind == "module" else ("train",))
        self.root = "src/" if kind == "src" else ""
        self.exports: dict[tuple[str, ...], list[str]] = {}
        self.edges: dict[tuple[File, File], bool] = {}
        self.stems = {key: random.choice(names) for key, names in STEMS.items()}
        self.files = self._split()
        self.home = {name: file for file in self.files for piece in file.pieces for name in piece.defines}

    def _split(self) -> list[File]:
        files: dict[tuple[str, ...], File] = {}
        detail = self.random.choice(["one", "few", "many"])
        self.shape["split"] = detail
        for piece in self.pieces:
            if piece.kind == "main" or (detail == "one" and self.random.random() < 0.7):
                # What a piece of the entry is made of must not import the entry.
                self.entry.pieces.append(piece)
                continue
            group = HOMES[piece.kind]
            stem = self.stems.get(group, group)
            if detail == "many":
                stem = piece.kind + "s"
            folder = (stem,) if self.kind == "nested" and detail == "many" else ()
            parts = (*self.package, *folder, stem)
            files.setdefault(parts, File(parts)).pieces.append(piece)
        return self._without_back_imports(files)

    def _without_back_imports(self, files: dict[tuple[str, ...], File]) -> list[File]:
        """Pieces that others than the entry use do not stay in the entry."""
        while True:
            needed = {name for file in files.values() for piece in file.pieces for name in piece.uses}
            moving = [piece for piece in self.entry.pieces if needed & set(piece.defines)]
            if not moving:
                return [*files.values(), self.entry]
            for piece in moving:
                self.entry.pieces.remove(piece)
                parts = (*self.package, "shared")
                files.setdefault(parts, File(parts)).pieces.append(piece)

    def build(self) -> Generated:
        self._order()
        texts = {self._path(file): self._text(file) for file in self.files}
        for file, other in self._circular():
            texts[self._path(file)] += f"\n\nimport {other.dotted}\n"
        if self.kind not in ("flat", "namespace"):
            for file in self.files:
                for length in range(1, len(file.parts)):
                    folder = file.parts[:length]
                    path = self.root + "/".join(folder) + "/__init__.py"
                    texts.setdefault(path, "\n".join(self.exports.get(folder, [])) + "\n")
        if self.kind == "src":
            texts["setup.py"] = "from setuptools import setup\n\nsetup()\n"
            texts[self._path(self.entry)] = self._with_path(texts[self._path(self.entry)])
        style = Random(self.random.getrandbits(32))
        files = {name: decorated(style, text) for name, text in texts.items()}
        return Generated(files, self._path(self.entry), self.shape)

    @staticmethod
    def _with_path(text: str) -> str:
        return "import sys\n\nsys.path.insert(0, 'src')\n" + text

    def _path(self, file: File) -> str:
        root = "" if file is self.entry and self.kind == "src" else self.root
        return root + "/".join(file.parts) + ".py"

    def _order(self) -> None:
        """Pieces of one file below those that they use when the file is imported."""
        for file in self.files:
            done: list[Piece] = []
            for piece in file.pieces:
                self._place(piece, file, done)
            main = [piece for piece in done if piece.kind == "main"]
            file.pieces = [piece for piece in done if piece.kind != "main"] + main

    def _place(self, piece: Piece, file: File, done: list[Piece]) -> None:
        if piece in done:
            return
        for name in piece.uses:
            for other in file.pieces:
                if name in other.defines and other is not piece:
                    self._place(other, file, done)
        done.append(piece)

    # ---- imports -----------------------------------------------------------------------------------------------

    def _text(self, file: File) -> str:
        library, own = [], []
        blocks: list[str] = []
        access: dict[str, str] = {}
        for piece in file.pieces:
            lazy: list[str] = []
            rows = list(piece.rows)
            for name in piece.uses:
                home = self.home[name]
                if home is file:
                    access[name] = name
                elif "<lazy>" in "".join(rows) and not _at_top(rows, name) and self.random.random() < 0.2:
                    row, expression = self._import(file, home, name, star=False)
                    lazy.append(row)
                    rows = [item.replace(f"@{name}@", expression) for item in rows]
                elif name not in access:
                    row, access[name] = self._import(file, home, name)
                    own.append(row)
                    # Whether the import wants the module only, and the name when it is called.
                    whole = access[name].endswith(f".{name}") and not _at_top(rows, name)
                    self.edges[file, home] = whole and self.edges.get((file, home), True)
            for item in rows:
                head = item[: len(item) - len(item.lstrip())]
                if item.strip() == "<lazy>":
                    blocks += [head + row for row in lazy]
                else:
                    blocks.append(re.sub(r"@(\w+)@", lambda match: access.get(match[1], match[1]), item))
            blocks += ["", ""]
        words = set(re.findall(r"\w+", "\n".join(blocks)))
        library = [row for name, row in LIBRARY.items() if name in words]
        self.random.shuffle(library)
        return "\n".join([*library, "", *dict.fromkeys(own), "", "", *blocks]).rstrip() + "\n"

    def _circular(self) -> list[tuple[File, File]]:
        """Files that could import one that imports them: where only modules are imported, that works."""
        found = []
        for (file, other), whole in self.edges.items():
            soft = whole and file is not self.entry and (other, file) not in self.edges
            # A third file must not come between.
            alone = all(pair[0] is not other for pair in self.edges)
            if soft and alone and self.random.random() < 0.5:
                self.shape["circular"] = True
                found.append((other, file))
        return found

    def _import(self, file: File, home: File, name: str, *, star: bool = True) -> tuple[str, str]:
        """An import of ``name`` from another file: the statement, and the expression that stands for the name."""
        forms = ["from", "from", "renamed", "alias", "dotted"]
        forms += ["star"] if star else []
        relative = bool(self.package) and file.parts[:1] == home.parts[:1]
        forms += ["relative", "relative", "relative module"] if relative else []
        forms += ["export"] if self.kind not in ("flat", "namespace") and file is self.entry else []
        form = self.random.choice(forms)
        last = home.parts[-1]
        if form == "renamed":
            return f"from {home.dotted} import {name} as _{name}", f"_{name}"
        if form == "alias":
            return f"import {home.dotted} as {last}_module", f"{last}_module.{name}"
        if form == "dotted":
            return f"import {home.dotted}", f"{home.dotted}.{name}"
        if form == "star":
            return f"from {home.dotted} import *", name
        if form.startswith("relative"):
            shared = next(
                (
                    at
                    for at, pair in enumerate(zip(file.parts[:-1], home.parts[:-1], strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(file.parts), len(home.parts)) - 1,
            )
            dots = "." * (len(file.parts) - shared)
            rest = home.parts[shared:]
            if form == "relative":
                return f"from {dots}{'.'.join(rest)} import {name}", name
            return f"from {dots}{'.'.join(rest[:-1])} import {last}", f"{last}.{name}"
        if form == "export":
            folder = home.parts[: self.random.randint(1, len(home.parts) - 1)]
            inner = ".".join(home.parts[len(folder) :])
            choices = [f"from .{inner} import {name}", f"from {home.dotted} import {name}", f"from .{inner} import *"]
            self.exports.setdefault(folder, []).append(self.random.choice(choices))
            return f"from {'.'.join(folder)} import {name}", name
        return f"from {home.dotted} import {name}", name


def _at_top(rows: list[str], name: str) -> bool:
    """Whether the piece uses the name outside of the functions that could import it."""
    start = next((at for at, row in enumerate(rows) if row.strip() == "<lazy>"), 0)
    end = next((at for at, row in enumerate(rows) if at > start and row and not row.startswith(" ")), len(rows))
    return any(f"@{name}@" in row for row in [*rows[:start], *rows[end:]])


def project(random: Random) -> Generated:
    """A project drawn at random."""
    pieces = Pieces(random)
    drawn = pieces.draw()
    return Layout(random, drawn, pieces.shape).build()
