"""Layers with weights that are built in the forward pass."""

from __future__ import annotations

import ast
import re

from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check

_WITH_WEIGHTS = frozenset(
    """
    Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d Embedding EmbeddingBag
    BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LayerNorm GroupNorm RMSNorm PReLU LSTM GRU RNN LSTMCell GRUCell
    MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer Transformer
    """.split()
)
_WITH_MODES = frozenset("Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout".split())
"""Layers that do nothing in evaluation, if ``model.eval()`` reaches them."""
_SWITCHES = ("affine", "elementwise_affine", "_weight")


class LayerInForward(Check):
    """Layers with weights that are built in the forward pass.

    ## What it does

    Looks for `nn.Linear(...)`, `nn.Conv2d(...)`, `nn.Embedding(...)` and other layers with weights that a module's
    `forward` builds and calls, and for `nn.Dropout(...)` that it builds.

    ## Why

    Such a layer gets new random weights in every step. It is no part of the module: `model.parameters()` does not
    have it, the optimizer never updates it, and `model.half()`, `model.to(device)`, checkpoints and
    DistributedDataParallel pass it by. In half precision it is the one float32 layer, which refuses half inputs. A
    dropout that is built anew is in training mode: it drops after `model.eval()`, too.

    ## Example

        def forward(self, x):
            return nn.Linear(x.shape[-1], 10)(x)

    ## Use instead

        def __init__(self, width):
            super().__init__()
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            return self.head(x)

    ## When it is silent

    On layers without weights (`nn.Softmax`, `nn.ReLU`, losses, `affine=False`), and where the layer is kept in an
    attribute or gets its weights from elsewhere.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/modules.html
    """

    code = "AMP757"
    name = "layer-in-forward"
    severity = "warning"
    message = "A layer with weights is built in the forward pass."
    advice = "Build the layer in `__init__` and keep it in an attribute."
    triggers = (
        ")(",
        "Dropout(",
        "Dropout2d(",
        re.compile(rf"^[ \t]+\w+ = [\w.]*(?:{'|'.join(sorted(_WITH_WEIGHTS))})\(", re.MULTILINE),
    )
    operations = ("layer",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge a layer that was built."""
        name = (op.sym or "").rpartition(".")[2]
        function = frame.function
        if name in _WITH_MODES:
            self._dropout(op, frame)
            return
        if name not in _WITH_WEIGHTS or function is None or not function.is_forward or op.node is None:
            return
        if frame.caller is not None or any(_is_false(op, switch) for switch in _SWITCHES):
            return
        if _is_called(frame, op.node):
            message = (
                f"`{frame.text(op.node)}` is built anew in every `{function.name}`, with weights that no "
                "optimizer trains"
            )
            self.report(frame, op.node, message)

    def _dropout(self, op: Value, frame: Frame) -> None:
        """``nn.Dropout(0.5)`` in a forward pass: ``model.eval()`` does not know it."""
        function, rate = frame.function, op.arg(0, "p")
        if function is None or not function.is_forward or frame.caller is not None or op.node is None:
            return
        if (rate is not None and rate.number == 0) or "training" in frame.text(frame.module.index.statement(op.node)):
            return
        if any(isinstance(item, ast.If) and "training" in frame.text(item.test) for item in _around(frame, op.node)):
            return
        message = (
            f"`{frame.text(op.node)}` is built anew in every `{function.name}`, and drops after `model.eval()` too"
        )
        advice = "Build it in `__init__`, or use `F.dropout(x, p, training=self.training)`."
        self.report(frame, op.node, message, advice=advice)


def _around(frame: Frame, node: ast.AST) -> list[ast.AST]:
    """What a node stands in."""
    return list(frame.module.module.ancestors(node))


def _is_false(op: Value, switch: str) -> bool:
    given = (op.kwargs or {}).get(switch)
    return given is not None and (switch == "_weight" or (given.is_const and not given.const))


def _is_called(frame: Frame, node: ast.AST) -> bool:
    """Whether the layer is called where it is built, or under a local name that is used for nothing else."""
    parents = frame.module.module.parents
    parent = parents.get(node)
    while isinstance(parent, (ast.Attribute, ast.Call)) and node is not parent:
        if isinstance(parent, ast.Call) and parent.func is node:
            grown = parents.get(parent)
            if not isinstance(node, ast.Attribute):
                return True
            node, parent = parent, grown
            continue
        if isinstance(parent, ast.Call):
            return False
        node, parent = parent, parents.get(parent)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return False
    return _only_called(frame, parent.targets[0].id)


def _only_called(frame: Frame, name: str) -> bool:
    """Whether a local name, and those that it is given, are used for nothing but calls."""
    parents = frame.module.module.parents
    assert frame.function is not None
    uses = [
        item
        for item in ast.walk(frame.function.node)
        if isinstance(item, ast.Name) and item.id == name and isinstance(item.ctx, ast.Load)
    ]
    return bool(uses) and all(_is_call_of(frame, item, parents.get(item)) for item in uses)


def _is_call_of(frame: Frame, use: ast.Name, parent: ast.AST | None) -> bool:
    """Whether a use is a call, or gives a second name that is only called."""
    if isinstance(parent, ast.Assign) and parent.value is use and len(parent.targets) == 1:
        target = parent.targets[0]
        return isinstance(target, ast.Name) and target.id != use.id and _only_called(frame, target.id)
    return isinstance(parent, ast.Call) and parent.func is use
