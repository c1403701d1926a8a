"""Models and optimizers that Apex is given a second time."""

from __future__ import annotations

from typing import Any

from amp_rules.checks.common.apex_scripts import each_of, initialized_as, is_call_of, opt_levels
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.paths import LOST, Path, unite
from amp_rules.lint.check import Check


class ApexInitializedTwice(Check):
    """`amp.initialize` is called a second time on the same way through a script.

    ## What it does

    Finds a second `amp.initialize` after a first one has run: for the same optimizer at any level, for anything at O1.

    ## Why

    An optimizer that was initialized raises "A given optimizer should only be passed through amp.initialize once". At
    O1 the functions of torch are wrapped once more by each further call, and every operation pays for it. Loss scales
    are made anew, and the `num_losses` of the first call is forgotten.

    ## Example

        generator, opt_g = amp.initialize(generator, opt_g, opt_level="O1")
        critic, opt_d = amp.initialize(critic, opt_d, opt_level="O1")

    ## Use instead

        [generator, critic], [opt_g, opt_d] = amp.initialize(
            [generator, critic], [opt_g, opt_d], opt_level="O1", num_losses=2
        )

    ## When it is silent

    Where the two stand on different branches, and where a call is repeated by a loop.

    ## Source

    https://nvidia.github.io/apex/advanced.html#multiple-models-optimizers-losses
    """

    code = "AMP847"
    name = "apex-initialized-twice"
    severity = "warning"
    message = "Apex is initialized a second time."
    advice = "Call `amp.initialize` once, with lists of all models and optimizers."
    in_order = True
    states = ("$once",)
    triggers = ("amp.initialize(",)
    operations = ("call",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Keep the first call of each way; judge a further one."""
        paths: Any = frame.variables.get(self.states[0])
        if not paths or op.node is None or not is_call_of(op, "amp.initialize"):
            return
        if any(item.state is LOST for item in paths):
            return
        known: set[Any] = frame.machine.notes.setdefault((self.code,), set())
        optimizers = {initialized_as(item) for item in each_of(op.arg(2, "optimizers"))}
        if all(item.state is not None and item.state is not op.node for item in paths):
            if any(item in known for item in optimizers if not item.is_const):
                message = "an optimizer is given to `amp.initialize` a second time, which raises"
                self.report(frame, op.node, message, severity="error", here=True)
            elif opt_levels(frame.module) == {"O1"}:
                message = "`amp.initialize` is called again, which wraps the functions of torch a second time"
                self.report(frame, op.node, message, here=True)
        known |= optimizers
        frame.variables[self.states[0]] = unite(  # type: ignore[assignment]
            frozenset(Path(item.assumed, item.state or op.node) for item in paths)
        )
