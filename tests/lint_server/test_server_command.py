"""The command line of the server: what must be installed, and folders of its name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from amp_migrate.commands.lint import main
from click.testing import CliRunner

pytestmark = pytest.mark.heavy

WITHOUT = """
import sys

class Fence:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pygls", "lsprotocol"):
            raise ModuleNotFoundError("no module named " + name)

sys.meta_path.insert(0, Fence())
sys.modules["pygls"] = None
from amp_migrate.commands.lint import main
main(prog_name="amp-lint")
"""


def without_pygls(*arguments, cwd):
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def test_what_is_missing_is_said_with_the_line_that_installs_it(folder):
    done = without_pygls("server", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: pygls, which `amp-lint server` needs, is not installed: ")
    assert "install" in done.stderr and "[server]" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_linter_needs_no_pygls(folder):
    (folder / "a.py").write_text("import torch\n")
    done = without_pygls("a.py", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "nothing found in 1 file\n")


def test_the_server_has_help_of_its_own():
    done = CliRunner().invoke(main, ["server", "--help"], prog_name="amp-lint")
    assert done.exit_code == 0
    assert done.output.startswith("Usage: amp-lint server [OPTIONS]")
    assert "amp-lint ./server" in done.output
    assert "amp-lint server" in CliRunner().invoke(main, ["--help"]).output


def test_a_wrong_option_is_refused():
    done = CliRunner().invoke(main, ["server", "--tcp"], prog_name="amp-lint")
    assert done.exit_code == 2
    assert "amp-lint server" in done.output and "--tcp" in done.output


@pytest.mark.parametrize("arguments", [("./server",), ("-q", "server"), ("--", "server")])
def test_a_folder_of_that_name_is_judged(folder, monkeypatch, arguments):
    monkeypatch.chdir(folder)
    (folder / "server").mkdir()
    (folder / "server" / "a.py").write_text("import torch\n\n\ndef f(x)\n")
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "a.py:4:9: syntax error" in done.output
