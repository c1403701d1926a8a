"""torch's DistributedDataParallel around one model, kept in step with the model's parameters."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from amp_runtime._core.context import context
from amp_runtime._core.models import parameter_slots, same_objects
from amp_runtime._core.rows import any_tables, table_of
from amp_runtime._distributed import passes
from amp_runtime._distributed.exchange import PLAIN, Exchange, real_view
from amp_runtime._distributed.options import average_in_ddp


class _PassThrough(nn.Module):
    """What torch DDP wraps: calls the model, or hands on a result computed by another of its methods."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, run: Callable[[], Any]) -> Any:
        return run()


class Engine:
    """torch's DistributedDataParallel around one model, rebuilt when the model's trainable parameters change.

    torch synchronises a backward pass only if ``DDP.forward`` ran before it. A hook on every parameter arms
    DDP where it did not: for submodules called from outside, and for the second of two backward passes. Parameters that
    took no part in a pass count as zero when the optimizer steps (:meth:`end_pass`).
    """

    def __init__(
        self, model: nn.Module, find_unused_parameters: bool, static_graph: bool = False, exchange: Exchange = PLAIN
    ) -> None:
        self.model = model
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.exchange = exchange
        self.stale = False
        self.began_in = -1
        self._hooks: list[Any] = []
        self.released = False
        self._build()
        _engines.add(self)
        passes.watch(self)

    def _build(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._slots = averaged_slots(self.model)
        self._parameters = [parameter for parameter in self.model.parameters() if table_of(parameter) is None]
        self._trainable = _trainable(self._slots)
        tables = [module for module in self.model.modules() if _has_sparse_gradients(module)]
        self._sparse = {id(parameter) for table in tables for parameter in table.parameters(recurse=False)}
        self._placement = self._place()
        self._accumulator = self._accumulating()
        self._all = {id(p): p for p in self._parameters if p.requires_grad}
        self._awaited: dict[int, nn.Parameter] = {}
        self._quiet = self._owed = self._ending = self._learned = False
        self.stale = False
        options: dict[str, Any] = {_BUFFERS_OPTION: False}
        if self.exchange.message_size is not None:
            widest = max(p.element_size() for p in self._all.values())
            options["bucket_cap_mb"] = self.exchange.message_size * widest / 2**20
        passed = _PassThrough(self.model)
        rows = [name for name, parameter in passed.named_parameters() if table_of(parameter) is not None]
        if rows:
            passed._ddp_params_and_buffers_to_ignore = rows  # type: ignore[assignment]
        self.ddp = nn.parallel.DistributedDataParallel(
            passed,
            find_unused_parameters=self.find_unused_parameters,
            static_graph=self.static_graph,
            gradient_as_bucket_view=True,
            **options,
        )
        if not self.exchange.plain:
            # torch reads a hook's annotations, and accepts its own classes or none.
            state = (self.exchange, self.ddp.process_group)
            self.ddp.register_comm_hook(state, lambda state, bucket: average_in_ddp(state, bucket))
        hook = _ArmingHook(self)
        if not self.follows_the_graph:
            self._hooks = [
                p.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                for p in self._all.values()
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

    def _accumulating(self) -> Any:
        """What adds up the gradient of the first parameter that trains: DDP's hooks hang on it.

        A model that was moved away and back, to save it from the CPU, has others, of which DDP knows nothing.
        """
        if torch.compiler.is_compiling():
            return self._accumulator
        with torch._C.DisableTorchFunction():
            first = next((parameter for parameter in self._parameters if parameter.requires_grad), None)
            return None if first is None else torch.autograd.graph.get_gradient_edge(first).node

    def refresh(self) -> bool:
        """Rebuilds DDP if it is out of date; returns whether it is needed for the coming forward pass."""
        if self.released or not torch.is_grad_enabled():
            return False
        if context.evaluations and not self.model.training:
            return False  # other ranks may have fewer batches of an evaluation, and come here less often
        slots = averaged_slots(self.model)
        trainable = _trainable(slots)
        if not any(trainable):
            return False  # frozen for now, like a discriminator in the generator's step
        # Modules are replaced anywhere in the model, which no attribute of the wrapper tells. torch sends rank 0's
        # weights and buffers when it is built: those of a new head, too.
        changed = not same_objects(slots, self._slots)
        moved = self._place() != self._placement or self._accumulating() is not self._accumulator
        if self.stale or changed or moved or trainable != self._trainable:
            passes.end_passes()
            self._build()
        return True

    def run(self, call: Callable[[], Any]) -> Any:
        """Runs ``call`` as the forward pass of DDP."""
        if not self.refresh():
            return call()
        if not torch.compiler.is_compiling():
            passes.end_passes()  # the forward pass of DDP may be a collective
        self._ending = False
        if self.ddp.require_backward_grad_sync:
            self._quiet = self._owed = False
            self._awaited = self._all.copy()
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
        armed = len(self._awaited) == len(self._all) and not self.follows_the_graph
        if armed and hasattr(self.ddp.reducer, "_reset_state"):
            self.ddp.reducer._reset_state()
            self._awaited = {}
            self._owed = True
        with self.ddp.no_sync():
            yield

    def gradient_arrived(self, parameter: torch.Tensor) -> None:
        """Called when a parameter's gradient has been accumulated, before DDP hears of it."""
        synchronising = self.ddp.require_backward_grad_sync
        if (self._quiet or (self._owed and not synchronising)) and not self._ending:
            self._ending = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_quiet_pass)
        if self._quiet or not synchronising:  # quiet: the backward of a forward in no_sync was left out of the block
            return
        if len(self._awaited) in (0, len(self._all)):
            self.began_in = torch._C._current_graph_task_id()
            passes.end_passes_before(self.began_in)
        if not self._awaited:
            # Once, after the first pass, torch orders its buckets anew; by default that waits for DDP's next forward
            # pass, and fails there if a second backward pass came before.
            self.ddp.reducer._rebuild_buckets()
            self.ddp.reducer.prepare_for_backward([])
            self._awaited = self._all.copy()
        self._awaited.pop(id(parameter), None)

    def end_pass(self) -> None:
        """Completes a backward pass in which some parameters took no part, as torch does with unused parameters.

        Each counts as zero on this rank. One that took no part on any rank keeps no gradient. A pass that none has
        come of has not begun.
        """
        if self.released or not 0 < len(self._awaited) < len(self._all):
            return
        missing = list(self._awaited.values())
        without = [parameter for parameter in missing if parameter.grad is None]
        # What the script has cleared since would come back from the buffers of torch DDP, and what others gave with it.
        cleared = [p for key, p in self._all.items() if key not in self._awaited and p.grad is None]
        if len(cleared) + len(missing) == len(self._all):
            cleared, without = [*cleared, *without], []
        self._awaited = {}
        with _with_nothing_attached(missing):
            torch.autograd.backward(missing, [self._nothing(parameter) for parameter in missing])
        for parameter in cleared:
            parameter.grad = None
        if without:
            device = without[0].device
            unused = torch.stack([_is_nothing(parameter.grad).to(device) for parameter in without]).tolist()
            for parameter, is_unused in zip(without, unused, strict=True):
                if is_unused:
                    parameter.grad = None

    def _nothing(self, parameter: nn.Parameter) -> torch.Tensor:
        """A gradient that adds nothing, and that any gradient can be told from: zeros below zero."""
        if id(parameter) in self._sparse:  # of whole rows, as a table's gradient is
            none = torch.empty(1, 0, dtype=torch.long, device=parameter.device)
            return torch.sparse_coo_tensor(none, parameter.detach()[:0], parameter.shape, check_invariants=False)
        nothing = torch.zeros_like(parameter, requires_grad=False)
        real_view(nothing).fill_(-0.0)
        return nothing

    def _end_quiet_pass(self) -> None:
        self._quiet = self._owed = self._ending = False


def averaged_slots(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of a model whose gradients are averaged: all but rows of a table, which one rank has alone."""
    slots = parameter_slots(model)
    return [parameter for parameter in slots if table_of(parameter) is None] if any_tables() else slots


def _trainable(slots: list[nn.Parameter]) -> list[bool]:
    if torch.compiler.is_compiling():
        return [parameter.requires_grad for parameter in slots]
    with torch._C.DisableTorchFunction():  # the mode of a region would be asked about each of them
        return [parameter.requires_grad for parameter in slots]


@contextmanager
def _with_nothing_attached(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Lets parameters take gradients that the script must not see: without its hooks, also where it froze them."""
    trainable = [parameter.requires_grad for parameter in parameters]
    hooks = [of for p in parameters for of in (p._backward_hooks, p._post_accumulate_grad_hooks) if of]
    kept = [dict(of) for of in hooks]
    try:
        for of in hooks:
            of.clear()
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for of, before in zip(hooks, kept, strict=True):
            of.update(before)
        for parameter, was_trainable in zip(parameters, trainable, strict=True):
            parameter.requires_grad_(was_trainable)


def _has_sparse_gradients(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse


def _is_nothing(gradient: torch.Tensor | None) -> torch.Tensor:
    """Whether a gradient is what all ranks gave for a parameter that took no part; a tensor of one truth value."""
    assert gradient is not None
    if gradient.is_sparse:
        return torch.tensor(gradient.coalesce().values().numel() == 0, device=gradient.device)
    # Where torch divides a complex number, its real part may become a zero above zero.
    return ((gradient == 0) & torch.signbit(gradient.imag if gradient.is_complex() else gradient)).all()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def release_all() -> None:
    """Releases every model from its process group, whose threads end with the last reference to it."""
    for engine in list(_engines):
        if not engine.released:
            engine.release()
    gc.collect()


class _ArmingHook:
    __torch_unserializable__ = True  # saving a parameter drops the hook without a warning

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, parameter: torch.Tensor) -> None:
        self._engine.gradient_arrived(parameter)


_BUFFERS_OPTION = (
    "forward_sync_buffers"  # the name since torch 2.13
    if "forward_sync_buffers" in inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    else "broadcast_buffers"
)
