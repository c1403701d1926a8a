"""Results that are kept between runs."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from amp_migrate.run import store as store_module
from amp_migrate.settings.caching import cache_folder
from amp_rules.source.digest import digest_of

FILES = {"a.py": "fill(x, 1)\n", "b.py": "x = 1\n", "c/d.py": "log(x)\nimport a\n", "bad.py": "x = (\n"}


@pytest.fixture
def lint(write, invoke):
    """Lint everything and return what was printed."""
    write(FILES)

    def call(*options):
        done = invoke(".", "--format", "json", *options)
        return done.stdout, done.stderr, done.exit_code

    return call


def test_a_second_run_analyses_nothing_and_says_the_same(lint, calls):
    first = lint()
    assert calls() == ["a.py", "b.py", "bad.py", "d.py"]
    assert lint() == first
    assert calls() == []
    assert lint("--no-cache") == first
    assert len(calls()) == 4


def test_a_changed_file_is_analysed_again(lint, calls, write):
    lint(), calls()
    write({"b.py": "half(x)\n"})
    assert "AMP701" in lint()[0]
    assert calls() == ["b.py"]
    write({"b.py": "x = 1\n"})
    assert "AMP701" not in lint()[0]


def test_equal_size_and_time_do_not_hide_a_change(lint, calls, folder):
    lint(), calls()
    status = (folder / "b.py").stat()
    (folder / "b.py").write_text("x = 2\n")
    os.utime(folder / "b.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    lint()
    assert calls() == ["b.py"]


def test_a_change_of_what_a_file_rests_on_counts(write, invoke, calls, folder):
    write({"a.py": "import helper\nlog(x)\n", "b.py": "log(x)\n"})
    invoke("a.py", "b.py"), calls()
    write({"helper.py": "x = 1\n"})
    invoke("a.py", "b.py")
    assert calls() == ["a.py"]
    invoke("a.py", "b.py")
    assert calls() == []
    (folder / "helper.py").unlink()
    invoke("a.py", "b.py")
    assert calls() == ["a.py"]


def test_the_hash_is_the_one_of_the_analysis():
    from amp_rules.source import project_facts

    assert project_facts.digest_of(b"text") == digest_of(b"text")


def test_each_mode_and_each_set_of_rules_has_its_own(lint, calls):
    lint(), calls()
    for options in (["--opt-level", "O3"], ["--dtype", "bf16"], ["--ddp"], ["--select", "AMP6"], ["--preview"]):
        lint(*options)
        assert len(calls()) == 4, options
        lint(*options)
        assert calls() == []
    for options in (["--severity", "error"], ["--format", "sarif"], ["--jobs", "1"], ["--unsafe-fixes"]):
        lint(*options)
        assert calls() == [], options


def test_a_change_of_the_rules_counts(lint, calls, monkeypatch):
    lint(), calls()
    monkeypatch.setattr(store_module, "fingerprint", lambda: "another")
    lint()
    assert len(calls()) == 4


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 100, None, "cut", "flip"])
def test_a_damaged_cache_counts_as_none(lint, calls, folder, damage):
    first = lint()
    calls()
    for file in cache_folder().glob("*.json"):
        data = file.read_bytes()
        if damage is None:
            file.unlink()
            file.mkdir()
        else:
            changed = {"cut": data[:-3], "flip": data[:-1] + bytes([data[-1] ^ 1])}.get(damage, damage)
            file.write_bytes(changed)
    assert lint() == first
    assert len(calls()) == 4


def test_a_folder_that_cannot_be_written_is_no_error(lint, folder, calls):
    (folder / "file").write_text("")
    first = lint("--cache-dir", "file/below")
    assert lint("--no-cache") == first
    assert (folder / "file").read_text() == ""


def test_the_folder_is_marked_as_a_cache_and_kept_out_of_git(lint, folder):
    lint()
    kept = cache_folder()
    assert (kept / ".gitignore").read_text() == "*\n"
    assert (kept / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert list(kept.glob("*.tmp")) == []
    lint("--cache-dir", "elsewhere")
    assert (folder / "elsewhere/CACHEDIR.TAG").exists()


def test_files_that_are_gone_are_forgotten_and_others_are_not(lint, invoke, calls, folder, write):
    lint(), calls()
    (folder / "a.py").unlink()
    write({"b.py": "y = 1\n"})
    invoke("b.py"), calls()
    lint()
    assert calls() == []
    write({"a.py": FILES["a.py"]})
    lint()
    assert calls() == ["a.py"]


def test_old_files_of_other_versions_are_swept_away(lint, folder, write):
    lint()
    old, young = cache_folder() / "0000-old.json", cache_folder() / "0000-young.json"
    for file in (old, young):
        file.write_bytes(b"")
    os.utime(old, (0, 0))
    write({"b.py": "z = 1\n"})
    lint()
    assert (old.exists(), young.exists()) == (False, True)


def test_both_commands_keep_what_they_find_in_one_place(lint, folder, monkeypatch):
    assert cache_folder() == Path(os.environ["XDG_CACHE_HOME"]) / "amp-migrate"
    lint()
    assert list(cache_folder().glob("*.json"))
    assert not list(folder.glob(".*"))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == Path.home() / ".cache/amp-migrate"
    for name in ("migrate", "lint"):
        command = importlib.import_module(f"amp_migrate.commands.{name}").main
        (option,) = (item for item in command.params if "--cache-dir" in item.opts)
        assert "[default: $XDG_CACHE_HOME/amp-migrate, or ~/.cache/amp-migrate]" in option.help


def test_projects_do_not_share_what_they_keep(write, invoke, calls):
    for name in ("one", "two"):
        write({f"{name}/pyproject.toml": "[tool.amp-lint]\n", f"{name}/a.py": "fill(x, 1)\n"})
        invoke(name), calls()
    kept = len(list(cache_folder().glob("*.json")))
    for name in ("one", "two"):
        invoke(name)
    assert calls() == []
    # One for the rules, one for each project.
    assert kept == 3


def test_standard_input_is_not_kept(invoke, folder):
    invoke("-", input="fill(x, 1)\n")
    assert not cache_folder().exists()


def test_a_file_that_took_too_long_is_tried_again(write, invoke, calls):
    write(a="SLOW\n", b="x = 1\n")
    for _ in range(2):
        done = invoke("a.py", "b.py", "--timeout", "0.1")
        assert "a.py: analysis took longer than 0.1 s; skipped" in done.stderr
    assert calls() == ["a.py", "a.py", "b.py"]


def test_a_cached_run_imports_nothing_slow(write, spawn, folder):
    write(FILES)
    spawn(".")
    code = (
        "import sys; from amp_migrate.commands.lint import main\n"
        "try: main(['.', '--format', 'json'])\n"
        "except SystemExit: pass\n"
        "slow = {'libcst', 'rich', 'pathspec', 'multiprocessing', 'amp_rules.lint.linter', 'amp_rules.checks'}\n"
        "print('LOADED', sorted(slow & set(sys.modules)))"
    )
    import subprocess
    import sys

    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=60)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "LOADED []"
