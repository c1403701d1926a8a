"""How a program that wraps its models itself uses them, asked once for all its files, and only when it is needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from amp_rules.plan.gradient_averaging import runs_once_a_pass
from amp_rules.plan.left_out import why_left_out_as_written
from amp_rules.plan.past_forward import reads_past_forward
from amp_rules.roles.program import Program


@dataclass
class AsWritten:
    """Questions to a program; without one, nothing is known.

    Attributes:
        program: the program, before Apex is taken out of it.
    """

    program: Program | None = None

    @cached_property
    def left_out(self) -> str:
        """How a step may leave parameters out; empty where nothing suggests that it does."""
        return why_left_out_as_written(self.program) if self.program is not None else ""

    @cached_property
    def reads_past_forward(self) -> bool:
        """Whether a loss may read a parameter past the model's forward pass."""
        return self.program is not None and reads_past_forward(self.program)

    @cached_property
    def is_one_pass(self) -> bool:
        """Whether each backward pass is of one forward pass, and no loss reads a parameter past it."""
        return self.program is not None and not self.reads_past_forward and runs_once_a_pass(self.program)
