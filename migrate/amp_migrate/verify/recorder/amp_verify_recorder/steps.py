"""Backward calls and steps of optimizers."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from . import graphs, imports
from .digests import bytes_of
from .record import Record, guarded
from .seeding import Draws
from .shards import holds_rows, is_shared_out

# The types in which a script computes are seen in its first steps; to look at every graph would cost time.
_LOOKED_AT = 3


def watch(steps: Steps) -> None:
    """Record every backward call and every step of an optimizer."""
    torch = steps.torch
    torch.Tensor.backward = steps.recording(torch.Tensor.backward)
    torch.autograd.backward = steps.recording(torch.autograd.backward)
    steps.record.finishers.append(steps.facts)
    optimizer = torch.optim.Optimizer
    optimizer.__init__ = steps.remembering(optimizer.__init__)
    module = sys.modules["torch.optim.optimizer"]
    module.register_optimizer_step_pre_hook(steps.before_update)
    module.register_optimizer_step_post_hook(steps.after_update)


class Follower(Protocol):
    """Goes along with the training."""

    def made(self) -> None:
        """An optimizer was made."""

    def begins(self, tensors: Any) -> None:
        """A backward call from these tensors is about to begin."""

    def ends(self) -> None:
        """It has ended."""

    def fetches(self) -> None:
        """A loader is about to fetch samples."""

    def fetched(self) -> None:
        """It has."""


class Steps:
    """The backward calls and updates of this process.

    Attributes:
        scales: what scaled losses were multiplied by, by the number of the object; see :mod:`.scaling`.
        last_scale: the last of them since the backward call before.
        updates: how many steps of optimizers were seen.
        optimizers: all that were made, in that order.
        events: see :class:`amp_migrate.verify.traces.RankTrace`.
        handed_out: how many batches loaders handed out to be trained on.
        aside: modules that are made for the comparison alone, and are none of the script's.
        followers: told when optimizers are made, backward calls begin and end, samples are fetched; see :mod:`.ways`.
    """

    def __init__(self, record: Record, torch: Any) -> None:
        self.record = record
        self.torch = torch
        self.draws = Draws(torch)
        self.scales: dict[int, tuple[Any, Any]] = {}
        self.last_scale: Any = None
        self.device: str | None = None
        self.updates = 0
        self.events: set[str] = set()
        self.handed_out = 0
        self.aside: weakref.WeakSet[Any] = weakref.WeakSet()
        self.followers: list[Follower] = []
        self._inside = False
        self.optimizers: list[Any] = []
        self._stepping: weakref.WeakSet[Any] = weakref.WeakSet()
        self._looked_at: dict[str, int] = {}

    def recording(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """``backward`` with a record of its calls."""

        @functools.wraps(backward)
        def recorded(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # Tensor.backward calls autograd.backward, and checkpointing calls it on the way: one entry, not several.
            if self._inside or not self.record.active:
                return backward(tensors, *args, **kwargs)
            self.record.step()
            self._before(tensors)
            for follower in self.followers:
                follower.begins(tensors)
            self._inside = True
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._inside = False
                self._after()
                for follower in self.followers:
                    follower.ends()

        return recorded

    def remembering(self, init: Callable[..., None]) -> Callable[..., None]:
        """An optimizer's constructor with a note of the object."""

        @functools.wraps(init)
        def remembered(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            # A strong reference: an optimizer that is local to main() must still be there at the end.
            if all(optimizer is not known for known in self.optimizers):
                self.optimizers.append(optimizer)
            init(optimizer, *args, **kwargs)
            for follower in self.followers:
                follower.made()

        return remembered

    @guarded
    def _before(self, tensors: Any) -> None:
        torch = self.torch
        now = self.record.seconds()
        found = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        with torch.no_grad():
            # Autocast never touches float64, so this reads the same inside and outside of its regions.
            loss = sum(tensor.detach().to(torch.float64).mean() for tensor in found)
        scale = self._scale_of(found)
        site = self.record.sites.of(sys._getframe(1))
        facts = {"loss": loss if scale is None else loss / scale, "time": now, "site": site}
        if scale is not None:
            facts["scale"] = scale
        if torch.is_autocast_enabled(loss.device.type):
            facts["autocast"] = True
        drew = self.draws.moved()
        if drew:
            facts["random"], facts["drew"] = True, drew
        looked_at = self._looked_at.get(site, 0)
        if looked_at < _LOOKED_AT:
            self._looked_at[site] = looked_at + 1
            graph = graphs.look_at(torch, found)
            facts["half"], facts["full"], facts["inputs"] = graph.half, graph.full, graph.inputs
            if graph.has_batch_norm:
                self.events.add("batch_norm")
        if self.device is None:
            self.record.look_around()
            self.device = torch.cuda.get_device_name(loss.device) if loss.device.type == "cuda" else loss.device.type
        self.record.add(**facts)

    @guarded
    def _after(self) -> None:
        self.scales.clear()
        self.last_scale = None
        self.draws.mark()

    def _scale_of(self, tensors: list[Any]) -> Any:
        """What the losses were multiplied by; of a loss that was divided since, what it was then."""
        for tensor in tensors:
            kept = self.scales.get(id(tensor))
            if kept is not None and kept[0]() is tensor:
                return kept[1]
        return self.last_scale

    def before_update(self, optimizer: Any, *_: Any) -> None:
        """Called by torch before each step of an optimizer."""
        if self.record.active and optimizer not in self._stepping:
            self._stepping.add(optimizer)
            self.updates += 1
            self._update(optimizer)

    def after_update(self, optimizer: Any, *_: Any) -> None:
        """Called by torch after it."""
        self._stepping.discard(optimizer)

    def number_of(self, optimizer: Any) -> int | None:
        """The place of an optimizer among those that were made; None for a copy."""
        return next((index for index, known in enumerate(self.optimizers) if known is optimizer), None)

    @guarded
    def _update(self, optimizer: Any) -> None:
        torch = self.torch
        number = self.number_of(optimizer)
        if number is None:  # a copy, which was never made
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parameters = [parameter for parameter in parameters if parameter.grad is not None]
        if not parameters:
            return
        rows = [parameter.grad.detach() for parameter in parameters if holds_rows(parameter)]
        present = [parameter.grad.detach() for parameter in parameters if not holds_rows(parameter)]
        norm = _norm(torch, present) if present else torch.zeros((), dtype=torch.float64)
        facts = {"optimizer": number, "after": self.record.backwards, "norm": norm}
        if rows:
            facts["rows"] = _norm(torch, rows)
        rate = optimizer.param_groups[0].get("lr")
        if rate is not None:
            facts["lr"] = rate.clone() if isinstance(rate, torch.Tensor) else float(rate)
        others = [group.get("lr") for group in optimizer.param_groups[1:]]
        if any(other != rate for other in others):
            facts["lrs"] = [float(other) for other in others if other is not None]
        # Set by GradScaler for optimizers that unscale, and skip, in their own kernel.
        scale, found = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        if scale is not None:
            facts |= {name: facts[name] / scale for name in ("norm", "rows") if name in facts}
        if found is not None:
            facts["found_inf"] = found.clone()
        self.record.add(**facts)

    def facts(self) -> Iterator[tuple[str, Any]]:
        """What is known at the end."""
        torch = self.torch
        yield "device", self.device or "cpu"
        yield "half_type", _half_type(torch, self.device)
        yield "versions", {"python": platform.python_version(), "torch": str(torch.__version__)}
        yield "peak_memory", _peak_memory(torch, self.device)
        yield "parameters", [_digest(torch, optimizer) for optimizer in self.optimizers]
        yield "events", sorted(self.events | set(self._late_events()))
        yield "outside", sorted(self._outside())
        yield "imported", imports.installed()
        apex = sys.modules.get("apex")
        if apex is not None and f"{os.sep}stand_in{os.sep}" in str(getattr(apex, "__file__", "")):
            yield "stands_in", ["apex"]

    def _late_events(self) -> Iterator[str]:
        """What can be told at the end."""
        if self.record.in_group:
            yield "process_group"
        runtime, interface = (
            sys.modules.get(f"amp_runtime.{name}") for name in ("_core.context", "apex.amp._amp_state")
        )
        properties = getattr(getattr(interface, "_amp_state", None), "opt_properties", None)
        if getattr(getattr(runtime, "context", None), "initialised", False) or getattr(properties, "enabled", False):
            yield "amp"
        if any(is_shared_out(p) for one in self.optimizers for group in one.param_groups for p in group["params"]):
            yield "sharded"
        if any(holds_rows(p) for one in self.optimizers for group in one.param_groups for p in group["params"]):
            yield "rows_shared_out"
        for name in getattr(sys.modules.get("apex"), "lacking", ()):
            yield f"lacks {name}"

    def _outside(self) -> set[str]:
        """The folders from which modules of the project itself were imported, and not of its copy."""
        if not self.record.project:
            return set()
        project = os.path.join(self.record.project, "")
        found = set()
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str) or not path.startswith(project) or path.startswith(self.record.root):
                continue
            parts = path.split(os.sep)
            if imports.INSTALLED.isdisjoint(parts):
                depth = name.count(".") + 1 + parts[-1].startswith("__init__.")
                found.add(os.sep.join(parts[:-depth]))
        return found


def _norm(torch: Any, gradients: list[Any]) -> Any:
    """The 2-norm of all of them together, in float64."""
    values = [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients]
    values = [torch.view_as_real(value) if value.is_complex() else value for value in values]
    first = values[0].device
    with torch.no_grad(), torch.autocast(first.type, enabled=False):
        try:
            norms = torch._foreach_norm(values, 2, torch.float64)
        except (AttributeError, RuntimeError, TypeError):  # of several devices, or of a torch that has no such function
            norms = [torch.linalg.vector_norm(value, dtype=torch.float64) for value in values]
        return torch.linalg.vector_norm(torch.stack([norm.to(first) for norm in norms]))


def _digest(torch: Any, optimizer: Any) -> str:
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not holds_rows(parameter):  # each process has other ones
                digest.update(bytes_of(torch, parameter))
    return digest.hexdigest()


def _half_type(torch: Any, device: str | None) -> str:
    """The half type that the device computes in: GPUs before Ampere only emulate bfloat16."""
    on_gpu = device not in (None, "cpu") and torch.cuda.is_available()
    return "fp16" if on_gpu and torch.cuda.get_device_capability() < (8, 0) else "bf16"


def _peak_memory(torch: Any, device: str | None) -> int:
    if torch.cuda.is_available() and torch.cuda.is_initialized() and device != "cpu":
        return int(torch.cuda.max_memory_allocated())
    try:
        # getrusage would count what this process was before exec, too.
        with open("/proc/self/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
