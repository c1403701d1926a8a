"""Copies of a model from before Apex converted it."""

from __future__ import annotations

import ast

from amp_rules.checks.common.apex_scripts import asks_for_precision, has_master_weights, is_call_of
from amp_rules.checks.common.calls import own_name_of
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.idioms import NAMED_EMA


class ParamsCapturedBeforeInitialize(Check):
    """A copy or an average of the model is made before `amp.initialize` converts it.

    ## What it does

    Finds `copy.deepcopy(model)`, `ModelEma(model)`, `AveragedModel(model)` and the like before
    `amp.initialize(model, ..., opt_level="O2")`.

    ## Why

    At O2 Apex converts the weights to float16 in place and replaces `forward`. The copy stays in float32 with the old
    `forward`: given half inputs it raises "expected scalar type Half but found Float". An average that keeps a list of
    the parameters averages float16 weights, in which a step of 1e-4 on a weight of 1 is lost.

    ## Example

        ema = ModelEma(model)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")

    ## Use instead

        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
        ema = ModelEma(model)

    ## When it is silent

    At O0 and O1, where weights stay as they are, and where the copy is not of what is initialized.

    ## Source

    https://nvidia.github.io/apex/amp.html#o2-almost-fp16-mixed-precision
    """

    code = "AMP844"
    name = "params-captured-before-initialize"
    severity = "warning"
    message = "A copy of the model is made before `amp.initialize` converts it."
    advice = "Make the copy after `amp.initialize`, of the model that it returns."
    in_order = True
    states = ("$captured",)
    triggers = ("amp.initialize(",)
    operations = ("call", "instance")

    def visit(self, op: Value, frame: Frame) -> None:
        """Note copies; judge them where the model is initialized."""
        noted = frame.machine.notes.setdefault((self.code,), set())
        name = own_name_of(frame.module, op.node) if isinstance(op.node, ast.Call) else ""
        if NAMED_EMA.search(name) or (name == "deepcopy" and op.op == "call"):
            given = op.args if op.op == "instance" else op.args[1:]
            if given and op.node is not None:
                noted.add((given[0], op.node))
        elif is_call_of(op, "amp.initialize") and has_master_weights(frame.module, frame):
            model = op.arg(1, "models")
            models = alternatives(model) if model is not None else ()
            for value, node in noted:
                if (value is model or value in models) and not asks_for_precision(frame, node):
                    text = frame.text(node.func)
                    self.report(frame, node, f"`{text}` copies the model before `amp.initialize` converts it")
