"""Optimizers that Apex has not seen."""

from __future__ import annotations

from amp_rules.checks.common.apex_scripts import each_of, is_call_of
from amp_rules.checks.common.step_roles import made_of
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.optimizers import is_optimizer_name


class ApexOptimizerNotInitialized(Check):
    """The optimizer of `amp.scale_loss` was never given to `amp.initialize`.

    ## What it does

    Finds `amp.scale_loss(loss, optimizer)` where `optimizer` was built after `amp.initialize` had its optimizers, or
    never was among them.

    ## Why

    `amp.initialize` prepares the optimizers that it is given, in place. `scale_loss` asks any other for what it does
    not have: "AttributeError: 'SGD' object has no attribute '_amp_stash'". At a static scale of 1 nothing raises, and
    at O3 the weights that this optimizer updates are float16.

    ## Example

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    ## Use instead

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()

    ## When it is silent

    Where `amp.initialize` and `amp.scale_loss` stand in functions that do not call each other, and where the optimizer
    may come from somewhere else.

    ## Source

    https://nvidia.github.io/apex/amp.html#apex.amp.initialize
    """

    code = "AMP845"
    name = "apex-optimizer-not-initialized"
    severity = "error"
    message = "The optimizer of `amp.scale_loss` was never given to `amp.initialize`."
    advice = "Build every optimizer before `amp.initialize`, and give it all of them."
    in_order = True
    states = ("$initialized",)
    triggers = ("amp.scale_loss(",)
    operations = ("call",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Note what is initialized; judge what is stepped."""
        noted = frame.machine.notes.setdefault((self.code,), set())
        if is_call_of(op, "amp.initialize"):
            noted.add(None)
            noted.update(each_of(op.arg(2, "optimizers")))
        elif is_call_of(op, "amp.scale_loss") and noted:
            for item in each_of(op.arg(2, "optimizers")):
                if not is_optimizer_name(made_of(item)) or item.op != "call" or item in noted or item.node is None:
                    return
            for item in each_of(op.arg(2, "optimizers")):
                place = item.node if item.node in frame.module.module.parents else op.node
                assert place is not None
                message = "`amp.initialize` was not given this optimizer, so `amp.scale_loss` raises"
                self.report(frame, place, message, here=True)
