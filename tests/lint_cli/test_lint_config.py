"""Settings: where they are found, what they allow, and what beats what."""

from __future__ import annotations

import json

import pytest
from amp_migrate.settings.caching import cache_folder
from amp_migrate.settings.linting import LintSettings, load_settings
from amp_rules.lattice.mode import Mode


def configure(folder, body):
    (folder / "pyproject.toml").write_text(f"[tool.amp-lint]\n{body}\n")


def test_every_key_reaches_the_settings(folder):
    configure(
        folder,
        'opt-level = "O2"\ndtype = "bf16"\ndevice = "cpu"\nddp = true\nselect = ["AMP6"]\nignore = ["AMP601"]\n'
        'extend-select = ["AMP7"]\nper-file-ignores = { "a/*" = ["AMP6"] }\npreview = true\nmin-severity = "error"\n'
        'exclude = ["old/"]\nbaseline = "known.json"\nunsafe-fixes = true\nformat = "concise"\n'
        'jobs = 3\ntimeout = 2.5\ncache-dir = "kept"',
    )
    settings = load_settings(folder, None)
    assert settings.mode == Mode("O2", "bf16", "cpu", True)
    (layer,) = settings.layers
    assert (layer.select, layer.ignore, layer.extend) == (("AMP6",), ("AMP601",), ("AMP7",))
    assert settings.per_file_ignores == {"a/*": ("AMP6",)}
    assert (settings.preview, settings.min_severity, settings.exclude) == (True, "error", ("old/",))
    assert (settings.baseline, settings.cache_folder) == (folder / "known.json", folder / "kept")
    assert (settings.unsafe_fixes, settings.output_format, settings.jobs, settings.timeout) == (True, "concise", 3, 2.5)
    assert settings.root == folder.resolve()


def test_without_a_file_the_defaults_hold(folder):
    settings = load_settings(folder, None)
    assert settings == LintSettings(root=folder, cache_folder=cache_folder())
    assert str(settings.mode) == "O1 fp16 cuda"


def test_the_nearest_file_with_the_table_holds(folder):
    configure(folder, "ddp = true")
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/pyproject.toml").write_text("[tool.amp-migrate]\nddp = false\n")
    assert load_settings(folder / "a/b", None).mode.ddp
    configure(folder / "a", "preview = true")
    assert not load_settings(folder / "a/b", None).mode.ddp


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('opt_level = "O1"', ["unknown key 'opt_level' in [tool.amp-lint]", "did you mean 'opt-level'?"]),
        ("per-file-ignore = {}", ["did you mean 'per-file-ignores'?"]),
        ("quux = 1", ["unknown key 'quux'", "known keys: opt-level, dtype"]),
        ('opt-level = "O0"', ['opt-level = "O0"', '"O1", "O2", "O3"']),
        ("ddp = 1", ["ddp = 1", "true, false"]),
        ('select = "AMP6"', ["a list of codes, names and prefixes"]),
        ('per-file-ignores = ["a"]', ["a table of patterns and codes"]),
        ("per-file-ignores = { a = 1 }", ["a table of patterns and codes"]),
        ('min-severity = "high"', ['"error", "warning", "performance", "info"']),
        ("jobs = -1", ["a whole number from 0"]),
        ("jobs = true", ["a whole number from 0"]),
        ("timeout = -1", ["a number of seconds"]),
        ("timeout = inf", ["a number of seconds"]),
        ("baseline = 1", ["the path of a file"]),
        ('format = "xml"', ['"full", "concise"']),
        ('select = ["AMP999"]', ["unknown rule 'AMP999' in [tool.amp-lint]"]),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(folder, invoke, body, words):
    configure(folder, body)
    (folder / "train.py").write_text("x = 1\n")
    done = invoke("train.py")
    assert (done.exit_code, done.stdout) == (2, "")
    for word in words:
        assert word in done.stderr


def test_the_command_line_beats_the_file(write, folder, invoke):
    configure(folder, 'opt-level = "O3"\nddp = true\nformat = "json"\nselect = ["AMP9"]\nmin-severity = "error"')
    write(train="fill(x, 1)\nstep(x)\n")
    assert json.loads(invoke("train.py").stdout)["findings"] == []
    done = invoke("train.py", "--no-ddp", "--severity", "performance", "--opt-level", "O2")
    assert json.loads(done.stdout)["mode"] == {"opt_level": "O2", "dtype": "fp16", "device": "cuda", "ddp": False}
    assert "AMP902" in invoke("train.py", "--severity", "performance", "--format", "concise").stdout
    assert "AMP601" in invoke("train.py", "--select", "AMP601", "--format", "concise").stdout


def test_an_explicit_file_replaces_the_nearest(write, folder, invoke):
    configure(folder, "ddp = 3")
    (folder / "other.toml").write_text('[tool.amp-lint]\nselect = ["AMP7"]\n')
    write(train="fill(x, 1)\n")
    assert invoke("train.py", "--config", "other.toml").exit_code == 0
    (folder / "empty.toml").write_text("")
    assert "empty.toml: has no table [tool.amp-lint]" in invoke("train.py", "--config", "empty.toml").stderr


def test_excluded_folders_are_passed_over_unless_a_file_is_named(write, folder, invoke):
    configure(folder, 'exclude = ["old/"]')
    write({"old/a.py": "fill(x, 1)\n"})
    assert invoke(".").exit_code == 0
    assert invoke("old/a.py").exit_code == 1


def test_patterns_and_paths_are_relative_to_the_file(write, folder, invoke, monkeypatch):
    configure(folder, 'baseline = "known.json"\nper-file-ignores = { "src/a.py" = ["AMP6"] }')
    write({"src/a.py": "fill(x, 1)\n", "src/b.py": "log(x)\n"})
    assert invoke(".", "--write-baseline", "known.json").exit_code == 0
    monkeypatch.chdir(folder / "src")
    done = invoke("a.py", "b.py")
    assert (done.exit_code, done.stdout) == (0, "")
    assert not (folder / "src/.amp-lint-cache").exists()


def test_files_to_pass_over_can_be_named_on_the_command_line(write, invoke):
    write(
        {
            "pyproject.toml": '[tool.amp-lint]\nexclude = ["a.py"]\n',
            "a.py": "x = 1\n",
            "b.py": "x = 1\n",
            "c.py": "x = 1\n",
        }
    )
    assert invoke(".").stderr == "nothing found in 2 files\n"
    assert invoke(".", "--exclude", "b.py,c.py").stderr == "nothing found in 1 file\n"


def test_formats_have_the_name_that_other_linters_give_them(write, invoke):
    write({"a.py": "fill(x, 1)\n"})
    assert invoke("a.py", "--output-format", "concise").stdout.startswith("a.py:1:1: AMP601")
