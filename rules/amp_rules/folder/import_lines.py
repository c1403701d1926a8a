"""What imports what, read off the bytes: parsing every file of a large repository would take most of a run.

Import statements are found by their look, so text in a docstring may add a link too many; that costs time and nothing
else, because what a program really imports is found out when it is analysed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_rules.source.files import Files
from amp_rules.source.notebook import SUFFIX
from amp_rules.source.project import Importer, project_root
from amp_rules.torch import apex
from amp_rules.torch.frameworks import OWN_FRAMEWORK
from amp_rules.torch.packages import EXTERNAL

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*[ \t]*[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]*)|import[ \t]+([^\n#;]+))",
    re.MULTILINE,
)
_BY_NAME = re.compile(rb"""(?:import_module|__import__)\(\s*["']([\w.]+)["']""")
_COMMENT = re.compile(rb"#[^\n]*")
_BACKWARD = re.compile(rb"\.backward\b")
_CONTINUED = re.compile(rb"\\\r?\n")
_BY_SETTINGS = re.compile(rb"\binstantiate\(|\bget_class\(|\bpydoc\.locate\(")
_FRAMEWORKS = frozenset(name.partition(".")[0] for name in OWN_FRAMEWORK)
_MAX_SIZE = 5_000_000


@dataclass(frozen=True)
class Scan:
    """What the bytes of one file tell.

    Attributes:
        lines: the number of its lines.
        imports: level, module and names of each import statement.
        trains: whether it calls something's ``backward``.
        has_framework: whether it imports a framework, which may run the backward pass, or makes what its settings name.
        has_apex: whether it imports Apex.
        has_torch: whether it mentions torch at all.
    """

    path: Path
    lines: int
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    trains: bool
    has_framework: bool
    has_apex: bool
    has_torch: bool


def scan(path: Path, data: bytes) -> Scan:
    """Look over one file."""
    if path.suffix == SUFFIX:
        data = notebook_code(data)
    imports = tuple(_imports(data))
    heads = {module.partition(".")[0] for level, module, _ in imports if not level}
    return Scan(
        path,
        data.count(b"\n") + (not data.endswith(b"\n")),
        imports,
        _BACKWARD.search(data) is not None,
        bool(heads & _FRAMEWORKS) or _BY_SETTINGS.search(data) is not None,
        bool(heads & set(apex.ROOTS)),
        b"torch" in data,
    )


def notebook_code(data: bytes) -> bytes:
    """The code of a notebook's cells; all of the file where it is not a notebook."""
    try:
        cells = json.loads(data)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        return "\n".join(text if isinstance(text, str) else "".join(text) for text in sources).encode()
    except (ValueError, KeyError, TypeError, RecursionError):
        return data


def _imports(data: bytes) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    if b"import" not in data:
        return
    if b"\\" in data:
        data = _CONTINUED.sub(b" ", data)
    for match in _IMPORT.finditer(data):
        origin, names, modules = match.groups()
        if modules is not None:
            for part in modules.split(b","):
                words = part.split()
                if words:
                    yield 0, words[0].decode("ascii", "replace"), ()
            continue
        origin = origin.replace(b" ", b"").replace(b"\t", b"")
        module = origin.lstrip(b".")
        found = tuple(
            words[0].decode("ascii", "replace")
            for part in _COMMENT.sub(b"", names.strip(b" \t\r()")).split(b",")
            if (words := part.split())
        )
        yield len(origin) - len(module), module.decode("ascii", "replace"), found
    for match in _BY_NAME.finditer(data):
        yield 0, match.group(1).decode("ascii", "replace"), ()


class ImportGraph:
    """The files of a folder and the links between them.

    Args:
        paths: the files, absolute.
        files: what is on disk.
    """

    def __init__(self, paths: Sequence[Path], files: Files) -> None:
        self.files = files
        self.scans: dict[Path, Scan] = {}
        self._importers: dict[Path, Importer] = {}
        self._roots: dict[Path, Path] = {}
        for path in paths:
            self._look_at(path)
        self.imported: dict[Path, set[Path]] = {path: set(self._targets(found)) for path, found in self.scans.items()}
        self.importers: dict[Path, set[Path]] = {path: set() for path in self.scans}
        for path, targets in self.imported.items():
            for target in targets:
                if target in self.importers and target != path:
                    self.importers[target].add(path)

    @property
    def roots(self) -> set[Path]:
        """The folders of the projects that the files belong to."""
        return set(self._roots.values())

    def _look_at(self, path: Path) -> None:
        try:
            if path.stat().st_size <= _MAX_SIZE:
                self.scans[path] = scan(path, path.read_bytes())
        except OSError:
            # Whoever opens it next says what is wrong.
            pass

    def _importer(self, path: Path) -> Importer:
        folder = path.parent
        root = self._roots.get(folder)
        if root is None:
            root = self._roots[folder] = project_root(path)
        if root not in self._importers:
            self._importers[root] = Importer(root, self.files)
        return self._importers[root]

    def _targets(self, found: Scan) -> Iterator[Path]:
        importer = self._importer(found.path)
        for level, module, names in found.imports:
            if not level and module.partition(".")[0] in EXTERNAL:
                continue
            for name in (module, *(f"{module}.{item}" if module else item for item in names)):
                target = importer.locate(found.path, name, level)
                if target is not None:
                    yield target

    def leads_to(self, path: Path, module: str, level: int = 0) -> bool:
        """Whether importing ``module`` in the file leads to another file of the project."""
        return level > 0 or self._importer(path).locate(path, module) is not None

    def reaching(self, seeds: Iterable[Path]) -> set[Path]:
        """The seeds and every file that imports one of them, directly or through others."""
        return _closure(seeds, self.importers)

    def reached(self, path: Path) -> set[Path]:
        """The file and every file that its imports lead to."""
        return _closure([path], self.imported)


def _closure(seeds: Iterable[Path], links: Mapping[Path, set[Path]]) -> set[Path]:
    found = set(seeds)
    pending = list(found)
    while pending:
        for path in links.get(pending.pop(), ()):
            if path not in found:
                found.add(path)
                pending.append(path)
    return found
