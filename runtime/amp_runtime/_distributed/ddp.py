"""A model whose gradients torch's DistributedDataParallel averages, and which otherwise looks like itself."""

from __future__ import annotations

import gc
import inspect
import operator
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from amp_runtime._core.trees import tensors_in
from amp_runtime._distributed.exchange import Exchange, average_bucket

_PLAIN = Exchange()
_CONTAINER_METHODS = ("__len__", "__getitem__", "__setitem__", "__iter__", "__contains__")


class _PassThrough(nn.Module):
    """What torch DDP wraps: calls the model, or hands on a result computed by another of its methods."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


class _Engine:
    """torch's DistributedDataParallel around one model, rebuilt when the model's trainable parameters change.

    torch synchronises a backward pass only if ``DDP.forward`` ran before it. A hook on every parameter arms
    DDP where it did not: for submodules called from outside, and for the second of two backward passes.
    """

    def __init__(
        self, model: nn.Module, find_unused_parameters: bool, static_graph: bool = False, exchange: Exchange = _PLAIN
    ) -> None:
        self.model = model
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.exchange = exchange
        self.stale = False
        self._hooks: list[Any] = []
        self.released = False
        self._build()
        _engines.add(self)

    def _build(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._parameters = list(self.model.parameters())
        self._trainable = [p.requires_grad for p in self._parameters]
        self._placement = self._place()
        self._awaited = 0
        self._quiet = self._owed = self._ending = self._learned = False
        self.stale = False
        options: dict[str, Any] = {_BUFFERS_OPTION: False}
        if self.exchange.message_size is not None:
            widest = max(p.element_size() for p in self._parameters if p.requires_grad)
            options["bucket_cap_mb"] = self.exchange.message_size * widest / 2**20
        self.ddp = nn.parallel.DistributedDataParallel(
            _PassThrough(self.model),
            find_unused_parameters=self.find_unused_parameters,
            static_graph=self.static_graph,
            gradient_as_bucket_view=True,
            **options,
        )
        if not self.exchange.plain:
            # torch reads a hook's annotations, and accepts its own classes or none.
            state = (self.exchange, self.ddp.process_group)
            self.ddp.register_comm_hook(state, lambda state, bucket: average_bucket(state, bucket))
        self._count = sum(self._trainable)
        hook = _ArmingHook(self)
        if not self.follows_the_graph:
            self._hooks = [
                p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                for p in self._parameters
                if p.requires_grad
            ]

    @property
    def follows_the_graph(self) -> bool:
        """Whether DDP has to see each forward pass; otherwise hooks on the parameters are enough."""
        return self.find_unused_parameters or self.static_graph

    def release(self) -> None:
        """Lets go of torch DDP and its process group: from here on the model runs alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.released = True
        del self.ddp

    def _place(self) -> tuple[torch.device, torch.dtype]:
        return self._parameters[0].device, self._parameters[0].dtype

    def refresh(self) -> bool:
        """Rebuilds DDP if it is out of date; returns whether it is needed for the coming forward pass."""
        if self.released or not torch.is_grad_enabled():
            return False
        trainable = [p.requires_grad for p in self._parameters]
        if not any(trainable) and not self.stale:
            return False  # frozen for now, like a discriminator in the generator's step
        if self.stale or trainable != self._trainable or self._place() != self._placement:
            self._build()
        return True

    def run(self, call: Callable[[], Any]) -> Any:
        """Runs ``call`` as the forward pass of DDP."""
        if not self.refresh():
            return call()
        self._ending = False
        if self.ddp.require_backward_grad_sync:
            self._quiet = self._owed = False
            self._awaited = self._count
            self._learned = True
        else:
            self._quiet = not self._owed  # one backward may be that of two forwards, and then it is to be synchronised
        return self.ddp(call)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keeps torch from synchronising the passes inside.

        torch synchronises a backward pass whose forward ran outside, although the block is around the backward: a
        forward pass that has armed DDP is taken back, unless DDP follows the graph and nothing could arm it again.
        """
        if self.released or (self.static_graph and not self._learned):
            yield  # a static graph is learned in a pass that synchronises; one more of them changes no sum
            return
        armed = self._awaited == self._count and not self.follows_the_graph
        if armed and hasattr(self.ddp.reducer, "_reset_state"):
            self.ddp.reducer._reset_state()
            self._awaited = 0
            self._owed = True
        with self.ddp.no_sync():
            yield

    def gradient_arrived(self) -> None:
        """Called when a parameter's gradient has been accumulated, before DDP hears of it."""
        synchronising = self.ddp.require_backward_grad_sync
        if (self._quiet or (self._owed and not synchronising)) and not self._ending:
            self._ending = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_quiet_pass)
        if self._quiet or not synchronising:  # quiet: the backward of a forward in no_sync was left out of the block
            return
        if self._awaited == 0:
            # Once, after the first pass, torch orders its buckets anew; by default that waits for DDP's next forward
            # pass, and fails there if a second backward pass came before.
            self.ddp.reducer._rebuild_buckets()
            self.ddp.reducer.prepare_for_backward([])
            self._awaited = self._count
        self._awaited -= 1

    def _end_quiet_pass(self) -> None:
        self._quiet = self._owed = self._ending = False


_engines: weakref.WeakSet[_Engine] = weakref.WeakSet()


def release_all() -> None:
    """Releases every model from its process group, whose threads end with the last reference to it."""
    for engine in list(_engines):
        if not engine.released:
            engine.release()
    gc.collect()


class _ArmingHook:
    __torch_unserializable__ = True  # saving a parameter drops the hook without a warning

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def __call__(self, _: torch.Tensor) -> None:
        self._engine.gradient_arrived()


_BUFFERS_OPTION = (
    "forward_sync_buffers"  # the name since torch 2.13
    if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)


class DistributedModel(nn.Module):
    """A model that trains in several processes.

    Calling it averages the gradients of the coming backward pass over the ranks. Everything else is the
    model's own: reading and setting attributes, methods, iteration over modules and parameters,
    ``state_dict`` without a ``module.`` prefix. Methods may be called in place of ``forward``, and submodules
    directly; their gradients are averaged too. Copying or pickling it gives the plain model.
    ``amp.prepare_model`` makes it.

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
        exchange: Exchange = _PLAIN,
    ) -> None:
        object.__setattr__(self, "_inner", None)
        super().__init__()
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, getattr(module, name))  # the very same dictionaries
        object.__setattr__(self, "_inner", module)
        object.__setattr__(self, "_engine", _Engine(module, find_unused_parameters, static_graph, exchange))

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
        engine: _Engine = self.__dict__["_engine"]
        return engine.run(lambda: self.module(*args, **kwargs))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leaves gradients unaveraged, to accumulate them: of the passes inside, or only their forwards or backwards.

        :func:`no_sync` is the same for a model that may also be alone.
        """
        engine: _Engine = self.__dict__["_engine"]
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
        import copy

        return copy.deepcopy(self.module, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return operator.getitem, ((self.module,), 0)  # the module itself, by what can be loaded anywhere


class _Synchronised:
    """A method of the model other than ``forward``, called from outside."""

    def __init__(self, engine: _Engine, method: Any) -> None:
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


_KEPT = {"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward", "call_super_init", "dump_patches"}
for _name, _value in vars(nn.Module).items():
    if callable(_value) and not _name.startswith("__") and _name not in _KEPT:
        setattr(DistributedModel, _name, _delegate(_name))


def no_sync(model: Any, enabled: bool = True) -> AbstractContextManager[None]:
    """Leaves the gradients of ``model`` unaveraged, to accumulate them over several passes.

    ``with amp.no_sync(model, enabled=(i + 1) % k != 0):`` around forward and backward sends nothing in k - 1 of k
    steps. It does nothing alone, and nothing for a model prepared with ``delay_allreduce=True``, which only
    communicates at the step.

    Args:
        model: what ``amp.prepare_model`` returned, or a wrapper of torch's that has ``no_sync``.
        enabled: whether to do anything; ``False`` in the step that synchronises.
    """
    inside: Any = getattr(type(model), "no_sync", None)
    return inside(model) if enabled and inside is not None else nullcontext()


def distribute(
    model: nn.Module, find_unused_parameters: bool, static_graph: bool = False, exchange: Exchange = _PLAIN
) -> DistributedModel:
    """Wraps ``model``; the wrapper can be indexed and iterated over if the model can."""
    extra = {name: _delegate(name) for name in _CONTAINER_METHODS if hasattr(type(model), name)}
    kind: type[DistributedModel] = (
        type(DistributedModel.__name__, (DistributedModel,), extra) if extra else DistributedModel
    )
    return kind(model, find_unused_parameters=find_unused_parameters, static_graph=static_graph, exchange=exchange)
