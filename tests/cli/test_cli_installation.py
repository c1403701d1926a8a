"""The lines that install an extra, or the runtime alone, name what pip can find."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest
from amp_migrate import installation
from amp_migrate.installation import install_line, runtime_line

ROOT = Path(__file__).resolve().parents[2]
METADATA = """\
Name: amp-migrate
Version: 0.1.0
Requires-Dist: click>=8.1
Requires-Dist: torch>=2.4; extra == 'runtime'
Requires-Dist: jinja2>=3.1; extra == "report"
Requires-Dist: pygments>=2.15; python_version < '3.99' and extra == 'report'
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Say what pip noted about the installation."""

    def note(noted):
        folder = tmp_path / "amp_migrate-0.1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(METADATA)
        if noted is not None:
            (folder / "direct_url.json").write_text(json.dumps(noted))
        monkeypatch.setattr(installation, "distribution", lambda name: PathDistribution(folder))

    return note


def test_a_folder_or_a_wheel_is_named_by_its_path(installed, tmp_path):
    wheel = tmp_path / "my wheels" / "amp_migrate-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert install_line("runtime") == f"pip install '{wheel}[runtime]'"


def test_an_editable_installation_stays_one(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_line("runtime") == f"pip install -e '{tmp_path}[runtime]'"


def test_a_repository_is_named_with_the_commit_that_is_installed(installed):
    installed({"url": "https://host/x.git", "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "abc"}})
    assert install_line("report") == "pip install 'amp-migrate[report] @ git+https://host/x.git@abc'"


def test_an_archive_of_the_network_is_named_by_its_address(installed):
    installed({"url": "https://host/amp_migrate-0.1.0.tar.gz", "archive_info": {}})
    assert install_line("report") == "pip install 'amp-migrate[report] @ https://host/amp_migrate-0.1.0.tar.gz'"


@pytest.mark.parametrize("noted", [None, {"url": "file:///nowhere/amp_migrate-0.1.0.whl", "archive_info": {}}])
def test_where_the_source_is_unknown_or_gone_what_is_missing_is_named(installed, noted):
    installed(noted)
    assert install_line("report") == "pip install 'jinja2>=3.1' 'pygments>=2.15'"


def test_a_checkout_on_the_path_is_named(monkeypatch):
    def distribution(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", distribution)
    assert install_line("runtime") == f"pip install '{ROOT}[runtime]'"


@pytest.mark.parametrize("beside", [True, False])
def test_what_this_program_misses_is_installed_by_its_own_pip(installed, tmp_path, monkeypatch, beside):
    """Another pip on the path belongs to another environment."""
    installed(None)
    own = Path(sys.executable).parent if beside else tmp_path
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(own / name))
    pip = "pip" if beside else f"{sys.executable} -m pip"
    assert install_line("runtime", here=True) == f"{pip} install 'torch>=2.4'"
    assert install_line("runtime") == "pip install 'torch>=2.4'"


def test_the_runtime_is_a_folder_of_the_checkout_that_was_installed(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {}})
    # A checkout of before has no such folder.
    assert runtime_line() == f"pip install '{tmp_path}[runtime]'"
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime/pyproject.toml").touch()
    assert runtime_line() == f"pip install {tmp_path}/runtime"


def test_the_runtime_of_an_editable_installation_is_one_too(installed):
    installed({"url": ROOT.as_uri(), "dir_info": {"editable": True}})
    assert runtime_line() == f"pip install -e {ROOT}/runtime"


@pytest.mark.parametrize(
    ("noted", "source"),
    [
        ({"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}, "git+https://host/x.git@abc"),
        ({"url": "https://host/v1.tar.gz", "archive_info": {}}, "https://host/v1.tar.gz"),
    ],
)
def test_the_runtime_is_a_folder_of_the_repository_and_of_its_archives(installed, noted, source):
    installed(noted)
    assert runtime_line() == f"pip install '{source}#subdirectory=runtime'"


@pytest.mark.parametrize("suffix", ["-py3-none-any.whl", ".tar.gz"])
def test_the_runtime_is_named_if_it_lies_beside(installed, tmp_path, suffix):
    own, beside = (tmp_path / f"amp_{name}-0.1.0{suffix}" for name in ("migrate", "runtime"))
    own.touch()
    installed({"url": own.as_uri(), "archive_info": {}})
    assert runtime_line() == f"pip install '{own}[runtime]'"
    beside.touch()
    assert runtime_line() == f"pip install {beside}"


def test_where_the_source_is_unknown_the_runtime_is_that_of_this_program(installed):
    installed(None)
    assert runtime_line() == install_line("runtime") == "pip install 'torch>=2.4'"


def test_the_runtime_of_a_checkout_on_the_path_is_named(monkeypatch):
    def distribution(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "distribution", distribution)
    assert runtime_line() == f"pip install {ROOT}/runtime"
