"""The region whose operations run in mixed precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch

from amp_runtime._core.context import CAST_POLICIES, HALF_DTYPES, CastPolicy, context
from amp_runtime._precision import policy, registered
from amp_runtime._precision.lacking import note_emulation
from amp_runtime._precision.names import operations
from amp_runtime._precision.policy import Lists

F = TypeVar("F", bound=Callable[..., Any])


class _Entered(NamedTuple):
    autocast: torch.autocast
    casts: policy.Region


class autocast:
    """``torch.autocast`` with the device and half type of ``amp.init``; a context manager and a decorator.

    At O0, before ``amp.init`` and in ``amp.disable_casts()`` it does nothing. At O2 and O3 it is on as at O1: the
    weights are half already, so its casts cost nothing, and its float32 list (softmax, norms, losses) keeps the
    loss code of the script safe.

    What runs in which type is the same on every device: that of autocast on CUDA, or Apex's. torch's own
    autocast on the CPU would leave softmax, norms and sums in half and let ``binary_cross_entropy`` pass, which
    raises on CUDA.

    A region's lists hold for that region. A region inside it has its own lists and policy; what ``amp.init`` and
    the ``amp.register_*_function`` say holds in all of them. Lists reach the functions that Python code calls,
    in the thread of the region, and not what torch's C++ calls inside one of them.

    Args:
        enabled: ``False`` runs the block with autocast off, also inside another region.
        dtype: the half type, ``torch.float16`` or ``torch.bfloat16``; by default the one of ``amp.init``.
        custom_white_list: names of operations that run in half in this region, such as ``{"softmax"}``, whatever
            the policy says. A name is that of the torch function, with or without ``torch.``, ``F.`` or
            ``Tensor.``; it stands for all its forms: the function, the method, operators, in place. In place,
            the value is computed in half and written in the tensor's own type. Calls with ``out=`` are left alone.
        custom_black_list: the same for operations that run in float32.
        cast_policy: ``"torch"`` or ``"apex"`` in this region; by default the one of ``amp.init``.

    Raises:
        TypeError: ``enabled`` is not a bool, as in ``autocast("cuda")``: the device is found, not given. Or a list
            is a single string.
        ValueError: ``dtype`` is no half type, ``cast_policy`` is none of the two, a name is no operation of torch
            (similar ones are suggested), or is in both lists.

    Source:
        The lists are those of Paddle's ``paddle.amp.auto_cast``; the tables are in ``_precision/cast_tables.py``.
    """

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        custom_white_list: Iterable[str] | None = (),
        custom_black_list: Iterable[str] | None = (),
        cast_policy: CastPolicy | None = None,
    ) -> None:
        if not isinstance(enabled, bool):
            raise TypeError(
                f"autocast got enabled={enabled!r}; it takes True or False, and finds the device itself: "
                "amp.autocast(enabled=True, dtype=None)"
            )
        if dtype is not None and dtype not in HALF_DTYPES:
            raise ValueError(f"autocast got dtype={dtype!r}; allowed: None, torch.float16, torch.bfloat16")
        if cast_policy is not None and cast_policy not in CAST_POLICIES:
            allowed = ", ".join(map(repr, CAST_POLICIES))
            raise ValueError(f"autocast got cast_policy={cast_policy!r}; allowed: None, {allowed}")
        self._enabled = enabled
        self._dtype = dtype
        self._policy = cast_policy
        self._lists = _NO_LISTS
        if custom_white_list or custom_black_list:
            self._lists = Lists(*operations(custom_white_list, custom_black_list, "autocast"))
        self._entered: list[_Entered | None] = []

    def __enter__(self) -> None:
        if not policy.casting():
            self._entered.append(None)
            return
        kind = context.device_type()
        # Decided on entry, so that a decorator read before amp.init follows it.
        layers = (_of_init(context.custom_white_list, context.custom_black_list), registered.lists(), self._lists)
        dtype = self._dtype or context.half_dtype(kind)
        if self._enabled and self._dtype is None:
            note_emulation(kind, dtype)
        region = torch.autocast(kind, dtype, self._enabled)
        region.__enter__()  # type: ignore[no-untyped-call]
        casts = policy.begin(kind, layers, self._policy or context.cast_policy, self._enabled)
        self._entered.append(_Entered(region, casts))

    def __exit__(self, *error: Any) -> None:
        entered = self._entered.pop()
        if entered is not None:
            policy.end(entered.casts)
            entered.autocast.__exit__(*error)

    def __call__(self, function: F) -> F:
        """Runs every call of ``function`` in such a region."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self._again():
                return function(*args, **kwargs)

        return inside  # type: ignore[return-value]

    def _again(self) -> autocast:
        again = autocast(self._enabled, self._dtype, cast_policy=self._policy)
        again._lists = self._lists
        return again


_NO_LISTS = Lists()


@functools.lru_cache(maxsize=8)
def _of_init(white: tuple[str, ...], black: tuple[str, ...]) -> Lists:
    return Lists(*operations(white, black, "amp.init")) if white or black else _NO_LISTS
