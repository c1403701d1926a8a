"""What ``amp.quantize`` returns: a model in int8, or one that trains for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from amp_runtime._core.trees import to_float
from amp_runtime._quantizing import exported, products
from amp_runtime._quantizing.calibration import Call


class _Float32Around(nn.Module):
    """Runs a model with float32 around its int8 layers, whatever autocast says outside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output; half-precision inputs are made float32."""
        device = next((tensor.device.type for tensor in self.buffers()), None)
        device = device or next((tensor.device.type for tensor in self.parameters()), "cpu")
        if device == "cpu":
            products.mend()
        with torch.autocast(device, enabled=False):
            return self.model(*to_float(args), **to_float(kwargs))


class QuantizedModel(_Float32Around):
    """A model with int8 weights, for inference. ``train()`` and ``eval()`` leave it as it is.

    Attributes:
        kind: ``"dynamic"``, ``"static"`` or ``"qat"``.
        left_float: what stayed float, by the name of its weights, and why.
        float_bytes: of the weights and constants that it was made from.
        calls: the arguments with which its graphs were exported, by the name of the part.

    Args:
        model: with its int8 weights in it.
        kind: which of the three made it.
        left_float: as above.
        float_bytes: as above.
        calls: as above; empty where nothing was exported.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: str,
        left_float: dict[str, str],
        float_bytes: int,
        calls: dict[str, Call] | None = None,
    ) -> None:
        super().__init__(model)
        self.training = False  # an exported model refuses train() and eval()
        self.kind = kind
        self.left_float = left_float
        self.float_bytes = float_bytes
        self.calls = calls or {}

    @property
    def bytes(self) -> int:
        """How many its weights and constants take."""
        return size_of(self)

    def train(self, mode: bool = True) -> QuantizedModel:
        """Leaves the model as it is: weights in int8 are not trained."""
        return self

    def describe(self) -> str:
        """One line: the kind, the size beside float32, and what stayed float."""
        text = (
            f"{self.kind} int8: {self.bytes / 1e6:.2f} MB of weights, {self.bytes / max(1, self.float_bytes):.2f} x of "
            "what they were"
        )
        names = sorted(self.left_float)
        if not names:
            return text
        some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"{text}; float stay {some} ({self.left_float[names[0]]})"


class PreparedModel(_Float32Around):
    """A model that trains with its weights and values rounded as int8 will round them; see ``amp.quantize``.

    ``state_dict()`` has the names and weights of the model that it was made from, so its checkpoints are that model's.
    The ranges go with it as metadata, which ``load_state_dict`` of another such model takes as well.

    Attributes:
        call: the arguments with which it was exported.
        float_bytes: of the model that it was made from.

    Args:
        graph: the exported model with fake quantization.
        call: as above.
        float_bytes: as above.
        names: what the ``state_dict`` of the model has.
    """

    def __init__(self, graph: nn.Module, call: Call, float_bytes: int, names: Iterable[str]) -> None:
        super().__init__(graph)
        self.call = call
        self.float_bytes = float_bytes
        self._names = tuple(names)
        self.register_state_dict_post_hook(_with_own_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_names_of_graph)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> PreparedModel:
        """Has dropout and batch norm train or evaluate; observers look at values in training alone."""
        self.training = mode
        exported.move(self.model, mode)
        self._observe()
        return self

    trains_in_float32 = True
    """What ``amp.prepare_model`` asks for: from O2 on the weights stay what rounding starts from."""

    frozen = False
    """Whether the ranges stay as they are."""

    def freeze_observers(self) -> None:
        """Keeps the ranges as they are: for the last epochs, so that the weights settle in them.

        Where the model has not trained yet, as when the last epoch is the only one, there are none to keep: they are
        found in that epoch.
        """
        self.frozen = True
        self._observe()

    def _observe(self) -> None:
        exported.observe(self.model, self.training and not (self.frozen and exported.has_ranges(self.model)))


_GRAPH = "model."
"""What the names of a prepared model's graph begin with."""
_RANGES = "amp_ranges"


def _with_own_names(module: Any, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
    """Gives a ``state_dict`` the names of the model that was prepared, and puts the ranges into its metadata."""
    of_graph = {key: state.pop(key) for key in [key for key in state if key.startswith(prefix + _GRAPH)]}
    for name in module._names:
        state[prefix + name] = of_graph.pop(prefix + _GRAPH + name)
    start = len(prefix)
    # Whether they are looked for goes by the mode of the model, and is no part of them.
    metadata[_RANGES] = {key[start:]: value for key, value in of_graph.items() if not key.endswith("_enabled")}


def _with_names_of_graph(module: Any, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """Gives what is loaded the names of the graph; ranges that it does not have stay as they are."""
    names = module._names
    if any(prefix + name in state for name in names) and not all(prefix + _GRAPH + name in state for name in names):
        for name in [name for name in names if prefix + name in state]:
            state[prefix + _GRAPH + name] = state.pop(prefix + name)
    ranges = metadata.get(_RANGES, {})
    with_weights = {_GRAPH + name for name in names}
    # Not its own state_dict: what it has is asked of the graph, under the names there.
    for key, value in module.model.state_dict(prefix=_GRAPH).items():
        if key not in with_weights:
            state.setdefault(prefix + key, ranges.get(key, value))


def size_of(model: nn.Module) -> int:
    """The bytes of a model's parameters and buffers, each tensor once."""
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(_bytes(tensor) for tensor in tensors.values())


def _bytes(tensor: torch.Tensor) -> int:
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is None:
        return tensor.numel() * tensor.element_size()
    names, _ = inner()
    return sum(_bytes(getattr(tensor, name)) for name in names)
