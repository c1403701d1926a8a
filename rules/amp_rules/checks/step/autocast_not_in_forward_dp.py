"""Bfloat16 regions that threads do not inherit."""

from __future__ import annotations

from amp_rules.checks.common.autocast_regions import region_around
from amp_rules.lattice.abstract_values import Value, alternatives
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.mode import Mode
from amp_rules.lint.check import Check


class AutocastNotInForwardDp(Check):
    """`nn.DataParallel` runs its replicas in float16 although the region around the call says bfloat16.

    ## What it does

    Finds calls of an `nn.DataParallel` model inside of `autocast(..., dtype=torch.bfloat16)`.

    ## Why

    Autocast belongs to a thread, and `DataParallel` runs each replica in one of its own. It hands on whether autocast
    is enabled, not its dtype: with two GPUs the replicas compute in float16, where 70000 is inf, and nothing scales
    the loss. With one GPU the same script computes in bfloat16.

    ## Example

        model = nn.DataParallel(model)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x)

    ## Use instead

        class Net(nn.Module):
            @torch.autocast("cuda", dtype=torch.bfloat16)
            def forward(self, x):
                return self.layers(x)

    ## When it is silent

    For float16 regions, which `DataParallel` hands on, and for `DistributedDataParallel`, which needs no threads.

    ## Source

    https://docs.pytorch.org/docs/stable/notes/amp_examples.html#dataparallel-in-a-single-process
    """

    code = "AMP823"
    name = "autocast-not-in-forward-dp"
    severity = "warning"
    message = "Threads of `nn.DataParallel` do not inherit the dtype of autocast."
    advice = "Enter autocast inside of the model's `forward`, or use `DistributedDataParallel`."
    triggers = ("DataParallel(",)
    operations = ("call",)

    def applies(self, mode: Mode) -> bool:
        """Only autocast has regions."""
        return mode.autocast

    def visit(self, op: Value, frame: Frame) -> None:
        """Look at calls of wrapped models."""
        called = op.args[0] if op.args else None
        if called is None or op.node is None or not any(_is_parallel(item) for item in alternatives(called)):
            return
        region = region_around(frame)
        dtype = (region.kwargs or {}).get("dtype") if region is not None else None
        if dtype is not None and dtype.sym == "torch.bfloat16":
            model = frame.text(op.node.func)  # type: ignore[attr-defined]
            self.report(
                frame, op.node, f"the replicas of `{model}` compute in float16: threads do not inherit bfloat16"
            )


def _is_parallel(value: Value) -> bool:
    return value.op == "layer" and value.sym in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel")
