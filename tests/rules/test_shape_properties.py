"""The edits rest on what a script does: not on its names, nor on where its lines stand."""

from __future__ import annotations

import ast
import zlib
from functools import cache
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from hypothesis import given
from hypothesis import strategies as st
from migrating import FIXTURES
from reshaping import ENTRY, SHAPES, NotPossible, essence
from test_properties import few, scripts

pytestmark = pytest.mark.heavy

# What is made within a call in one file stands in a variable in the other, so that another text is quoted; a counter
# that no loop counts is the epoch by its name; an import that only one of two files needs goes from the other; a class
# that stands in for a failing import stays behind.
OTHER_WORDS = {
    ("inside_the_loader", "two files"),
    ("one_sampler_or_another", "renamed"),
    ("own_scaler_for_an_older_torch", "two files"),
    ("wrapper_of_apex_in_one_branch", "two files"),
}
# The linter looks for an epsilon in files that name one, or write it where it is used. A test of the rank on a machine
# that has no such name gets one of the rank besides.
NAMED = {("parts_of_a_chain", "renamed"), ("log_that_each_machine_adds_to", "renamed")}
# Functions and classes that a function defines: the linter's analysis does not run them with what they are given, so
# one number and one epsilon are not found there; nor is a level known that such a function chooses. A function that
# nothing calls is left out where it stands at the head of its file only, and a method where its class does.
NESTED = {
    ("apex_level_is_written_out", "in a method"),
    ("before_a_root", "in a method"),
    ("evaluated_by_methods", "in a function"),
    ("evaluated_by_methods_that_give_several", "in a function"),
    ("evaluated_teacher", "in a function"),
    ("evaluated_teacher_of_another_kind", "in a method"),
    ("function_that_nothing_calls", "in a method"),
    ("hook_that_keeps_for_another_script", "in a function"),
    ("hook_that_keeps_for_another_script", "in a method"),
    ("left_over_training_function", "in a method"),
    ("loss_that_multiplies_at_a_kept_o2", "in a method"),
    ("masks_that_a_region_computes", "in a function"),
    ("mel_spectra", "in a method"),
    ("model_made_anew_at_the_end", "in a method"),
    ("model_of_a_file_at_the_end", "in a method"),
    ("models_that_nothing_gives", "in a method"),
    ("noop_called_in_fp32", "in a method"),
    ("noop_method_that_nothing_calls", "in a function"),
    ("noop_method_that_nothing_calls", "in a method"),
    ("noop_normals_that_nothing_asks_for", "in a function"),
    ("noop_normals_that_nothing_asks_for", "in a method"),
    ("parts_of_a_chain", "in a method"),
    ("places_by_a_layer_of_the_model_too", "in a function"),
    ("vae_loss_function", "in a method"),
    ("written_into_half", "in a function"),
}
# Shapes that each script is tried in, of all: one is enough for each shape to meet a hundred scripts.
OF_EACH = 3


def script_files() -> list[Path]:
    found = [path for family in "123" for path in FIXTURES.glob(f"AMP{family}*/*/before.py")]
    return sorted([*found, *(FIXTURES / "runnable").glob("*/*.py")])


def tried(path: Path) -> list[str]:
    """Some shapes for a script, others for the next."""
    names = sorted(SHAPES)
    start = zlib.crc32(f"{path.parent.name}/{path.name}".encode())
    return [names[(start + 3 * number) % len(names)] for number in range(OF_EACH)]


def decided(folder: Path, files: dict[str, str]):
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return migrate(folder / ENTRY, Options(ddp=True))


def compare(folder: Path, text: str, shapes: list[str]) -> None:
    # Without comments and in one style: what the shapes are made by.
    text = ast.unparse(ast.parse(text)) + "\n"
    before = cache(lambda: essence(decided(folder / "before", {ENTRY: text}), {}))
    for shape in shapes:
        try:
            files, names = SHAPES[shape](text)
        except NotPossible:
            continue
        assert essence(decided(folder / shape, files), names) == before(), f"{shape}:\n{files[ENTRY]}"


@pytest.mark.parametrize("path", script_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_fixture_gets_the_same_edits_in_another_shape(path, tmp_path):
    compare_in(tried(path)[:1], path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", script_files(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_fixture_gets_the_same_edits_in_further_shapes(path, tmp_path):
    compare_in(tried(path)[1:], path, tmp_path)


def compare_in(shapes: list[str], path: Path, folder: Path) -> None:
    left_out = OTHER_WORDS | NAMED | NESTED
    kept = [shape for shape in shapes if (path.parent.name, shape) not in left_out]
    compare(folder, path.read_text(encoding="utf-8"), kept)


@few
@given(script=scripts, shape=st.sampled_from(sorted(SHAPES)))
def test_a_generated_script_gets_the_same_edits_in_another_shape(tmp_path_factory, script, shape):
    compare(tmp_path_factory.mktemp("shape"), script.text(), [shape])
