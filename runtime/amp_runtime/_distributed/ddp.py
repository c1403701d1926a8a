"""A model whose gradients torch's DistributedDataParallel averages, and which otherwise looks like itself."""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from torch import nn

from amp_runtime._core.models import note_copy
from amp_runtime._core.trees import tensors_in
from amp_runtime._distributed.engine import Engine
from amp_runtime._distributed.exchange import PLAIN, Exchange


class DistributedModel(nn.Module):
    """A model that trains in several processes.

    Calling it averages the gradients of the coming backward pass over the ranks. Everything else is the
    model's own: reading and setting attributes, methods, operators, iteration over modules and parameters,
    ``state_dict`` without a ``module.`` prefix, ``isinstance``, ``__class__`` and the class's name. Methods may be
    called in place of ``forward``, and submodules directly; their gradients are averaged too. Copying or pickling it
    gives the plain model. ``amp.prepare_model`` makes it.

    Args:
        module: the model, with trainable parameters.
        find_unused_parameters: as in ``amp.prepare_model``, and so is ``static_graph``.
        static_graph: see there.
        exchange: how gradients travel.

    Attributes:
        module: the model itself.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        exchange: Exchange = PLAIN,
    ) -> None:
        object.__setattr__(self, "_inner", None)
        super().__init__()
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, getattr(module, name))  # the very same dictionaries
        object.__setattr__(self, "_inner", module)
        object.__setattr__(self, "_engine", Engine(module, find_unused_parameters, static_graph, exchange))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        inner = self.__dict__.get("_inner")
        return type(self) if inner is None else type(inner)

    @property
    def module(self) -> nn.Module:
        """The model itself, as torch's wrappers call it."""
        inner: nn.Module = self.__dict__["_inner"]
        return inner

    @property
    def training(self) -> bool:
        """Whether the model is in training mode."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        if self.__dict__["_inner"] is not None:
            self.module.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model; its next backward pass averages gradients over the ranks."""
        engine: Engine = self.__dict__["_engine"]
        return engine.run(lambda: self.module(*args, **kwargs))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leaves gradients unaveraged, to accumulate them: of the passes inside, or only their forwards or backwards.

        :func:`no_sync` is the same for a model that may also be alone.
        """
        engine: Engine = self.__dict__["_engine"]
        with engine.no_sync():
            yield

    def __getattr__(self, name: str) -> Any:
        inner = self.__dict__.get("_inner")
        if inner is None:
            raise AttributeError(name)
        value = getattr(inner, name)
        if inspect.ismethod(value) and value.__self__ is inner and not hasattr(nn.Module, name):
            return _Synchronised(self.__dict__["_engine"], value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_inner")
        if inner is None:
            object.__setattr__(self, name, value)
            return
        if isinstance(value, (nn.Module, nn.Parameter)):
            self.__dict__["_engine"].stale = True
        setattr(inner, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__["_engine"].stale = True
        delattr(self.module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.module)})

    def __repr__(self) -> str:
        return repr(self.module)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copied = copy.deepcopy(self.module, memo)
        note_copy(copied)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return operator.getitem, ((self.module,), 0)  # the module itself, by what can be loaded anywhere


class _Synchronised:
    """A method of the model other than ``forward``, called from outside."""

    def __init__(self, engine: Engine, method: Any) -> None:
        self._engine = engine
        self.__wrapped__ = method
        self.__name__ = method.__name__
        self.__doc__ = method.__doc__
        self.__self__ = method.__self__
        self.__func__ = method.__func__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        engine = self._engine
        needed = engine.refresh()
        result = self.__wrapped__(*args, **kwargs)
        # Otherwise the arming hook is enough, and a helper that one rank calls alone waits for nobody.
        if needed and engine.follows_the_graph and any(t.grad_fn is not None for t in tensors_in(result)):
            return engine.run(lambda: result)
        return result


def _delegate(name: str) -> Callable[..., Any]:
    def method(self: DistributedModel, *args: Any, **kwargs: Any) -> Any:
        inner = self.__dict__["_inner"]
        result = getattr(inner, name)(*args, **kwargs)
        return self if result is inner else result

    method.__name__ = name
    method.__doc__ = getattr(nn.Module, name, method).__doc__
    return method


_OF_EVERY_CLASS = {
    "__init__", "__new__", "__call__", "__class__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__",
    "__dir__", "__repr__", "__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
    "__init_subclass__", "__class_getitem__", "__subclasshook__", "__annotate__", "__annotate_func__",
}  # fmt: skip
_KEPT = {"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward", "call_super_init", "dump_patches"}
for _name, _value in vars(nn.Module).items():
    if callable(_value) and not _name.startswith("__") and _name not in _KEPT:
        setattr(DistributedModel, _name, _delegate(_name))


def no_sync(model: Any, enabled: bool = True) -> AbstractContextManager[None]:
    """Leaves the gradients of ``model`` unaveraged, to accumulate them over several passes.

    ``with amp.no_sync(model, enabled=(i + 1) % k != 0):`` around forward and backward sends nothing in k - 1 of k
    steps. It does nothing alone, and nothing for a model prepared with ``delay_allreduce=True``, which only
    communicates at the step. Nor does it for a sharded one: its gradients are averaged and accumulated as shards in
    each pass, which gives the same sum, and no rank keeps whole gradients.

    Args:
        model: what ``amp.prepare_model`` returned, or a wrapper of torch's that has ``no_sync``.
        enabled: whether to do anything; ``False`` in the step that synchronises.
    """
    inside: Any = getattr(type(model), "no_sync", None)
    return inside(model) if enabled and inside is not None else nullcontext()


def distribute(
    model: nn.Module, find_unused_parameters: bool, static_graph: bool = False, exchange: Exchange = PLAIN
) -> DistributedModel:
    """Wraps ``model`` in a class of its own, which has the name, the signature and the operators of the model's."""
    kind = type(model)
    own: dict[str, Any] = {name: _delegate(name) for name in _operators(kind)}
    own |= {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "forward": _forward_like(kind)}
    wrapper: type[DistributedModel] = type(kind.__name__, (DistributedModel,), own)
    return wrapper(model, find_unused_parameters=find_unused_parameters, static_graph=static_graph, exchange=exchange)


def _operators(kind: type) -> Iterator[str]:
    """The special methods that the model's class has beyond those of every module: ``len(model)``, ``model[0]``."""
    for base in kind.__mro__:
        if base is nn.Module:
            return
        for name, value in vars(base).items():
            if name.startswith("__") and callable(value) and name not in _OF_EVERY_CLASS:
                yield name


def _forward_like(kind: type) -> Callable[..., Any]:
    """``forward`` of the wrapper, with the parameters that the model's own has."""

    def forward(self: DistributedModel, *args: Any, **kwargs: Any) -> Any:
        return DistributedModel.forward(self, *args, **kwargs)

    own: Any = getattr(kind, "forward", None)
    with suppress(TypeError, ValueError):
        forward.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    forward.__doc__ = own.__doc__
    return forward
