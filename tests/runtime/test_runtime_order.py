"""Orders of sets, and hashes, in processes that hash strings differently."""

from __future__ import annotations

import enum
import subprocess
import sys

import pytest

pytest.importorskip("torch")
import amp_runtime as amp


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


def several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_alone_it_is_the_set_itself() -> None:
    names = {"a", "b", "c"}
    assert amp.same_order(names) is names
    assert amp.same_hash("a") == hash("a")


def test_several_processes_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    several(monkeypatch)
    assert amp.same_order({"b", "c", "a"}) == ["a", "b", "c"]
    assert amp.same_order({10, 9, 2}) == [2, 9, 10]
    assert amp.same_order({(2, "b"), (2, "a")}) == [(2, "a"), (2, "b")]
    assert amp.same_order({Kind.TWO, Kind.ONE}) == [Kind.ONE, Kind.TWO]
    assert amp.same_order(dict.fromkeys("ba")) == ["a", "b"]
    assert len(list(amp.same_order({1, "a", None, (1, 2)}))) == 4
    assert amp.same_order(set()) == []


def test_what_no_text_tells_apart_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    several(monkeypatch)
    things = {object() for _ in range(5)}
    assert list(amp.same_order(things)) == list(things)
    layers = {torch.nn.Linear(2, 2) for _ in range(4)}
    assert list(amp.same_order(layers)) == list(layers)


def test_hashes_of_content(monkeypatch: pytest.MonkeyPatch) -> None:
    several(monkeypatch)
    values = ["a", "b", b"c", ("a", 1), ("a", 2), ("a", ("b",)), frozenset({"a", "b"})]
    assert len({amp.same_hash(value) for value in values}) == len(values)
    assert amp.same_hash(frozenset({"a", "b"})) == amp.same_hash(frozenset({"b", "a"}))
    assert amp.same_hash(5) == hash(5) and amp.same_hash(("a", 1)) == amp.same_hash(("a", 1.0))


def test_processes_with_other_seeds_agree() -> None:
    code = (
        "import amp_runtime as amp\n"
        "words = {f'word{i}' for i in range(50)} | {('a', i) for i in range(9)}\n"
        "print(list(amp.same_order(words)), [amp.same_hash(word) for word in amp.same_order(words)])\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and "word49" in outputs[0]


def test_a_variable_of_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "all of it")
    names = {"a", "b"}
    assert amp.same_order(names) is names
