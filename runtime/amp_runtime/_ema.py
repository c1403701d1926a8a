"""``amp.EMA``: an average of a model's weights over the steps, in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from amp_runtime._core.dtensors import any_sharded, is_sharded, local, shard_like
from amp_runtime._core.rows import mark, table_of
from amp_runtime._distributed.rows import put_together
from amp_runtime._precision import masters
from amp_runtime._saving.bare import bare, some, without_prefixes
from amp_runtime._scaling.gradients import inner_optimizer
from amp_runtime._scaling.scaler import scaler

_BUFFERS = ("average", "copy")
_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class _Shadowed:
    """One tensor of the model and its average.

    The model's tensor is looked up each time, because scripts replace parameters and buffers.
    """

    def __init__(self, place: dict[str, Any], key: str, shadow: torch.Tensor) -> None:
        self.place = place
        self.key = key
        self.shadow = shadow

    @property
    def live(self) -> torch.Tensor:
        tensor: torch.Tensor = self.place[self.key]
        return tensor

    def value(self) -> torch.Tensor:
        """What a step has left of it, in full precision."""
        live, table = self.live, table_of(self.live)
        value = _stepped(live) if isinstance(live, nn.Parameter) else exact(live)
        if table is not None:
            mark(value, table)
        return value


class EMA:
    """An exponential moving average of a model's weights, for evaluation and for the final model.

    After each step ``average = decay * average + (1 - decay) * weight``, as in Polyak and Juditsky (1992,
    https://doi.org/10.1137/0330046) with the exponential weights of
    https://www.tensorflow.org/api_docs/python/tf/train/ExponentialMovingAverage::

        ema = amp.EMA(model, decay=0.999)
        ...
        amp.scaler.step(optimizer)
        amp.scaler.update()
        ema.update()                  # a step that was skipped for an overflow does not count
        ...
        with ema.applied():
            evaluate(model)

    The average is float32, or wider where the model is, and follows the master weights at O2: in half precision
    the small differences would be rounded away and it would never move. Frozen parameters and buffers
    are part of it. All ranks compute the same average from their equal weights, without communication.

    Args:
        model: the model, prepared or not. Build the average after the weights are initialised or loaded, or call
            :meth:`reset` then.
        decay: from 0 (the weights themselves) to 1 (never moves); or a function that gets the number of moves so
            far, beginning with 0, and returns the decay of the next one.
        warmup: use ``min(decay, (1 + n) / (10 + n))`` for the n-th move, so that the first random weights are soon
            forgotten.
        update_every: move the average at every so many steps only. The decay is the same for each move.
        buffers: ``"average"`` for floating-point buffers such as batch norm's statistics, or ``"copy"`` for their
            latest values. Integer buffers are always copied.
        optimizer: the optimizer that steps this model, where there are several (a GAN): the average then follows
            its steps, and not those of whichever stepped last.
        device: where to keep the average; ``None`` is beside each weight. ``"cpu"`` saves GPU memory and costs a
            copy at each move.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: an argument is not one of the allowed values, or the model has lazy parameters; or it is sharded and
            ``device`` is another than that of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        decay: float | Callable[[int], float] = 0.999,
        *,
        warmup: bool = False,
        update_every: int = 1,
        buffers: Literal["average", "copy"] = "average",
        optimizer: Any = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"amp.EMA got {type(model).__name__}; allowed: a torch.nn.Module")
        if not callable(decay) and not (isinstance(decay, (int, float)) and 0 <= decay <= 1):
            raise ValueError(f"amp.EMA got decay={decay!r}; allowed: a number from 0 to 1, or a function")
        if not isinstance(update_every, int) or update_every < 1:
            raise ValueError(f"amp.EMA got update_every={update_every!r}; allowed: 1, 2, 3, ...")
        if buffers not in _BUFFERS:
            raise ValueError(f"amp.EMA got buffers={buffers!r}; allowed: {', '.join(map(repr, _BUFFERS))}")
        self.decay = decay
        self.warmup = warmup
        self.update_every = update_every
        self._updates = 0
        self._unread: torch.Tensor | None = None
        self._optimizer = optimizer
        self._device = None if device is None else torch.device(device)
        self._model: nn.Module = bare(model)
        self._module: nn.Module | None = None
        self._depth = 0
        self._backup: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._averaged: list[_Shadowed] = []
        self._copied: list[_Shadowed] = []
        self._by_name: dict[str, torch.Tensor] = {}
        self._collect(buffers == "average")

    def _collect(self, average_buffers: bool) -> None:
        """Makes the shadow of every parameter and buffer; a tensor with several names has one."""
        shadows: dict[int, torch.Tensor] = {}
        for prefix, module in self._model.named_modules(remove_duplicate=False):
            dot = f"{prefix}." if prefix else ""
            for tensors, is_parameter in ((module._parameters, True), (module._buffers, False)):
                for key, live in tensors.items():
                    if live is None:
                        continue
                    if id(live) not in shadows:
                        shadow = shadows[id(live)] = self._shadow_of(live, dot + key)
                        average = (is_parameter or average_buffers) and (live.is_floating_point() or live.is_complex())
                        entry = _Shadowed(tensors, key, shadow)
                        (self._averaged if average else self._copied).append(entry)
                    if is_parameter or key not in module._non_persistent_buffers_set:
                        self._by_name[dot + key] = shadows[id(live)]

    def _shadow_of(self, live: torch.Tensor, name: str) -> torch.Tensor:
        if isinstance(live, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise ValueError(f"amp.EMA got a model whose {name} is lazy; run one batch through the model first")
        if is_sharded(live) and self._device not in (None, live.device):
            raise ValueError(f"amp.EMA got device={str(self._device)!r} for a sharded model; allowed: None")
        start = exact(live).to(self._device or live.device, copy=True)
        shadow = nn.Parameter(start, requires_grad=False) if isinstance(live, nn.Parameter) else start
        table = table_of(live)
        if table is not None:
            mark(shadow, table)
        return shadow

    def update(self, model: nn.Module | None = None) -> None:
        """Moves the average towards the weights after a step; does nothing after one that was skipped.

        Args:
            model: not needed. For scripts that pass it, as with other libraries: the model of this average.

        Raises:
            ValueError: another model was given.
            RuntimeError: the average is in the model's place, inside ``with ema.applied()``.
        """
        if model is not None and bare(model) is not self._model:
            raise ValueError(f"EMA.update got another {type(bare(model)).__name__} than the one it was made for")
        if self._depth:
            raise RuntimeError("EMA.update was called inside `with ema.applied()`, where the model holds the average")
        unknown = self._unknown()
        if unknown is not None and not callable(self.decay):
            made = (unknown == 0).float()
            self._unread = made if self._unread is None else self._unread + made
            self._move(1.0 - self.decay, made)
            return
        if not self._stepped():
            return
        self.updates += 1
        if self.updates % self.update_every == 0:
            self._move(1.0 - self._next_decay())

    @property
    def updates(self) -> int:
        """How many steps it has followed. Reading it may wait for the device."""
        if self._unread is not None:
            self._updates, self._unread = self._updates + int(self._unread), None
        return self._updates

    @updates.setter
    def updates(self, number: int) -> None:
        self._updates, self._unread = number, None

    def _unknown(self) -> torch.Tensor | None:
        """Not 0 where there is no step to follow, if the device alone knows and the average can be moved there."""
        if self._device is not None or self.warmup or self.update_every > 1:
            return None
        record = scaler._last if self._optimizer is None else scaler._records.get(inner_optimizer(self._optimizer))
        decided = record.decided if record is not None and record.changed else None
        if decided is None or decided.is_known() or decided.flag.device.type == "cpu":
            return None
        return decided.flag

    def _stepped(self) -> bool:
        """Whether there is a step to follow; always where the script steps its optimizer itself."""
        known = scaler._known_optimizers
        if self._optimizer is None:
            return scaler.stepped or not known
        return scaler.stepped_by(self._optimizer) or inner_optimizer(self._optimizer) not in known

    def _next_decay(self) -> float:
        moves = self.updates // self.update_every - 1
        decay = self.decay(moves) if callable(self.decay) else self.decay
        return min(decay, (2 + moves) / (11 + moves)) if self.warmup else decay

    @torch.no_grad()
    def _move(self, weight: float, made: torch.Tensor | None = None) -> None:
        """Moves the average; on the device, unless ``made`` is 0 there."""
        groups: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for entry in self._averaged:
            live, shadow = entry.value(), entry.shadow
            if not self._follow(shadow, live):
                continue
            shadow, live = local(shadow), local(live)  # each rank moves its shards
            if shadow.is_complex():
                shadow, live = torch.view_as_real(shadow), torch.view_as_real(live)
            averages, values = groups.setdefault((shadow.device, shadow.dtype), ([], []))
            averages.append(shadow)
            values.append(live.to(shadow.device, shadow.dtype))
        for averages, values in groups.values():
            if made is None:
                torch._foreach_lerp_(averages, values, weight)
            else:
                differences = torch._foreach_sub(values, averages)
                torch._foreach_mul_(differences, (made * weight).to(averages[0]))
                torch._foreach_add_(averages, differences)
        for entry in self._copied:
            shadow, live = entry.shadow, entry.live
            if self._follow(shadow, live):
                shadow.copy_(live if made is None else torch.where(made.to(live.device) > 0, live, shadow))

    def _follow(self, shadow: torch.Tensor, live: torch.Tensor) -> bool:
        """Goes to another device with the model, and begins anew with a tensor of another shape (returns False).

        Raises:
            RuntimeError: the model has been sharded since the average was made.
        """
        if is_sharded(live) != is_sharded(shadow) or table_of(live) is not table_of(shadow):
            raise RuntimeError(
                "amp.EMA was made before its model was sharded, by amp.prepare_model or amp.shard_embedding; make it "
                "afterwards, so that it is sharded as the model is"
            )
        if shadow.shape != live.shape:
            shadow.data = live.detach().to(self._device or live.device, shadow.dtype, copy=True)
            return False
        if self._device is None and shadow.device != live.device:
            shadow.data = shadow.data.to(live.device)
        return True

    @torch.no_grad()
    def reset(self) -> None:
        """Begins again with the model's present weights, for instance after a checkpoint without an average."""
        self.updates = 0
        for entry in self._entries():
            if self._follow(entry.shadow, entry.live):
                entry.shadow.copy_(exact(entry.live))

    @property
    def module(self) -> nn.Module:
        """A copy of the model, in evaluation mode, that holds the average itself and moves with it.

        Made at the first use. It is float32 at every level. To evaluate in the model's own precision, or where the
        model cannot be copied, use :meth:`applied`.

        Raises:
            RuntimeError: the model is sharded, and cannot be copied.
        """
        if self._module is None:
            if any_sharded(self._model.parameters()):
                raise RuntimeError(
                    "EMA.module was asked for with a sharded model, which cannot be copied; evaluate under `with "
                    "ema.applied()`, and get the weights by amp.full_state_dict(ema)"
                )
            memo: dict[int, Any] = {id(e.live): e.shadow for e in self._entries()}
            self._module = copy.deepcopy(self._model, memo).eval()
        return self._module

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """Puts the average in the place of the model's weights for the length of a ``with`` block.

        At O2 and O3 the half weights are rounded from it, and ``state_dict()`` at O2 gives it in float32. When the
        block ends, also by an exception, every bit is as before: what the block itself wrote into weights or
        buffers is undone. Blocks may be nested. It needs memory for one more copy of the weights.

        Yields:
            The model, unwrapped.
        """
        if self._depth == 0:
            self._backup = [(e.live, _copied(e.live)) for e in self._entries()]
        self._depth += 1
        try:
            if self._depth == 1:
                _write((e.live, e.shadow) for e in self._entries())
            yield self._model
        finally:
            self._depth -= 1
            if self._depth == 0:
                _write(self._backup)
                self._backup = []

    def _entries(self) -> list[_Shadowed]:
        return [*self._averaged, *self._copied]

    def state_dict(self) -> dict[str, Any]:
        """The average for a checkpoint, in the format of ``torch.optim.swa_utils.AveragedModel``.

        ``n_averaged`` is :attr:`updates`; the others are the model's names after ``module.``, as in timm's
        ``ModelEmaV2``. The tensors are the average itself, as with a module's ``state_dict``: they move on.
        ``ema.module.state_dict()`` has the model's own names.
        """
        state: dict[str, Any] = {"n_averaged": torch.tensor(self.updates)}
        state.update((f"module.{name}", _saved(shadow)) for name, shadow in self._by_name.items())
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restores a state of :meth:`state_dict`, of torch's ``AveragedModel`` or of timm's ``ModelEmaV2``.

        A model's plain state dict loads too, and so does that of ``torch_ema`` with its list of ``shadow_params``.
        What is not in the state stays as it is.

        Args:
            state_dict: the state, with tensors of any floating type.
            strict: whether missing and unexpected names are an error.

        Raises:
            RuntimeError: names or shapes differ.
        """
        state = dict(state_dict)
        updates = next((state.pop(key) for key in ("n_averaged", "num_updates") if key in state), None)
        if isinstance(state.get("shadow_params"), (list, tuple)):
            state = self._named(list(state["shadow_params"]))
        state = dict(without_prefixes(state, self._by_name))
        missing = [name for name in self._by_name if name not in state]
        unexpected = [name for name in state if name not in self._by_name and not name.endswith("_extra_state")]
        shapes = [
            f"{name} {tuple(state[name].shape)} instead of {_whole_shape(shadow)}"
            for name, shadow in self._by_name.items()
            if name in state and tuple(state[name].shape) != _whole_shape(shadow)
        ]
        lists = {"missing": missing * strict, "unexpected": unexpected * strict, "other shape": shapes}
        if any(lists.values()):
            told = "; ".join(f"{kind}: {some(names)}" for kind, names in lists.items() if names)
            raise RuntimeError(f"EMA.load_state_dict: the state does not fit {type(self._model).__name__}; {told}")
        for name, shadow in self._by_name.items():
            if name in state:
                value, table = state[name], table_of(shadow)
                if table is not None:
                    value = table.part_of(value)
                shadow.copy_(shard_like(value, shadow) if is_sharded(shadow) and not is_sharded(value) else value)
        if updates is not None:
            self.updates = int(updates)

    def _named(self, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """A list of averages in the order of the parameters, with their names, and the buffers as they are."""
        all_of_them = list(self._model.named_parameters())
        chosen = [(name, p) for name, p in all_of_them if p.requires_grad]
        if len(tensors) == len(all_of_them):
            chosen = all_of_them
        if len(tensors) != len(chosen):
            raise RuntimeError(
                f"EMA.load_state_dict got {len(tensors)} shadow_params for a {type(self._model).__name__} with "
                f"{len(chosen)} trainable of {len(all_of_them)} parameters"
            )
        return {**self._by_name, **{name: t for (name, _), t in zip(chosen, tensors, strict=True)}}


def _saved(shadow: torch.Tensor) -> Any:
    """An average as it is saved: of rows that are shared out, the whole table. A collective for these."""
    table = table_of(shadow)
    return shadow.detach() if table is None else put_together(table, shadow)


def _whole_shape(shadow: torch.Tensor) -> tuple[int, ...]:
    table = table_of(shadow)
    return tuple(shadow.shape) if table is None else (table.rows, *shadow.shape[1:])


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype in _WIDE or not (dtype.is_floating_point or dtype.is_complex):
        return dtype
    return torch.complex64 if dtype.is_complex else torch.float32


def exact(live: torch.Tensor) -> torch.Tensor:
    """A weight in full precision, also where the script has written into it since the last step."""
    master = masters.master_of(live)
    return live.detach().to(_wide(live.dtype)) if master is None else master.detach()


def _stepped(live: torch.Tensor) -> torch.Tensor:
    """The same for a parameter just after a step: on a GPU it does not wait to look for such edits."""
    master = masters.stepped_master(live)
    return exact(live) if master is None else master.detach()


def _copied(live: torch.Tensor) -> torch.Tensor:
    master = masters.master_of(live)
    return (live if master is None else master).detach().clone()


@torch.no_grad()
def _write(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Writes values into weights, and into their masters."""
    for live, value in pairs:
        if live.shape != value.shape:
            continue
        if masters.master_of(live) is None:
            live.copy_(value)
        else:
            masters.assign(live, value)
    torch.clear_autocast_cache()  # else a surrounding autocast region goes on with the weights that it has cast
