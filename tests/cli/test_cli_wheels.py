"""Both distributions, amp-migrate and amp-runtime: what is in them, and that each leaves the other whole."""

from __future__ import annotations

import email
import os
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch
from amp_runtime._quantizing.library import INSTALL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT, RUNTIME = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")) for folder in (ROOT, ROOT / "runtime")
)
NAMES = ("amp_migrate", "amp_runtime")
BROUGHT = "amp_migrate/own_runtime/"


def test_the_second_distribution_asks_for_torch_alone_as_the_first_does():
    assert RUNTIME["project"]["dependencies"] == PROJECT["project"]["optional-dependencies"]["runtime"]
    assert not [name for name in RUNTIME["project"]["dependencies"] if not name.startswith("torch")]
    extras = [project["project"]["optional-dependencies"] for project in (PROJECT, RUNTIME)]
    assert extras[0]["quantize"] == extras[1]["quantize"]
    assert shlex.split(INSTALL)[2:] == [line for line in extras[1]["quantize"] if not line.startswith("torch>")]
    for key in ("requires-python", "license"):
        assert RUNTIME["project"][key] == PROJECT["project"][key]
    assert (ROOT / "runtime/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_version_is_read_from_one_file():
    assert [project["project"]["dynamic"] for project in (PROJECT, RUNTIME)] == [["version", "readme", "urls"]] * 2
    files = [
        folder / project["tool"]["hatch"]["version"]["path"]
        for folder, project in ((ROOT, PROJECT), (ROOT / "runtime", RUNTIME))
    ]
    assert files == [ROOT / "runtime/amp_runtime/_version.py"] * 2


def test_the_second_distribution_configures_no_tool_but_its_build():
    """ruff takes the nearest file that has settings of its own."""
    assert set(RUNTIME["tool"]) == {"hatch"}


class Place:
    """A virtual environment that has what is installed here, but for amp-migrate."""

    def __init__(self, folder: Path, links: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder, self.python = folder, folder / "bin/python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        (self.site / "zz_links.pth").write_text(f"{links}\n")

    def run(self, *words: object, cwd: Path, status: int = 0) -> str:
        """Run a program of the environment, and return what it prints."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        done = subprocess.run(
            [self.folder / "bin" / str(words[0]), *map(str, words[1:])],
            cwd=cwd,
            env={**kept, "STEPS": "2", "CUDA_VISIBLE_DEVICES": "", "PIP_COMPILE": "0"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def pip(self, *words: object) -> None:
        """Install or uninstall without asking what that needs."""
        self.run("pip", *words, "--quiet", *(["-y"] if words[0] == "uninstall" else ["--no-deps"]), cwd=self.folder)

    def imported(self) -> str:
        """Return version and folder of the runtime that scripts import."""
        code = "import amp_runtime as a, os; a.init('O1'); print(a.__version__, os.path.dirname(a.__file__))"
        return self.run("python", "-c", code, cwd=self.folder).strip().replace(f"{self.site}{os.sep}", "")


@pytest.fixture(scope="module")
def links(tmp_path_factory):
    """All that is installed here beside torch, but for amp-migrate and what each environment has itself."""
    folder = tmp_path_factory.mktemp("links")
    own = ("amp", "_amp", "__editable__", "pip", "setuptools")
    for entry in Path(torch.__file__).parents[1].iterdir():
        if not entry.name.startswith(own) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory, links):
    """Wheels that go together in ``new``, those of the sdists in ``again``, that of an older runtime in ``old``."""
    folder = tmp_path_factory.mktemp("built")
    builder = Place(folder / "env", links)
    builder.run("pip", "install", "--quiet", "hatchling", cwd=folder)
    checkout = folder / "checkout"
    for name in ("migrate", "rules", "runtime"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)

    for project in (checkout, checkout / "runtime"):
        builder.run("python", "-m", "hatchling", "build", "-d", folder / "new", cwd=project)
    for archive in (folder / "new").glob("*.tar.gz"):
        builder.run(
            "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "again", archive, cwd=folder
        )
    version = checkout / "runtime/amp_runtime/_version.py"
    version.write_text('__version__ = "0.0.1"\n')
    builder.run("python", "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "old", cwd=checkout / "runtime")
    return folder


@pytest.fixture
def place(tmp_path, links):
    return Place(tmp_path / "env", links)


@pytest.fixture
def work(tmp_path):
    return shutil.copytree(ROOT / "fixtures/runnable/flat_convnet", tmp_path / "work")


def wheel(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"{name}-*.whl")
    return found


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


slow = pytest.mark.slow
posix = pytest.mark.skipif(sys.platform == "win32", reason="environments are laid out as on POSIX")


@slow
@posix
def test_both_wheels_have_the_same_runtime_and_no_file_in_common(built):
    tool, runtime = (contents(wheel(built / "new", name)) for name in NAMES)
    package = {name: text for name, text in runtime.items() if ".dist-info/" not in name}
    assert {name.removeprefix(BROUGHT): text for name, text in tool.items() if name.startswith(BROUGHT)} == package
    sources = {path.relative_to(ROOT / "runtime").as_posix() for path in (ROOT / "runtime/amp_runtime").rglob("*.py")}
    assert set(package) == sources | {"amp_runtime/py.typed"}
    assert set(tool).isdisjoint(runtime)
    assert tool["amp-migrate-runtime.pth"].decode().strip() == BROUGHT.rstrip("/")


@slow
@posix
def test_a_wheel_from_the_sdist_is_the_wheel_from_the_checkout(built):
    for name in NAMES:
        assert contents(wheel(built / "again", name)) == contents(wheel(built / "new", name))


@slow
@posix
def test_metadata_of_the_runtime(built):
    found = contents(wheel(built / "new", "amp_runtime"))
    (text,) = (found[name].decode() for name in found if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_string(text)
    assert metadata["Name"] == "amp-runtime"
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert needed == RUNTIME["project"]["dependencies"]
    assert "amp.init" in metadata.get_payload() and [name for name in found if name.endswith("licenses/LICENSE")]


@slow
@posix
@pytest.mark.parametrize("gone", NAMES)
def test_both_work_together_and_the_first_one_when_the_second_is_gone(place, built, work, gone):
    for name in sorted(NAMES, key=gone.__eq__):
        place.pip("install", wheel(built / "new", name))
    assert place.imported().endswith(" amp_runtime")
    assert "note:" not in place.run("amp-migrate", "--version", cwd=work)
    place.run("amp-migrate", "train.py", "-o", "migrated", cwd=work)
    place.run("python", "migrated/train.py", cwd=work)

    place.pip("uninstall", gone.replace("_", "-"))
    assert place.imported().endswith(f" {BROUGHT if gone == 'amp_runtime' else ''}amp_runtime")
    place.run("python", "migrated/train.py", cwd=work)
    if gone == "amp_runtime":
        place.run("amp-migrate", "train.py", "--vendor", "-o", "vendored", cwd=work)
        assert (work / "vendored/amp_runtime/__init__.py").is_file()


@slow
@posix
def test_an_older_runtime_is_told_and_verification_takes_its_own(place, built, work):
    place.pip("install", wheel(built / "new", "amp_migrate"), wheel(built / "old", "amp_runtime"))
    assert place.imported() == "0.0.1 amp_runtime"
    told = f"scripts here import amp_runtime 0.0.1 ({place.site / 'amp_runtime'}), and amp-migrate "
    assert f"note: {told}" in place.run("amp-migrate", "--version", cwd=work)
    evidence = place.run("amp-migrate", "verify", "train.py", "--procs", "1", cwd=work)
    assert "✓ proved" in evidence
    # Its lines are broken, within words too.
    noted = f"The runs import the runtime of amp-migrate itself; {told}"
    assert "".join(noted.split()) in "".join(evidence.split())

    place.pip("uninstall", "amp-runtime")
    assert "note:" not in place.run("amp-migrate", "--version", cwd=work)
    assert place.imported().endswith(f" {BROUGHT}amp_runtime")
