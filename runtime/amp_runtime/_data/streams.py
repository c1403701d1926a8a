"""Two streams of random numbers: one that all ranks draw alike, and each rank's own.

A script draws for two purposes. Splits, orders, initial weights and choices must be the same on all ranks; noise,
dropout and augmentation must differ, or the ranks do the same work twice. So the script's own stream stays the same on
all ranks, and is put aside while a batch is loaded and worked on. Alone there is one stream, and nothing here does
anything.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from amp_runtime._core.context import context
from amp_runtime._core.randomness import random_state_with_gpu, set_random_state_with_gpu
from amp_runtime._data.seeding import mix, seed_everything

T = TypeVar("T")
S = TypeVar("S")
_State = dict[str, Any]


class OwnNumbers:
    """Something that draws the rank's own numbers, such as a pass over a loader: until it ends, or is dropped."""

    def __init__(self) -> None:
        self._among: set[int] | None = None
        if context.distributed:
            self._among = _begin(id(self))

    def end(self) -> None:
        """Goes back to the numbers that all ranks draw, unless something else needs the rank's own still."""
        among, self._among = self._among, None
        if among is not None:
            _end(id(self), among)

    def __getstate__(self) -> dict[str, Any]:
        return {"_among": None}  # a copy has begun nothing

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.end()


class _Streams:
    """The state of the process.

    Attributes:
        users: who draws the rank's own numbers at present; the stream of all ranks is in force where it is empty.
        aside: the state of the stream that is not in force: the common one, or in a call that draws alike the own one.
        resumed: a state of the rank's own stream that was loaded, for the next time it is in force.
        by_hand: what :func:`seed_by_rank` has begun.
    """

    def __init__(self) -> None:
        self.users: set[int] = set()
        self.aside: _State | None = None
        self.resumed: _State | None = None
        self.by_hand: OwnNumbers | None = None


_streams = _Streams()


def _begin(user: int) -> set[int]:
    if not _streams.users:
        resumed, _streams.resumed = _streams.resumed, None
        # Drawn, so that the next time gets other numbers; what is resumed was drawn before it was saved.
        drawn = _drawn_from_torch() if resumed is None else 0
        _streams.aside = random_state_with_gpu()
        if resumed is None:
            seed_everything(mix(drawn, context.rank))
        else:
            set_random_state_with_gpu(resumed)
    _streams.users.add(user)
    return _streams.users


def _end(user: int, among: set[int]) -> None:
    among.discard(user)
    if among is _streams.users and not among:
        _back()


def _back() -> None:
    common, _streams.aside = _streams.aside, None
    if common is not None:
        set_random_state_with_gpu(common)


def own_numbers_in_force() -> bool:
    """Whether what is drawn at present is drawn by this rank alone."""
    return bool(_streams.users)


@contextmanager
def common_numbers() -> Iterator[None]:
    """In the block all ranks draw the same numbers, and the rank's own stream waits."""
    users = _streams.users
    if not users:
        yield
        return
    own, common = random_state_with_gpu(), _streams.aside
    _streams.users, _streams.aside = set(), None
    if common is not None:
        set_random_state_with_gpu(common)
    try:
        yield
    finally:
        _streams.users, _streams.aside = users, random_state_with_gpu()
        set_random_state_with_gpu(own)
        if not users:  # what drew the rank's own numbers has ended in the block
            _back()


def drawn_alike(function: Callable[..., T]) -> Callable[..., T]:
    """The function, drawing the same random numbers on every rank: ``task = amp.drawn_alike(random.choice)(tasks)``.

    While a batch of a prepared loader is worked on, and after :func:`amp.seed_by_rank`, each rank draws numbers of
    its own. A choice that decides what is trained, and noise that is added to weights, must be the same on all: for
    the time of the call torch (on the CPU and the current GPU), ``random`` and NumPy go on with the stream that all
    ranks share, where they left it. All ranks have to make the same calls. Alone, and where all ranks draw alike
    anyway, it is a plain call.

    Args:
        function: any function, bound method or class.

    Returns:
        A function of the same arguments.
    """

    @functools.wraps(function, updated=())
    def alike(*args: Any, **kwargs: Any) -> T:
        if not _streams.users:
            return function(*args, **kwargs)
        with common_numbers():
            return function(*args, **kwargs)

    return alike


def same_seed() -> int | None:
    """A seed for a generator that the script would let the system seed: ``np.random.default_rng(amp.same_seed())``.

    Alone it is None, and the generator is seeded as if nothing were given. In several processes it is a number that all
    ranks draw alike, another one each time. All ranks have to ask for it.
    """
    return drawn_alike(lambda: _drawn_from_torch() % 2**32)() if context.distributed else None


def seed_of_rank(seed: S) -> S | int:
    """The rank's own seed for a generator that draws noise: ``np.random.RandomState(amp.seed_of_rank(seed))``.

    Args:
        seed: a whole number, or what a generator takes in its place.

    Returns:
        The seed itself alone, and where it is no whole number; else one made of it that differs on each rank.
    """
    if not context.distributed or not isinstance(seed, int):
        return seed
    return mix(seed, context.rank) % 2**32


def seed_by_rank() -> None:
    """From here on torch, ``random`` and NumPy draw different numbers on each rank.

    A loop over a prepared loader needs no call: while it has a batch, each rank draws numbers of its own, and so
    does augmentation, in worker processes too. It is for loops that draw their batches from the data at random. What
    has to be the same on all ranks after it goes through :func:`amp.drawn_alike`. Alone it does nothing.
    """
    if not context.distributed:
        return
    if _streams.by_hand is None:
        _streams.by_hand = OwnNumbers()
    else:  # the script may have set a seed in between, the same on all ranks
        seed_everything(mix(_drawn_from_torch(), context.rank))


def seed_alike() -> None:
    """Takes :func:`amp.seed_by_rank` back: from here on all ranks go on with the numbers that they share.

    For what comes before the next training in the same script, such as another split of the data.
    """
    if _streams.by_hand is not None:
        _streams.by_hand.end()
        _streams.by_hand = None


def forget_streams() -> None:
    """Ends the rank's own numbers; ``amp.shutdown`` does it."""
    _streams.by_hand = _streams.resumed = None
    _streams.users.clear()
    _back()


def resume_own(restore: Callable[[], None]) -> None:
    """Lets the rank's own stream be what ``restore`` sets, now or when it is in force again."""
    if _streams.users:
        restore()
        return
    common = random_state_with_gpu()
    restore()
    _streams.resumed = random_state_with_gpu()
    set_random_state_with_gpu(common)


def _drawn_from_torch() -> int:
    return int(torch.empty((), dtype=torch.int64).random_().item())


class SeedWorkers:
    """A loader's ``worker_init_fn``: the script's own, after which each rank's workers draw numbers of their own.

    torch gives the workers of all ranks the same seeds, and so do scripts that seed them by their number.
    """

    def __init__(self, init: Callable[[int], Any] | None) -> None:
        self._init = init
        self._rank = context.rank

    def __call__(self, worker: int) -> None:
        if self._init is not None:
            self._init(worker)
        # Of every library's state, for the script may have seeded only one of them, and counts on it.
        numpy: Any = sys.modules.get("numpy")
        of_numpy = 0 if numpy is None else int(numpy.random.randint(2**31 - 1))
        seed_everything(mix(_drawn_from_torch(), random.getrandbits(62), of_numpy, self._rank))
