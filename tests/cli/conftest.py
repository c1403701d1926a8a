from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cli_standin
import pytest

STANDIN = Path(cli_standin.__file__)


@pytest.fixture(autouse=True)
def state(tmp_path_factory, monkeypatch):
    """The folder of journals of projects outside git; caches have one of their own."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory, with the stand-in as the analysis."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("amp_rules.migrate", cli_standin.migrate, raising=False)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def spawn(folder):
    """Call the command in a process of its own."""

    def call(*arguments, env=None, **kwargs):
        command = [sys.executable, str(STANDIN), *(str(argument) for argument in arguments)]
        environment = {**os.environ, **(env or {})}
        kwargs.setdefault("stdin", subprocess.DEVNULL if "input" not in kwargs else None)
        if kwargs["stdin"] is None:
            del kwargs["stdin"]
        kwargs.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(command, cwd=folder, env=environment, stderr=subprocess.PIPE, timeout=240, **kwargs)

    return call


@pytest.fixture
def git_apply(folder):
    """Apply a diff with the real git, in the working directory."""

    def call(patch, cwd=folder):
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, cwd=cwd, input=patch, capture_output=True, env=environment)
        assert done.returncode == 0, (done.stderr, patch)

    return call
