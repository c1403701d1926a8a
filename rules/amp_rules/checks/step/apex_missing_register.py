"""Functions that are registered with Apex when it is too late."""

from __future__ import annotations

from typing import Any

from amp_rules.checks.common.apex_scripts import apex_calls, is_call_of
from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.paths import Path, unite
from amp_rules.lint.check import Check

_REGISTER = ("register_half_function", "register_float_function", "register_promote_function")


class ApexMissingRegister(Check):
    """A function is registered with Apex after `amp.initialize` has patched what was registered.

    ## What it does

    Finds `amp.register_half_function`, `amp.register_float_function` and `amp.register_promote_function` after
    `amp.initialize` on the same way through a function.

    ## Why

    At O1 `amp.initialize` replaces the functions that are registered at that moment, once. What is registered later
    is entered in a list that nobody reads again: the function gets mixed types, or runs in half where float32 was
    asked for, and `exp(12)` is inf instead of 162754.

    ## Example

        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
        amp.register_float_function(kernels, "distance")

    ## Use instead

        amp.register_float_function(kernels, "distance")
        model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

    ## When it is silent

    Where the two stand on different branches or in different functions, and where the file calls `amp.init`, which
    replaces functions as well.

    ## Source

    https://nvidia.github.io/apex/amp.html#for-registering-custom-functions
    """

    code = "AMP803"
    name = "apex-missing-register"
    severity = "warning"
    message = "A function is registered with Apex after `amp.initialize`."
    advice = "Register functions before `amp.initialize`, or decorate them with `amp.float_function`."
    in_order = True
    states = ("$registered",)
    triggers = ("amp.register_", "amp.initialize(")
    operations = ("call",)

    def visit(self, op: Value, frame: Frame) -> None:
        """Remember the initialization; judge what is registered after it."""
        paths: Any = frame.variables.get("$registered")
        if not paths or op.node is None:
            return
        if is_call_of(op, "amp.initialize", "amp.init"):
            after: Any = unite(frozenset(Path(item.assumed, "initialized") for item in paths))
            frame.variables["$registered"] = after
        elif is_call_of(op, *(f"amp.{name}" for name in _REGISTER)):
            if all(item.state == "initialized" for item in paths) and not apex_calls(frame.module, "amp.init"):
                name = frame.text(op.node.func)  # type: ignore[attr-defined]
                self.report(frame, op.node, f"`{name}` comes after `amp.initialize` and has no effect", here=True)
