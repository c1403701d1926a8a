"""Torch's own autocast and GradScaler, turned off, given a fixed scale, or left on where there is no GPU for them.

A version that was migrated by hand knows no levels. ``AMP_VERIFY_NATIVE`` gives them to it, or says that it has them:

``before``: nothing is changed, as for the version before the migration;
``off``: no autocast region is entered, and every GradScaler is made with ``enabled=False``: its float32;
``scaled``: the same with the GradScalers that the script turns on at a fixed scale, ``AMP_LOSS_SCALE``;
``leveled``: nothing is changed, of a version in plain PyTorch that has levels;
``leveled, scaled``: the same with every GradScaler on at that fixed scale: at O0 it is off, which it need not be;
``own``: as the script has it; a region for CUDA is one for the CPU where there is no CUDA, in the type ``AMP_DTYPE``.

``AMP_VERIFY_HALF`` names the type of every region. With ``AMP_VERIFY_CASTS`` tensors that the script casts to half by
hand stay in float32 too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from . import imports
from .steps import Steps

_SCALER = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_NEVER = 1_000_000_000
_CUDA = "cuda"
_UNSAFE = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."


def watch(steps: Steps) -> None:
    """Intercept what the script asks of autocast and GradScaler, where that is asked for."""
    mode = os.environ.get("AMP_VERIFY_NATIVE", "")
    if mode not in ("off", "scaled", "own", "leveled", "leveled, scaled"):
        return
    native = _Native(steps, mode)
    native.watch_regions()
    if not native.is_leveled:
        native.watch_switches()
    if mode == "leveled":
        return
    imports.after("torch.amp.grad_scaler", native.watch_scalers)
    if mode in ("off", "scaled") and os.environ.get("AMP_VERIFY_CASTS"):
        _keep_in_float32(steps.torch, steps.events)


class _Native:
    def __init__(self, steps: Steps, mode: str) -> None:
        self.torch = steps.torch
        self.events = steps.events
        self.computes_in_half = mode == "own"
        self.scales = mode != "off"
        self.scale = float(os.environ.get("AMP_LOSS_SCALE") or 2.0**16) if mode.endswith("scaled") else None
        self.is_leveled = mode.startswith("leveled")
        self.has_cuda = bool(self.torch.cuda.is_available())
        self.stands_for_cuda = False  # whether a region for CUDA was made one for the CPU
        types = {"bf16": self.torch.bfloat16, "fp16": self.torch.float16}
        self.asked = types.get(os.environ.get("AMP_VERIFY_HALF", ""))
        self.usual = self.asked or types.get(os.environ.get("AMP_DTYPE", ""), self.torch.bfloat16)

    # ---- autocast ----------------------------------------------------------------------------------------------

    def watch_regions(self) -> None:
        """Follow ``torch.autocast``, which the older names and the decorators are made of."""
        region = self.torch.amp.autocast_mode.autocast
        init = region.__init__

        @functools.wraps(init)
        def made(
            self_: Any, device_type: Any, dtype: Any = None, enabled: Any = True, cache_enabled: Any = None
        ) -> None:
            device_type, dtype, enabled = self._region(device_type, dtype, enabled)
            init(self_, device_type, dtype, enabled, cache_enabled)

        region.__init__ = made

    def _region(self, device: Any, dtype: Any, enabled: Any) -> tuple[Any, Any, Any]:
        """What a region is made with in place of these."""
        if enabled:
            self.events.add("autocast")
            # Without a name it is float16 where there is a GPU.
            if dtype in (None, self.torch.float16):
                self.events.add("in_fp16")
        if self.is_leveled:
            return device, dtype, enabled
        if not self.computes_in_half:
            return device, dtype, False
        if device == _CUDA and not self.has_cuda:
            self.stands_for_cuda = True
            return "cpu", self.usual, enabled
        return device, self.asked or dtype, enabled

    def watch_switches(self) -> None:
        """Follow the functions below ``torch.autocast`` that a script may call by itself."""
        torch = self.torch
        names = ("set_autocast_enabled", "set_autocast_cpu_enabled", "set_autocast_gpu_enabled")
        if not self.computes_in_half:
            for name in names:
                if hasattr(torch, name):
                    setattr(torch, name, _last_false(getattr(torch, name)))
        elif not self.has_cuda:
            functional = torch.nn.functional
            functional.binary_cross_entropy = self._refused(functional.binary_cross_entropy)
            for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
                setattr(torch, name, _for_cpu(getattr(torch, name)))

    def _refused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that torch refuses in a region for CUDA, and not in one for the CPU."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if self.stands_for_cuda and self.torch.is_autocast_enabled("cpu"):
                raise RuntimeError(_UNSAFE)
            return function(*args, **kwargs)

        return called

    # ---- loss scaling ------------------------------------------------------------------------------------------

    def watch_scalers(self, module: Any) -> None:
        """Follow ``torch.amp.GradScaler``, which ``torch.cuda.amp`` has its own from."""
        scaler = module.GradScaler
        init = scaler.__init__

        @functools.wraps(init)
        def made(self_: Any, *args: Any, **kwargs: Any) -> None:
            init(self_, **self._scaler(dict(zip(_SCALER, args, strict=False)) | kwargs))

        scaler.__init__ = made

    def _scaler(self, options: dict[str, Any]) -> dict[str, Any]:
        """What a scaler is made with in place of these; one that the script turns off stays off."""
        enabled = options.get("enabled", True) or self.is_leveled
        if enabled:
            self.events.add("grad_scaler")
        options["enabled"] = enabled and self.scales
        if options.get("device", _CUDA) == _CUDA and not self.has_cuda:
            options["device"] = "cpu"
        if self.scale is not None:
            options |= {"init_scale": self.scale, "growth_interval": _NEVER}
        return options


def _last_false(switch: Callable[..., Any]) -> Callable[..., Any]:
    """A switch whose last argument, on or off, is always off."""

    @functools.wraps(switch)
    def switched(*args: Any) -> Any:
        return switch(*args[:-1], False)

    return switched


def _for_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of autocast's state whose device, CUDA if it is not named, is the CPU."""

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        if args and isinstance(args[0], str):
            return function("cpu" if args[0] == _CUDA else args[0], *args[1:])
        return function("cpu", *args)

    return called


def _keep_in_float32(torch: Any, events: set[str]) -> None:
    """Let casts to half give float32, in this thread."""
    halves = (torch.float16, torch.bfloat16)
    to_half = (torch.Tensor.half, torch.Tensor.bfloat16)
    from torch.overrides import TorchFunctionMode

    def full(value: Any) -> Any:
        if value is torch.float16:
            events.add("in_fp16")
        return torch.float32 if value in halves else value

    class InFloat32(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in to_half:
                full(torch.float16 if func is to_half[0] else torch.bfloat16)
                return args[0].to(torch.float32, copy=True)
            found = [full(value) if isinstance(value, torch.dtype) else value for value in args]
            named = {
                name: full(value) if isinstance(value, torch.dtype) else value for name, value in (kwargs or {}).items()
            }
            return func(*found, **named)

    mode: Any = InFloat32()
    mode.__enter__()
