"""Checkpoints in folders, to which each rank writes its own part of what is sharded: torch's distributed checkpoint.

The folder holds an ordinary file of ``torch.save`` with everything that is not sharded, in which a :class:`dict` stands
in the place of each sharded tensor; and what ``torch.distributed.checkpoint`` wrote of these, under flat names such as
``model.blocks.0.weight``. Any number of processes reads it, sharded or not.

Source: https://pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

import importlib
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.dtensors import is_sharded
from amp_runtime._distributed.group import from_main_process
from amp_runtime._saving.ranks import gather_objects, raise_together

WHOLE = "rest.pt"
"""The file of what is not sharded."""
_PLACE = "amp_sharded"
_EARLIER = "earlier"


def apart(states: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """States with something in the place of each sharded tensor, and these tensors by flat names."""
    tensors: dict[str, torch.Tensor] = {}

    def placed(value: Any, name: str) -> Any:
        if is_sharded(value):
            tensors[name] = value.detach()
            return {_PLACE: name, "shape": list(value.shape), "dtype": value.dtype}
        if isinstance(value, dict):
            return type(value)((key, placed(item, f"{name}.{key}")) for key, item in value.items())
        if type(value) in (list, tuple):
            return type(value)(placed(item, f"{name}.{number}") for number, item in enumerate(value))
        return value

    return {name: placed(value, name) for name, value in states.items()}, tensors


def write_in_parts(folder: Path, tensors: dict[str, torch.Tensor], write_rest: Callable[[Path], None]) -> None:
    """Writes a folder under another name, and gives it its own when all ranks are done. A collective.

    Args:
        folder: its name. One that is there is replaced.
        tensors: the sharded tensors, by the same names on all ranks.
        write_rest: writes the rest to a path; called on the main process.

    Raises:
        OSError: some rank cannot write; on all ranks.
        RuntimeError: the same, for what torch raises.
    """
    beside = Path(from_main_process(f"{folder}.{uuid.uuid4().hex[:8]}.tmp"))
    problem: BaseException | None = None
    try:
        beside.mkdir(parents=True, exist_ok=True)
        if context.rank == 0:
            write_rest(beside / WHOLE)
    except Exception as error:
        problem = error
    _raise_of_any(problem)
    try:
        with _quietly():
            _engine().save(tensors, checkpoint_id=str(beside))
    except (Exception, _failure()) as error:
        problem = RuntimeError(f"amp.save_checkpoint: {str(folder)!r} could not be written: {_told(error)}")
    try:
        _raise_of_any(problem)
        if context.rank == 0:
            problem = _renamed(beside, folder)
        raise_together(problem)
    finally:
        if context.rank == 0:
            shutil.rmtree(beside, ignore_errors=True)


def _renamed(beside: Path, folder: Path) -> BaseException | None:
    """Puts a complete folder in the place of the earlier one; what went wrong."""
    earlier = folder.with_name(f"{folder.name}.{_EARLIER}")
    try:
        if folder.is_file():
            raise FileExistsError(f"amp.save_checkpoint: {str(folder)!r} is a file; sharded=True writes a folder")
        shutil.rmtree(earlier, ignore_errors=True)
        if folder.exists():
            os.replace(folder, earlier)
        os.replace(beside, folder)
        shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:
        return error
    return None


def found(path: Path) -> Path:
    """The folder of a checkpoint; the earlier one, if a process ended between the two names."""
    earlier = path.with_name(f"{path.name}.{_EARLIER}")
    return earlier if not path.exists() and earlier.is_dir() else path


def whole_again(name: str, part: Any, state: Any, folder: Path) -> Any:
    """The state of a part with tensors in their places: shards where the part has shards. A collective.

    Of what the part does not have itself yet, every rank reads the whole tensor.
    """
    likes = _likes(part)
    wanted: dict[str, torch.Tensor] = {}

    def target(value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            if _PLACE in value:
                like = likes.get(path) if likes.get(path) is not None else likes.get(path[:-1])
                fits = like is not None and is_sharded(like) and list(like.shape) == value["shape"]
                made = (
                    torch.zeros_like(like, dtype=value["dtype"])  # type: ignore[arg-type]
                    if fits
                    else torch.zeros(value["shape"], dtype=value["dtype"])
                )
                wanted[value[_PLACE]] = made
                return made
            return type(value)((key, target(item, (*path, key))) for key, item in value.items())
        if type(value) in (list, tuple):
            return type(value)(target(item, (*path, number)) for number, item in enumerate(value))
        return value

    filled = target(state, ())
    names = gather_objects(sorted(wanted))
    if not any(names):
        return filled
    try:
        with _quietly():
            _engine().load(wanted, checkpoint_id=str(folder))
    except (Exception, _failure()) as error:
        raise RuntimeError(f"amp.load_checkpoint: {str(folder)!r} lacks what {name!r} needs: {_told(error)}") from error
    return filled


def _likes(part: Any) -> dict[tuple[Any, ...], torch.Tensor]:
    """Tensors that a part has, by where the state has them; of an optimizer, the parameters of its states."""
    if isinstance(part, nn.Module):
        return {(name,): value for name, value in part.state_dict().items() if isinstance(value, torch.Tensor)}
    groups = getattr(part, "param_groups", None)
    if groups is None:
        return {}
    parameters = [parameter for group in groups for parameter in group["params"]]
    return {("state", number): parameter for number, parameter in enumerate(parameters)}


def _raise_of_any(problem: BaseException | None) -> None:
    """Raises the problem of any rank on every rank. A collective."""
    own = None if problem is None else f"{type(problem).__name__}: {problem}"
    told = [text for text in gather_objects(own) if text]
    if problem is not None:
        raise problem
    if told:
        raise RuntimeError(f"amp.save_checkpoint: on another rank: {told[0]}")


@contextmanager
def _quietly() -> Iterator[None]:
    """Without torch's words about what it does by itself in one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _failure() -> type[BaseException]:
    """What torch raises for what went wrong on some rank; it is no :class:`Exception`."""
    failure: type[BaseException] = importlib.import_module("torch.distributed.checkpoint.api").CheckpointException
    return failure


def _told(error: BaseException) -> str:
    """The first problem of the ranks in one line."""
    failures = getattr(error, "failures", None) or {}
    first = next((item[0] for item in failures.values()), error)
    return f"{type(first).__name__}: {first}".split("\n")[0]


def _engine() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")
