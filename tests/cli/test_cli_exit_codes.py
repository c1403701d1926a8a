"""One table of exit codes for all commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from amp_migrate.commands.lint import main as lint
from amp_migrate.commands.migrate import main as migrate
from amp_migrate.exit_codes import ExitCode, help_on_exit_codes
from amp_migrate.problems import NothingShownError, UserError
from amp_migrate.run import discovery
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
HELPS = {
    "amp-migrate": (migrate, ["--help"]),
    "amp-migrate verify": (migrate, ["verify", "--help"]),
    "amp-lint": (lint, ["--help"]),
}


def told(name: str) -> set[int]:
    """Return the codes that a command's help lists."""
    command, words = HELPS[name]
    text = CliRunner().invoke(command, words).stdout
    paragraph = text.partition("Exit status:\n")[2].partition("\n\n")[0]
    return {int(code) for code in re.findall(r"^ +(\d+) +\S", paragraph, re.MULTILINE)}


def test_the_documented_table_has_the_codes_that_the_commands_tell():
    rows = re.findall(r"^\| (\d+) \|.*", (ROOT / "docs/commands.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(row) for row in rows] == list(ExitCode)
    assert told("amp-migrate verify") == set(ExitCode)
    assert told("amp-migrate") == told("amp-lint") == set(ExitCode) - {ExitCode.NOTHING_SHOWN}


def test_the_help_keeps_a_line_for_each_code():
    assert help_on_exit_codes({ExitCode.ERROR: "wrong", ExitCode.FINE: "well"}) == (
        "\b\nExit status:\n  0   well\n  2   wrong\n  130 interrupted (Ctrl-C)"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no such setting"), 2),
        (NothingShownError("nothing to compare"), 3),
        (KeyError("a defect"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
@pytest.mark.parametrize("options", [(), ("-v",)])
def test_what_stops_a_run_has_its_code_whatever_is_printed(folder, monkeypatch, error, code, options):
    """Python itself would end a program with 1 that raises, and 1 says that something was found."""

    def discover(*arguments, **more):
        raise error

    monkeypatch.setattr(discovery, "discover", discover)
    Path("train.py").write_text("")
    done = CliRunner().invoke(migrate, ["train.py", *options])
    assert done.exit_code == code
    assert ("Traceback" in done.stderr) == (isinstance(error, KeyError) and bool(options))
