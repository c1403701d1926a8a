"""How runs are started of a version without the runtime, and of what the user launches.

One that a person, another tool or a model has migrated knows no levels: the recorder gives them to it by what it
intercepts. It may be written for GPUs alone; where there is none, and only then, a stand-in takes their place. Both is
found out while the runs are made. One that ``--target torch`` wrote has levels, and nothing is done for it but to turn
on its scaler for the run in float32 with a loss scale.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_migrate.problems import NothingShownError
from amp_migrate.verify.checks.loaders import epochs, indices
from amp_migrate.verify.failures import wants_gpu
from amp_migrate.verify.launches import Launch
from amp_migrate.verify.plain_torch import PlainTorch
from amp_migrate.verify.plan import O0, ORIGINAL, Planned
from amp_migrate.verify.traces import RankTrace, Trace

_CUDA = re.compile(r"\bcuda(?::\d+)?\b")
_SLOW_START = 120.0
_NO_BACKWARD = "without a single backward call"


def read_in_order(rank: RankTrace) -> tuple[int, ...]:
    """The loaders that give their samples in the order of the dataset, by number."""
    loaders = sorted({batch.loader for batch in rank.batches})
    passes = {loader: [indices(part) for part in epochs(rank, loader)] for loader in loaders}
    return tuple(
        loader
        for loader, found in passes.items()
        if any(found) and all(samples == list(range(len(samples))) for samples in found)
    )


@dataclass
class ByHand:
    """What sets the runs apart.

    Attributes:
        native: whether the migrated version does without the runtime and without levels of its own.
        plain: what is known of one that has levels of its own, in plain PyTorch; None for any other.
        on_runtime_before: whether the original uses the runtime, which is then turned off in its runs.
        native_before: whether the original uses torch's autocast or GradScaler itself.
        script: which file of the project the migrated version starts with; None for that of the original.
        module: its name, where it is run as ``python -m`` does.
        launch: the command that the user starts several processes with; None to start them as torchrun does.
        half_type: what the user wants to be computed in; None for the usual type.
        local_rank: the option by which a script of several processes is told its own, as by torch.distributed.launch;
            empty where it has none, or the launch is known.
        without_gpu: whether the stand-in for GPUs is there.
        in_order: the loaders whose samples the original reads in the order of the dataset, by their numbers.
        without_casts: whether casts to half that the script makes by hand are kept from it at O0.
    """

    native: bool = False
    plain: PlainTorch | None = None
    on_runtime_before: bool = False
    native_before: bool = False
    script: Path | None = None
    module: str | None = None
    launch: Launch | None = None
    half_type: str | None = None
    local_rank: str = ""
    without_gpu: bool = field(default=False, init=False)
    without_casts: bool = field(default=False, init=False)
    in_order: tuple[int, ...] = field(default=(), init=False)

    def environment(self, planned: Planned) -> Iterator[tuple[str, str]]:
        """The variables of one run."""
        if self.launch is not None:
            if planned.processes > 1:
                yield from self.launch.environment.items()
            elif self.launch.how == "python":
                # One that starts a process for each GPU is to start one.
                visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
                yield "CUDA_VISIBLE_DEVICES", visible.partition(",")[0]
        if self.on_runtime_before and not planned.migrated:
            yield "AMP_OPT_LEVEL", "O0"
        if self.plain is not None:
            yield "AMP_VERIFY_NATIVE", "leveled" if planned.loss_scale is None else "leveled, scaled"
        if not self.native:
            return
        yield "AMP_VERIFY_NATIVE", self._mode(planned)
        half_type = planned.half_type or self.half_type
        if half_type is not None and planned.migrated:
            yield "AMP_VERIFY_HALF", half_type
        if self.without_gpu:
            yield "AMP_VERIFY_NO_GPU", str(planned.processes)
        if self.without_casts:
            yield "AMP_VERIFY_CASTS", "1"
        if self.in_order:
            yield "AMP_VERIFY_IN_ORDER", ",".join(map(str, self.in_order))

    def _mode(self, planned: Planned) -> str:
        if planned.plain_amp:
            return "before"
        if not planned.migrated:
            return "off" if self.native_before else "before"
        if planned.level != "O0":
            return "own"
        return "off" if planned.loss_scale is None else "scaled"

    def needs_runtime(self, planned: Planned) -> bool:
        """Whether the runtime is put beside the files of a run."""
        return self.plain is None if planned.migrated else self.on_runtime_before

    def choice(self, planned: Planned) -> tuple[str, tuple[Path, ...]] | None:
        """The half type to choose in some files of a run; None where they are left as they are."""
        half_type = planned.half_type or self.half_type
        if self.plain is None or not planned.migrated or half_type is None or not self.plain.can_compute_in(half_type):
            return None
        return half_type, self.plain.choosing

    def starts(self, planned: Planned) -> int:
        """How many processes are started from outside; the script may start others."""
        starts_itself = self.launch is not None and self.launch.how == "python"
        return 1 if starts_itself else planned.processes

    def arguments(self, planned: Planned, rank: int, alone: Sequence[str]) -> tuple[str, ...]:
        """What the script is started with in one process of a run; ``alone`` is for runs in one process."""
        if planned.processes == 1:
            return tuple(alone)
        if self.launch is None:
            return (*((f"{self.local_rank}={rank}",) if self.local_rank else ()), *alone)
        return self.launch.of_rank(rank)

    def learn(self, planned: Planned, trace: Trace) -> bool:
        """Whether the run is to be made again, in a way that it asks for."""
        several = len(trace.ranks)
        if (self.native or self.launch is not None) and planned.processes == 1 and several > 1:
            raise NothingShownError(
                f"{trace.name} is a run in one process, and the script starts {several} there; give the arguments with "
                "which it starts one after --"
            )
        if not self.native:
            return False
        if planned.name == ORIGINAL and trace.usable:
            self.in_order = read_in_order(trace.ranks[0])
        if trace.failure is not None and not self.without_gpu:
            self.without_gpu = wants_gpu(trace.failure) or _NO_BACKWARD in trace.failure.message
            return self.without_gpu
        if planned.name == O0 and trace.usable and not self.without_casts:
            self.without_casts = any(step.half for rank in trace.ranks for step in rank.backwards)
            return self.without_casts
        return False

    def patience(self, usual: float | None) -> float | None:
        """After how long without a step a run is ended; None for never.

        A version of somebody else's may import what the original does not, and a process that a script starts itself
        imports torch anew.
        """
        if self.launch is not None and self.launch.how == "python":
            return None
        return max(usual, _SLOW_START) if usual is not None and self.native else usual

    def as_made(self, trace: Trace) -> Trace:
        """A run as it is to be compared: in as many processes as there were, and on the device that it had."""
        starts_itself = self.launch is not None and self.launch.how == "python"
        if starts_itself and trace.processes > 1 and trace.ranks:
            trace = replace(trace, processes=len(trace.ranks))
        if self.without_gpu:
            trace = replace(trace, printed=tuple(_CUDA.sub("cpu", text) for text in trace.printed))
        return trace

    def notes(self) -> Iterator[str]:
        """What a reader has to know of how the runs were made."""
        if self.plain is not None:
            yield from self._notes_on_plain(self.plain)
        if self.native:
            yield (
                "The migrated version does not use the runtime: at O0 its torch.autocast and GradScaler are turned off "
                "from outside, and O1 is the version as it is."
            )
        if self.local_rank:
            yield f"Each of several processes is given {self.local_rank}, as torch.distributed.launch does."
        if self.without_casts:
            yield "It casts to half by hand: at O0 these casts give float32."
        if self.without_gpu:
            yield (
                "It asks for a GPU, and there is none: .cuda() and CUDA devices mean the CPU, NCCL is Gloo, autocast "
                "for CUDA is that of the CPU."
            )

    def _notes_on_plain(self, plain: PlainTorch) -> Iterator[str]:
        yield (
            "The migrated version is plain PyTorch: AMP_OPT_LEVEL=O0 turns it off by itself, and O1 is all that it "
            "computes in half. Its GradScaler is turned on from outside for the run in float32 with a loss scale."
        )
        if plain.choosing:
            yield "Where it is to compute in the half type of another device, its AMP_DTYPE names that."
        elif self.half_type is not None and not plain.can_compute_in(self.half_type):
            yield f"It names its half type itself, so it is not compared in {self.half_type}."
        if self.on_runtime_before:
            yield "The original uses the runtime: it is compared with its own O0."
