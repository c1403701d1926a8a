"""Settings: where they are found, what they allow, and what beats what."""

from __future__ import annotations

import pytest
from amp_migrate.problems import UserError
from amp_migrate.settings.migration import load_settings
from amp_rules.plan.options import Options
from cli_standin import TRAIN


def configure(folder, body):
    (folder / "pyproject.toml").write_text(f"[tool.amp-migrate]\n{body}\n")


def test_every_key_reaches_the_options(folder):
    configure(
        folder,
        'opt-level = "O2"\nddp = true\nsync-bn = false\nfused = false\ndtype = "bf16"\nloss-scale = 128\n'
        'vendor = true\nexclude = ["legacy/"]',
    )
    settings = load_settings(folder, None)
    assert settings.options == Options("O2", True, False, False, "bf16", 128.0)
    assert (settings.vendor, settings.exclude, settings.root) == (True, ("legacy/",), folder.resolve())


def test_sharing_evaluations_out_is_an_option_of_its_own(folder):
    configure(folder, "ddp = true\nshard-eval = true")
    assert load_settings(folder, None).options == Options(ddp=True, shard_eval=True)


def test_shards_bring_several_processes_with_them(folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    configure(folder, "shard = true")
    assert load_settings(folder, None).options == Options(shard=True)
    done = invoke("train.py", "--no-ddp")
    assert (done.exit_code, done.stdout) == (2, "") and "--no-ddp has one" in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        ("--opt-level", "O3"),
        ("--target", "torch"),
        ("--apex", "compat"),
        ("--shard-eval",),
    ],
)
def test_what_does_not_go_with_shards_is_refused(folder, invoke, given):
    (folder / "train.py").write_text(TRAIN)
    done = invoke("train.py", "--shard", *given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --shard ") and given[0].removesuffix("-eval") in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        ("--shard",),
        ("--ddp", "--shard-embeddings", "1000"),
        ("--target", "torch"),
        ("--apex", "compat"),
    ],
)
def test_what_does_not_go_with_int8_is_refused(folder, invoke, given):
    (folder / "train.py").write_text(TRAIN)
    configure(folder, 'quantize = "static"')
    assert load_settings(folder, None).options == Options(quantize="static")
    done = invoke("train.py", *given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --quantize ") and (given[-2] if len(given) > 1 else given[0]) in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        ("--no-ddp",),
        ("--ddp", "--shard"),
        ("--ddp", "--opt-level", "O2"),
        ("--ddp", "--target", "torch"),
        ("--ddp", "--apex", "compat"),
        ("--ddp", "--shard-eval"),
    ],
)
def test_what_does_not_go_with_tables_that_are_shared_out_is_refused(folder, invoke, given):
    (folder / "train.py").write_text(TRAIN)
    configure(folder, "shard-embeddings = 1000")
    assert load_settings(folder, None).options == Options(shard_embeddings=1000)
    done = invoke("train.py", *given)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --shard") and "--shard-embeddings" in done.stderr


def test_the_nearest_file_with_the_table_holds(folder):
    configure(folder, "ddp = true")
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert load_settings(folder / "a/b", None).options.ddp
    configure(folder / "a", "fused = false")
    assert load_settings(folder / "a/b", None).options == Options(fused=False)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('opt_level = "O1"', ["unknown key 'opt_level'", "did you mean 'opt-level'?"]),
        ("lossscale = 1", ["did you mean 'loss-scale'?"]),
        ("quux = 1", ["unknown key 'quux'", "known keys: opt-level, ddp"]),
        ('opt-level = "O4"', ['opt-level = "O4"', '"O0", "O1", "O2", "O3"']),
        ("opt-level = 1", ["opt-level = 1", '"O0"']),
        ("shard-embeddings = 0", ["shard-embeddings = 0", "a positive whole number"]),
        ("shard-embeddings = true", ["shard-embeddings = true", "a positive whole number"]),
        ('ddp = "yes"', ['ddp = "yes"', "true, false"]),
        ("ddp = 1", ["ddp = 1", "true, false"]),
        ("loss-scale = true", ["loss-scale = true", '"dynamic" or a positive number']),
        ("loss-scale = -1", ["loss-scale = -1", "positive"]),
        ("loss-scale = nan", ["positive"]),
        ('loss-scale = "big"', ['loss-scale = "big"']),
        ("loss-scale = [1]", ["loss-scale = [1]"]),
        ('exclude = "legacy"', ["gitignore patterns"]),
        ("exclude = [1]", ["gitignore patterns"]),
        ("dtype = []", ["dtype = []", '"auto", "fp16", "bf16"']),
        ("dtype =", ["is not valid TOML"]),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(folder, invoke, body, words):
    configure(folder, body)
    (folder / "train.py").write_text(TRAIN)
    done = invoke("train.py")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: pyproject.toml: ")
    for word in words:
        assert word in done.stderr


def test_the_command_line_beats_the_file(folder, invoke):
    configure(folder, "loss-scale = 128\nddp = true")
    (folder / "train.py").write_text(TRAIN)
    assert "scales 128.0" in invoke("train.py", "-v").stderr
    done = invoke("train.py", "-v", "--loss-scale", "dynamic", "--no-ddp")
    assert "scales dynamic" in done.stderr
    assert "distribution not requested" in done.stderr


def test_an_explicit_file_replaces_the_nearest(folder, invoke):
    configure(folder, 'ddp = "broken"')
    (folder / "other.toml").write_text("[tool.amp-migrate]\nloss-scale = 64\n")
    (folder / "train.py").write_text(TRAIN)
    assert "scales 64.0" in invoke("train.py", "-v", "--config", "other.toml").stderr
    assert "none.toml: cannot be read" in invoke("train.py", "--config", "none.toml").stderr
    (folder / "empty.toml").write_text("")
    done = invoke("train.py", "--config", "empty.toml")
    assert done.exit_code == 2
    assert "has no table [tool.amp-migrate]" in done.stderr


def test_exclude_in_the_file_holds_for_folders(folder, invoke):
    configure(folder, 'exclude = ["old/"]')
    (folder / "old").mkdir()
    (folder / "old/train.py").write_text(TRAIN)
    (folder / "train.py").write_text(TRAIN)
    assert "old/" not in invoke(".").stdout
    assert "old/train.py" in invoke("old/train.py").stdout


def test_a_file_that_is_no_table_is_refused(folder):
    (folder / "pyproject.toml").write_text("tool.amp-migrate = 3\n")
    with pytest.raises(UserError, match="must be a table, not 3"):
        load_settings(folder, None)
