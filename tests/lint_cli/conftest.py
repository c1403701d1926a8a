from __future__ import annotations

import os
import subprocess
import sys

import lint_standin
import pytest
from click.testing import CliRunner


@pytest.fixture
def folder(tmp_path, tmp_path_factory, monkeypatch):
    """An empty working directory, with the stand-in as the analysis."""
    monkeypatch.chdir(tmp_path)
    lint_standin.install(monkeypatch.setattr)
    # The sources of the rules may be edited while the tests run.
    monkeypatch.setattr("amp_migrate.run.store.fingerprint", lambda: "rules")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in ("NO_COLOR", "FORCE_COLOR", "CALLS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def invoke(folder):
    """Call the command in this process."""
    from amp_migrate.commands.lint import main

    def call(*arguments, **kwargs):
        return CliRunner().invoke(main, [str(argument) for argument in arguments], **kwargs)

    return call


@pytest.fixture
def write(folder):
    """Write files, named by keyword or in a dictionary, and return the path of the last."""

    def call(files=None, **named):
        path = folder
        for name, text in {**(files or {}), **{f"{key}.py": value for key, value in named.items()}}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return call


@pytest.fixture
def calls(tmp_path_factory, monkeypatch):
    """Return the names of the files that have been analysed since the last question."""
    log = tmp_path_factory.mktemp("calls") / "calls.txt"
    monkeypatch.setenv("CALLS", str(log))

    def call():
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(names)

    return call


@pytest.fixture
def spawn(folder):
    """Call the command in a process of its own."""

    def call(*arguments, env=None, **kwargs):
        command = [sys.executable, str(lint_standin.STANDIN_PATH), *(str(argument) for argument in arguments)]
        environment = {**os.environ, **(env or {})}
        if "input" not in kwargs:
            kwargs.setdefault("stdin", subprocess.DEVNULL)
        kwargs.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, timeout=240, **kwargs)

    return call
