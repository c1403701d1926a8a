"""Half precision as the type of everything."""

from __future__ import annotations

from amp_rules.lattice.abstract_values import Value
from amp_rules.lattice.frame import Frame
from amp_rules.lint.check import Check
from amp_rules.torch.dtypes import HALF_TYPES


class DefaultDtypeHalf(Check):
    """Half precision as the type of everything.

    ## What it does

    Looks for `torch.set_default_dtype(torch.float16)`, also with bfloat16, and for
    `torch.set_default_tensor_type(torch.cuda.HalfTensor)`.

    ## Why

    Every tensor that is made afterwards without a type is half: meters, positions, constants and the state of the
    optimizer. `torch.tensor(0.1)` becomes 0.09998, `torch.linspace(0, 3000, 3001)` repeats elements above 2048, and
    Adam's eps of 1e-8 becomes 0. Autocast and `model.half()` choose what becomes half; the default does not.

    ## Example

        torch.set_default_dtype(torch.float16)

    ## Use instead

        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = criterion(model(x), y)

    ## When it is silent

    When the type is not written out, as in helpers that set and restore it.

    ## Source

    https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html
    """

    code = "AMP759"
    name = "default-dtype-half"
    severity = "info"
    message = "Half precision is made the default type."
    advice = "Use autocast or convert the model, and leave the default at float32."
    triggers = ("set_default_dtype", "set_default_tensor_type")
    operations = ("set_default_dtype", "set_default_tensor_type")

    def visit(self, op: Value, frame: Frame) -> None:
        """Judge the type that becomes the default."""
        given = op.args[0] if op.args else None
        name = (given.sym or given.const if given is not None else "") or ""
        if given is None or not isinstance(name, str) or op.node is None:
            return
        if name in HALF_TYPES or name.endswith(("HalfTensor", "BFloat16Tensor")):
            self.report(frame, op.node, f"every new tensor becomes `{name}`, also where range or precision are needed")
