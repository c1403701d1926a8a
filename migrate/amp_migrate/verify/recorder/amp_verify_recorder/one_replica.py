"""A DistributedSampler that has all samples to itself gives them in the order that one process without it has.

A script with a hand-written distribution may use one in a single process too. Its order is as random as that of a
shuffling loader, and another one, so nothing could be compared. With one replica there is nothing to share out. A
version with levels of its own has to give the original's order by itself.

``AMP_VERIFY_IN_ORDER`` names the loaders, by the order in which they are made, that do not shuffle.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from . import imports
from .loading import NUMBER
from .steps import Steps

_GENERATOR, _LOADER = "_amp_verify_generator", "_amp_verify_loader"


def watch(steps: Steps) -> None:
    """Follow the samplers and the loaders that they are given to."""
    if os.environ.get("AMP_VERIFY_NATIVE", "leveled").startswith("leveled"):
        return
    order = _Order(steps.torch)
    imports.after("torch.utils.data.distributed", order.watch_sampler)
    imports.after("torch.utils.data.dataloader", order.watch_loader)


class _Order:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.in_order = frozenset(filter(None, os.environ.get("AMP_VERIFY_IN_ORDER", "").split(",")))

    def watch_sampler(self, module: Any) -> None:
        """Give the samplers of one replica the order of ``RandomSampler``."""
        sampler = module.DistributedSampler
        original = sampler.__iter__

        @functools.wraps(original)
        def ordered(self_: Any) -> Iterator[int]:
            if self_.num_replicas != 1 or not self_.shuffle:
                return iter(original(self_))
            if str(self_.__dict__.get(_LOADER)) in self.in_order:
                return iter(range(len(self_.dataset)))
            return self._shuffled(len(self_.dataset), self_.__dict__.get(_GENERATOR))

        sampler.__iter__ = ordered

    def _shuffled(self, count: int, generator: Any) -> Iterator[int]:
        """As ``RandomSampler`` draws them, at the first sample and not before."""
        torch = self.torch
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        yield from torch.randperm(count, generator=generator).tolist()

    def watch_loader(self, module: Any) -> None:
        """Remember which loader a sampler is for, and its generator, which one that it makes itself draws from."""
        loader = module.DataLoader
        loader.__init__ = _afterwards(loader.__init__, self._note)

    @staticmethod
    def _note(loader: Any) -> None:
        sampler = getattr(loader, "sampler", None)
        if hasattr(sampler, "num_replicas"):
            sampler.__dict__[_GENERATOR] = getattr(loader, "generator", None)
            sampler.__dict__[_LOADER] = loader.__dict__.get(NUMBER)


def _afterwards(init: Callable[..., None], look: Callable[[Any], None]) -> Callable[..., None]:
    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        look(self)

    return made
