"""Every printed line that installs something works: those of the pages and those of the commands' own messages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT, blocks, commands, spans

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = ("migrate", "rules", "runtime")
PLACEHOLDER = "git+https://github.com/OWNER/amp-migrate@v0.1.0"
"""Pages tell readers to put in their own repository, as long as none is public."""
RUNTIME_ALONE = {"pip install ./runtime", f"pip install '{PLACEHOLDER}#subdirectory=runtime'"}
MODULES = {"runtime": ["torch", "amp_runtime"], "report": ["jinja2", "pygments", "matplotlib"], "server": ["pygls"]}


def of_users(line: str) -> bool:
    """Tell whether a line installs what a user's own repository lists."""
    return " -r " in line


def printed() -> list[str]:
    """Return the different lines of all pages, the shortest first."""
    found: set[str] = set()
    for page in PAGES:
        found.update(span for span in spans(page) if span.startswith("pip install "))
        for block in blocks(page):
            if block.language == "console":
                found.update(command.text for command in commands(block) if command.text.startswith("pip install "))
            else:
                found.update(re.findall(r"pip install [^\n]*", block.text))
    plain = {shlex.join(shlex.split(line, comments=True)) for line in found if not line.startswith("pip install ...")}
    return sorted((line for line in plain if not of_users(line)), key=len)


def test_lines_are_found_on_pages_of_every_kind():
    lines = printed()
    assert {"pip install .", "pip install '.[runtime,report]'", f"pip install {PLACEHOLDER}"} <= set(lines)
    assert set(lines) >= RUNTIME_ALONE


def test_messages_take_their_line_from_one_place():
    written = [
        path.relative_to(ROOT).as_posix()
        for source in SOURCES
        for path in (ROOT / source).rglob("*.py")
        if re.search(r"\bpip3? install\b|amp-migrate\[", path.read_text(encoding="utf-8"))
    ]
    assert written == []


def test_the_package_bounds_no_version_from_above_and_development_pins_its_tools():
    project = PROJECT["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    assert [line for line in asked if re.search(r"<|==|~=", line.partition(";")[0])] == []

    def names(lines):
        found = (re.match(r"[A-Za-z][\w.-]*", line) for line in lines)
        return {match[0].lower().replace("_", "-") for match in found if match}

    tools = names(
        line for extra in ("dev", "docs", "report", "server") for line in project["optional-dependencies"][extra]
    )
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert names(line for line in pins if "==" in line or line.startswith("torch>=")) == tools - {"amp-migrate"}
    setup = (ROOT / "scripts/setup.sh").read_text(encoding="utf-8")
    assert all("-c constraints.txt" in line for line in setup.splitlines() if "pip install" in line)


class Environment:
    """A virtual environment, a checkout, and a folder with a training script."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "env/bin/python"
        self.checkout, self.work = folder / "checkout", folder / "work"
        venv.create(folder / "env", with_pip=True)
        self._check_out()
        shutil.copytree(ROOT / "fixtures/runnable/flat_convnet", self.work)
        constraints = folder / "constraints.txt"
        # The build of torch that is here already: another one may be gigabytes of CUDA.
        constraints.write_text(f"torch=={version('torch')}\n")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
        path = f"{self.python.parent}{os.pathsep}{kept['PATH']}"
        self.variables = {
            **kept,
            "PATH": path,
            "PIP_CONSTRAINT": str(constraints),
            # Compiling all of torch takes longer than the few modules of it that are imported.
            "PIP_COMPILE": "0",
            "STEPS": "2",
            "CUDA_VISIBLE_DEVICES": "",
        }

    def _check_out(self) -> None:
        for source in SOURCES:
            shutil.copytree(ROOT / source, self.checkout / source, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.checkout)
        git = ["git", "-C", str(self.checkout), "-c", "user.name=x", "-c", "user.email=x@y"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v0.1.0"]):
            subprocess.run([*git, *words], check=True)

    def run(self, line: str, cwd: Path, status: int = 0) -> str:
        """Run a line in a shell and return what it prints."""
        done = subprocess.run(
            line, shell=True, cwd=cwd, env=self.variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == status, f"$ {line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def has(self, module: str) -> bool:
        """Tell whether a module can be imported from a folder that holds nothing."""
        done = subprocess.run([self.python, "-c", f"import {module}"], cwd=self.checkout / ".git", env=self.variables)
        return done.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="lines are those of a POSIX shell")
def test_every_printed_line_works_in_an_empty_environment(tmp_path):
    there = Environment(tmp_path)
    there.run("pip wheel --quiet --no-deps --wheel-dir ../dist . ./runtime", there.checkout)
    there.run("pip install --quiet ../dist/amp_migrate-*.whl", there.checkout)
    assert not there.has("torch") and not there.has("jinja2")

    # What the commands print themselves.
    refused = there.run("amp-migrate train.py --report report.html", there.work, status=2)
    (line,) = re.findall(r"needs .*?: (.*pip install .*)", refused)
    there.run(line, there.work)
    there.run("amp-migrate train.py --report report.html", there.work)
    assert (there.work / "report.html").stat().st_size > 0 and not there.has("torch")
    (line,) = re.findall(r"where it trains: (.*), or copy", there.run("amp-migrate train.py -w", there.work))
    assert "amp_runtime-" in line
    there.run(line, there.work)
    there.run("python train.py", there.work)

    # What the pages show. Torch stays: it is the same for all of them.
    for line in printed():
        there.run(
            "pip uninstall -qy amp-migrate amp-runtime click jinja2 libcst matplotlib pathspec pygls pygments rich",
            there.work,
        )
        there.run(line.replace(PLACEHOLDER, f"git+{there.checkout.as_uri()}@v0.1.0"), there.checkout)
        if line in RUNTIME_ALONE:
            assert there.has("amp_runtime") and not there.has("amp_migrate")
            continue
        there.run("amp-migrate --version && amp-lint --version", there.work)
        extras = re.findall(r"\[([\w,]+)\]", line)
        missing = [
            name for extra in ",".join(extras).split(",") for name in MODULES.get(extra, ()) if not there.has(name)
        ]
        assert missing == [], line
