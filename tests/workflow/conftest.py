from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(autouse=True)
def folder(tmp_path, tmp_path_factory, monkeypatch):
    """An empty working directory, and no cache or journal of anybody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def fixture(folder):
    """Copy a fixture into the working directory."""

    def call(name, to="."):
        shutil.copytree(FIXTURES / name, folder / to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("expect.toml"))
        return folder / to

    return call


@pytest.fixture
def git(folder):
    """Call git in the working directory."""

    def call(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.autocrlf=false")
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *identity, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    return call
