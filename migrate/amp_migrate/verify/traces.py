"""What one run of a script left behind, as the recorder inside it wrote it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from amp_migrate.verify.followed import Followed

Status = Literal["ended", "stopped", "failed", "timeout", "memory"]
"""By itself; after the steps asked for; with an error; because a bound was reached."""

LACKS = "lacks "
"""What an event begins with that names a module which the script asked for and did not get."""


@dataclass(frozen=True)
class Backward:
    """One call of ``backward``: what this project calls a step of a run.

    Attributes:
        loss: the mean of the tensors that it started from, in float64, with the loss scale taken out.
        time: seconds since the recorder started, when the call began.
        scale: the loss scale in it; 1.0 without one.
        site: where the script calls it, ``file:line`` with the file relative to the project.
        half: products (of layers, matrices, attention) that led to the loss and were computed in half. They are counted
            in the first three calls from each site only, and are 0 in the others.
        full: the same in float32.
        random: whether random numbers were drawn between the batch and this call.
        drew: which generators drew them, and a digest of the state of each after that: ``"torch:0a1b"``.
        inputs: of each tensor of data that led to the loss, the digests of its rows; known in the first three calls
            from each site only.
        autocast: whether autocast was on when it was called.
    """

    loss: float
    time: float
    scale: float = 1.0
    site: str = ""
    half: int = 0
    full: int = 0
    random: bool = False
    drew: tuple[str, ...] = ()
    inputs: tuple[tuple[str, ...], ...] = ()
    autocast: bool = False


@dataclass(frozen=True)
class Batch:
    """One batch that a ``DataLoader`` was asked for.

    Attributes:
        loader: number of the loader, in the order in which loaders were made.
        epoch: how often that loader was iterated before.
        before: number of backward calls made before the batch was handed out.
        indices: the samples, as the sampler named them; empty where they are no integers.
        random: whether random numbers were drawn to fetch it; None where a worker process fetched it, which may have.
        length: of the first batch of each pass, what ``len`` of the loader is; else, and where it has none, 0.
        size: of the first batch of each pass, how many samples the loader's data set has; else, and in a stream, 0.
        data: the data that the samples lie in below all subsets, with its kind, its size and a number; empty where they
            have no indices.
        samples: their places in it, which no split changes.
        contents: a digest of each sample as it was handed out; empty where it is not made of tensors.
        labels: the whole numbers that each sample has one of, with commas between; empty where there are none.
        learns: whether gradients were recorded when it was handed out.
        drew: which generators drew random numbers to fetch it in this process, as in :class:`Backward`.
    """

    loader: int
    epoch: int
    before: int
    indices: tuple[int, ...] = ()
    random: bool | None = False
    length: int = 0
    size: int = 0
    data: str = ""
    samples: tuple[int, ...] = ()
    contents: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    learns: bool = True
    drew: tuple[str, ...] = ()


@dataclass(frozen=True)
class Update:
    """One step of an optimizer that really changed its parameters.

    Attributes:
        optimizer: number of the optimizer, in the order of their making.
        after: number of backward calls made before.
        norm: the 2-norm of all its gradients as the update saw them, in float64; of rows that are shared out those of
            all processes.
        lr: the learning rate of its first group of parameters; None if it has none.
        rates: those of the other groups, where they are others.
        moved: how far it moved a sample of its parameters; known of the first steps of each optimizer only.
        rows: the 2-norm of the gradients of this process's rows of tables that are shared out; 0 without any.
    """

    optimizer: int
    after: int
    norm: float
    lr: float | None = None
    rates: tuple[float, ...] = ()
    moved: float | None = None
    rows: float = 0.0


@dataclass(frozen=True)
class ScalerCall:
    """One call of a loss scaler.

    Attributes:
        scaler: number of the scaler, in the order of their first calls.
        kind: ``"torch"`` for ``torch.amp.GradScaler``, ``"runtime"`` for ``amp.scaler``.
        after: number of backward calls made before.
        steps: number of the optimizer that it steps, in the same order; None for an update of the scale.
        fixed: whether the scale is one that never changes.
    """

    scaler: int
    kind: str
    after: int
    steps: int | None = None
    fixed: bool = False


@dataclass(frozen=True)
class Said:
    """One line that a process wrote to standard output, or would have written.

    Attributes:
        text: the line without its end.
        site: where the script writes it, ``file:line``; followed by the caller where that line only hands it on.
        before: number of backward calls made before.
        silent: whether it was kept back, as it is on ranks other than 0.
        by_apex: whether Apex writes it, or what takes its place, and not the script.
    """

    text: str
    site: str = ""
    before: int = 0
    silent: bool = False
    by_apex: bool = False


@dataclass(frozen=True)
class Opened:
    """One file of the project that a process opened for writing, saved or gave its name.

    Attributes:
        name: relative to the project.
        site: where the script does it, as for :class:`Said`.
        before: number of backward calls made before the first time.
        adds: whether to add to what is there.
    """

    name: str
    site: str = ""
    before: int = 0
    adds: bool = False


@dataclass(frozen=True)
class Entry:
    """One value in a checkpoint.

    Attributes:
        key: its keys from the outside in, with slashes between.
        kind: type and shape of a tensor or an array, such as ``float32 (3, 4)``; else the class.
        value: a digest of the bytes of a tensor, else the value in words; empty where it was not read.
    """

    key: str
    kind: str
    value: str = ""


@dataclass(frozen=True)
class WrittenFile:
    """A file that a run made or changed.

    Attributes:
        name: relative to the project.
        kind: ``"text"``, ``"values"`` (a checkpoint or arrays), ``"unreadable"`` (one that is cut off) or ``"other"``.
        text: of a text, as far as it was read.
        lines: number of ends of lines in a text.
        entries: of a checkpoint, in order.
        classes: what a checkpoint's loader has to find besides tensors, sorted: ``module.name``.
    """

    name: str
    kind: Literal["text", "values", "unreadable", "other"]
    text: str = ""
    lines: int = 0
    entries: tuple[Entry, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Int8:
    """One int8 model that a process made, beside the float model that it was made of.

    Attributes:
        kind: ``"dynamic"``, ``"static"`` or ``"qat"``.
        site: where the script makes it.
        apart: the root mean square of the difference of their outputs, over that of the float model's.
        calls: how often both were called with the same inputs.
        called: whether by the script; else at the end, with batches of the calibration or of the float model.
        tensors: the outputs that were compared.
        finite: whether its outputs are finite where the float model's are.
        unlike: the shapes of its outputs and of the float model's, where they are others; else empty.
        error: why the float model could not be called with the same inputs; empty where it could.
        loaded: whether the float model was given other weights before the int8 model was called, and not by training.
        known: whether the float model was trained, loaded or copied by the script.
    """

    kind: str
    site: str = ""
    apart: float = 0.0
    calls: int = 0
    called: bool = True
    tensors: int = 0
    finite: bool = True
    unlike: str = ""
    error: str = ""
    loaded: bool = False
    known: bool = True


@dataclass(frozen=True)
class RankTrace:
    """What one process recorded.

    Attributes:
        parameters: a digest over the bytes of all parameters of each optimizer, in float32, at the end; without rows
            of tables that are shared out.
        buffers: name, shape and digest of each buffer of the modules that are left, sorted, each once.
        unheld: the same of the parameters in copies of modules that no optimizer holds, such as an average of weights.
        rates: the learning rate of each group of parameters of each optimizer at the end.
        generators: a digest over the states of the generators of random, numpy and torch at the end.
        scaler_calls: the steps and updates of loss scalers.
        metrics: the numbers that schedules were given to decide by, and after how many backward calls.
        metric_sites: where each of them was given.
        followed: what is known where the lines of the project were followed.
        worker_draws: of the worker processes that drew random numbers for samples, which generators drew them, and a
            digest of the state in which each began.
        skipped: number of steps that the scaler skipped.
        peak_memory: bytes: of the GPU's allocator on CUDA, else of the process.
        device: name of the device that computed the first loss, ``"cpu"`` or the GPU's.
        half_type: ``"bf16"`` where that device computes in it, else ``"fp16"``.
        computes_in: the half types that it computes in by itself, and does not convert to and from.
        events: what was noticed besides: ``"process_group"``, ``"ddp"``, ``"batch_norm"`` (one that is not synchronised
            ran in training), ``"averaged_at_step"`` (the runtime's delayed averaging), ``"sync_bn"``,
            ``"sync_bn_after_ddp"``, ``"sharded"`` (each process has its part of the parameters),
            ``"rows_shared_out"`` (its rows of embedding tables), ``"data_parallel"``,
            ``"amp"`` (the runtime was started, or Apex's interface in it), ``"autocast"`` (a region of torch.autocast
            that is turned on), ``"grad_scaler"`` (a GradScaler that is), ``"in_fp16"`` (a region or a cast in float16,
            also by default on a GPU), ``"lacks apex.fp16_utils"`` (a part of Apex that was asked for and has no
            stand-in).
        stands_in: packages that are not installed and were stood in for: ``"apex"``.
        versions: of ``python`` and ``torch``.
        said: the lines on standard output, in order, as far as they went through ``sys.stdout``.
        opened: the files that it opened for writing, each once for each line that does so.
        imported: the modules of installed packages that it imported, in that order.
        int8: the int8 models that it made, in the run that follows them.
    """

    rank: int
    backwards: tuple[Backward, ...] = ()
    batches: tuple[Batch, ...] = ()
    updates: tuple[Update, ...] = ()
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    unheld: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    generators: str = ""
    scaler_calls: tuple[ScalerCall, ...] = ()
    metrics: tuple[tuple[int, float], ...] = ()
    metric_sites: tuple[str, ...] = ()
    followed: Followed = field(default_factory=Followed)
    worker_draws: tuple[str, ...] = ()
    skipped: int = 0
    peak_memory: int = 0
    device: str = "cpu"
    half_type: str = "bf16"
    computes_in: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    stands_in: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    said: tuple[Said, ...] = ()
    opened: tuple[Opened, ...] = ()
    imported: tuple[str, ...] = field(default=(), compare=False, repr=False)
    int8: tuple[Int8, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why a run failed.

    Attributes:
        message: the last line of the error, or what happened to the process.
        path: the file of the project where it happened, as the user knows it; None outside of the project.
        line: its line, from 1.
        text: the source of that line.
        output: the last lines that the script wrote to standard error.
    """

    message: str
    path: Path | None = None
    line: int | None = None
    text: str = ""
    output: str = ""


@dataclass(frozen=True)
class Trace:
    """One run: all its processes, in the order of their ranks.

    Attributes:
        name: which run it is: a key of :data:`amp_migrate.verify.plan.RUNS`.
        level: ``"O0"`` to ``"O3"``; None for the original.
        processes: how many were started.
        batch_factor: of how many processes the batches were read as one.
        loss_scale: the fixed loss scale that was forced on it; None for the script's own.
        half_type: ``"fp16"`` or ``"bf16"``, what it computed in at levels that compute in half; None if unknown.
        seconds: from start to end.
        idle: for how many seconds at the end none of its processes computed.
        allowed_seconds: what it was given; None without a bound.
        allowed_memory: bytes that all its processes were given; None without a bound.
        steps: the number of backward calls after which it was to end; None for the end of the script.
        printed: what each rank wrote to standard output.
        files: what it made or changed in its copy of the project, by name.
    """

    name: str
    level: str | None
    processes: int
    status: Status
    ranks: tuple[RankTrace, ...] = ()
    failure: Failure | None = None
    batch_factor: int = 1
    loss_scale: float | None = None
    half_type: str | None = None
    seconds: float = 0.0
    idle: float = 0.0
    allowed_seconds: float | None = None
    allowed_memory: int | None = None
    steps: int | None = None
    printed: tuple[str, ...] = ()
    files: tuple[WrittenFile, ...] = ()
    folder: Path | None = field(default=None, compare=False)

    @property
    def usable(self) -> bool:
        """Whether it got as far as it should, with at least one step on every rank."""
        return self.status in ("ended", "stopped") and bool(self.ranks) and all(r.backwards for r in self.ranks)

    @property
    def losses(self) -> list[float]:
        """The loss at each backward call, its mean over the ranks, as far as all of them got."""
        columns = zip(*([step.loss for step in rank.backwards] for rank in self.ranks), strict=False)
        return [sum(column) / len(column) for column in columns]
