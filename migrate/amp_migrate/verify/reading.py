"""Reading what the recorder wrote."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_migrate.verify.followed import followed
from amp_migrate.verify.traces import Backward, Batch, Int8, Opened, RankTrace, Said, ScalerCall, Update


def read_ranks(folder: Path, main: Iterable[int] = ()) -> tuple[RankTrace, ...]:
    """Read all processes of one run, sorted by rank.

    Args:
        folder: what ``AMP_VERIFY_RECORD`` was.
        main: the numbers of the processes that were started for the run. Where others claim the same rank, because the
            script started a second training itself, these count.
    """
    known = set(main)
    found: defaultdict[int, list[tuple[bool, RankTrace]]] = defaultdict(list)
    workers: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.glob("worker*-*.jsonl")):
        rank = path.stem.removeprefix("worker").partition("-")[0]
        workers[int(rank)] += [draw for facts in _lines(path) for draw in facts["worker_drew"]]
    for path in sorted(folder.glob("rank*-*.jsonl")):
        rank, _, process = path.stem.removeprefix("rank").partition("-")
        found[int(rank)].append((int(process) in known, _rank_trace(int(rank), list(_lines(path)), workers[int(rank)])))
    return _joined(
        tuple(max(traces, key=lambda item: (item[0], len(item[1].backwards)))[1] for _, traces in sorted(found.items()))
    )


def _joined(ranks: tuple[RankTrace, ...]) -> tuple[RankTrace, ...]:
    """The processes, each with the rows of all in the norms of its gradients, where tables are shared out.

    Where they step in another order, which is told elsewhere, each has its own rows in them.
    """
    if not any(update.rows for rank in ranks for update in rank.updates):
        return ranks
    orders = {tuple((update.optimizer, update.after) for update in rank.updates) for rank in ranks}
    steps = zip(*(rank.updates for rank in ranks), strict=False)
    of_all = [math.hypot(*(update.rows for update in step)) for step in steps] if len(orders) == 1 else None
    return tuple(_with_rows(rank, of_all or [update.rows for update in rank.updates]) for rank in ranks)


def _with_rows(rank: RankTrace, rows: Sequence[float]) -> RankTrace:
    pairs = zip(rank.updates, rows, strict=True)
    return replace(rank, updates=tuple(replace(update, norm=math.hypot(update.norm, own)) for update, own in pairs))


def got_through(folder: Path) -> bool:
    """Whether every process that recorded something came to its end, and not just to an error."""
    files = list(folder.glob("rank*-*.jsonl"))
    return bool(files) and all(any("end" in facts for facts in _lines(path, "end")) for path in files)


def was_stopped(folder: Path) -> bool:
    """Whether the steps asked for were made and the recorder ended the script."""
    files = folder.glob("rank*-*.jsonl")
    return any(facts.get("end") == "stopped" for path in files for facts in _lines(path, "end"))


def outside(folder: Path) -> list[Path]:
    """The folders of the project itself from which modules were imported, where its copy was meant."""
    files = sorted(folder.glob("rank*-*.jsonl"))
    found = {name for path in files for facts in _lines(path, "outside") for name in facts.get("outside", ())}
    return sorted(map(Path, found))


def complaints(folder: Path) -> list[str]:
    """What the recorder could not record, each once."""
    path = folder / "complaints.txt"
    if not path.exists():
        return []
    return list(dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").splitlines()))


def _lines(path: Path, key: str = "") -> Iterator[dict[str, Any]]:
    """The facts line by line; only those that may have the key, where one is asked for: there are thousands."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if key not in line:
            continue
        try:
            yield json.loads(line)
        except ValueError:
            return  # the process was killed while it wrote


def _rank_trace(rank: int, lines: list[dict[str, Any]], workers: list[str]) -> RankTrace:
    last: dict[str, Any] = {}
    for facts in lines:
        last |= facts
    # A fused optimizer skips by itself, in its kernel.
    updates = [facts for facts in lines if "norm" in facts]
    made = [facts for facts in updates if not _number(facts.get("found_inf", 0))]
    moved = {(facts["optimizer"], facts["after"]): _number(facts["moved"]) for facts in lines if "moved" in facts}
    return RankTrace(
        rank=rank,
        backwards=tuple(map(_backward, (facts for facts in lines if "loss" in facts))),
        batches=tuple(map(_batch, (facts for facts in lines if "loader" in facts))),
        updates=tuple(_update(facts, moved) for facts in made),
        parameters=tuple(last.get("parameters", ())),
        buffers=tuple(last.get("buffers", ())),
        unheld=tuple(last.get("unheld", ())),
        rates=tuple(last.get("rates", ())),
        generators=last.get("generators", ""),
        scaler_calls=tuple(map(_scaler_call, (facts for facts in lines if "scaler" in facts))),
        metrics=tuple((facts["after"], _number(facts["metric"])) for facts in lines if "metric" in facts),
        metric_sites=tuple(facts.get("site", "") for facts in lines if "metric" in facts),
        followed=followed(lines),
        worker_draws=tuple(sorted(set(workers))),
        skipped=last.get("skipped", 0) + last.get("plain_skipped", 0) + len(updates) - len(made),
        peak_memory=last.get("peak_memory", 0),
        device=last.get("device", "cpu"),
        half_type=last.get("half_type", "bf16"),
        computes_in=tuple(last.get("computes_in", ())),
        events=tuple(last.get("events", ())),
        stands_in=tuple(last.get("stands_in", ())),
        versions=tuple(last.get("versions", {}).items()),
        said=tuple(map(_said, (facts for facts in lines if "said" in facts))),
        opened=tuple(map(_opened, (facts for facts in lines if "opened" in facts))),
        imported=tuple(last.get("imported", ())),
        int8=tuple(map(_int8, last.get("int8", ()))),
    )


def _int8(facts: dict[str, Any]) -> Int8:
    return Int8(**{**facts, "apart": _number(facts["apart"])})


def _said(facts: dict[str, Any]) -> Said:
    return Said(facts["said"], facts["site"], facts["before"], facts.get("silent", False), facts.get("by_apex", False))


def _opened(facts: dict[str, Any]) -> Opened:
    return Opened(facts["opened"], facts["site"], facts["before"], facts.get("adds", False))


def _backward(facts: dict[str, Any]) -> Backward:
    return Backward(
        loss=_number(facts["loss"]),
        time=facts["time"],
        scale=_number(facts.get("scale", 1.0)),
        site=facts["site"],
        half=facts.get("half", 0),
        full=facts.get("full", 0),
        random=facts.get("random", False),
        autocast=facts.get("autocast", False),
        drew=tuple(facts.get("drew", ())),
        inputs=tuple(map(tuple, facts.get("inputs", ()))),
    )


def _batch(facts: dict[str, Any]) -> Batch:
    return Batch(
        loader=facts["loader"],
        epoch=facts["epoch"],
        before=facts["before"],
        indices=tuple(facts["indices"]),
        random=facts["fetch_random"],
        length=facts.get("length", 0),
        size=facts.get("size", 0),
        data=facts.get("data", ""),
        samples=tuple(facts.get("samples", facts["indices"]) if facts.get("data") else ()),
        contents=tuple(facts.get("contents", ())),
        labels=tuple(facts.get("labels", ())),
        learns=facts.get("learns", True),
        drew=tuple(facts.get("drew", ())),
    )


def _update(facts: dict[str, Any], moved: Mapping[tuple[int, int], float]) -> Update:
    rate = facts.get("lr")
    return Update(
        facts["optimizer"],
        facts["after"],
        _number(facts["norm"]),
        None if rate is None else _number(rate),
        tuple(facts.get("lrs", ())),
        moved.get((facts["optimizer"], facts["after"])),
        _number(facts.get("rows", 0.0)),
    )


def _scaler_call(facts: dict[str, Any]) -> ScalerCall:
    return ScalerCall(facts["scaler"], facts["kind"], facts["after"], facts.get("steps"), facts.get("fixed", False))


def _number(value: str | float) -> float:
    return float.fromhex(value) if isinstance(value, str) else float(value)
