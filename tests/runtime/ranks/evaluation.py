"""Three ranks: evaluations that are shared out, and put together as one process would have found them."""

from __future__ import annotations

from typing import Any

import amp_runtime as amp
import numpy as np
import pytest
import torch
from support import gathered, run_checks
from torch import nn
from torch.utils import data

RANKS = 3


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(7))


def loader_of(size: int, **options: Any) -> Any:
    return data.DataLoader(data.TensorDataset(torch.arange(size)), **{"batch_size": 4, **options})


def numbers_of(loader: Any) -> list[list[int]]:
    """What each batch of this rank held."""
    return [batch[0].tolist() for batch in amp.share_evaluation(loader)]


def check_every_batch_is_seen_once_and_whole() -> None:
    for size in (37, 12, 5, 3, 0):
        loader = loader_of(size)
        parts = gathered(numbers_of(loader))
        assert [batch for part in parts for batch in part] == [batch[0].tolist() for batch in loader]
        assert len(loader) == -(-size // 4), "the loader itself stays whole"
        assert [len(part) for part in parts] == gathered(len(amp.share_evaluation(loader)))


def check_shuffled_batches_are_those_of_one_order_and_another_one_each_time() -> None:
    torch.manual_seed(100 + amp.rank())
    loader = loader_of(37, shuffle=True)
    orders = [[number for part in gathered(numbers_of(loader)) for batch in part for number in batch] for _ in range(2)]
    assert all(sorted(order) == list(range(37)) for order in orders)
    assert orders[0] != orders[1]


def check_workers_read_only_their_ranks_batches() -> None:
    assert gathered(numbers_of(loader_of(37, num_workers=1))) == gathered(numbers_of(loader_of(37)))


def check_loaders_without_batches_of_their_own_and_with_a_batch_sampler() -> None:
    single = loader_of(5, batch_size=None)
    parts = gathered([int(item[0]) for item in amp.share_evaluation(single)])
    assert [number for part in parts for number in part] == list(range(5))
    sampler = data.BatchSampler(data.SequentialSampler(range(9)), 2, drop_last=True)
    parts = gathered(numbers_of(loader_of(9, batch_size=1, batch_sampler=sampler)))
    assert [batch for part in parts for batch in part] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def check_the_first_rank_reads_a_stream_alone() -> None:
    stream = data.DataLoader(Stream(), batch_size=3)
    assert gathered([batch.tolist() for batch in amp.share_evaluation(stream)]) == [[[0, 1, 2], [3, 4, 5], [6]], [], []]
    assert gathered(list(amp.share_evaluation([1, 2]))) == [[1, 2], [], []]


def check_of_a_prepared_loader_the_whole_is_shared_out() -> None:
    prepared = amp.prepare_loader(loader_of(37))
    assert sorted(number for part in gathered(numbers_of(prepared)) for batch in part for number in batch) == list(
        range(37)
    )


def check_integers_are_exact_and_all_ranks_have_the_same() -> None:
    huge = 2**70 + amp.rank()
    exact, total = amp.sum_evaluated(huge, 0.1 * (amp.rank() + 1))
    assert exact == 3 * 2**70 + 3 and isinstance(exact, int)
    assert gathered(total) == [0.1 + 0.2 + 0.1 * 3] * 3
    assert amp.sum_evaluated(amp.rank()) == 3


def check_a_rank_without_a_batch_has_what_it_began_with() -> None:
    hits = 0 if amp.rank() else torch.tensor(5)
    assert torch.equal(amp.sum_evaluated(hits), torch.tensor(5))
    assert amp.sum_evaluated(0.0 if amp.rank() != 1 else np.float64(0.5)) == 0.5
    assert amp.gather_evaluated([] if amp.rank() < 2 else ["a"]) == ["a"]


def check_containers_are_summed_item_by_item() -> None:
    table = {"hits": [amp.rank(), 1], "matrix": torch.eye(2) * amp.rank()}
    counts, array = amp.sum_evaluated(table, np.array([1, amp.rank()]))
    assert counts["hits"] == [3, 3] and torch.equal(counts["matrix"], 3 * torch.eye(2))
    assert array.tolist() == [3, 3]
    assert table["hits"] == [amp.rank(), 1], "what was given stays as it is"


def check_lists_come_back_in_the_order_of_the_loader() -> None:
    tensors: list[torch.Tensor] = []
    labels: list[int] = []
    for (x,) in amp.share_evaluation(loader_of(37)):
        tensors.append(x)
        labels.extend(x.tolist())
    tensors, labels = amp.gather_evaluated(tensors, labels)
    assert torch.equal(torch.cat(tensors), torch.arange(37)) and labels == list(range(37))


def check_what_cannot_be_put_together_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got lists of .* allowed: equal lengths"):
        amp.sum_evaluated([0] * amp.rank())
    with pytest.raises(ValueError, match=r"got keys .* allowed: equal ones"):
        amp.sum_evaluated({amp.rank(): 1})
    with pytest.raises(TypeError, match="got Tensor; allowed: lists"):
        amp.gather_evaluated(torch.ones(3))


def check_a_model_waits_for_nobody_within_the_loop() -> None:
    """With gradients, with synchronised batch norm, and in a loop of which two ranks have nothing."""
    model = amp.prepare_model(nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3)), sync_bn=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 1)).sum().backward()  # torch orders its buckets anew in the next forward pass
    optimizer.step()
    rounds = 0
    model.eval()
    for (x,) in amp.share_evaluation(loader_of(4)):
        model(x.float().unsqueeze(1))
        rounds += 1
    assert gathered(rounds) == [0, 0, 1] and amp.sum_evaluated(rounds) == 1
    model.train()
    model(torch.ones(2, 1)).sum().backward()
    optimizer.step()
    assert len({tuple(row) for row in gathered(model[0].weight.flatten().tolist())}) == 1


if __name__ == "__main__":
    run_checks(globals())
