"""The mode in which code is judged: the same line may be right in one and wrong in another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from amp_rules.torch.half_precision import BFLOAT16, FLOAT16, HalfNumbers

LintLevel = Literal["O1", "O2", "O3"]
HalfType = Literal["fp16", "bf16"]
Device = Literal["cuda", "cpu"]

LEVELS: tuple[LintLevel, ...] = ("O1", "O2", "O3")
HALF_TYPES: tuple[HalfType, ...] = ("fp16", "bf16")
DEVICES: tuple[Device, ...] = ("cuda", "cpu")


@dataclass(frozen=True)
class Mode:
    """How the code will be run.

    Attributes:
        opt_level: O1 is autocast; O2 is half weights and inputs with float32 batch norm and master weights; O3 is half
            throughout.
        dtype: the half type.
        device: whose cast table autocast follows.
        ddp: judge the code as run by several processes, even where it does not say so itself.
    """

    opt_level: LintLevel = "O1"
    dtype: HalfType = "fp16"
    device: Device = "cuda"
    ddp: bool = False

    def __str__(self) -> str:
        """The mode as people write it: ``O1 fp16 cuda``."""
        return " ".join([self.opt_level, self.dtype, self.device, *(["ddp"] if self.ddp else [])])

    @property
    def autocast(self) -> bool:
        """Whether operations are cast one by one."""
        return self.opt_level == "O1"

    @property
    def fp16(self) -> bool:
        """Whether the half type is float16, whose range is narrow."""
        return self.dtype == "fp16"

    @property
    def numbers(self) -> HalfNumbers:
        """What the half type holds."""
        return FLOAT16 if self.fp16 else BFLOAT16

    @property
    def largest(self) -> float:
        """The largest finite number of the half type."""
        return self.numbers.largest

    @property
    def rounds_to_zero(self) -> float:
        """The largest positive number that becomes 0 in the half type."""
        return self.numbers.rounds_to_zero

    @property
    def ulp_of_one(self) -> float:
        """Half the distance from 1 to the next smaller number: ``1 - e`` is 1 for any smaller ``e``."""
        return self.numbers.eps / 4

    @property
    def largest_exact_integer(self) -> int:
        """The integers up to this one are exact."""
        return self.numbers.largest_exact_integer
