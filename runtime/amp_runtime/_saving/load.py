"""``amp.load_checkpoint``: the objects of a run as they were, from its own file or that of another program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_runtime._core.callers import stacklevel
from amp_runtime._core.context import context
from amp_runtime._data.position import load_loader_state
from amp_runtime._ema import EMA
from amp_runtime._saving import in_parts
from amp_runtime._saving.bare import some
from amp_runtime._saving.generators import restore_generators_of_rank
from amp_runtime._saving.parts import is_loader, is_part, leaves, load_part, names_for, role_of
from amp_runtime._saving.ranks import gather_objects, require_all_ranks
from amp_runtime._saving.reading import read
from amp_runtime._saving.save import FORMAT, OWN, SCALER, as_path
from amp_runtime._scaling.scaler import scaler

_ORDER = ("model", "ema", "optimizer", "scheduler", "scaler", "loader")


@dataclass
class _Source:
    """A file that was read.

    Attributes:
        path: where it is.
        content: what it holds and was not loaded yet, by name.
        foreign: whether another program wrote it.
        ranks: what each rank saved of its own.
        strict: whether what is missing is an error.
        roles: the roles of the objects to load into, each as often as it occurs.
        notes: what was not loaded.
        in_parts: whether it is a folder, to which each rank wrote its part.
    """

    path: Path
    content: dict[str, Any]
    foreign: bool
    ranks: list[dict[str, Any]]
    strict: bool
    roles: list[str]
    notes: list[str]
    in_parts: bool = False


def load_checkpoint(
    path: str | os.PathLike[str],
    /,
    *,
    strict: bool = True,
    rng: bool = True,
    map_location: Any = "cpu",
    trusted: bool = False,
    **parts: Any,
) -> dict[str, Any]:
    """Loads what :func:`save_checkpoint` saved into objects made as before, and returns the values::

        start = 0
        if os.path.exists("last.pt"):
            saved = amp.load_checkpoint("last.pt", model=model, optimizer=optimizer, scheduler=scheduler, ema=ema,
                                        loader=train_loader)
            start = saved["epoch"]

    All ranks call it together, after the models, optimizers and loaders are prepared and just before the training
    goes on. With the same number of ranks the run then goes on bit for bit as if it had not stopped; the number of a
    loader's workers may differ. With another number of ranks the parameters and averages are the same. What all have
    read of an epoch is not read again, and what is left is shared out anew; see :func:`load_loader_state` for loaders
    that cannot. A rank that did not exist goes on with the random numbers that all ranks share, and gets own ones that
    are seeded by these and its rank; a warning says so.

    Files of other programs load too, so that a run may go on after its script was migrated: a bare state dict, and
    dictionaries of states under other usual names (``state_dict``, ``net``, ``optim``, ``lr_scheduler``, ``amp``,
    ...); with and without ``module.`` before the weights' names; with the scaler of Apex or torch. What such a file
    does not hold of loaders and averages begins anew: an :class:`EMA` with the loaded weights.

    Args:
        path: the file, or the folder that ``sharded=True`` has written.
        strict: whether missing and unexpected weights, and missing parts, are an error. Otherwise what fits is loaded
            and a warning tells the rest. Weights of another shape are always an error.
        rng: restore the random states too.
        map_location: as in ``torch.load``. The default needs no GPU memory; each state goes to where its object is.
        trusted: read the file with ``weights_only=False``, which runs code from it. Needed where it holds objects of
            classes other than tensors, plain values, ``argparse.Namespace`` and paths.
        parts: the objects to load into, under the names with which they were saved.

    Returns:
        Everything else in the file by its name: values, and the states of objects that were not given.

    Raises:
        FileNotFoundError: there is no such file.
        RuntimeError: the file is damaged or not trusted, lacks a part, or holds one that does not fit its object; the
            message lists what differs. The objects may then be partly loaded.
        TypeError: a part has no ``load_state_dict``.
        ValueError: the file was saved in mid-epoch of a loader over other data, or that cannot be shared out anew.
    """
    file = as_path(path, "amp.load_checkpoint")
    require_all_ranks("amp.load_checkpoint")
    objects = {name: list(leaves(name, part)) for name, part in parts.items()}
    for name, found in objects.items():
        if not all(is_part(part) for _, part in found):
            raise TypeError(
                f"amp.load_checkpoint got {name}={parts[name]!r}, which has no load_state_dict; values are in what it "
                f"returns, as in saved[{name!r}]"
            )
    file = in_parts.found(file)
    is_folder = any(gather_objects(file.is_dir()))
    source = _opened(file, read(file / in_parts.WHOLE if is_folder else file, map_location, trusted), strict)
    source.in_parts = is_folder
    source.roles = [_role(name, found[0][1]) for name, found in objects.items()]
    for name in sorted(parts, key=lambda name: _ORDER.index(_role(name, objects[name][0][1]))):
        _load(name, parts[name], objects[name], source)
    if SCALER not in parts:
        _load_scaler(source)
    if source.ranks and len(source.ranks) != context.world_size:
        source.notes.append(f"saved by {len(source.ranks)} process(es), so that random numbers go on differently")
    if source.notes and context.rank == 0:
        warnings.warn(f"amp.load_checkpoint: {str(file)!r}: " + "; ".join(source.notes), stacklevel=stacklevel())
    if rng and source.ranks:
        restore_generators_of_rank([rank["rng"] for rank in source.ranks])
    return source.content


def _opened(path: Path, content: Any, strict: bool) -> _Source:
    if not isinstance(content, Mapping) or OWN not in content:
        return _Source(path, _of_another_program(content, path), True, [], strict, [], [])
    content = dict(content)
    about = content.pop(OWN)
    if about["format"] > FORMAT:
        raise RuntimeError(
            f"amp.load_checkpoint: {str(path)!r} has format {about['format']}; this amp_runtime reads up to {FORMAT}"
        )
    return _Source(path, content, False, about["ranks"], strict, [], [])


def _of_another_program(content: Any, path: Path) -> dict[str, Any]:
    """What such a file holds, by name; a file of weights alone holds a model."""
    if isinstance(content, nn.Module):
        return {"model": content}
    if not isinstance(content, Mapping) or not content:
        kind = type(content).__name__
        raise RuntimeError(f"amp.load_checkpoint: {str(path)!r} holds a {kind} and no dictionary of states")
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        return {"model": content}
    return dict(content)


def _role(name: str, part: Any) -> str:
    return "loader" if is_loader(part) else role_of(name, part)


def _load(name: str, part: Any, objects: list[tuple[str, Any]], source: _Source) -> None:
    if is_loader(objects[0][1]):
        _load_loaders(objects, source)
        return
    key = _key(name, part, source)
    if key is None:
        _do_without(name, objects, source)
        return
    state = source.content.pop(key)
    for full_name, item, of_item in _pairs(name, part, state):
        if source.in_parts:
            of_item = in_parts.whole_again(full_name, item, of_item, source.path)
        source.notes += load_part(full_name, item, of_item, source.strict)


def _key(name: str, part: Any, source: _Source) -> str | None:
    """The name of the part in the file."""
    if not source.foreign:
        return name if name in source.content else None
    role = role_of(name, part) if is_part(part) else ""
    alone = source.roles.count(role) == 1
    for candidate in names_for(name, role if alone else ""):
        if isinstance(source.content.get(candidate), (Mapping, list, tuple, nn.Module)):
            return candidate
    return None


def _pairs(name: str, part: Any, state: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each object of a part with its name and its state."""
    if is_part(part):
        yield name, part, state
        return
    keys = list(part) if isinstance(part, Mapping) else list(range(len(part)))
    held = list(state) if isinstance(state, Mapping) else list(range(len(state)))
    if set(keys) != set(held):
        raise RuntimeError(f"amp.load_checkpoint: {name!r} in the file has {some(held)}, and {some(keys)} were given")
    for key in keys:
        yield f"{name}[{key!r}]", part[key], state[key]


def _do_without(name: str, objects: list[tuple[str, Any]], source: _Source) -> None:
    """What happens if the file does not have a part."""
    averages = [part for _, part in objects if isinstance(part, EMA)]
    if source.strict and not (source.foreign and averages):
        raise RuntimeError(
            f"amp.load_checkpoint: {str(source.path)!r} has no {name!r}; it has: {some(source.content, 10)}. "
            "strict=False loads the rest"
        )
    for average in averages:
        average.reset()
    source.notes.append(f"it has no {name!r}" + (", which begins with the loaded weights" if averages else ""))


def _load_loaders(objects: list[tuple[str, Any]], source: _Source) -> None:
    for name, loader in objects:
        saved = [rank["loaders"][name] for rank in source.ranks if name in rank["loaders"]]
        if saved:
            # Rank 0 has never had fewer batches than another; states of other libraries go round.
            shared_anew = len(saved) != context.world_size and "own" not in saved[0]
            load_loader_state(loader, saved[0 if shared_anew else context.rank % len(saved)])
        elif source.strict and not source.foreign:
            raise RuntimeError(f"amp.load_checkpoint: {str(source.path)!r} has no position of {name!r}")
        else:
            source.notes.append(f"it has no position of {name!r}, which begins an epoch")


def _load_scaler(source: _Source) -> None:
    names = names_for(SCALER, SCALER) if source.foreign else [SCALER]
    for name in names:
        state = source.content.get(name)
        if isinstance(state, Mapping) and (not source.foreign or "scale" in state or "loss_scaler0" in state):
            scaler.load_state_dict(source.content.pop(name))
            return
