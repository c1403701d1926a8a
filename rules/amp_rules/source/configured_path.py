"""Folders that come onto Python's path by what stands beside the code: packaging, and the commands that start scripts.

Nothing is run: what a value says is read as text, and only folders count that are there, within the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from amp_rules.source.files import Files

_PACKAGING = ("pyproject.toml", "setup.cfg", "setup.py")
_COMMANDS = re.compile(
    r".*\.(?:sh|bash|md|rst|env)|\.env|Makefile|Dockerfile.*|.*\.Dockerfile|requirements.*\.txt", re.I
)
_FOLDERS = ("scripts", "script", "bin", "tools", "docker", "docs", "examples", "experiments", "run", "runs", "shell")
"""Where commands that start a project's scripts are kept, beside its top and the script's own folder."""
_RECIPES = "egs"
_DEPTH_OF_RECIPES = 2
_MAX_FILES = 60
"""Files read for one project, in order of their names: the README and the first scripts say what the others repeat."""
_MAX_SIZE = 200_000

_COMMENT = re.compile(r"#.*")
_QUOTED = re.compile(r"""["']([^"']*)["']""")
_PAIR = re.compile(r"""["']([\w.]*)["']\s*[:=]\s*["']([^"']*)["']""")
_PACKAGE_DIR = re.compile(r"package[_-]dir\s*=\s*(?:dict\()?\{([^}]*)\}")
_PACKAGE_DIR_ALONE = re.compile(r"""package-dir\s*=\s*["']([^"']+)["']""")
_PACKAGE_DIR_LINES = re.compile(r"^package_dir\s*=[ \t]*((?:\n[ \t]+\S.*|[ \t]*=.*)+)", re.MULTILINE)
_FOUND_IN = re.compile(r"""find_(?:namespace_)?packages\(\s*(?:where\s*=\s*)?["']([^"']+)["']""")
_LISTS = re.compile(r"^\s*(?:where|pythonpath|sources|python-source)\s*=\s*(\[[^\]]*\]|\S.*)$", re.MULTILINE)
_POETRY = re.compile(r"""\bfrom\s*=\s*["']([^"']+)["']""")
_PACKAGES = re.compile(r"^\s*packages\s*=\s*(\[[^\]{]*\])", re.MULTILINE)

_VARIABLE = re.compile(r"\bPYTHONPATH(?:\s*[:+]?=\s*|\s+)(?=\S)")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?(\w+)=(\S+)\s*$", re.MULTILINE)
_NAMED = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_MAX_VARIABLES = 4
"""Variables of a shell script that are made of each other."""
_EDITABLE = re.compile(r"(?:pip[ ]install |^)[^\n]*?(?:-e|--editable)[ =]([^\s;&|\"'`]+)", re.MULTILINE)
_HERE = re.compile(r"\$\(\s*dirname[^()]*\)|`\s*dirname[^`]*`")
_WENT_TO = re.compile(r"\$\(\s*(?:cd|readlink -f|realpath)\s+([^()&;]+?)\s*(?:(?:&&|;)\s*pwd\s*)?\)")
_STARTED_IN = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`|\$\{PWD\}|\$PWD\b|%cd%", re.IGNORECASE)
_ITSELF = re.compile(r"\$\{?PYTHONPATH[^}:]*\}?|%PYTHONPATH%")
_OTHER = re.compile(r"\$\([^()]*\)|`[^`]*`|\$\{[^}]*\}|\$\w+|<[^>]*>|~")
_ENDS = frozenset(" \t\n\\;&|>#")


@dataclass
class ConfiguredPath:
    """What was found.

    Attributes:
        folders: the folders, in the order in which they were found.
        read: the files that it rests on.
    """

    folders: list[Path] = field(default_factory=list)
    read: list[Path] = field(default_factory=list)


def configured_path(root: Path, beside: Path, files: Files) -> ConfiguredPath:
    """The folders that packaging and commands of a project name.

    Args:
        root: the top of the project.
        beside: the folder of the script.
        files: what is on disk.
    """
    found = ConfiguredPath()
    _take_packaging(found, root, root, files)
    number = 0
    known = [root / name for name in _FOLDERS if files.is_folder(root / name)]
    for folder in dict.fromkeys([root, beside, *known, *_recipes(root, files)]):
        for name in files.names(folder):
            if not _COMMANDS.fullmatch(name) or number >= _MAX_FILES:
                continue
            number += 1
            text = _read(folder / name)
            if "PYTHONPATH" in text or " -e " in text or "--editable" in text:
                found.read.append(folder / name)
                _take_commands(found, root, folder, text, files)
    found.folders = [item for item in dict.fromkeys(found.folders) if item != root]
    return found


def _recipes(root: Path, files: Files) -> Iterator[Path]:
    """The folders of recipes, as toolkits for speech have them: ``egs/aishell``, ``egs/wsj/asr1``."""
    pending = [(root / _RECIPES, 0)] if files.is_folder(root / _RECIPES) else []
    for folder, depth in pending:
        yield folder
        if depth < _DEPTH_OF_RECIPES:
            pending += [(item, depth + 1) for item in files.folders(folder)]


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_SIZE:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _add(found: ConfiguredPath, root: Path, path: Path) -> bool:
    folder = path.resolve()
    if (folder == root or root in folder.parents) and folder.is_dir():
        found.folders.append(folder)
        return True
    return False


# ---- packaging -----------------------------------------------------------------------------------------------


def _take_packaging(found: ConfiguredPath, root: Path, folder: Path, files: Files) -> None:
    for name in _PACKAGING:
        if folder / name in files:
            found.read.append(folder / name)
            for text in _packaged(_read(folder / name)):
                _add(found, root, folder / text)


def _packaged(text: str) -> Iterator[str]:
    """The folders that packages lie in, by the words of setuptools, poetry, hatch, pdm and maturin."""
    text = _COMMENT.sub("", text)
    for match in _PACKAGE_DIR.finditer(text):
        for package, folder in _PAIR.findall(match[1]):
            if not package:
                yield folder
            elif Path(folder).parts[-1:] == (package.rpartition(".")[2],) and "." not in package:
                yield str(Path(folder).parent)
    for match in _PACKAGE_DIR_LINES.finditer(text):
        for line in match[1].splitlines():
            package, _, folder = line.partition("=")
            if not package.strip() and folder.strip():
                yield folder.strip()
    for pattern in (_PACKAGE_DIR_ALONE, _FOUND_IN, _POETRY):
        yield from pattern.findall(text)
    for match in _LISTS.finditer(text):
        yield from _QUOTED.findall(match[1]) or ([match[1].strip()] if match[1][0] != "[" else [])
    for match in _PACKAGES.finditer(text):
        yield from (str(Path(item).parent) for item in _QUOTED.findall(match[1]) if "/" in item)


# ---- commands ------------------------------------------------------------------------------------------------


def _take_commands(found: ConfiguredPath, root: Path, folder: Path, text: str, files: Files) -> None:
    variables = {name: value for name, value in _ASSIGNED.findall(text) if name != "PYTHONPATH"}
    for match in _VARIABLE.finditer(text):
        for part in _parts(_expanded(text[match.end() :].split("\n", 1)[0], variables)):
            _take_part(found, root, folder, part)
    for match in _EDITABLE.finditer(text):
        for start in (root, folder):
            package = start / match[1].partition("[")[0]
            if any(package / name in files for name in _PACKAGING) and _add(found, root, package):
                _add(found, root, package / "src")
                _take_packaging(found, root, package.resolve(), files)


def _expanded(text: str, variables: dict[str, str]) -> str:
    """A line with what the file itself gives its variables: ``$ROOT/src`` below ``ROOT=$PWD/..``."""
    for _ in range(_MAX_VARIABLES):
        text = _NAMED.sub(lambda found: variables.get(found[1] or found[2], found[0]), text)
    return text


def _parts(text: str) -> list[str]:
    """The parts of a value, up to the end of the word; folders that only the shell knows as ``{here}`` and the like."""
    text = text.split("\n", 1)[0]
    known = ((_HERE, "{here}"), (_WENT_TO, r"\1"), (_STARTED_IN, "{cwd}"), (_ITSELF, ""), (_OTHER, "{any}"))
    for pattern, word in known:
        text = pattern.sub(word, text)
    value, quote = "", ""
    for character in text:
        if quote:
            if character == quote:
                quote = ""
                continue
        elif character in "\"'":
            quote = character
            continue
        elif character in _ENDS:
            break
        value += character
    return [part for part in value.split(":") if part]


def _take_part(found: ConfiguredPath, root: Path, folder: Path, part: str) -> None:
    here = part.startswith("{here}")
    path = re.sub(r"^(?:\{here\}|\{cwd\}|\{any\})/*", "", part)
    if "{" in path:
        return
    if not path.startswith("/"):
        # A command is started at the top of the project or beside the file that it stands in.
        for start in (folder,) if here else (root, folder):
            _add(found, root, start / path)
        return
    # As it lies on somebody's machine, or in an image: the end of the path is that of the project.
    names = Path(path).parts[1:]
    for index in range(len(names)):
        if _add(found, root, root.joinpath(*names[index:])):
            return
