"""Writing: whole files or none, with everything but the text as it was."""

from __future__ import annotations

import os
import stat

import pytest
from amp_migrate.write import replacing
from amp_migrate.write.replacing import Replacement, replace_all
from cli_standin import TRAIN

AFTER = TRAIN.replace("loss.backward()", "amp.scaler.scale(loss).backward()")


def leftovers(folder):
    return [path.name for path in folder.rglob(".*")]


def test_write_changes_the_text_and_keeps_the_permissions(folder, invoke):
    file = folder / "train.py"
    file.write_text(TRAIN)
    file.chmod(0o750)
    done = invoke("train.py", "-w")
    assert (done.exit_code, done.stdout) == (0, "")
    assert file.read_text() == AFTER
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert "wrote train.py" in done.stderr
    assert leftovers(folder) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + TRAIN.encode(),
        TRAIN.replace("\n", "\r\n").encode(),
        TRAIN.removesuffix("\n").encode(),
        ("# coding: gbk\n# 训练\n\f" + TRAIN).encode("gbk"),
        ("# \u2028 \x1c\n" + TRAIN).encode(),
    ],
)
def test_write_keeps_encoding_mark_and_newlines(data, folder, invoke):
    file = folder / "train.py"
    file.write_bytes(data)
    assert invoke("train.py", "-w").exit_code == 0
    assert file.read_bytes() == data.replace(b"loss.backward()", b"amp.scaler.scale(loss).backward()")


def test_a_second_run_changes_nothing(folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    invoke("train.py", "-w")
    again = invoke("train.py")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "precision already" in again.stderr


def test_a_link_stays_and_its_target_changes(folder, invoke):
    (folder / "real").mkdir()
    (folder / "real/train.py").write_text(TRAIN)
    (folder / "train.py").symlink_to("real/train.py")
    assert invoke("train.py", "-w").exit_code == 0
    assert (folder / "train.py").is_symlink()
    assert (folder / "real/train.py").read_text() == AFTER


def test_a_file_that_changed_since_its_analysis_is_left_alone(folder, invoke):
    (folder / "train.py").write_text(TRAIN + "# RACE\n")
    done = invoke("train.py", "-w")
    assert done.exit_code == 2
    assert "train.py: changed while it was being analysed" in done.stderr
    assert (folder / "train.py").read_bytes() == b"# somebody saved this meanwhile\n"
    assert leftovers(folder) == []


def test_a_read_only_file_keeps_its_whole_project_from_being_written(folder, invoke):
    for project in ("one", "two"):
        (folder / project).mkdir()
        (folder / project / "setup.py").write_text("")
        for name in ("a.py", "b.py"):
            (folder / project / name).write_text(TRAIN)
    (folder / "one/a.py").chmod(0o444)
    done = invoke("one", "two", "-w")
    assert done.exit_code == 2
    assert "one/a.py: is read-only" in done.stderr
    assert [(folder / "one" / name).read_text() for name in ("a.py", "b.py")] == [TRAIN, TRAIN]
    assert [(folder / "two" / name).read_text() for name in ("a.py", "b.py")] == [AFTER, AFTER]


def test_the_files_of_one_entry_are_written_together_or_not_at_all(folder, invoke):
    (folder / "train.py").write_text("import shared\n" + TRAIN)
    (folder / "shared.py").write_text(TRAIN)
    (folder / "shared.py").chmod(0o444)
    assert invoke("train.py", "-w").exit_code == 2
    assert (folder / "train.py").read_text() == "import shared\n" + TRAIN
    (folder / "shared.py").chmod(0o644)
    assert invoke("train.py", "-w").exit_code == 0
    assert "amp.scaler" in (folder / "train.py").read_text()
    assert (folder / "shared.py").read_text() == AFTER


def test_what_was_replaced_is_put_back_when_a_later_file_fails(folder, monkeypatch):
    for name in ("a.py", "b.py"):
        (folder / name).write_text("old")
    real = os.replace

    def failing(source, target):
        if os.path.basename(target) == "b.py":
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(replacing.os, "replace", failing)
    items = [Replacement(folder / name, b"new", b"old", folder / name) for name in ("a.py", "b.py")]
    problem = replace_all(items)
    assert str(problem) == "b.py: cannot be written: No space left on device"
    assert [(folder / name).read_text() for name in ("a.py", "b.py")] == ["old", "old"]
    assert leftovers(folder) == []


def test_a_file_that_vanished_is_reported(folder):
    item = Replacement(folder / "gone.py", b"new", b"old", folder / "gone.py")
    assert "vanished" in str(replace_all([item]))
    assert not (folder / "gone.py").exists()


def test_output_to_a_folder_keeps_the_layout_and_the_originals(folder, invoke):
    (folder / "src/lib").mkdir(parents=True)
    (folder / "src/train.py").write_text("import shared\n" + TRAIN)
    (folder / "src/shared.py").write_text(TRAIN)
    (folder / "src/lib/other.py").write_text(TRAIN)
    (folder / "src/quiet.py").write_text("x = 1\n")
    assert invoke("src", "-o", "out").exit_code == 0
    written = sorted(path.relative_to(folder / "out").as_posix() for path in (folder / "out").rglob("*.py"))
    assert written == ["lib/other.py", "shared.py", "train.py"]
    assert (folder / "out/shared.py").read_text() == AFTER
    assert (folder / "src/shared.py").read_text() == TRAIN


def test_output_to_a_file(folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    assert invoke("train.py", "-o", "new/amp.py").exit_code == 0
    assert (folder / "new/amp.py").read_text() == AFTER
    (folder / "train.py").write_text("import shared\n" + TRAIN)
    (folder / "shared.py").write_text(TRAIN)
    done = invoke("train.py", "-o", "second.py")
    assert done.exit_code == 2
    assert "2 files change: shared.py, train.py" in done.stderr
    assert not (folder / "second.py").exists()


def test_output_never_overwrites_the_original(folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    for output in (".", "train.py"):
        done = invoke("train.py", "-o", output)
        assert done.exit_code == 2
        assert "use -w" in done.stderr
    assert (folder / "train.py").read_text() == TRAIN


def test_output_into_a_place_that_cannot_be_made(folder, invoke):
    (folder / "train.py").write_text(TRAIN)
    (folder / "file").write_text("")
    done = invoke("train.py", "-o", "file/out")
    assert done.exit_code == 2
    assert "file/out: cannot be made" in done.stderr
