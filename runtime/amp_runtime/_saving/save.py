"""``amp.save_checkpoint``: everything that a run needs to go on, in one file."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from amp_runtime._core.callers import stacklevel
from amp_runtime._core.context import context
from amp_runtime._core.rows import whole_on_main_alone
from amp_runtime._data.position import loader_state
from amp_runtime._distributed.sharding import has_sharded_models
from amp_runtime._noticing import parting
from amp_runtime._saving import in_parts
from amp_runtime._saving.atomic import write_atomically
from amp_runtime._saving.bare import some
from amp_runtime._saving.full import gathered
from amp_runtime._saving.generators import generator_states
from amp_runtime._saving.parts import classes_in, is_loader, is_part, leaves, plain, state_of
from amp_runtime._saving.ranks import gather_objects, raise_together, require_all_ranks
from amp_runtime._saving.reading import harmless_globals
from amp_runtime._scaling.scaler import scaler

FORMAT = 1
"""The version of the file's layout."""
OWN = "amp_checkpoint"
"""The name of what is saved beside the script's parts."""
SCALER = "scaler"
"""The name of the state of ``amp.scaler``."""
_CONTAINERS = (dict, list, tuple, OrderedDict)


def save_checkpoint(path: str | os.PathLike[str], /, *, keep: int = 0, sharded: bool = False, **parts: Any) -> None:
    """Saves models, optimizers, schedulers, averages, loaders and values, so that a run can go on bit for bit::

        amp.save_checkpoint("last.pt", model=model, optimizer=optimizer, scheduler=scheduler, ema=ema,
                            loader=train_loader, epoch=epoch)

    All ranks call it together, at any point between two steps; the main process writes. The state of ``amp.scaler`` and
    each rank's random states (torch, CUDA, ``random``, and NumPy's global one) are saved with it, and each rank's
    position in the loaders, also in the middle of an epoch.

    The file is never half written: it gets its name when it is complete on the disk. It is an ordinary file of
    ``torch.save``: ``torch.load(path)["model"]`` is the state dict without ``module.`` before the names, float32 at
    O2, so that it loads at every opt level and without this package. What is sharded is put together first, so the file
    is that of a model which is not, and loads with any number of processes.

    Args:
        path: the file. Missing folders are made.
        keep: how many earlier files stay beside it: ``last.1.pt`` is the one before, then ``last.2.pt``.
        sharded: write a folder instead of a file, to which each rank writes its part of what is sharded
            (``torch.distributed.checkpoint``): no rank ever holds a whole model. All ranks have to see the folder.
            ``amp.load_checkpoint`` tells the two apart, and loads both into any number of processes.
        parts: under names of your choice, what has ``state_dict`` and ``load_state_dict``; loaders that went through
            ``amp.prepare_loader``; lists and dictionaries of these; and plain values such as numbers, strings and
            tensors.

    Raises:
        TypeError: an argument is of a kind that cannot be saved.
        ValueError: ``keep`` is negative, or given with ``sharded``, or a part has the name that is used for what is
            saved beside.
        OSError: the file cannot be written; on all ranks.
        RuntimeError: it was called where only some ranks are; or the ranks' parameters or learning rates differ, so
            that the file would not be what the others train. ``AMP_CHECK=off`` leaves that check out.
    """
    target = as_path(path, "amp.save_checkpoint")
    if not isinstance(keep, int) or keep < 0:
        raise ValueError(f"amp.save_checkpoint got keep={keep!r}; allowed: 0, 1, 2, ...")
    if sharded and keep:
        raise ValueError(f"amp.save_checkpoint got keep={keep} with sharded=True; allowed: 0, folders have no versions")
    if OWN in parts:
        raise ValueError(f"amp.save_checkpoint got a part named {OWN!r}, the name of what is saved beside the parts")
    require_all_ranks("amp.save_checkpoint")
    objects = [leaf for name, part in parts.items() for leaf in leaves(name, part)]
    loaders = {name: loader_state(part) for name, part in objects if is_loader(part)}
    numbers = parting.digest()
    ranks = gather_objects(
        {"rng": generator_states(), "loaders": loaders, "digest": None if numbers is None else numbers[0]}
    )
    digests = [rank.pop("digest") for rank in ranks]
    if numbers is not None and None not in digests:
        parting.require_together(digests, numbers[1])
    if sharded:
        with whole_on_main_alone():
            rest, tensors = in_parts.apart(_states(parts))
        in_parts.write_in_parts(target, tensors, lambda file: torch.save(_content(rest, ranks), file))
        return
    problem: BaseException | None = None
    shards = has_sharded_models()
    states = None
    if shards:
        with whole_on_main_alone():
            states = gathered(_states(parts))
    if context.rank == 0:
        try:
            content = _content(_states(parts) if states is None else states, ranks)
            write_atomically(target, lambda file: torch.save(content, file), keep)
        except Exception as error:
            problem = error
    raise_together(problem)


def as_path(path: Any, function: str) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{function} got {path!r} as the path; allowed: a string or a path, before the named parts")
    return Path(path)


def _states(parts: dict[str, Any]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for name, part in parts.items():
        objects = [item for _, item in leaves(name, part)]
        if all(is_loader(item) for item in objects):
            continue  # among the ranks' own
        states[name] = state_of(part) if is_part(objects[0]) else plain(part)
    return states


def _content(content: dict[str, Any], ranks: list[Any]) -> dict[str, Any]:
    content.setdefault(SCALER, scaler.state_dict())
    for name, value in content.items():
        _warn_of_odd_classes(name, value)
    content[OWN] = {
        "format": FORMAT,
        "opt_level": context.opt_level,
        "dtype": str(context.half_dtype()).removeprefix("torch.") if context.mixed else "float32",
        "torch": str(torch.__version__),
        "world_size": context.world_size,
        "ranks": ranks,
    }
    return content


def _warn_of_odd_classes(name: str, value: Any) -> None:
    harmless = {*harmless_globals(), *_CONTAINERS}
    odd = sorted({f"{c.__module__}.{c.__qualname__}" for c in classes_in(value) if c not in harmless})
    if odd:
        warnings.warn(
            f"amp.save_checkpoint: {name!r} holds {some(odd)}, so that the file can only be loaded with trusted=True. "
            "Save plain values instead, such as vars(config)",
            stacklevel=stacklevel(),
        )
