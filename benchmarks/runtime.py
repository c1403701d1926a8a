"""What ``amp_runtime`` costs and gains, side by side with hand-written torch, as markdown.

    python benchmarks/runtime.py [--device cuda] [--only SECTION ...] [--quick] [--threads N]

Each case is run by several contenders that take turns in one process; the first of them, in plain torch where there
is such a thing, is what the others are compared with. Speeds above 1 are faster than it. They are given by the best
turn of each, and by the median of the ratios within a round, which differ where the machine was busy. Some cases list
the same contender twice, ``(again)``: what these differ by is noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import amp_runtime as amp
import torch
import training
from timing import FULL, QUICK, Comparison, Contender, Effort, compare, machine, table
from torch import nn

HERE = Path(__file__).parent
SIZES = (10, 160, 1000)
Shapes = Sequence[tuple[int, ...]]
NOISE = 0.02
"""What the same thing, measured twice, may differ by."""


@dataclass(frozen=True)
class Run:
    """What the command line asked for."""

    device: str
    threads: int
    quick: bool

    @property
    def effort(self) -> Effort:
        return QUICK if self.quick else FULL


class _Still(torch.optim.Optimizer):
    """An optimizer that does nothing, so that what is around it shows."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


def _parameters(device: str, shapes: Shapes, gradient: float) -> list[torch.Tensor]:
    torch.manual_seed(0)
    parameters = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    for parameter in parameters:
        # Zeros stay zeros, however often they are unscaled; small numbers would become denormal and slow.
        parameter.grad = gradient * torch.randn_like(parameter)
    return parameters


class _ScalerStep:
    """The parts of a step in which a scaler works, and what goes before, with gradients that are zeros."""

    def __init__(self, scaler: Any, tensors: int, device: str) -> None:
        self.scaler = scaler
        self.parameters = _parameters(device, [(64,)] * tensors, 0.0)
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.optimizer = _Still(self.parameters)
        self.loss = torch.ones((), device=device)

    def backward(self) -> None:
        """Makes new gradients, as a backward pass does."""
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss)
        torch.autograd.backward(self.parameters, self.gradients)

    def drop(self) -> None:
        """Leaves no gradients."""
        self.optimizer.zero_grad()

    def keep(self) -> None:
        """Leaves the gradients that there are."""

    def scale(self) -> None:
        """Scales a loss."""
        self.scaler.scale(self.loss)

    def step(self) -> None:
        """Checks and unscales the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def step_after_unscaling(self) -> None:
        """The same, as with clipping in between."""
        self.scaler.unscale_(self.optimizer)
        self.step()

    def all(self) -> None:
        """What goes before and after a backward pass."""
        self.scale()
        self.step()


Part = Callable[[_ScalerStep], object]
"""One of its methods."""

SCALER_CASES: dict[str, tuple[Part, Part]] = {
    "scale, no gradients": (_ScalerStep.drop, _ScalerStep.scale),
    "unscale_, step, update": (_ScalerStep.backward, _ScalerStep.step_after_unscaling),
    "step, update": (_ScalerStep.backward, _ScalerStep.step),
    "scale, step, update, gradients kept": (_ScalerStep.keep, _ScalerStep.all),
}
"""What goes before, and what is timed."""


def _scaler_comparison(run: Run, what: str, tensors: int) -> Comparison:
    before, call = SCALER_CASES[what]

    def contender(name: str, scaler: Any, enter: Callable[[], None]) -> Contender:
        enter()
        step = _ScalerStep(scaler, tensors, run.device)
        return Contender(name, lambda: call(step), enter, lambda: before(step))

    contenders = [
        contender("torch GradScaler", torch.amp.GradScaler(run.device), training.turn_off),
        contender("amp.scaler", amp.scaler, _scaled_by_ours),
        contender("torch GradScaler (again)", torch.amp.GradScaler(run.device), training.turn_off),
    ]
    return compare(f"{what}: {tensors} tensors", contenders, run.effort, run.device)


def _scaled_by_ours() -> None:
    amp.init("O1", dtype="fp16")


def overhead(run: Run) -> str:
    """The scaler around an optimizer that does nothing, and whole steps of many tiny layers, in float16.

    Backward passes are not timed, except in whole steps. There, ``in torch.autocast`` is our step without the cast
    policy, which costs something on the CPU only. Kept gradients (``zero_grad(set_to_none=False)``, or none at
    all) are what torch's scaler takes no notice of; ours brings them to the unit of the next loss.
    """
    compared = [_regions(run)]
    goals = []
    for tensors in SIZES[: 2 if run.quick else None]:
        for what in SCALER_CASES:
            compared.append(_scaler_comparison(run, what, tensors))
            if what.endswith("step, update"):
                goals.append(_goal(compared[-1], "amp.scaler", faster=tensors == SIZES[-1]))
    for tensors in SIZES[: 1 if run.quick else None]:
        compared.append(_whole_steps(run, tensors))
        goals.append(_goal(compared[-1], "amp_runtime", faster=False))
    return table(compared) + "\n\n" + "\n".join(goals)


def _regions(run: Run) -> Comparison:
    def by_hand() -> None:
        with torch.autocast(run.device, torch.float16):
            pass

    def by_ours() -> None:
        with amp.autocast():
            pass

    contenders = [Contender("torch.autocast", by_hand, training.turn_off)]
    contenders += [Contender("amp.autocast", by_ours, _scaled_by_ours)]
    return compare("enter and leave autocast", contenders, run.effort, run.device)


def _whole_steps(run: Run, tensors: int) -> Comparison:
    task = training.chain(run.device, tensors)

    def by_hand(name: str, **settings: Any) -> Contender:
        def sgd(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr=1e-6, **settings)

        return training.by_hand(name, task, sgd, torch.float16, scaled=True)

    def ours(parameters: Any) -> torch.optim.Optimizer:
        return amp.optim.SGD(parameters, lr=1e-6)

    def region() -> torch.autocast:
        return torch.autocast(run.device, torch.float16)

    contenders = [
        by_hand("torch, SGD"),
        by_hand("torch, SGD(fused=True)", fused=True),
        training.ours("amp_runtime", task, "O1", ours, dtype="fp16"),
        training.ours("amp_runtime in torch.autocast", task, "O1", ours, region=region, dtype="fp16"),
        by_hand("torch, SGD (again)"),
    ]
    return compare(f"whole step: {tensors} tensors", contenders, run.effort, run.device)


def _goal(comparison: Comparison, name: str, faster: bool) -> str:
    """Whether it is as fast as it should be, by the median."""
    _, speed = comparison.speed(name)
    met = speed > 1.0 + NOISE if faster else speed > 1.0 - NOISE
    wanted = "faster" if faster else "not slower"
    return f"- goal, {comparison.case}: {wanted}, within {NOISE:.0%}: x{speed:.2f}, {'met' if met else 'MISSED'}"


def optimizers(run: Run) -> str:
    """Optimizers alone."""
    shapes: dict[str, Shapes] = {
        "300 tensors of 64x64": [(64, 64)] * 300,
        "4 tensors of 1024x1024": [(1024, 1024)] * 4,
    }
    compared = []
    for shape, sizes in shapes.items():
        for name, options in (("Adam", {}), ("AdamW", {}), ("SGD", {"momentum": 0.9}), ("Adagrad", {})):
            compared.append(_optimizers_of_torch(run, name, shape, sizes, options))
        compared.append(_lamb(run, shape, sizes))
    return table(compared)


def _stepping(
    run: Run, name: str, make: Callable[..., torch.optim.Optimizer], sizes: Shapes, **options: Any
) -> Contender:
    optimizer = make(_parameters(run.device, sizes, 1e-3), lr=1e-6, **options)
    enter = training.turn_off if name.startswith("torch") else lambda: amp.init("O1", dtype=_half(run))
    return Contender(name, optimizer.step, enter)


def _optimizers_of_torch(run: Run, name: str, shape: str, sizes: Shapes, options: dict[str, Any]) -> Comparison:
    plain = getattr(torch.optim, name)
    contenders = [_stepping(run, f"torch {name}", plain, sizes, **options)]
    contenders += [_stepping(run, f"torch {name}(foreach=True)", plain, sizes, foreach=True, **options)]
    if run.device in amp.optim._fused.FUSED_DEVICES[name]:
        contenders += [_stepping(run, f"torch {name}(fused=True)", plain, sizes, fused=True, **options)]
    contenders += [_stepping(run, f"amp.optim.{name}", getattr(amp.optim, name), sizes, **options)]
    return compare(f"{name}: {shape}", contenders, run.effort, run.device)


def _lamb(run: Run, shape: str, sizes: Shapes) -> Comparison:
    contenders = [
        _stepping(run, "amp.optim.LAMB(foreach=False), tensor by tensor", amp.optim.LAMB, sizes, foreach=False),
        _stepping(run, "amp.optim.LAMB", amp.optim.LAMB, sizes),
        _stepping(run, "torch AdamW, for scale", torch.optim.AdamW, sizes),
    ]
    return compare(f"LAMB, which torch lacks: {shape}", contenders, run.effort, run.device)


def syncbn(run: Run) -> str:
    """Batch norm, forward and backward: in one process, then in two, where only the synchronised ones communicate."""
    alone = []
    for shape in ((16, 64, 16, 16), (64, 256)):
        kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
        contenders = [
            passes(f"nn.{kind.__name__}", kind(shape[1]), shape, run.device),
            passes("amp.SyncBatchNorm", amp.convert_sync_batchnorm(kind(shape[1])), shape, run.device),
        ]
        alone.append(compare(f"one process, {'x'.join(map(str, shape))}", contenders, run.effort, run.device))
    return table(alone + _in_two_processes("syncbn", run))


def passes(name: str, layer: nn.Module, shape: tuple[int, ...], device: str) -> Contender:
    """Forward and backward through one layer."""
    layer.to(device)
    inputs = torch.randn(shape, device=device, requires_grad=True)
    weights = torch.randn(shape, device=device)

    def call() -> None:
        (layer(inputs) * weights).sum().backward()

    return Contender(name, call, training.turn_off)


def levels(run: Run) -> str:
    """Training steps at each level, in the half type that suits the device, with torch's fused AdamW everywhere."""
    half = _half(run)
    device = run.device
    tasks = [training.mlp(device), training.conv(device), training.transformer(device), training.lstm(device)]
    compared = []
    for task in tasks:
        contenders = [
            training.by_hand("torch, FP32", task),
            training.by_hand("torch autocast", task, half=half, scaled=half is torch.float16),
            *(training.ours(f"amp_runtime {level}", task, level, dtype=half) for level in ("O0", "O1", "O2")),
            training.by_hand("torch, FP32 (again)", task),
        ]
        compared.append(compare(task.name, _possible(contenders), run.effort, device))
    return table(compared)


def _possible(contenders: list[Contender]) -> list[Contender]:
    """Those that run on this machine: torch's own autocast has no LSTM on a processor without AVX-512."""
    return [contender for contender in contenders if _runs(contender)]


def _runs(contender: Contender) -> bool:
    contender.enter()
    try:
        contender.once()
    except RuntimeError as error:
        print(f"left out: {contender.name}: {error}", file=sys.stderr)
        return False
    return True


def _half(run: Run) -> torch.dtype:
    emulated = run.device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.float16 if emulated else torch.bfloat16


def policies(run: Run) -> str:
    """Forward and backward of the same model in regions of different policies, without scaler and optimizer.

    The tiny models show what the policy takes for each operation; the larger ones what share of a step that is.
    Policies also choose types: ``apex`` and torch's autocast on the CPU run some operations in half that the default,
    CUDA's table, runs in float32.
    """
    device = run.device
    tasks = [
        training.chain(device, 160),
        training.transformer(device, width=32, length=8, batch=2),
        training.mlp(device),
        training.conv(device),
        training.transformer(device),
        training.lstm(device),
    ]
    compared = []
    for task in tasks:
        contenders = [
            _region_contender("torch.autocast", task, lambda: torch.autocast(device, _half(run)), training.turn_off),
            _policy_contender("amp.autocast, cast_policy='torch'", task, "torch", _half(run)),
            _policy_contender("amp.autocast, cast_policy='apex'", task, "apex", _half(run)),
        ]
        compared.append(compare(task.name, _possible(contenders), run.effort, device))
    return table(compared)


def _policy_contender(name: str, task: training.Task, policy: Any, half: torch.dtype) -> Contender:
    return _region_contender(name, task, amp.autocast, lambda: amp.init("O1", dtype=half, cast_policy=policy))


def _region_contender(
    name: str, task: training.Task, region: Callable[[], Any], enter: Callable[[], None]
) -> Contender:
    model = task.build()

    def call() -> None:
        model.zero_grad()
        with region():
            loss = nn.functional.cross_entropy(model(task.inputs), task.targets)
        loss.backward()  # type: ignore[no-untyped-call]

    return Contender(name, call, enter)


def memory(run: Run) -> str:
    """Memory of each level, each in a process of its own.

    First an MLP of 8 x 1024 with AdamW, batch 256, whose memory goes to weights and what belongs to them; the sizes
    are those after a backward pass. Then a convnet with batch norm, batch 96, whose memory goes to activations. On the
    CPU the peak is that of the process, beyond what it had before.
    """
    lines = [
        "| level | weights | gradients | optimizer state | masters | peak, MLP | of FP32 | peak, convnet | of FP32 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    first: list[float] = []
    for name in ("torch FP32", "torch autocast", "O0", "O1", "O2", "O3"):
        options = [name, run.device, "--threads", str(run.threads), *(["--quick"] if run.quick else [])]
        # glibc would else keep freed memory or not, as it happens.
        done = _output([sys.executable, str(HERE / "runtime_memory.py"), *options], run, MALLOC_MMAP_THRESHOLD_="65536")
        dense, convolutional = json.loads(done)
        first = first or [max(dense["peak"], 1.0), max(convolutional["peak"], 1.0)]
        cells = [f"{dense[key]:.0f} MiB" for key in ("weights", "gradients", "state", "masters")]
        for sizes, reference in zip((dense, convolutional), first, strict=True):
            cells += [f"{sizes['peak']:.0f} MiB", f"x{sizes['peak'] / reference:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ddp(run: Run) -> str:
    """Training steps in two processes: torch's DDP by hand, and ``amp.prepare_model``.

    Ours checks the gradients in bfloat16 too, which plain autocast does not. Batch norm is not synchronised.
    """
    return table(_in_two_processes("ddp", run))


def combined(run: Run) -> str:
    """Flat gradient buffers (``combine_grad=True``) in one process; in two, with ``delay_allreduce=True``."""
    alone = []
    for tensors in SIZES[: 1 if run.quick else None]:
        alone.append(combining(training.chain(run.device, tensors), run.effort, run.device))
        alone.append(combining(training.chain(run.device, tensors), run.effort, run.device, clipping=True))
    return table(alone + _in_two_processes("combined", run))


def combining(
    task: training.Task, effort: Effort, device: str, together: bool = False, clipping: bool = False
) -> Comparison:
    """Whole steps with and without flat buffers."""
    options: dict[str, Any] = {"prepare": {"delay_allreduce": True}, "ddp": True} if together else {}

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return amp.optim.SGD(parameters, lr=1e-6)

    def contender(combine: bool, kept: bool) -> Contender:
        name = ("on" if combine else "off") + (", gradients kept" if kept else "")
        return training.ours(
            name, task, "O1", sgd, keep_gradients=kept, clipping=clipping, dtype="bf16", combine_grad=combine, **options
        )

    contenders = [contender(combine, kept) for kept in (False, True) for combine in (False, True)]
    case = f"{'two processes' if together else 'one process'}, {task.name}{', clip_grad_norm_' if clipping else ''}"
    return compare(case, contenders, effort, device, together)


def _in_two_processes(part: str, run: Run) -> list[Comparison]:
    """Runs a part of ``runtime_ranks.py`` under torchrun."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory, "result.json")
        options = [part, run.device, str(result), "--threads", str(run.threads), *(["--quick"] if run.quick else [])]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        _output([*launcher, str(HERE / "runtime_ranks.py"), *options], run)
        return [Comparison(**fields) for fields in json.loads(result.read_text())]


def _output(command: list[str], run: Run, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(run.threads), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


SECTIONS: dict[str, tuple[str, Callable[[Run], str]]] = {
    "overhead": ("Overhead of a step", overhead),
    "optimizers": ("Fused optimizers", optimizers),
    "syncbn": ("Synchronised batch norm", syncbn),
    "levels": ("Levels against FP32", levels),
    "policies": ("The cast policy over torch.autocast", policies),
    "memory": ("Memory of each level", memory),
    "ddp": ("Distributed training", ddp),
    "combined": ("Combined gradients", combined),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)")
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="run everything once or twice: a smoke test, no figures")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each process (default: 1)")
    return parser.parse_args()


def set_up(device: str, threads: int) -> None:
    """Keeps to one device and so many threads, whatever the environment says."""
    os.environ.pop("AMP_OPT_LEVEL", None)
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no CUDA device here")
    torch.set_num_threads(threads)


def main() -> None:
    arguments = _arguments()
    set_up(arguments.device, arguments.threads)
    run = Run(arguments.device, arguments.threads, arguments.quick)
    print(machine(run.device), flush=True)
    for name in arguments.only or SECTIONS:
        title, section = SECTIONS[name]
        explanation = " ".join((section.__doc__ or "").split())
        print(f"\n## {title}\n\n{explanation}\n\n{section(run)}", flush=True)


if __name__ == "__main__":
    main()
