"""Ranks whose parameters, learning rates or numbers of steps have parted.

They train the same model with averaged gradients, so all of this stays the same on all ranks. A gradient that is not
averaged, a scheduler that is fed with a rank's own loss, or a step that one rank leaves out changes that in silence.

After steps 1, 10, 100, ... rank 0 leaves a few numbers in the store of the group, with which the others compare theirs
when they find them: nobody waits for anybody, so a rank that makes fewer steps cannot hang the others here.
``amp.save_checkpoint`` compares before it writes. Buffers that a forward pass writes are rank 0's after each step.
"""

from __future__ import annotations

import hashlib
import pickle
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from amp_runtime._core.context import context
from amp_runtime._core.device import is_capturing
from amp_runtime._core.models import prepared_parameters
from amp_runtime._distributed.group import from_all_processes
from amp_runtime._noticing import waiting
from amp_runtime._noticing.numbers import Numbers, Trained, difference, first_difference, rates_of, weights
from amp_runtime._noticing.setting import is_due, setting
from amp_runtime._scaling.scaler import scaler

_LATE = 9
"""After so many more steps rank 0 has left its numbers, if it makes as many steps."""
_KEPT = 100
_HELP = "Gradients that are not averaged, and what one rank does alone, do this. AMP_CHECK=off leaves this check out"


class _Stepping:
    """An optimizer of prepared models, which may be gone meanwhile, and the number of its steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.steps = 0

    def numbers(self) -> Trained:
        """What the ranks compare of it."""
        optimizer = self.optimizer()
        return Trained(self.name, self.steps, () if optimizer is None else rates_of(optimizer))


class _Steps:
    """The steps of this process.

    Attributes:
        store: where rank 0 leaves its numbers; ``None`` where the ranks are not looked at.
        every: whether the ranks are compared after each step.
        known: the optimizers that have stepped; ``None`` for those of no prepared model.
        stepping: those of prepared models, in the order of their first steps.
        made: how many steps these have made together.
        versions: those of the parameters when they were compared last.
        waiting: this rank's numbers after steps for which rank 0's were not there yet.
        hook: removes what torch calls after a step.
    """

    def __init__(self) -> None:
        self.store: Any = None
        self.every = False
        self.known: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Stepping | None] = weakref.WeakKeyDictionary()
        self.stepping: list[_Stepping] = []
        self.made = 0
        self.versions: dict[str, int] = {}
        self.waiting: dict[int, Numbers] = {}
        self.hook: Any = None


_steps = _Steps()


def begin(store: Any) -> None:
    """Looks at the ranks from here on, which meet at ``store``, where nothing else has numbers for names."""
    _steps.store, _steps.every = store, setting() == "every"
    _steps.hook = register_optimizer_step_post_hook(_after_step)


def end() -> None:
    """Forgets everything; ``amp.shutdown`` does it."""
    global _steps
    if _steps.hook is not None:
        _steps.hook.remove()
    _steps = _Steps()


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    waiting.step_made()
    if optimizer not in _steps.known:
        _meet(optimizer)
    known = _steps.known[optimizer]
    if known is None or _steps.store is None:
        return
    known.steps += 1
    _steps.made += 1
    if is_due(_steps.made, _steps.every) and not (torch.compiler.is_compiling() or is_capturing()):
        _leave(_steps.made)
    for step in list(_steps.waiting):
        _compare(step)


def _meet(optimizer: torch.optim.Optimizer) -> None:
    known = prepared_parameters()
    trains = any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"])
    # The scaler steps no others; at O2 it is masters that the optimizer holds just now.
    stepping = _Stepping(optimizer) if trains or scaler.stepping else None
    _steps.known[optimizer] = stepping
    if stepping is not None:
        _steps.stepping.append(stepping)


def _numbers() -> Numbers:
    return Numbers(tuple(stepping.numbers() for stepping in _steps.stepping), weights(_steps.versions))


def _leave(step: int) -> None:
    own = _numbers()
    if context.rank != 0:
        _steps.waiting[step] = own
        return
    with _while_there_is_a_store():
        _steps.store.set(_key(step), pickle.dumps(own))
        if _steps.every and step > _KEPT:
            _steps.store.delete_key(_key(step - _KEPT))


def _key(step: int) -> str:
    return str(step)


@contextmanager
def _while_there_is_a_store() -> Iterator[None]:
    """Gives up where the process has ended that kept the store, as at the end of a script."""
    try:
        yield
    except RuntimeError:
        _steps.store = None
        _steps.waiting.clear()


def _compare(step: int) -> None:
    left = None
    with _while_there_is_a_store():
        if _steps.store.check([_key(step)]):
            left = _steps.store.get(_key(step))
    if left is not None:
        told = difference(_steps.waiting.pop(step), pickle.loads(left), context.rank, 0)
        if told is not None:
            raise RuntimeError(f"the ranks have diverged, as step {step} shows: {told}. {_HELP}")
    elif _steps.waiting and _steps.made >= step + _LATE:
        raise RuntimeError(
            f"the ranks have diverged: rank {context.rank} has made {_steps.made} steps, and rank 0 fewer than {step}. "
            f"{_HELP}"
        )


def digest() -> tuple[bytes, Numbers] | None:
    """This rank's numbers and what tells whether another's are the same; ``None`` where ranks are not looked at."""
    if _steps.store is None:
        return None
    numbers = _numbers()
    # Writes may differ, where one rank has read the file that the others got their weights of.
    telling = numbers.optimizers, [weight.bits for weight in numbers.parameters.values()]
    return hashlib.sha256(repr(telling).encode()).digest(), numbers


def require_together(digests: Sequence[bytes | None], own: Numbers) -> None:
    """Raises on all ranks if their numbers differ, before a checkpoint is written. A collective if the digests do.

    Raises:
        RuntimeError: they do, by more than rounding.
    """
    if len(set(digests)) == 1:
        return
    told = first_difference(from_all_processes(own))
    if told is not None:
        raise RuntimeError(f"amp.save_checkpoint: the ranks have diverged: {told}. {_HELP}")
