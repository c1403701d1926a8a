"""Make numbers of one process those of all, in a script with processes of its own.

## What it does
After a loop over a loader with a `DistributedSampler`, counts and sums that are shown, or divided by the length of the
whole data set, are added up over the processes; means over the batches of one process, where they are given a name or
given back, become the mean of all. An average meter of the project, as PyTorch's ImageNet example has it, that is made
anew before the loop and read after it keeps the sum, the count and the average of all; by its own method where it has
one, as that example has today, also beside meters that the script reduces itself. Functions for that are written
below the imports, also where the script has the runtime: `amp.reduce_mean` knows the processes that
`amp.init(ddp=True)` joined, and gives back the number of one process where a script joins its processes itself.

## Why
Each process counts its own share. What is printed is then a part of the accuracy; which model is the best, when to stop
and what a scheduler is told differ between the processes.

## Before
    accuracy = correct / len(test_set)
    val_loss = total_loss / len(loader)
    return top1.avg

## After
    correct = all_reduce_sum(correct)
    accuracy = correct / len(test_set)
    val_loss = all_reduce_mean(total_loss / len(loader))
    all_reduce_meter(top1)
    return top1.avg

## When it declines
Where the function exchanges numbers between processes in any way already, or something that it calls or that calls
it, or where torchmetrics does; where not every process gets there; where numbers are kept in an object that is no
such meter, or that other loops add to; where a sum is set under a test of ranks; where each process tells it as its
own (`print(f"[GPU{rank}] loss {total}")`); and where nothing says by `torch.cuda.set_device` which GPU is the current
one of a process, and the backend may be NCCL: plain numbers are moved to it. A tensor that the script puts on a GPU by
its rank is reduced there.

## Leaving it out
Yes: the numbers are then those of one process, as they were.

## Source
https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.context import Change
from amp_rules.plan.listing import listed
from amp_rules.plan.own_ddp.meters_beside import meters_beside
from amp_rules.plan.own_ddp.metrics import Kind, Metric, Metrics
from amp_rules.plan.own_ddp.on_own_gpu import is_on_own_gpu
from amp_rules.plan.own_ddp.plain_numbers import is_plain_number, is_plain_variable
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.visible_gpus import sees_its_own_gpu
from amp_rules.plan.rule import Rule
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.syntax import last_name
from amp_rules.text.actions import Insert, Replace
from amp_rules.text.expression_edits import call_with
from amp_rules.torch.devices import SET_DEVICE

RULE = Rule(
    "AMP233", "metrics-of-all-ranks", "Numbers of one process are reduced over all processes.", "distribution",
    optional=True, together=True, last=True,
)  # fmt: skip

_NAMES: dict[Kind, str] = {
    "sum": "all_reduce_sum", "mean": "all_reduce_mean", "meter": "all_reduce_meter", "counts": "all_reduce_counts",
}  # fmt: skip

_INITIALISED = "torch.distributed.is_initialized"

_SUM = '''\
def {name}(value):
    """The sum of a number or a tensor over all processes."""
    if not {initialised}():
        return value
    is_tensor = {torch}.is_tensor(value)
    total = {torch}.as_tensor(value, dtype=None if is_tensor else {torch}.float64).detach()
    device = total.device if total.is_cuda else "cuda"
    total = total.to(device if "nccl" in {backend}() else "cpu", copy=True)
    {all_reduce}(total)
    return total.to(value.device) if is_tensor else type(value)(total.item())'''

_MEAN = '''\
def {name}(value):
    """The mean of a number or a tensor over all processes."""
    if not {initialised}():
        return value
    is_tensor = {torch}.is_tensor(value)
    mean = {torch}.as_tensor(value, dtype=None if is_tensor else {torch}.float64).detach()
    device = mean.device if mean.is_cuda else "cuda"
    mean = (mean / {size}()).to(device if "nccl" in {backend}() else "cpu")
    {all_reduce}(mean)
    return mean.to(value.device) if is_tensor else mean.item()'''

_SUM_OF_NUMBERS = '''\
def {name}(value):
    """The sum of a number over all processes."""
    if not {initialised}():
        return value
    device = "cuda" if "nccl" in {backend}() else "cpu"
    total = {torch}.tensor(value, dtype={torch}.float64, device=device)
    {all_reduce}(total)
    return type(value)(total.item())'''

_MEAN_OF_NUMBERS = '''\
def {name}(value):
    """The mean of a number over all processes."""
    if not {initialised}():
        return value
    device = "cuda" if "nccl" in {backend}() else "cpu"
    mean = {torch}.tensor(value / {size}(), dtype={torch}.float64, device=device)
    {all_reduce}(mean)
    return mean.item()'''

_METER = '''\
def {name}(meter):
    """Make what a meter keeps that of all processes."""
    meter.sum, meter.count = {sum}(meter.sum), {sum}(meter.count)
    if meter.count:
        meter.avg = meter.sum / meter.count'''

_COUNTS = '''\
def {name}(meter):
    """Make what a meter keeps that of all processes."""
    meter.sum, meter.count = {sum}(meter.sum), {sum}(meter.count)'''

# What each ends with where arrays of NumPy are among what it is given.
_OF_ARRAYS = {
    "else mean.item()": "else mean.cpu().numpy() if mean.ndim else mean.item()",
    "else type(value)(total.item())": "else total.cpu().numpy() if total.ndim else type(value)(total.item())",
}

_NO_WORDS = "the head of this file does not import torch in every case, or it has another `all_reduce_...` already"

_CODE: dict[Kind, str] = {"sum": _SUM, "mean": _MEAN, "meter": _METER, "counts": _COUNTS}
# The same where all that they are given are numbers of Python.
_CODE_OF_NUMBERS: dict[Kind, str] = {"sum": _SUM_OF_NUMBERS, "mean": _MEAN_OF_NUMBERS}
_NEEDS: dict[Kind, tuple[Kind, ...]] = {
    "sum": ("sum",), "mean": ("mean",), "meter": ("sum", "meter"), "counts": ("sum", "counts"), "own": (),
}  # fmt: skip


def changes(own: OwnDdp) -> Iterator[Change]:
    """Yield an edit for each number, and the functions that it takes."""
    metrics = Metrics(own)
    if metrics.looked_after:
        return
    helpers: dict[Module, dict[Kind, str | None]] = {}
    after: dict[ast.AST, list[Metric]] = {}
    unplaced: dict[tuple[Module, ast.AST], list[Metric]] = {}
    found = metrics.found
    for loop in metrics.unfollowed(found):
        text = (
            "each process evaluates its share of the data here, and what comes of it is not reduced over the processes"
        )
        own.leave(RULE, loop.module, loop.use.loader, text)
    for metric in metrics.kept_apart:
        text = "what it adds up is set under a test of ranks, so that the others keep sums of another kind"
        own.leave(RULE, metric.site.module, _head(metric.site.statement), f"{_listed([metric])} of one process; {text}")
    is_gpu_known = _is_gpu_known(own)
    of_arrays = {metric.site.module for metric in found if _is_array(own, metric)}
    of_tensors = {(metric.site.module, kind) for metric in found for kind in _of_tensors(own, metric)}
    for metric in found:
        module = metric.site.module
        if not is_gpu_known and not (metric.path is not None and is_on_own_gpu(own, metric.path, metric.site)):
            unplaced.setdefault((module, metric.site.node), []).append(metric)
            continue
        known = helpers.setdefault(module, {})
        for kind in _NEEDS[metric.kind]:
            if kind not in known:
                known[kind] = _helper(own, module, kind, (module, kind) in of_tensors, module in of_arrays)
        lacks_word = metric.kind == "own" and own.word(module, _INITIALISED) is None
        if lacks_word or any(known[kind] is None for kind in _NEEDS[metric.kind]):
            own.leave(RULE, module, metric.site.node, f"{_listed([metric])} of one process; {_NO_WORDS}")
            continue
        if metric.path is None:
            yield _change(metric)
        else:
            after.setdefault(metric.site.node, []).append(metric)
    for (module, node), metrics_there in unplaced.items():
        text = "`torch.cuda.set_device` is not called, so all would be added up on one GPU"
        own.leave(RULE, module, node, f"{_listed(metrics_there)} of one process; {text}")
    for sums in after.values():
        yield _after(own, sums)
    for first, names in meters_beside(own):
        lines = "\n".join(f"{name}.{last_name(first.node.func)}()" for name in names)  # type: ignore[attr-defined]
        message = f"{', '.join(f'`{name}`' for name in names)} of all processes, as those beside"
        yield Change(RULE, first.module, first.node, message, [Insert(first.statement, lines)])
    for module, kinds in helpers.items():
        code = [text for _, text in sorted(kinds.items()) if text is not None]
        where = _last_import(module)
        if code and where is not None:
            # Two blank lines stand around functions, below them too where none stand below the imports.
            text = "\n\n" + "\n\n\n".join(code)
            below = _directly_below(module, where)
            edit = Insert(where, text, after=True) if below is None else Insert(below, text, gap=True)
            yield Change(RULE, module, where, "what reduces numbers", [edit])


def _directly_below(module: Module, where: ast.stmt) -> ast.stmt | None:
    """The statement below one of the file's own suite, where no blank line parts the two."""
    place = blocks.place(module, where)
    if place.parent is not module.tree or place.index + 1 == len(place.suite):
        return None
    line = module.end(where)[0]
    return place.suite[place.index + 1] if line < len(module.lines) and module.lines[line].strip() else None


def _is_array(own: OwnDdp, metric: Metric) -> bool:
    """Whether NumPy makes what a variable holds: ``total = np.zeros(3)``."""
    return any(
        blocks.path_of(target) == metric.path
        and isinstance(value, ast.Call)
        and any(name.startswith("numpy.") for name in own.program.callee_names(value, metric.site.scope))
        for node in (own.program.nodes_of(metric.site.body) if metric.path is not None else ())
        if isinstance(node, ast.Assign)
        for item in node.targets
        for target, value in blocks.unpacked(item, node.value)
    )


def _is_gpu_known(own: OwnDdp) -> bool:
    """Whether a plain number can be moved to the GPU of its process: to the current one, unless NCCL takes no part."""
    if own.program.calls_to(frozenset({SET_DEVICE})) or not any(_may_use_nccl(own, join) for join in own.joins):
        return True
    return sees_its_own_gpu(own)


def _may_use_nccl(own: OwnDdp, join: Site) -> bool:
    assert isinstance(join.node, ast.Call)
    backend = keyword(join.node, "backend") or next(iter(join.node.args), None)
    # ``def join(rank, size, backend="gloo")``, which each call may leave as it is
    values = own.program.flow.values(backend, join.scope) if backend is not None else set()
    names = [literal(backend)] if isinstance(backend, ast.Constant) else [item.ref for item in values]
    return not names or any(not isinstance(name, str) or "nccl" in name.lower() for name in names)


def _change(metric: Metric) -> Change:
    module, node = metric.site.module, metric.site.node
    assert isinstance(node, ast.expr)
    message = f"`{module.text(node)}` is that of all processes"
    return Change(RULE, module, node, message, [Replace(node, call_with(_NAMES[metric.kind]))])


def _listed(metrics: list[Metric]) -> str:
    """What is of one process, in words."""
    names = [f"`{item.path or item.site.module.text(item.site.node)}`" for item in metrics]
    return f"{listed(names)} {'is a number' if len(names) == 1 else 'are numbers'}"


def _after(own: OwnDdp, metrics: list[Metric]) -> Change:
    """What is reduced after one statement."""
    module, node = metrics[0].site.module, metrics[0].site.node
    assert isinstance(node, ast.stmt)
    lines = [_line(item) for item in metrics if item.kind != "own"]
    if by_method := [f"    {item.path}.{item.method}()" for item in metrics if item.kind == "own"]:
        lines += [f"if {own.word(module, _INITIALISED)}():", *by_method]
    names = ", ".join(f"`{item.path}`" for item in metrics)
    message = f"{names} of all processes"
    return Change(RULE, module, _head(node), message, [Insert(node, "\n".join(lines), after=True)])


def _line(metric: Metric) -> str:
    call = f"{_NAMES[metric.kind]}({metric.path})"
    return call if metric.kind in ("meter", "counts") else f"{metric.path} = {call}"


def _head(statement: ast.stmt) -> ast.AST:
    """What stands for a loop, of which other changes may be about the body."""
    return statement.target if isinstance(statement, ast.For) else statement


def _of_tensors(own: OwnDdp, metric: Metric) -> tuple[Kind, ...]:
    """Which of the functions that a number takes may be given a tensor by it."""
    if metric.path is None:
        is_plain = isinstance(metric.site.node, ast.expr) and is_plain_number(
            own.program, metric.site.node, metric.site
        )
    else:
        is_plain = metric.path.isidentifier() and is_plain_variable(own.program, metric.path, metric.site)
    return () if is_plain and metric.kind in _CODE_OF_NUMBERS else _NEEDS[metric.kind]


def _helper(own: OwnDdp, module: Module, kind: Kind, of_tensors: bool, of_arrays: bool) -> str | None:
    """The function that reduces; None where the file has no word for what it takes, or the name."""
    words = {
        "initialised": own.word(module, _INITIALISED),
        "backend": own.word(module, "torch.distributed.get_backend"),
        "all_reduce": own.word(module, "torch.distributed.all_reduce"),
        "size": own.word(module, "torch.distributed.get_world_size"),
        "torch": own.word(module, "torch"),
    }
    if None in words.values() or names_of(module).is_taken(_NAMES[kind]) or _last_import(module) is None:
        return None
    code = _CODE[kind] if of_tensors else _CODE_OF_NUMBERS[kind]
    for plain, each in _OF_ARRAYS.items() if of_arrays else ():
        code = code.replace(plain, each)
    return code.format(name=_NAMES[kind], sum=_NAMES["sum"], **words)


def _last_import(module: Module) -> ast.stmt | None:
    """The last import at the head of a file."""
    found: ast.stmt | None = None
    for item in module.tree.body:
        if isinstance(item, (ast.Import, ast.ImportFrom)) or _guards_imports(item):
            found = item
        elif isinstance(item, (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If)):
            break
    return found


def _guards_imports(item: ast.stmt) -> bool:
    """``try: import x``, and what is done without it."""
    return isinstance(item, ast.Try) and isinstance(item.body[0], (ast.Import, ast.ImportFrom))
