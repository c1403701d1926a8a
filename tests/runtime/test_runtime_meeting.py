"""Processes that meet in a store that earlier ones have used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from amp_runtime._distributed.meeting import agreed_token

LONG = timedelta(seconds=120)


def met(store: Any, order: list[int]) -> set[str]:
    """The words that ranks get which come in this order."""
    with ThreadPoolExecutor(len(order)) as pool:
        return set(pool.map(lambda rank: agreed_token(store, rank, len(order), LONG), order))


@pytest.mark.parametrize("order", [[0], [0, 1, 2], [2, 1, 0]])
def test_all_ranks_of_an_attempt_get_one_word_and_another_each_time(order: list[int]) -> None:
    store = dist.HashStore()
    words = [met(store, order) for _ in range(4)]
    assert all(len(found) == 1 for found in words) and len(set.union(*words)) == 4


def test_a_rank_that_comes_first_after_a_restart_waits_for_the_new_rank_0() -> None:
    store = dist.HashStore()
    (before,) = met(store, [0, 1])
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(agreed_token, store, 1, 2, LONG)
        assert not early.done()
        assert pool.submit(agreed_token, store, 0, 2, LONG).result() == early.result() != before


def test_a_rank_whose_others_do_not_come_says_so() -> None:
    with pytest.raises(RuntimeError, match="rank 1 waited"):
        agreed_token(dist.HashStore(), 1, 2, timedelta(seconds=0.1))
