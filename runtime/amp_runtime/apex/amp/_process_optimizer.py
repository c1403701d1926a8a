"""What ``amp.initialize`` does to an optimizer: float32 masters, gradients kept apart, skipped steps."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.models import name_of
from amp_runtime._precision import masters
from amp_runtime._scaling.gradients import is_finite
from amp_runtime.apex import _replicas
from amp_runtime.apex.amp._amp_state import _amp_state, master_params, maybe_print
from amp_runtime.apex.amp.scaler import LossScaler


class Stash:
    """What amp keeps with one optimizer, as ``optimizer._amp_stash``.

    Attributes:
        master_weights: whether half parameters have float32 masters.
        fp16_groups: the half parameters that have masters, a list for each of the optimizer's groups.
        fp32_from_fp16_groups: their masters, in the same shape.
        fp32_from_fp32_groups: the parameters that are their own masters, in the same shape.
        all_fp16_params: half parameters: those with masters, or without ``master_weights`` all that are half.
        all_fp32_from_fp16_params: the masters.
        all_fp32_from_fp32_params: with ``master_weights``, the parameters that are their own masters.
        all_fp32_params: without ``master_weights``, the float32 parameters.
        params_have_scaled_gradients: a backward pass with ``delay_unscale`` waits for the one that ends it.
        lazy_init_called: always true: masters are made at once.
        already_patched: whether the next step is skipped.
    """

    def __init__(self, master_weights: bool) -> None:
        self.master_weights = master_weights
        self.fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp16_groups: list[list[torch.Tensor]] = []
        self.fp32_from_fp32_groups: list[list[torch.Tensor]] = []
        self.all_fp16_params: list[torch.Tensor] = []
        self.all_fp32_from_fp16_params: list[torch.Tensor] = []
        self.all_fp32_from_fp32_params: list[torch.Tensor] = []
        self.all_fp32_params: list[torch.Tensor] = []
        self.params_have_scaled_gradients = False
        self.lazy_init_called = True
        self.already_patched = False
        self.skip_message = ""
        self.kept: list[torch.Tensor | None] = []

    def own_masters(self) -> list[torch.Tensor]:
        """The parameters whose own gradients the optimizer uses."""
        return self.all_fp32_from_fp32_params if self.master_weights else self.all_fp16_params + self.all_fp32_params

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Half parameters with their masters."""
        if not self.master_weights:
            return []
        return list(zip(self.all_fp16_params, self.all_fp32_from_fp16_params, strict=True))

    def model_params(self) -> Iterator[torch.Tensor]:
        """The parameters as the model holds them."""
        yield from self.all_fp16_params
        yield from self.own_masters()

    def follow_devices(self) -> None:
        """Moves masters to where the script moved their parameters."""
        for parameter, master in self.pairs():
            if master.device != parameter.device:
                master.data = master.data.to(parameter.device)

    def follow_model(self) -> None:
        """Lets masters follow what was written into the half weights: a checkpoint, rank 0's weights, clipping."""
        self.follow_devices()
        with torch.no_grad():
            masters.follow_edits(self.pairs())

    def copy_to_model(self) -> None:
        """Rounds the masters into the half weights."""
        if self.master_weights and self.all_fp16_params:
            with torch.no_grad():
                torch._foreach_copy_(self.all_fp16_params, self.all_fp32_from_fp16_params)

    def drop_master_gradients(self) -> None:
        """Sets the masters' gradients to ``None``."""
        for master in self.all_fp32_from_fp16_params:
            master.grad = None

    def adopt_group(self, optimizer: Any, group: dict[str, Any]) -> None:
        """Sorts the parameters of a group in, and puts masters in the place of half ones."""
        half: list[torch.Tensor] = []
        masters: list[torch.Tensor] = []
        own: list[torch.Tensor] = []
        for index, parameter in enumerate(group["params"]):
            if parameter.dtype not in HALF_DTYPES:
                own.append(parameter)
            elif not self.master_weights:
                half.append(parameter)
            else:
                master = _master_of(parameter)
                group["params"][index] = master
                if parameter in optimizer.state:
                    optimizer.state[master] = optimizer.state.pop(parameter)
                half.append(parameter)
                masters.append(master)
        self.fp16_groups.append(half)
        self.fp32_from_fp16_groups.append(masters)
        self.fp32_from_fp32_groups.append(own)
        self.all_fp16_params += half
        self.all_fp32_from_fp16_params += masters
        if self.master_weights:
            self.all_fp32_from_fp32_params += own
        else:
            self.all_fp32_params += own

    def prepare(self, scale: float) -> None:
        """Before a backward pass: sets accumulated gradients aside, so that the new ones come alone.

        Those that a wrapper has yet to average stay, scaled like the new ones.
        """
        for parameter, master in self.pairs():
            parameter.grad = None
            if master.grad is not None and _replicas.is_local(parameter):
                parameter.grad = (master.grad * scale).to(parameter.dtype)
                master.grad = None
        self.kept = []
        for parameter in self.own_masters():
            if parameter.grad is not None and _replicas.is_local(parameter):
                parameter.grad = parameter.grad.detach() * scale
                self.kept.append(None)
                continue
            self.kept.append(None if parameter.grad is None else _unshared(parameter.grad))
            parameter.grad = None

    def finish(self, scaler: LossScaler) -> None:
        """After it: divides the new gradients by the scale, checks them, and adds what was set aside."""
        incoming: list[torch.Tensor] = []
        sums: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.follow_devices()
        own = self.own_masters()
        kept = self.kept or [None] * len(own)
        self.kept = []
        for parameter, earlier in zip(own, kept, strict=True):
            if parameter.grad is None:
                parameter.grad = earlier
                continue
            if parameter.grad.is_sparse and not parameter.grad.is_coalesced():
                parameter.grad = parameter.grad.coalesce()  # repeated indices may only overflow once summed
            incoming.append(parameter.grad)
            if earlier is not None:
                sums.append((parameter, parameter.grad, earlier))
        with torch.no_grad():
            for master, true in _widened_gradients(self.pairs()):
                incoming.append(true)
                if master.grad is not None:
                    sums.append((master, true, master.grad))
                master.grad = true
            scaler._divide(incoming)
            sparse = [entry for entry in sums if entry[1].is_sparse or entry[2].is_sparse]
            dense = [entry for entry in sums if not (entry[1].is_sparse or entry[2].is_sparse)]
            if dense:
                torch._foreach_add_([new for _, new, _ in dense], [earlier for _, _, earlier in dense])
            for parameter, new, earlier in sparse:
                parameter.grad = new + earlier

    def not_finite(self) -> list[str]:
        """The names of the model's parameters whose gradients are not finite now."""
        pairs = [*self.pairs(), *((parameter, parameter) for parameter in self.own_masters())]
        return [
            name_of(parameter) or f"a parameter of shape {tuple(parameter.shape)}"
            for parameter, master in pairs
            if master.grad is not None and not is_finite(master.grad)
        ]

    def skip_next_step(self, message: str) -> None:
        """Makes the next step do nothing but print ``message``."""
        if not self.already_patched:
            self.already_patched = True
            self.skip_message = message


def process_optimizer(optimizer: Any, master_weights: bool) -> Any:
    """Attaches amp's state and methods to an optimizer, and returns it.

    Half parameters in its groups give way to float32 masters here and not, as in Apex, at the first backward
    pass: an optimizer state loaded in between keeps its precision.

    Args:
        optimizer: a torch optimizer.
        master_weights: whether half parameters get masters.

    Raises:
        RuntimeError: the optimizer has been through ``amp.initialize`` before.
    """
    if hasattr(optimizer, "_amp_stash"):
        raise RuntimeError("A given optimizer should only be passed through amp.initialize once.")
    stash = Stash(master_weights)
    for group in optimizer.param_groups:
        stash.adopt_group(optimizer, group)
    methods = (
        _amp_lazy_init,
        _lazy_init_maybe_master_weights,
        _master_params_to_model_params,
        _prepare_amp_backward,
        _post_amp_backward,
        clip_optimizer_grad_norm_fused,
    )
    for method in methods:
        setattr(optimizer, method.__name__, types.MethodType(method, optimizer))
    _patch_step(optimizer, stash)
    _patch_add_param_group(optimizer, stash)
    if master_weights:
        _patch_zero_grad(optimizer, stash)
    optimizer._amp_stash = stash
    return optimizer


def _master_of(parameter: torch.Tensor) -> torch.Tensor:
    master = parameter.detach().to(torch.float32, copy=True).requires_grad_()
    if parameter.grad is not None:
        master.grad = parameter.grad.detach().to(torch.float32)
    # Options that libraries hang on parameters, such as those that choose a learning rate.
    for name, value in vars(parameter).items():
        setattr(master, name, value)
    return master


def _widened_gradients(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Masters with float32 copies of their parameters' gradients, where there are some."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    copies: list[torch.Tensor] = []
    originals: list[torch.Tensor] = []
    for parameter, master in pairs:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            found.append((master, gradient.coalesce().to(master.dtype)))
            continue
        copies.append(torch.empty_like(gradient, dtype=master.dtype))
        originals.append(gradient.detach())
        found.append((master, copies[-1]))
    if copies:
        torch._foreach_copy_(copies, originals)
    return found


def _unshared(gradient: torch.Tensor) -> torch.Tensor:
    """The gradient, copied if its memory is part of a bucket that the next backward pass writes into."""
    if gradient.is_sparse or gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size():
        return gradient
    return gradient.clone()


def _amp_lazy_init(self: Any) -> None:
    """Kept for scripts that ask for the masters early; lets them follow the model."""
    self._amp_stash.follow_model()


def _lazy_init_maybe_master_weights(self: Any) -> None:
    self._amp_stash.follow_model()


def _master_params_to_model_params(self: Any) -> None:
    self._amp_stash.copy_to_model()


def _prepare_amp_backward(self: Any, scale: float | None = None) -> None:
    self._amp_stash.prepare(_amp_state.loss_scalers[0].loss_scale() if scale is None else scale)


def _post_amp_backward(self: Any, scaler: LossScaler) -> None:
    self._amp_stash.finish(scaler)


def clip_optimizer_grad_norm_fused(self: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
    """Clips the gradients of ``amp.master_params``; the name is Ascend's."""
    return torch.nn.utils.clip_grad_norm_(list(master_params(self)), max_norm, norm_type)


def _without_casts() -> AbstractContextManager[None]:
    if "handle" in vars(_amp_state):
        return _amp_state.handle._disable_casts()
    return nullcontext()


def _patch_step(optimizer: Any, stash: Stash) -> None:
    original = optimizer.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and (stash.master_weights or stash.already_patched):
            raise RuntimeError("Currently, Amp does not support closure use with optimizers.")
        if stash.already_patched:
            _skip(self, stash)
            return None
        if stash.master_weights:
            stash.follow_model()
        with _without_casts():
            result = original(*args, **kwargs)
        stash.copy_to_model()
        stash.drop_master_gradients()
        _replicas.settle(stash.model_params())
        return result

    optimizer.step = types.MethodType(step, optimizer)


def _skip(optimizer: Any, stash: Stash) -> None:
    maybe_print(stash.skip_message)
    stash.already_patched = False
    stash.drop_master_gradients()
    _replicas.settle(stash.model_params())
    for one in (optimizer, getattr(optimizer, "optim", optimizer)):
        one._opt_called = True  # a scheduler would otherwise warn that it was stepped before the optimizer
    if hasattr(optimizer, "most_recent_scale"):  # FusedSGD divides by it: a skipped step must not leave it behind
        optimizer.most_recent_scale = 1.0
        optimizer.scale_set_by_backward = False


def _patch_zero_grad(optimizer: Any, stash: Stash) -> None:
    def zero_grad(self: Any, set_to_none: bool = False) -> None:
        """Zeroes the gradients of the model's parameters in place, and drops those of the masters."""
        for parameter in stash.model_params():
            if set_to_none or parameter.grad is None:
                parameter.grad = None
            elif parameter.grad.grad_fn is None:
                parameter.grad.requires_grad_(False).zero_()
            else:
                parameter.grad = torch.zeros_like(parameter.grad)
        stash.drop_master_gradients()

    optimizer.zero_grad = types.MethodType(zero_grad, optimizer)


def _patch_add_param_group(optimizer: Any, stash: Stash) -> None:
    original = optimizer.add_param_group

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        original(param_group)
        stash.adopt_group(self, self.param_groups[-1])

    optimizer.add_param_group = types.MethodType(add_param_group, optimizer)
