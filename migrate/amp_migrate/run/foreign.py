"""Folders and files that are found in a project without being its own: generated, vendored, or built.

They are passed over in the search for scripts only. What a script imports from them is read like everything else, and
who wants one of them migrated names it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from amp_rules.source.text import MAX_BYTES

# Folders that hold no source of the project whatever it is.
_NEVER = frozenset({"__pycache__", "node_modules", "site-packages", "__pypackages__"})
# Files whose presence tells a virtual or conda environment apart from a folder that is only called "env".
_ENVIRONMENT_MARKERS = ("pyvenv.cfg", "conda-meta")
# Where projects keep copies of others.
_VENDORED = frozenset({"third_party", "thirdparty", "third-party", "3rdparty", "vendor", "_vendor", "vendored"})
# What setuptools, CMake, ninja and Bazel leave in ``build``, and what builds put into ``dist``.
_BUILT = re.compile(r"bdist\..+|temp\..+|lib\..+|CMakeCache\.txt|\.ninja_log")
_PACKAGED = (".whl", ".tar.gz", ".egg", ".zip")
_SETUP_FILES = ("setup.py", "pyproject.toml", "setup.cfg")

_GENERATED_NAME = re.compile(r".+_pb2(?:_grpc)?\.py")
_HEAD = 4096
# ``do not modify`` alone is what people write beside their own arguments.
_GENERATED = re.compile(
    rb"""(?:auto(?:matically)?[-\s]*|code\s+|file\s+(?:is|was|has\s+been)\s+|^\W*)generated\b
         [\s\S]{0,300}?
         do(?:\ not|n't|es\ not)[\s#]+(?:manually[\s#]+)?(?:edit|modify)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_MARK = re.compile(rb"(?<![\w.@])@generated\b")
_CODE = re.compile(rb"^(?:import|from|def|class|async|if|with|try|for|while|@|\w[\w.]*\s*[=(])[^\n]*", re.MULTILINE)
_LONG_LINE = 1_000
_MINIFIED_FROM = 5_000


def never_own(folder: Path) -> bool:
    """Tell folders that hold nobody's own training scripts."""
    if folder.name in _NEVER or any(os.path.lexists(folder / name) for name in _ENVIRONMENT_MARKERS):
        return True
    return is_runtime(folder)


def is_runtime(folder: Path) -> bool:
    """Tell the runtime itself, and the copy of it that --vendor leaves beside a script."""
    return folder.name == "amp_runtime" and os.path.lexists(folder / "__init__.py")


def foreign_folder(folder: Path) -> str | None:
    """Say why a folder is passed over in the search for scripts, or return None."""
    if folder.name.lower() in _VENDORED:
        return "code of others (name it to have it migrated)"
    if folder.name == "build" and _is_build(folder):
        return "built (name it to have it migrated)"
    if folder.name == "dist" and any(name.endswith(_PACKAGED) for name in _names(folder)):
        return "built (name it to have it migrated)"
    return None


def foreign_file(path: Path) -> str | None:
    """Say why a file is passed over in the search for scripts, or return None."""
    if path.suffix == ".ipynb":
        # Most of a notebook is written by Jupyter, and its outputs may be long.
        return None
    if path.suffix != ".py":
        return None
    if _GENERATED_NAME.fullmatch(path.name):
        return "generated (name it to have it migrated)"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        # The one who reads it will say why it cannot be read.
        return None
    if size > MAX_BYTES:
        return f"larger than {MAX_BYTES // 1_000_000} MB"
    # The marks stand above the first statement; below it, they would be words of the program.
    first = _CODE.search(head)
    preamble = head[: first.start()] if first else head
    if _MARK.search(preamble) or _GENERATED.search(preamble):
        return "generated (name it to have it migrated)"
    if size >= _MINIFIED_FROM and head.count(b"\n") < len(head) // _LONG_LINE:
        return "minified (name it to have it migrated)"
    return None


def _is_build(folder: Path) -> bool:
    names = _names(folder)
    if any(_BUILT.fullmatch(name) for name in names):
        return True
    # A pure Python project's ``build/lib`` has no platform in its name.
    return "lib" in names and any(os.path.lexists(folder.parent / name) for name in _SETUP_FILES)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
