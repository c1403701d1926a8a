"""A DistributedSampler that has all samples to itself gives them in the order that one process without it has.

A script with a hand-written distribution may use one in a single process too. Its order is as random as that of a
shuffling loader, and another one, so nothing could be compared. With one replica there is nothing to share out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from . import imports
from .steps import Steps

_GENERATOR = "_amp_verify_generator"


def watch(steps: Steps) -> None:
    """Follow the samplers and the loaders that they are given to."""
    if not os.environ.get("AMP_VERIFY_NATIVE"):
        return
    order = _Order(steps.torch)
    imports.after("torch.utils.data.distributed", order.watch_sampler)
    imports.after("torch.utils.data.dataloader", order.watch_loader)


class _Order:
    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def watch_sampler(self, module: Any) -> None:
        """Give the samplers of one replica the order of ``RandomSampler``."""
        sampler = module.DistributedSampler
        original = sampler.__iter__

        @functools.wraps(original)
        def ordered(self_: Any) -> Iterator[int]:
            if self_.num_replicas != 1 or not self_.shuffle:
                return iter(original(self_))
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
        """Remember a loader's own generator, which a sampler that it makes itself would draw from."""
        loader = module.DataLoader
        loader.__init__ = _afterwards(loader.__init__, self._note)

    @staticmethod
    def _note(loader: Any) -> None:
        sampler = getattr(loader, "sampler", None)
        if getattr(loader, "generator", None) is not None and hasattr(sampler, "num_replicas"):
            sampler.__dict__[_GENERATOR] = loader.generator


def _afterwards(init: Callable[..., None], look: Callable[[Any], None]) -> Callable[..., None]:
    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        look(self)

    return made
