"""A CPU that refuses what CUDA refuses, and keeps apart what lies on the host.

Under :class:`LikeCuda` tensors say that they are on ``cuda:0``; those that are made without a device are on the host,
as they would be. It raises what CUDA raises: for an operation in a type for which CUDA has no kernel, for tensors of
the host among others, and for what the fused optimizers check, or read without a check. Copies between host and device
and reads of values are noted: there CUDA waits.

What CUDA lacks stands in ``cuda_kernels.json``, which ``scripts/torch_tables.py`` makes from torch's wheels. The
numbers are the CPU's: autocast for CUDA is autocast for the CPU here.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.utils._foreach_utils
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TABLE = Path(__file__).parent / "cuda_kernels.json"
_CUDA, _HOST = torch.device("cuda", 0), torch.device("cpu")
_NAMES = {
    "bfloat16": "BFloat16", "float16": "Half", "float32": "Float", "float64": "Double", "int8": "Char",
    "int16": "Short", "int32": "Int", "int64": "Long", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_FILLED = {
    "zeros", "ones", "full", "empty", "empty_strided", "arange", "linspace", "eye", "rand", "randn", "randint",
    "randperm", "scalar_tensor",
}  # fmt: skip
_COPIED = {"tensor", "as_tensor", "asarray"}
_NEW = {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}
_BETWEEN = {"copy_", "_to_copy", "_foreach_copy_", "index", "index_put_", "index_put", "where"}
"""What CUDA takes tensors of both for; it copies those of the host, and waits."""
_TOGETHER = ("_fused_", "_amp_", "_foreach_", "cat", "stack")
"""What takes not even a scalar of the host among others."""
_READ = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim"}


def kernels(version: str) -> dict[str, Any]:
    """What the newest listed release up to ``version`` of torch has no kernel for: operation, then what is known."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    releases = [release for release in table["releases"] if _number(release) <= _number(version)]
    release = max(releases, key=_number)
    return {name: entry[release] for name, entry in table["operations"].items() if release in entry}


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


class LikeCuda:
    """A context manager; see the module.

    Attributes:
        waits: where CUDA would have waited, as ``what at file:line``, in order.
    """

    def __init__(self, version: str = torch.__version__) -> None:
        self.waits: list[str] = []
        self._refused = kernels(version)
        self._on_host: dict[int, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> LikeCuda:
        for target, name, value in _replaced():
            self._stack.enter_context(mock.patch.object(target, name, value))
        self._stack.enter_context(_Operations(self))
        self._stack.enter_context(_Calls(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        self._on_host.clear()

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        return _memory(tensor) in self._on_host

    def put_on_host(self, result: Any) -> Any:
        for tensor in _tensors(result):
            # Kept, so that no other tensor can come to lie in the same place.
            if _memory(tensor):
                self._on_host[_memory(tensor)] = tensor.detach()
        return result

    def put_on_device(self, result: Any) -> Any:
        for tensor in _tensors(result):
            self._on_host.pop(_memory(tensor), None)
        return result

    def wait(self, what: str) -> None:
        frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__]
        self.waits.append(f"{what} at {Path(frames[-1].filename).name}:{frames[-1].lineno}")

    def refuse(self, name: str, dtypes: Iterable[torch.dtype]) -> None:
        """Raises what CUDA raises where it has no kernel."""
        entry = self._refused.get(name)
        if entry is None:
            return
        if "says" not in entry:
            raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend.")
        for dtype in map(_dtype_name, dtypes):
            if dtype in entry["refuses"]:
                raise NotImplementedError(f"\"{entry['says']}\" not implemented for '{_NAMES[dtype]}'")

    def check_devices(self, name: str, args: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
        """Raises where tensors of the host are among others, and counts the copies of those that may be."""
        host = [tensor for tensor in tensors if self.is_on_host(tensor)]
        if not host or len(host) == len(tensors):
            return
        if name in _BETWEEN:
            self.wait(name)
        elif (
            any(tensor.dim() for tensor in host)
            or name.startswith(_TOGETHER)
            or (name.endswith("_") and any(args[0] is tensor for tensor in host))
        ):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"(aten::{name})"
            )


class _Operations(TorchDispatchMode):
    """What reaches torch's kernels, also from C++ and in backward passes."""

    def __init__(self, cuda: LikeCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = _tensors((args, kwargs))
        on_device = [tensor for tensor in tensors if _memory(tensor) and not self._cuda.is_on_host(tensor)]
        if on_device and func.namespace == "aten":
            self._check(name, args, kwargs, tensors, on_device)
        result = func(*args, **kwargs)
        on_host = not on_device and any(map(self._cuda.is_on_host, tensors))
        return self._cuda.put_on_host(result) if on_host else result

    def _check(self, name: str, args: Any, kwargs: Any, tensors: Any, on_device: Any) -> None:
        by_mask = name.startswith("index") and any(tensor.dtype is torch.bool for tensor in _tensors(args[1:2]))
        if name in _READ or by_mask:  # how many there are decides about a shape
            self._cuda.wait(name)
        learning_rate = kwargs.get("lr")  # may be on the host
        self._cuda.check_devices(name, args, [tensor for tensor in tensors if tensor is not learning_rate])
        of_list = isinstance(args[0], (list, tuple)) if args else False
        self._cuda.refuse(name, [tensor.dtype for tensor in (args[0] if of_list else on_device[:1])])
        if name.startswith("_fused_"):
            _check_fused(name, args, kwargs)


def _check_fused(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What the fused optimizers check (``check_fast_path_restrictions``), and what they read without a look.

    They walk through memory and take steps, scales and flags for float32, whatever these are.
    """
    lists = [tensors for tensors in args if isinstance(tensors, (list, tuple)) and len(tensors)]
    steps = [] if name.startswith("_fused_sgd") else lists.pop()
    for alike in zip(*lists, strict=True):
        first = alike[0]
        if any(t.dtype != first.dtype or t.stride() != first.stride() or t.layout != first.layout for t in alike):
            raise RuntimeError("params, grads, exp_avgs, and exp_avg_sqs must have same dtype, device, and layout")
    scalars = [*steps, *(kwargs[key] for key in ("grad_scale", "found_inf") if kwargs.get(key) is not None)]
    if any(scalar.dtype is not torch.float32 for scalar in scalars):
        raise RuntimeError(f"{name} reads steps, grad_scale and found_inf as float32, which one of them is not")


class _Calls(TorchFunctionMode):
    """What Python calls: where tensors come to lie."""

    def __init__(self, cuda: LikeCuda) -> None:
        super().__init__()
        self._cuda = cuda

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._property(getattr(func.__self__, "__name__", ""), func, args)
        if name == "get_device":
            return -1 if self._cuda.is_on_host(args[0]) else 0
        if name in ("to", "cpu", "cuda"):
            return self._moved(name, func, args, kwargs)
        if name in ("tolist", "numpy") and not self._cuda.is_on_host(args[0]):
            if name == "numpy":
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
            self._cuda.wait(name)
        if name in _FILLED | _COPIED | _NEW or name.endswith("_like"):
            return self._made(name, func, args, kwargs)
        return func(*args, **kwargs)

    def _property(self, name: str, func: Any, args: Any) -> Any:
        if name not in ("device", "is_cuda", "is_cpu") or args[0].is_meta:
            return func(*args)
        device = _HOST if self._cuda.is_on_host(args[0]) else _CUDA
        return device if name == "device" else name == f"is_{device.type}"

    def _made(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        given = kwargs.pop("device", None)
        if given is not None and torch.device(given).type == "meta":
            return func(*args, device=given, **kwargs)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if given is None and source is not None:  # where that one is, as kernels take it from there
            return func(*args, **kwargs)
        host = given is None or torch.device(given).type == "cpu"
        if source is not None and name in _COPIED:
            return self._moved("to", torch.Tensor.to, (source, *([kwargs["dtype"]] if "dtype" in kwargs else [])), {
                "device": _HOST if host else _CUDA
            })  # fmt: skip
        result = func(*args, **kwargs)
        if host:
            return self._cuda.put_on_host(result)
        if name in _COPIED or name == "new_tensor":
            self._cuda.wait(name)
        return self._cuda.put_on_device(result)

    def _moved(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        given = [_HOST] if name == "cpu" else [_CUDA] if name == "cuda" else []
        kept: list[Any] = []
        flags = [value for value in rest if isinstance(value, bool)]
        kwargs.update(zip(("non_blocking", "copy"), flags, strict=False))
        for value in [*rest, *(kwargs.pop(key) for key in ("device", "other") if key in kwargs)]:
            if isinstance(value, torch.Tensor):
                given.append(_HOST if self._cuda.is_on_host(value) else _CUDA)
                kept.append(value.dtype)
            elif isinstance(value, (str, torch.device)) or type(value) is int:
                given.append(torch.device(value))
            elif value is not None and not isinstance(value, bool):
                kept.append(value)
        result = torch.Tensor.to(tensor, *kept, **kwargs) if name == "to" and (kept or kwargs) else tensor
        before = self._cuda.is_on_host(tensor)
        if not given or (given[0].type == "cpu") == before:
            return result
        if not kwargs.get("non_blocking"):
            self._cuda.wait("to the device" if before else "to the host")
        result = result.clone() if _memory(result) == _memory(tensor) else result
        return self._cuda.put_on_device(result) if before else self._cuda.put_on_host(result)


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    """What is asked of torch about CUDA by other ways than tensors: where, under which name, and the answer."""
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True,
        "is_initialized": False, "is_current_stream_capturing": False, "synchronize": None, "set_device": None,
        "set_rng_state": None, "get_device_name": "like CUDA", "get_device_capability": (8, 0),
    }  # fmt: skip
    for name, answer in answers.items():
        yield torch.cuda, name, lambda *_, answer=answer, **__: answer
    yield torch.cuda, "get_rng_state", lambda *_: torch.zeros(1, dtype=torch.uint8)
    yield torch.cuda, "device", lambda *_: nullcontext()
    yield torch._C, "DisableTorchFunction", nullcontext
    original = torch.autocast.__init__

    def autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    yield torch.autocast, "__init__", autocast
    modules = [torch.utils._foreach_utils, torch.nn.utils.clip_grad]
    modules += [importlib.import_module(f"torch.optim.{m.name}") for m in pkgutil.iter_modules(torch.optim.__path__)]
    name = "_group_tensors_by_device_and_dtype"
    for module in modules:
        if hasattr(module, name):
            yield module, name, _regrouped(getattr(module, name))


def _regrouped(group: Callable[..., Any]) -> Callable[..., Any]:
    """torch's grouping of tensors by device, which it does in C++."""

    def regrouped(*args: Any, **kwargs: Any) -> Any:
        return {
            (next(tensor.device for tensor in lists[0] if tensor is not None), dtype): (lists, indices)
            for (_, dtype), (lists, indices) in group(*args, **kwargs).items()
        }

    return regrouped


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    """Where a tensor's numbers begin; 0 where it has none, or where they lie in several tensors."""
    if tensor.layout is not torch.strided or is_lazy(tensor):
        return 0
    return tensor.untyped_storage().data_ptr()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
