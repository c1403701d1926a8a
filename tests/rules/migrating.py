"""What the tests of the rules share: the fixtures, and migrating a folder of files."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.plan.report import Report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIXTURES = Path(__file__).parents[2] / "fixtures"
ENTRY = "train.py"


@dataclass(frozen=True)
class Case:
    """One folder of ``fixtures/<CODE>/``."""

    folder: Path

    @property
    def code(self) -> str:
        return self.folder.parent.name

    @property
    def is_noop(self) -> bool:
        return self.folder.name.startswith("noop")

    @property
    def options(self) -> Options:
        file = self.folder / "options.toml"
        return Options(**{"ddp": True, **(tomllib.loads(file.read_text()) if file.exists() else {})})

    @property
    def before(self) -> dict[str, bytes]:
        return files_of(self.folder / "before") or {ENTRY: (self.folder / "before.py").read_bytes()}

    @property
    def after(self) -> dict[str, bytes]:
        """The files that come out; those that went in when there is no ``after``."""
        single = self.folder / "after.py"
        if single.exists():
            return {ENTRY: single.read_bytes()}
        return files_of(self.folder / "after") or self.before

    def __str__(self) -> str:
        return f"{self.code}/{self.folder.name}"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


def cases() -> list[Case]:
    return [Case(folder) for folder in sorted(FIXTURES.glob("AMP*/*")) if folder.is_dir()]


def declined_scripts() -> list[Path]:
    """Scripts that must be left alone; a folder holds ``train.py`` and what it imports."""
    return sorted(path for path in (FIXTURES / "declines").glob("AMP*/*") if path.suffix == ".py" or path.is_dir())


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write the files and return the script to migrate."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / ENTRY


def migrated(folder: Path, files: dict[str, bytes], options: Options) -> tuple[Report, dict[str, bytes]]:
    """Migrate the files in a folder of their own: the report, and all files as they are afterwards."""
    report = migrate(write(folder, files), options)
    result = dict(files)
    for change in report.changes:
        name = str(change.path.relative_to(folder.resolve()))
        assert change.before.encode() == files[name]
        result[name] = change.after.encode()
    return report, result


def migrated_text(folder: Path, text: str, options: Options) -> tuple[Report, str]:
    report, result = migrated(folder, {ENTRY: text.encode()}, options)
    return report, result[ENTRY].decode()
