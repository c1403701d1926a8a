"""The step timer, with a clock that the tests set."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import amp_runtime as amp
import pytest
import torch
from amp_runtime._timing.stats import combined


class Clock:
    """Shows the time that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def timed(*steps: tuple[float, float], samples: int | None = 8, **options: Any) -> amp.StepTimer:
    """A timer that has seen steps of so many seconds of reading and of work."""
    clock = Clock()
    timer = amp.StepTimer(clock=clock, **{"warmup": 0, **options})
    timer.start()
    for reading, work in steps:
        clock.now += reading
        timer.loaded(samples)
        clock.now += work
        timer.step()
    timer.stop()
    return timer


def test_costs_ips_and_ratio_are_averaged_over_the_steps() -> None:
    stats = timed((0.1, 0.3), (0.3, 0.5), (0.2, 0.6)).stats()
    assert stats.steps == 3
    assert stats.reader_cost == pytest.approx((0.2, 0.3, 0.1))
    assert stats.batch_cost == pytest.approx((2 / 3, 0.8, 0.4))
    assert stats.ips == pytest.approx((24 / 2.0, 8 / 0.4, 8 / 0.8))
    assert stats.reader_ratio == pytest.approx(0.3)


def test_the_warm_up_is_left_out() -> None:
    timer = timed((5, 9), (5, 9), (1, 3), warmup=2)
    assert timer.stats().steps == 1 and timer.stats().batch_cost == pytest.approx((4, 4, 4))
    assert timer.step_info().startswith("reader_cost: 1.00000 s batch_cost: 4.00000 s")
    cold = timed((5, 9), (5, 9), warmup=10)
    assert cold.stats() == amp.StepTimer().stats() and cold.stats().steps == 0
    assert "0.000%" in cold.summary()
    assert cold.step_info().startswith("reader_cost: 5.00000 s"), "better than nothing"


def test_the_line_is_paddles_and_covers_the_steps_since_the_last_one() -> None:
    clock = Clock()
    timer = amp.StepTimer(warmup=0, unit="images", clock=clock)
    lines = []
    for step, _ in enumerate(timer([torch.zeros(4, 2)] * 4)):
        clock.now += 0.5 if step < 2 else 2.0
        if step in (0, 3):
            lines.append(timer.step_info())
    assert lines[0] == "", "no step has ended yet"
    assert lines[1] == "reader_cost: 0.00000 s batch_cost: 1.00000 s ips: 4.000 images/s"
    assert timer.step_info() == "reader_cost: 0.00000 s batch_cost: 2.00000 s ips: 2.000 images/s"
    assert timer.step_info() == ""


def test_the_table_is_paddles() -> None:
    assert timed((0.1, 0.3), (0.1, 0.7)).summary().splitlines() == [
        "=" * 44 + "Perf Summary" + "=" * 44,
        "Reader Ratio: 16.667%",
        "Time Unit: s, IPS Unit: samples/s",
        "|                 |       avg       |       max       |       min       |",
        "|   reader_cost   |     0.10000     |     0.10000     |     0.10000     |",
        "|    batch_cost   |     0.60000     |     0.80000     |     0.40000     |",
        "|       ips       |     13.33333    |     20.00000    |     10.00000    |",
        "Advice: where one process makes the batches between the steps, have others make them ahead, as "
        "torch.utils.data.DataLoader(dataset, num_workers=...) does",
    ]
    assert timed((0.1, 0.9), (0.0, 1.0)).summary().endswith("|"), "it hardly waits"


def test_without_samples_it_counts_steps() -> None:
    timer = timed((0.0, 0.25), samples=None)
    assert timer.step_info().endswith("ips: 4.000 steps/s")
    assert "IPS Unit: steps/s" in timer.summary()


class Slow:
    """A loader that takes a second of the clock to read each batch."""

    dataset = "images"

    def __init__(self, clock: Clock, batches: list[Any]) -> None:
        self.clock = clock
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        for batch in self.batches:
            self.clock.now += 1.0
            yield batch


@pytest.mark.parametrize(
    ("batch", "samples", "counted"),
    [
        ({"x": [torch.zeros(()), torch.zeros(6, 2)]}, None, 6),
        ((torch.zeros(6, 2), torch.zeros(6)), 5, 5),
        ("abc", len, 3),
        ("abc", None, None),
    ],
)
def test_a_loop_is_measured_around_its_loader(batch: Any, samples: Any, counted: int | None) -> None:
    clock = Clock()
    timer = amp.StepTimer(warmup=0, clock=clock)
    loader = timer(Slow(clock, [batch] * 3), samples=samples)
    assert len(loader) == 3 and loader.dataset == "images"
    for _ in range(2):
        for got in loader:
            assert got is batch
            clock.now += 3.0
        clock.now += 50.0  # evaluation, which is no part of any step
    stats = timer.stats()
    assert stats.steps == 6 and stats.reader_ratio == pytest.approx(0.25)
    assert stats.reader_cost == (1.0, 1.0, 1.0) and stats.batch_cost == (4.0, 4.0, 4.0)
    assert stats.ips.avg == pytest.approx((counted or 1) / 4)


def test_a_step_that_is_left_by_break_or_an_error_does_not_count() -> None:
    clock = Clock()
    timer = amp.StepTimer(warmup=0, clock=clock)
    for number, _ in enumerate(timer(Slow(clock, [1, 2, 3]))):
        if number == 1:
            break
    assert timer.stats().steps == 1
    with pytest.raises(KeyError):
        for _ in timer(Slow(clock, [1])):
            raise KeyError
    assert timer.stats().steps == 1
    with pytest.raises(RuntimeError, match="before StepTimer"):
        timer.step()
    with pytest.raises(RuntimeError, match="before StepTimer"):
        timer.loaded()


def test_real_time_is_measured() -> None:
    timer = amp.StepTimer(warmup=0)
    begin = time.perf_counter()
    for _ in timer(range(3)):
        time.sleep(0.002)
    whole = time.perf_counter() - begin
    stats = timer.stats()
    assert stats.steps == 3 and 0.006 <= 3 * stats.batch_cost.avg <= whole


class Event:
    """Stands in for ``torch.cuda.Event``: reached when the fake GPU has got there."""

    gpu = 0.0
    queue = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.queue += 0.25  # what a step costs there
        self.at = Event.queue

    def query(self) -> bool:
        return Event.gpu >= self.at

    def synchronize(self) -> None:
        Event.gpu = max(Event.gpu, self.at)

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query()
        return 1000 * (other.at - self.at)


def test_events_take_the_time_of_the_gpu_and_wait_only_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("waited"))
    timer = timed((0.001, 0.001), (0.001, 0.001), (0.001, 0.001), cuda="events")
    assert Event.gpu == 0.0, "nothing was waited for"
    stats = timer.stats()
    assert stats.steps == 3 and stats.batch_cost == pytest.approx((0.25, 0.25, 0.25))
    assert stats.reader_cost.avg == pytest.approx(0.001)


def test_synchronize_waits_at_the_end_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    timed((0, 1), (0, 1), cuda="synchronize")
    assert len(waits) == 2
    timed((0, 1), (0, 1))
    assert len(waits) == 2


def test_the_profilers_trace_shows_reading_and_stepping_and_takes_all_steps(tmp_path: Path) -> None:
    timer = amp.StepTimer(warmup=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for x in timer([torch.ones(4)] * 3):
            x.sum()
    ranges = [e for e in profiler.events() if e.name in ("reader", "step")]
    assert sum(e.name == "step" for e in ranges) == 3
    assert all(e.cpu_parent is None for e in ranges), "one after the other"
    exported = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(exported))
    before = json.loads(exported.read_text())["traceEvents"]
    merged = tmp_path / "merged.json.gz"
    timer.export_chrome_trace(merged, merge=exported)
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    assert events[: len(before)] == before
    own = [event for event in events if event.get("cat") == "step_timer"]
    assert [e["name"] for e in own] == ["step 1", "reader", "step 2", "reader", "step 3", "reader"]
    assert [e["args"]["warm"] for e in own if "samples" in e["args"]] == [False, True, True]
    theirs = [event for event in before if event.get("name") == "step" and event["ph"] == "X"]
    for mine, range_ in zip(own[::2], theirs, strict=True):
        assert mine["ts"] - 2000 <= range_["ts"] <= mine["ts"] + mine["dur"] + 2000, "on one time axis"


def test_a_trace_of_its_own_begins_with_the_timer(tmp_path: Path) -> None:
    timer = timed((0.1, 0.3), (0.2, 0.2), history=1)
    timer.export_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    step, reader = trace["traceEvents"]
    assert (step["name"], step["ts"], step["dur"]) == ("step 2", pytest.approx(4e5), pytest.approx(4e5))
    assert (reader["name"], reader["ts"], reader["dur"]) == ("reader", pytest.approx(4e5), pytest.approx(2e5))
    assert abs(trace["baseTimeNanoseconds"] - time.time_ns()) < 60e9


def test_ranks_are_combined() -> None:
    fast, slow = timed((0.1, 0.3)).stats(), timed((0.1, 0.7), (0.3, 0.9)).stats()
    both = combined([fast, slow, amp.StepTimer().stats()])
    assert both.steps == 2
    assert both.batch_cost == pytest.approx((0.7, 1.2, 0.4))
    assert both.reader_cost == pytest.approx((0.15, 0.3, 0.1))
    assert both.ips.avg == pytest.approx(20 + 8)
    assert both.reader_ratio == pytest.approx((0.1 + 0.2) / (0.4 + 1.0))
    assert timed((0.1, 0.3)).stats(all_ranks=True) == fast


@pytest.mark.parametrize(
    ("options", "message"),
    [({"warmup": -1}, "warmup=-1"), ({"cuda": "gpu"}, "cuda='gpu'; allowed: 'host', 'synchronize', 'events'")],
)
def test_wrong_arguments_are_named(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        amp.StepTimer(**options)


class Workers:
    """A loader with the attributes of a DataLoader that the advice is about, and a clock for what it reads."""

    def __init__(self, clock: Clock, reading: tuple[float, ...], **attributes: Any) -> None:
        self.clock = clock
        self.reading = reading
        self.__dict__.update({"num_workers": 0, "persistent_workers": False, "pin_memory": False, **attributes})

    def __iter__(self) -> Any:
        for seconds in self.reading:
            self.clock.now += seconds
            yield torch.zeros(4, 2)


def advised(reading: tuple[float, ...], passes: int = 2, **attributes: Any) -> list[str]:
    clock = Clock()
    timer = amp.StepTimer(warmup=0, clock=clock)
    loader = timer(Workers(clock, reading, **attributes))
    for _ in range(passes):
        for _batch in loader:
            clock.now += 1.0
    return timer.advice()


@pytest.mark.parametrize(
    ("reading", "attributes", "words"),
    [
        ((0.05, 0.05), {}, []),
        ((0.5, 0.5), {}, ["num_workers=4 (this machine has 8 cores, shared by 2 processes)"]),
        ((0.5, 0.5), {"num_workers": 2, "persistent_workers": True}, ["2 of 4 cores read, shared by 2 processes"]),
        ((0.5, 0.5), {"num_workers": 4, "persistent_workers": True}, ["4 workers keep every core busy"]),
        ((3.0, 0.0), {"num_workers": 4}, ["persistent_workers=True", "4 workers keep every core busy"]),
        ((3.0, 0.0), {"num_workers": 4, "persistent_workers": True}, ["4 workers keep every core busy"]),
    ],
)
def test_a_loop_that_waits_is_told_what_to_try(
    reading: tuple[float, ...], attributes: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("amp_runtime._timing.advice._usable_cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = advised(reading, **attributes)
    assert len(lines) == len(words) and all(word in line for word, line in zip(words, lines, strict=True))


def test_copies_to_a_gpu_want_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "pin_memory=True" in advised((0.5,), num_workers=2)[-1]
    assert not any("pin_memory" in line for line in advised((0.5,), num_workers=2, pin_memory=True))


def test_a_real_loader_is_known_through_prepare_loader() -> None:
    loader = torch.utils.data.DataLoader(torch.zeros(6, 2), batch_size=2)
    timer = amp.StepTimer(warmup=0)
    for _ in timer(amp.prepare_loader(loader)):
        pass
    assert len(timer.advice()) == 1 and "num_workers=" in timer.advice()[0]


def test_the_report_shows_every_step_and_is_written_after_each_pass(tmp_path: Path) -> None:
    path = tmp_path / "new" / "steps.html"
    timer = timed(*[(0.5, 0.5)] * 2, *[(0.25, 0.75)] * 3, warmup=2, report=path)
    page = path.read_text()
    assert "3 steps after the warm-up. Reader ratio: 25.0 %" in page and "num_workers=" in page
    assert page.count("<title>step ") == 5 and "step 4: 1.00000 s, of which 0.25000 s waiting" in page
    assert "http" not in page.replace("http://www.w3.org", ""), "nothing is loaded from elsewhere"
    timer.write_report(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page


def test_many_steps_share_bars(tmp_path: Path) -> None:
    timed(*[(0.5, 0.5)] * 1000, report=tmp_path / "steps.html")
    page = (tmp_path / "steps.html").read_text()
    assert page.count("<title>steps ") == 200 and "steps 996 to 1000: 1.00000 s" in page


def test_a_report_before_any_step_says_so(tmp_path: Path) -> None:
    amp.StepTimer().write_report(tmp_path / "steps.html")
    assert "No step has ended" in (tmp_path / "steps.html").read_text()


def test_the_trace_holds_the_operations_of_the_steps_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    timer = amp.StepTimer(warmup=0, trace=path, trace_steps=(2, 3))
    for number, x in enumerate(timer([torch.ones(4)] * 5)):
        x.neg() if number in (1, 2) else x.ceil()
        assert path.exists() == (number > 2)
    names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
    assert names.count("aten::neg") == 2 and "aten::ceil" not in names and timer.stats().steps == 5


@pytest.mark.parametrize("stretch", [(0, 3), (4, 3), (1,), 5])
def test_a_trace_of_no_steps_is_an_error(stretch: Any) -> None:
    with pytest.raises(ValueError, match="trace_steps="):
        amp.StepTimer(trace_steps=stretch)
