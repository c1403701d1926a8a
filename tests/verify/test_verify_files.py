"""What a run writes is described without torch, and files that differ are told from those that do not."""

from __future__ import annotations

import collections
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from amp_migrate.verify.checks import files, files_together
from amp_migrate.verify.evidence import Check
from amp_migrate.verify.plan import O0, O0_TOGETHER, ORIGINAL, ORIGINAL_AGAIN, Asked
from amp_migrate.verify.saved_values import Unreadable, read_values
from amp_migrate.verify.traces import Backward, Batch, Entry, Opened, RankTrace, Trace, WrittenFile
from amp_migrate.verify.written_files import listing, written_files

ASKED = Asked("train.py")


def entries(path: Path) -> dict[str, Entry]:
    values = read_values(path)
    assert values is not None
    return {entry.key: entry for entry in values.entries}


# ---- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_of_torch_is_read_without_torch(tmp_path: Path, zipped: bool) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    saved = {"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.25, "names": ["a"]}
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    found = entries(tmp_path / "a.pt")
    assert found["epoch"] == Entry("epoch", "int", "3") and found["best"].value == "0.25"
    assert found["model/0.weight"].kind == "float32 (2, 3)" and found["model/1.num_batches_tracked"].kind == "int64 ()"
    assert found["optimizer/state/0/exp_avg"].kind == "float32 (2, 3)" and found["names/0"].value == "'a'"
    assert bool(found["model/0.weight"].value) is zipped


def test_the_numbers_of_a_tensor_count_and_not_its_storage(tmp_path: Path) -> None:
    import torch

    whole = torch.arange(12.0)
    for name, tensor in (("a", whole[4:8]), ("b", whole[4:8].clone()), ("c", whole[:4]), ("d", whole[4:8].half())):
        torch.save({"x": tensor}, tmp_path / f"{name}.pt")
    a, b, c, d = (entries(tmp_path / f"{name}.pt")["x"] for name in "abcd")
    assert a == b and a.value != c.value and d.kind == "float16 (4,)"


def test_a_model_that_is_saved_whole_names_its_classes(tmp_path: Path) -> None:
    import torch

    torch.save(torch.nn.Sequential(torch.nn.Linear(3, 2)), tmp_path / "net.pkl")
    values = read_values(tmp_path / "net.pkl")
    assert values is not None
    assert "torch.nn.modules.linear.Linear" in values.classes
    assert any(entry.kind == "float32 (2, 3)" and entry.value for entry in values.entries)


def test_arrays_and_pickles_are_read(tmp_path: Path) -> None:
    import numpy

    numpy.save(tmp_path / "a.npy", numpy.zeros((2, 3), dtype="f4"))
    numpy.savez(tmp_path / "b.npz", x=numpy.zeros(3), y=numpy.ones(2, dtype="i8"))
    saved = {"history": [1.5, 2.5], "array": numpy.ones((2, 2), dtype="f8"), "last": numpy.float32(3)}
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(collections.OrderedDict(saved)))
    assert entries(tmp_path / "a.npy")[""].kind == "float32 (2, 3)"
    assert {key: entry.kind for key, entry in entries(tmp_path / "b.npz").items()} == {
        "x": "float64 (3,)",
        "y": "int64 (2,)",
    }
    found = entries(tmp_path / "c.pkl")
    assert [found[key].kind for key in ("history/1", "array", "last")] == ["float", "float64 (2, 2)", "float32 ()"]


def test_safetensors_are_read(tmp_path: Path) -> None:
    import json
    import struct

    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert entries(tmp_path / "m.safetensors")["w"].kind == "float32 (2,)"


class Dangerous:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"x": Dangerous(tmp_path / "made")}))
    values = read_values(tmp_path / "a.pkl")
    assert values is not None and any("touch" in name for name in values.classes)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.pkl"])
def test_what_is_cut_off_is_unreadable(tmp_path: Path, name: str) -> None:
    import numpy
    import torch

    path = tmp_path / name
    {
        "a.pt": lambda: torch.save({"x": torch.zeros(100)}, path),
        "a.npy": lambda: numpy.save(path, numpy.zeros(100)),
    }.get(name, lambda: path.write_bytes(pickle.dumps(list(range(1000)))))()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(Unreadable):
        read_values(path)


def test_only_what_a_run_wrote_is_described(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old\n")
    (tmp_path / "changed.csv").write_text("a\n")
    before = listing(tmp_path)
    (tmp_path / "changed.csv").write_text("a\nb\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "image.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"\0")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    found = {file.name: (file.kind, file.lines) for file in written_files(tmp_path, before)}
    assert found == {"changed.csv": ("text", 2), "data.zip": ("other", 0), "out/image.png": ("other", 0)}


# ---- checks ----------------------------------------------------------------------------------------------------

LOG = WrittenFile("log.csv", "text", "epoch,loss\n1,0.5\n2,0.4\n", 3)
STATE = WrittenFile(
    "out/model.pt",
    "values",
    entries=(
        Entry("epoch", "int", "2"),
        Entry("net/a.weight", "float32 (2, 3)", "aa"),
        Entry("net/a.bias", "float32 (2,)", "bb"),
    ),
)
NAMES = {"out/model.pt": "train.py:30", "log.csv": "train.py:20"}


def trace(name: str, *written: WrittenFile, ranks: int = 1, level: str | None = "O0", writers: int = 1) -> Trace:
    """A run that wrote these files; the first so many ranks opened them."""
    backwards = tuple(Backward(1.0, 0.1 * step) for step in range(8 // ranks))
    batches = tuple(Batch(0, 0, step, (2 * step, 2 * step + 1), length=8 // ranks) for step in range(8 // ranks))
    opened = tuple(Opened(file.name, NAMES.get(file.name, "train.py:1"), 8) for file in written)
    made = tuple(
        RankTrace(
            number,
            backwards,
            batches,
            events=("process_group",) if ranks > 1 else (),
            opened=opened if number < writers else (),
        )
        for number in range(ranks)
    )
    return Trace(name, level, ranks, "ended", made, files=written)


def found(*traces: Trace, original: tuple[WrittenFile, ...] = (LOG, STATE)) -> dict[str, Check]:
    made = {one.name: one for one in (trace(ORIGINAL, *original, level=None), *traces)}
    return {check.id: check for module in (files, files_together) for check in module.check(made, ASKED)}


def again(*written: WrittenFile) -> Trace:
    return trace(ORIGINAL_AGAIN, *written, level=None)


def changed(key: str, /, **changes: str) -> WrittenFile:
    return replace(STATE, entries=tuple(replace(one, **changes) if one.key == key else one for one in STATE.entries))


PREFIXED = changed("net/a.weight", key="net/module.a.weight")


def test_the_same_files_are_proved() -> None:
    assert found(trace(O0, LOG, STATE))[files.ID].verdict == "proved"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ((LOG,), "does not write out/model.pt (written at train.py:30)"),
        ((LOG, STATE, replace(LOG, name="new.csv")), "writes new.csv"),
        ((LOG, PREFIXED), "lacks the key net/a.weight and has net/module.a.weight"),
        ((LOG, changed("net/a.bias", kind="float16 (2,)")), "float16 (2,) for net/a.bias"),
        ((LOG, changed("net/a.bias", value="cc")), "other numbers for net/a.bias"),
        ((LOG, changed("epoch", value="3")), "3 in place of 2 for epoch"),
        ((LOG, replace(STATE, classes=("amp_runtime.Model",))), "amp_runtime.Model"),
        ((LOG, replace(STATE, kind="unreadable")), "is cut off"),
        ((replace(LOG, text=LOG.text.replace("0.4", "0.8")), STATE), "`2,0.8` in place of `2,0.4`"),
        ((replace(LOG, text="epoch,loss\n"), STATE), "nothing in place of `1,0.5`"),
    ],
)
def test_another_file_is_disproved_where_the_original_repeats_itself(written: Any, words: str) -> None:
    check = found(trace(O0, *written), again(LOG, STATE))[files.ID]
    assert check.verdict == "disproved" and words in check.message, check.message
    assert found(trace(O0, *written))[files.ID].verdict == "unproved"


def test_what_the_original_does_not_repeat_is_no_evidence() -> None:
    other = trace(O0, replace(LOG, text=LOG.text.replace("0.4", "0.8")), changed("net/a.bias", value="cc"))
    second = again(replace(LOG, text=LOG.text.replace("0.4", "0.6")), changed("net/a.bias", value="dd"))
    assert found(other, second)[files.ID].verdict == "proved"
    assert found(other, again(LOG, changed("net/a.bias", value="dd")))[files.ID].verdict == "disproved"


def test_times_in_names_and_lines_are_left_out() -> None:
    one, two = (replace(LOG, name=f"runs/2024-01-0{day}_10-00-00/log.txt", text=f"took {day}.5 s\n") for day in (1, 2))
    assert found(trace(O0, two), original=(one,))[files.ID].verdict == "proved"


def test_checkpoints_in_half_are_disproved_at_lossy_levels() -> None:
    half = changed("net/a.bias", kind="bfloat16 (2,)")
    assert found(trace("O1", LOG, half, level="O1"))["o1-files"].verdict == "disproved"
    # An original that went on without a part of Apex is another training.
    original = trace(ORIGINAL, LOG, STATE, level=None)
    alone = replace(original.ranks[0], events=("lacks apex.fp16_utils",))
    traces = trace("O1", LOG, half, level="O1"), replace(original, ranks=(alone,))
    assert found(*traces)["o1-files"].verdict == "unproved"
    numbers = changed("net/a.bias", value="cc")
    assert found(trace("O1", replace(LOG, text="other\n"), numbers, level="O1"))["o1-files"].verdict == "proved"


def test_a_run_that_was_stopped_earlier_has_to_write_what_both_have() -> None:
    whole = trace(O0, changed("net/a.bias", value="cc"))
    ranks = (replace(whole.ranks[0], backwards=whole.ranks[0].backwards[:4]),)
    stopped = replace(whole, status="stopped", ranks=ranks)
    assert found(stopped)[files.ID].verdict == "proved"
    assert found(replace(stopped, files=(PREFIXED,)), again(LOG, STATE))[files.ID].verdict == "disproved"


def together(*written: WrittenFile, writers: int = 1) -> Check:
    return found(trace(O0_TOGETHER, *written, ranks=2, writers=writers))[files_together.ID]


def test_several_processes_write_the_same_files() -> None:
    later = replace(LOG, text=LOG.text.replace("0.4", "0.7"))
    assert together(later, changed("net/a.bias", value="cc")).verdict == "proved"


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        ((replace(LOG, name="log_rank0.txt"),), "disproved"),
        ((LOG,), "unproved"),
        ((LOG, STATE, replace(LOG, name="more.txt")), "unproved"),
        ((LOG, PREFIXED), "disproved"),
        ((LOG, changed("net/a.bias", kind="float32 (1,)")), "unproved"),
        ((LOG, changed("net/a.weight", kind="float32 (2, 4)")), "disproved"),
        ((LOG, replace(STATE, classes=("torch.nn.parallel.DistributedDataParallel",))), "disproved"),
        ((LOG, replace(STATE, kind="unreadable")), "disproved"),
        ((replace(LOG, lines=6), STATE), "disproved"),
        ((replace(LOG, lines=4), STATE), "unproved"),
    ],
)
def test_other_files_of_several_processes(written: Any, verdict: str) -> None:
    assert together(*written).verdict == verdict


def test_the_state_of_apex_scalers_is_another_than_that_of_torch() -> None:
    before, after = (
        replace(STATE, entries=(*STATE.entries, *(Entry(key, "float", "2.0") for key in keys)))
        for keys in (
            ("amp/loss_scaler0/loss_scale", "amp/loss_scaler0/unskipped"),
            ("amp/scale", "amp/_growth_tracker"),
        )
    )
    for run, id_ in ((trace(O0, after), files.ID), (trace(O0_TOGETHER, after, ranks=2), files_together.ID)):
        assert found(run, again(before), original=(before,))[id_].verdict == "proved"
        assert found(run, again(STATE), original=(STATE,))[id_].verdict == "disproved", "which has no scaler"


@pytest.mark.parametrize("added", [[Entry("scaler", "empty dict")], [Entry("scaler/_growth_tracker", "int", "1")]])
def test_a_checkpoint_may_hold_the_scale_too(added: list[Entry]) -> None:
    after = replace(STATE, entries=(*STATE.entries, *added))
    taken = replace(STATE, entries=(*STATE.entries, Entry("scaler/mean", "float", "2.0")))
    for run, id_ in ((trace(O0, after), files.ID), (trace(O0_TOGETHER, after, ranks=2), files_together.ID)):
        assert found(run, again(STATE), original=(STATE,))[id_].verdict == "proved"
        assert found(run, again(taken), original=(taken,))[id_].verdict == "disproved", "in the place of something else"


def test_what_several_ranks_write_may_be_torn() -> None:
    check = together(STATE, writers=2)
    assert check.verdict == "disproved" and "train.py:30" in check.message
    assert together(LOG, STATE, writers=1).verdict == "proved"


def test_predictions_of_one_ranks_samples_are_disproved() -> None:
    whole, part = (replace(STATE, entries=(Entry("p", f"float32 ({count}, 3)"),)) for count in (16, 8))
    made = found(trace(O0_TOGETHER, part, ranks=2), original=(whole,))
    assert made[files_together.ID].verdict == "disproved"


def test_losses_of_all_steps_are_as_many_as_steps() -> None:
    whole, part = (replace(STATE, entries=(Entry("losses", f"float64 ({count},)"),)) for count in (8, 4))
    made = found(trace(O0_TOGETHER, part, ranks=2), original=(whole,))
    assert made[files_together.ID].verdict == "proved"


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [(3, "proved"), (5, "proved"), (6, "disproved"), (7, "unproved"), (9, "disproved"), (10, "disproved")],
)
def test_a_log_that_grows_with_the_passes_has_as_many_lines_for_each(lines: int, verdict: str) -> None:
    """The original makes four passes and writes a head and a line for each, rank 0 of two stops after two."""
    log = replace(LOG, lines=5)
    original, run = (
        passes_made(trace(name, written, ranks=ranks), count)
        for name, written, ranks, count in (
            (ORIGINAL, log, 1, 4),
            (O0_TOGETHER, replace(log, lines=lines), 2, 2 if lines < 9 else 4),
        )
    )
    checks = {check.id: check for check in files_together.check({ORIGINAL: original, O0_TOGETHER: run}, ASKED)}
    assert checks[files_together.ID].verdict == verdict


def passes_made(run: Trace, passes: int) -> Trace:
    """The run with its batches shared out over so many passes."""
    each = len(run.ranks[0].batches) // passes
    batches = tuple(replace(batch, epoch=batch.before // each, length=each) for batch in run.ranks[0].batches)
    return replace(run, ranks=tuple(replace(rank, batches=batches) for rank in run.ranks))
