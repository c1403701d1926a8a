"""Models that are wrapped or converted before Apex sees them."""

from __future__ import annotations

from amp_rules.checks.common.apex_scripts import asks_for_precision, is_call_of
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL

_PARALLEL = DATA_PARALLEL | DISTRIBUTED_DATA_PARALLEL


class ApexOrder(Check):
    """A model is given to `amp.initialize` after it was wrapped for several devices or converted to half.

    ## What it does

    Finds `amp.initialize(model, ...)` where `model` is the result of `DistributedDataParallel(...)`,
    `DataParallel(...)` or `.half()`.

    ## Why

    Apex refuses both with `RuntimeError`: "Parallel wrappers should only be applied to the model(s) AFTER the
    model(s) have been returned from amp.initialize", and "you do not need to call .half() on your model before". A
    wrapper keeps the parameters of 32 bits that it was given for its buckets, and Apex would make others of 16.

    ## Example

        model = DistributedDataParallel(model)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")

    ## Use instead

        model, optimizer = amp.initialize(model, optimizer, opt_level="O2")
        model = DistributedDataParallel(model)

    ## When it is silent

    Where a test that asks for mixed precision decides about the wrapper.

    ## Source

    https://nvidia.github.io/apex/amp.html#apex.amp.initialize
    """

    code = "AMP841"
    name = "apex-order"
    severity = "error"
    message = "A model was wrapped or converted before `amp.initialize`."
    advice = "Call `amp.initialize` right after the optimizer is made, and wrap what it returns."
    triggers = ("amp.initialize(",)
    operations = ("call",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at what made the model."""
        if not is_call_of(op, "amp.initialize") or op.node is None:
            return
        model = op.arg(1, "models")
        for item in alternatives(model) if model is not None else ():
            if asks_for_precision(frame, item.node):
                continue
            if _is_parallel(item):
                self.report(frame, op.node, "the model is wrapped for several devices already, which Apex refuses")
                return
            if item.op == "half" or (item.op == "method" and item.data == "half"):
                self.report(frame, op.node, "the model is converted to half already, which Apex refuses")
                return


def _is_parallel(value: Value) -> bool:
    return (value.op == "layer" and value.sym in _PARALLEL) or is_call_of(value, "parallel.DistributedDataParallel")
