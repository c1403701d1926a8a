"""Two ranks: what is drawn alike, and what each rank draws for itself."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import amp_runtime as amp
import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.data as data
from support import gathered, run_checks
from torch import nn


def drawn() -> tuple[Any, ...]:
    """A number of each library."""
    return torch.rand(1).item(), random.random(), float(np.random.rand())


def kept() -> float:
    """A number that says which of many elements dropout has left."""
    return float((F.dropout(torch.ones(500)) * torch.arange(500)).sum())


def alike(value: Any) -> bool:
    """Whether all ranks have the same numbers; none has one of another rank's, if not."""
    one, two = gathered(value)
    if one == two:
        return True
    assert not {*np.ravel(one)} & {*np.ravel(two)}
    return False


def reseed() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


class Noisy(data.Dataset[Any]):
    """Augmentation with each library."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(drawn(), dtype=torch.float64)


def check_a_batch_is_loaded_and_worked_on_with_the_ranks_own_numbers() -> None:
    reseed()
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=2, shuffle=True))
    assert alike(drawn())
    for _ in range(2):
        steps = 0
        for batch in loader:
            assert not alike(batch.tolist()) and not alike(drawn()) and not alike(kept())
            steps += 1
        assert steps == 2 and alike(drawn()), "an order or a split between two epochs"


def check_no_epoch_has_the_noise_of_another() -> None:
    reseed()
    generator = torch.Generator().manual_seed(1)
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=4, generator=generator))
    epochs = [[number for batch in loader for number in batch.flatten().tolist()] for _ in range(3)]
    assert len({number for epoch in epochs for number in epoch}) == 3 * 12


def check_a_loop_that_is_left_goes_back_to_the_numbers_of_all() -> None:
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=1))
    for _ in loader:
        assert not alike(drawn())
        break
    assert alike(drawn())

    def wrapped() -> Any:
        yield from enumerate(loader)

    for number, _ in wrapped():
        if number == 1:
            break
    assert alike(drawn())
    try:
        for _ in loader:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert alike(drawn())
    next(iter(loader))
    assert alike(drawn())


def check_several_loaders_at_once() -> None:
    one = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=1))
    two = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=2))
    batches = iter(two)
    for _ in zip(one, itertools.islice(batches, 1), strict=False):
        assert not alike(drawn())
    assert not alike(drawn()), "the second is in mid-epoch"
    for _ in batches:
        pass
    assert alike(drawn())
    other = amp.prepare_loader([torch.ones(1)] * 5)
    for _ in other:
        assert not alike(drawn())
    assert alike(drawn())


def check_workers_draw_their_own_numbers() -> None:
    def fixed(worker: int) -> None:
        random.seed(worker)
        np.random.seed(worker)

    for init, persistent in ((None, False), (fixed, False), (fixed, True)):
        reseed()
        loader = amp.prepare_loader(
            data.DataLoader(Noisy(), 2, num_workers=2, worker_init_fn=init, persistent_workers=persistent)
        )
        for _ in range(2):
            assert not alike([number for batch in loader for number in batch.flatten().tolist()])
        assert alike(drawn()) and loader.worker_init_fn is init


def check_a_call_draws_alike_in_a_step() -> None:
    reseed()
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=1))
    expected = random.Random(7)
    for _ in loader:
        before = random.getstate()
        assert amp.drawn_alike(random.random)() == expected.random(), "as one process draws, whatever else is drawn"
        assert random.getstate() == before, "the rank's own stream waits"
        drawn()
        assert amp.drawn_alike(lambda: amp.drawn_alike(random.random)())() == expected.random()
        assert alike(amp.drawn_alike(torch.rand)(3).tolist()) and not alike(drawn())
        weight = torch.zeros(4)
        amp.drawn_alike(nn.init.normal_)(weight)
        assert alike(weight.tolist())
        with contextlib.suppress(IndexError):
            amp.drawn_alike(random.choice)([])
        assert not alike(drawn())
    assert random.random() == expected.random()


def check_a_loop_within_a_call_that_draws_alike() -> None:
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=1))
    outer = iter(loader)
    next(outer)

    def train() -> None:
        assert alike(drawn())
        for _ in loader:
            assert not alike(drawn())
        assert alike(drawn())

    amp.drawn_alike(train)()
    assert not alike(drawn())

    def leave() -> None:
        nonlocal outer
        outer = iter(())

    amp.drawn_alike(leave)()
    assert alike(drawn())


def check_seeds_that_a_script_sets_in_every_epoch() -> None:
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=2))
    numbers = []
    for epoch in (0, 0):
        torch.manual_seed(epoch)
        random.seed(epoch)
        assert alike(drawn())
        for batch in loader:
            assert not alike(batch.tolist())
            numbers.append(batch.tolist())
    assert numbers[:2] == numbers[2:], "the same seed gives the same noise again"


def check_by_hand() -> None:
    reseed()
    expected = random.Random(7)
    amp.seed_by_rank()
    assert not alike(drawn())
    torch.manual_seed(3)
    amp.seed_by_rank()
    assert not alike(drawn()), "also where the script seeds itself in between"
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=2))
    for batch in loader:
        assert not alike(batch.tolist())
    assert not alike(drawn())
    assert amp.drawn_alike(random.random)() == expected.random()
    copied = copy.deepcopy(loader)
    assert len(list(copied)) == 2 and not alike(drawn())
    amp.seed_alike()
    assert alike(drawn()), "another split"
    amp.seed_alike()
    assert alike(drawn())


def check_generators_that_the_system_would_seed() -> None:
    seeds = [amp.same_seed(), amp.same_seed()]
    assert alike(seeds) and seeds[0] != seeds[1]
    assert alike(np.random.default_rng(amp.same_seed()).random())
    for _ in amp.prepare_loader(data.DataLoader(Noisy(), batch_size=4)):
        assert alike(amp.same_seed()) and not alike(drawn())
    assert amp.from_main_process({"seed": amp.rank() + 1}) == {"seed": 1}


def check_the_ranks_own_seeds() -> None:
    assert not alike(np.random.RandomState(amp.seed_of_rank(3)).rand()) and not alike(amp.seed_of_rank(3))
    assert amp.seed_of_rank(None) is None


def check_what_the_main_process_draws_alone_changes_nothing() -> None:
    reseed()
    amp.on_main(drawn)()
    assert alike(drawn())


def check_both_streams_are_saved() -> None:
    folder = Path(gathered(tempfile.mkdtemp(dir=os.environ["CHECK_DIR"]))[0])
    loader = amp.prepare_loader(data.DataLoader(Noisy(), batch_size=1))

    def run(saved: bool) -> list[Any]:
        numbers: list[Any] = []
        for _ in range(2):
            for _ in loader:
                numbers.append(drawn())
                if saved and len(numbers) == 6:
                    amp.save_checkpoint(folder / "last.pt", loader=loader)
            numbers.append(drawn())
        return numbers

    wanted = run(saved=True)
    reseed()
    drawn()
    assert amp.load_checkpoint(folder / "last.pt", loader=loader) == {}
    found = [drawn() for _ in loader]
    found.append(drawn())
    assert found == wanted[6:] and alike(found[-1]) and not alike(found[:-1])


if __name__ == "__main__":
    run_checks(globals())
