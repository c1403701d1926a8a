"""``--report``: which files it takes, and what it says where it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest
from amp_migrate.commands.migrate import main
from amp_migrate.installation import install_line
from amp_migrate.report import option
from amp_migrate.report.given import migration_of
from amp_migrate.report.html import render_html
from amp_migrate.report.pages import page
from amp_migrate.verify import making, warm
from amp_migrate.verify.versions import Versions
from click.testing import CliRunner
from samples import FIXTURES

pytestmark = pytest.mark.heavy


@pytest.fixture
def project(tmp_path, monkeypatch):
    shutil.copytree(FIXTURES / "runnable/trainer_other_files", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def invoke(*arguments):
    return CliRunner().invoke(main, ["--no-cache", "-j", "1", *map(str, arguments)])


def test_both_forms_are_written_beside_the_diff(project):
    done = invoke("train.py", "--report", "a.html", "--report", "b.md")
    assert done.exit_code == 0, done.output
    assert (project / "a.html").read_text().startswith("<!doctype html>")
    assert (project / "b.md").read_text().startswith("## Migration of `train.py`\n".replace("`", ""))
    assert "wrote a.html" in done.stderr and done.stdout.startswith("diff --git")


def test_the_report_of_a_run_that_writes_is_of_what_it_wrote(project):
    (project / "reports").mkdir()
    invoke("train.py", "--report", "reports/dry.md")
    done = invoke("train.py", "-w", "--allow-dirty", "--report", "reports/written.md")
    assert done.exit_code == 0 and "amp.scaler" in (project / "trainer/trainer.py").read_text()
    assert (project / "reports/dry.md").read_text() == (project / "reports/written.md").read_text()


def test_check_reports_what_is_due(project):
    done = invoke("train.py", "--check", "--report", "a.md")
    assert done.exit_code == 1 and "AMP103" in (project / "a.md").read_text()


@pytest.mark.parametrize("name", ["report.txt", "report", "report.HTML2"])
def test_other_endings_are_refused_before_any_work(project, name):
    done = invoke("train.py", "--report", name, "-w")
    assert done.exit_code == 2 and "ends neither in .html nor in .md" in done.output
    assert "amp_runtime" not in (project / "train.py").read_text()


def test_a_folder_that_is_not_there_is_said_before_any_work(project):
    done = invoke("train.py", "--report", "no/report.md", "-w")
    assert done.exit_code == 2 and "there is no folder no to write report.md to" in done.output
    assert "amp_runtime" not in (project / "train.py").read_text()


def test_a_folder_of_that_name_is_said(project):
    (project / "x.md").mkdir()
    done = invoke("train.py", "--report", "x.md")
    assert done.exit_code == 2 and "x.md is a folder" in done.output


def test_nothing_is_reported_beside_undo(project):
    done = invoke("--undo", "--report", "a.md")
    assert done.exit_code == 2 and "nothing to report" in done.output


def test_without_the_extra_a_page_is_refused_and_a_description_is_not(project, monkeypatch):
    monkeypatch.setattr(option, "find_spec", lambda name: None if name == "matplotlib" else object())
    done = invoke("train.py", "--report", "a.html")
    assert done.exit_code == 2 and f"needs matplotlib: {install_line('report', here=True)}" in done.output
    assert invoke("train.py", "--report", "a.md").exit_code == 0


def test_a_description_needs_nothing_of_the_extra(project):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('jinja2', 'matplotlib', 'pygments')))\n"
        "from amp_migrate.commands.migrate import main; main(['train.py', '-q', '--no-cache', '--report', 'a.md'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (project / "a.md").exists()


def test_verify_reports_what_it_found(project, monkeypatch):
    monkeypatch.setattr(making, "make_all", lambda *arguments: {})
    monkeypatch.setattr(warm, "starter", lambda *arguments: nullcontext())
    done = invoke_verify("train.py", "--report", "a.html", "--report", "b.md")
    assert done.exit_code == 3, done.output
    for name in ("a.html", "b.md"):
        text = (project / name).read_text()
        assert "Not proved" in text and "The original was not run" in text and "AMP103" in text


def test_verify_refuses_other_endings_before_any_work(project):
    done = invoke_verify("train.py", "--report", "a.txt")
    assert done.exit_code == 2 and "ends neither in .html nor in .md" in done.output


def invoke_verify(*arguments):
    return CliRunner().invoke(main, ["verify", *arguments])


def test_a_version_that_was_given_is_shown_without_labels(project):
    path, gone = project / "train.py", project / "gone.py"
    data = path.read_bytes()
    given = Versions(
        original={gone: b"x = 1\n", project / "data.bin": b"\xff"},
        migrated={path: data + b"\nprint(1)\n", gone: None, project / "bad.py": b"\xff\xfe"},
    )
    done = migration_of(given)
    assert sorted(done.run.updates) == [gone, path] and not done.run.reports
    files = {file.name: file for file in page(done).files}
    assert (files["train.py"].added, files["train.py"].removed) == (2, 0)
    assert (files["gone.py"].added, files["gone.py"].removed) == (0, 1)
    assert "print" in render_html(done)


def test_settings_of_the_linter_that_are_wrong_are_said(project):
    (project / "pyproject.toml").write_text('[tool.amp-lint]\nselect = ["AMPX"]\n')
    done = invoke("train.py", "--report", "a.md", "-w", "--allow-dirty")
    assert done.exit_code == 2 and "AMPX" in done.output and "Traceback" not in done.output
    assert "amp_runtime" not in (project / "train.py").read_text()
