"""What the optimizers that torch does not have share: which tensors a step works on, and in which type.

The arithmetic is float32 or wider. Half parameters are widened for the step and rounded afterwards; their state
stays float32, also in checkpoints. With ``master_weights`` their float32 value is kept between steps too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_runtime._core.context import HALF_DTYPES
from amp_runtime._core.versions import two_norms
from amp_runtime.optim._scratch import LARGEST, Scratch, copy_into

State = dict[str, Any]

_CPU_CHUNK = LARGEST
"""Elements that the CPU works on at once, so that what a step reads several times stays in its cache."""

_NOT_PICKLED = ("_optimizer_", "_scratch", "_zero_grad_profile_name")


@dataclass
class Batch:
    """Tensors of one group, in the same order in every list, of one device, one type and one step.

    Attributes:
        parameters: as they are in the group.
        values: what to update: the parameters, or float32 values of half ones.
        gradients: in the type and layout of the values; those of a group that maximizes are negated.
        states: what the optimizer remembers of each.
        step: the number of this step, from 1; a scalar tensor where the optimizer counts on the device.
        scratch: memory for intermediate results.
    """

    parameters: list[torch.Tensor]
    values: list[torch.Tensor]
    gradients: list[torch.Tensor]
    states: list[State]
    step: int | torch.Tensor
    scratch: Scratch = field(default_factory=Scratch)

    def buffers(self, key: str) -> list[torch.Tensor]:
        """The state tensors ``key``, zero at first; moved and converted to where the values are now."""
        return [buffer(state, key, value) for state, value in zip(self.states, self.values, strict=True)]

    def write_back(self) -> None:
        """Rounds updated values into half parameters."""
        if self.values and self.values[0] is not self.parameters[0]:
            copy_into(self.parameters, self.values)


class Base(torch.optim.Optimizer):
    """An optimizer whose step is ``_update``, with float32 state for half parameters."""

    def __getstate__(self) -> dict[str, Any]:
        # torch's has the groups and the state only, so a copy would lack what a subclass's constructor was told.
        own = {
            name: value
            for name, value in self.__dict__.items()
            if not name.startswith(_NOT_PICKLED) and not callable(value)  # a scheduler's wrapper of step
        }
        return {**own, **super().__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a checkpoint of Apex or of an older version knows fewer options
            for key, value in self.defaults.items():
                group.setdefault(key, value)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores ``state_dict``; float32 state of half parameters stays float32."""
        super().load_state_dict(state_dict)
        keep_wide(self, state_dict)

    def step(self, closure: Any = None) -> Any:
        """Updates the parameters.

        Args:
            closure: reevaluates the model and returns the loss; optional.

        Returns:
            What the closure returned, or ``None``.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
        """
        loss = evaluated(closure)
        with torch.no_grad():
            self._update()
        return loss

    def _update(self) -> None:
        raise NotImplementedError

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> Sequence[int | torch.Tensor]:
        """Counts this step; returns its number for each parameter."""
        steps = []
        for parameter in parameters:
            state = self.state[parameter]
            state["step"] = int(state.get("step", 0)) + 1
            steps.append(state["step"])
        return steps

    def _batches(self, group: dict[str, Any]) -> Iterator[Batch]:
        """The group's parameters that have a gradient, in batches; rounds half ones after each."""
        parameters = with_gradients(self, group)
        steps = self._steps(group, parameters)
        scratch: Scratch = self.__dict__.setdefault("_scratch", Scratch())
        for chosen, step in _split(parameters, steps):
            states = [self.state[parameter] for parameter in chosen]
            values = [
                _wide(parameter, state, bool(group.get("master_weights")))
                for parameter, state in zip(chosen, states, strict=True)
            ]
            negate = bool(group.get("maximize"))
            gradients = [_gradient(p, value, negate) for p, value in zip(chosen, values, strict=True)]
            batch = Batch(chosen, values, gradients, states, step, scratch)
            yield batch
            batch.write_back()


class GroupStep(Base):
    """Counts steps in the group, as Apex does.

    A parameter whose state has its own count, from a checkpoint of torch, goes on with that.
    """

    def _steps(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> Sequence[int | torch.Tensor]:
        own = [int(self.state[p]["step"]) for p in group["params"] if "step" in self.state.get(p, {})]
        group["step"] = int(group.get("step", max(own, default=0))) + 1
        steps: list[int] = []
        for parameter in parameters:
            state = self.state[parameter]
            if "step" in state:
                state["step"] = int(state["step"]) + 1
            steps.append(state.get("step", group["step"]))
        return steps


class ApexZeroGrad(torch.optim.Optimizer):
    """``zero_grad`` that follows the constructor's ``set_grad_none``."""

    set_grad_none: bool

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Removes the gradients or fills them with zeros.

        Args:
            set_to_none: ``True`` removes, ``False`` fills; by default what ``set_grad_none`` said.
        """
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


def evaluated(closure: Any) -> Any:
    """The closure's loss, or ``None`` without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def with_gradients(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[torch.Tensor]:
    """The group's parameters that take part in a step.

    Raises:
        RuntimeError: a gradient is sparse, or a parameter complex.
    """
    chosen = []
    for parameter in group["params"]:
        gradient = parameter.grad
        if gradient is None or parameter.numel() == 0:
            continue
        name = type(optimizer).__name__
        if gradient.layout is not torch.strided:
            raise RuntimeError(
                f"{name} got a gradient of layout {gradient.layout} for a parameter of shape "
                f"{tuple(parameter.shape)}; allowed: dense gradients (torch.optim.SparseAdam takes sparse ones)"
            )
        if parameter.is_complex():
            raise RuntimeError(
                f"{name} got a parameter of type {parameter.dtype} and shape {tuple(parameter.shape)}; "
                "allowed: floating types"
            )
        chosen.append(parameter)
    return chosen


def total_norm(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """The 2-norm of all gradients together; a float32 (float64 if one is) scalar on the first one's device."""
    norms: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        gradients = [parameter.grad for parameter in with_gradients(optimizer, group)]
        wide = [gradient for gradient in gradients if gradient is not None and gradient.dtype not in HALF_DTYPES]
        norms += two_norms(wide) if wide else ()
        for gradient in gradients:
            if gradient is not None and gradient.dtype in HALF_DTYPES:
                norms.append(torch.linalg.vector_norm(gradient, dtype=torch.float32))
    if not norms:
        return torch.zeros(())
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total


def keep_wide(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Gives half parameters back the float32 state that torch's ``load_state_dict`` has rounded to half.

    Args:
        optimizer: it has just loaded ``state_dict``.
        state_dict: as it was given.
    """
    saved = [key for group in state_dict["param_groups"] for key in group["params"]]
    current = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, parameter in zip(saved, current, strict=True):
        if parameter.dtype not in HALF_DTYPES:
            continue
        for name, value in state_dict["state"].get(key, {}).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype not in HALF_DTYPES:
                optimizer.state[parameter][name] = value.to(parameter.device, copy=True)


def _split(
    parameters: list[torch.Tensor], steps: Sequence[int | torch.Tensor]
) -> Iterator[tuple[list[torch.Tensor], int | torch.Tensor]]:
    alike: dict[tuple[torch.device, torch.dtype, int | torch.Tensor], list[torch.Tensor]] = {}
    for parameter, step in zip(parameters, steps, strict=True):
        alike.setdefault((parameter.device, parameter.dtype, step), []).append(parameter)
    for (device, _, step), members in alike.items():
        if device.type != "cpu":
            yield members, step
            continue
        chunk: list[torch.Tensor] = []
        size = 0
        for member in members:
            if chunk and size + member.numel() > _CPU_CHUNK:
                yield chunk, step
                chunk, size = [], 0
            chunk.append(member)
            size += member.numel()
        yield chunk, step


def _wide(parameter: torch.Tensor, state: State, master_weights: bool) -> torch.Tensor:
    """The parameter, or the float32 value of a half one."""
    if parameter.dtype not in HALF_DTYPES:
        return parameter
    if not master_weights:
        return parameter.float()
    if "master_param" not in state:
        state["master_param"] = first = parameter.float()
        return first
    master: torch.Tensor = state["master_param"].to(parameter.device, torch.float32)
    state["master_param"] = master
    # Where the script has written into the parameter since the last step, its value counts.
    return torch.where(master.to(parameter.dtype) == parameter, master, parameter.float(), out=master)


def _gradient(parameter: torch.Tensor, value: torch.Tensor, negate: bool) -> torch.Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if gradient.dtype != value.dtype or gradient.stride() != value.stride():
        gradient = torch.empty_like(value).copy_(gradient)
    return gradient.neg() if negate else gradient


def buffer(state: State, key: str, like: torch.Tensor) -> torch.Tensor:
    """The state tensor ``key``, zero at first, with the device, type and layout that ``like`` has now."""
    held: torch.Tensor | None = state.get(key)
    if held is None:
        held = state[key] = torch.zeros_like(like)
    elif held.device != like.device or held.dtype != like.dtype or held.stride() != like.stride():
        held = state[key] = torch.empty_like(like).copy_(held)
    return held
