"""Sums and means over all processes, and one process's share of a number of steps."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.file_head import Helper
from amp_rules.plain_torch.loader_arguments import is_plain
from amp_rules.plain_torch.shared_loaders import SharedLoaders
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.roles.loaders import is_loader
from amp_rules.source import blocks
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import call_with, change_function

_SUM = Helper(
    "all_reduce_sum",
    '''\
def all_reduce_sum(value):
    """The sum of a number or a tensor over all processes."""
    if {WORLD_SIZE} == 1:
        return value
    is_tensor = {torch}.is_tensor(value)
    total = {torch}.as_tensor(value, dtype=None if is_tensor else {torch}.float64).detach()
    total = total.to({DEVICE_TYPE}, copy=True)
    {dist}.all_reduce(total)
    return total.to(value.device) if is_tensor else type(value)(total.item())''',
)
_MEAN = Helper(
    "all_reduce_mean",
    '''\
def all_reduce_mean(value):
    """The mean of a number or a tensor over all processes."""
    if {WORLD_SIZE} == 1:
        return value
    is_tensor = {torch}.is_tensor(value)
    mean = {torch}.as_tensor(value, dtype=None if is_tensor else {torch}.float64).detach() / {WORLD_SIZE}
    mean = mean.to({DEVICE_TYPE})
    {dist}.all_reduce(mean)
    return mean.to(value.device) if is_tensor else mean.item()''',
)
_SHARE = Helper(
    "steps_of_process",
    '''\
def steps_of_process(steps, loader):
    """How many steps one process makes of those over the whole data."""
    if {WORLD_SIZE} == 1:
        return steps
    whole = len({loader}(loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last))
    return -(-steps * len(loader) // whole)''',
)


def _sum(translation: Translation, use: Use) -> None:
    """``amp.reduce_sum(total)`` becomes ``all_reduce_sum(total)``."""
    _by_helper(translation, use, _SUM)


def _mean(translation: Translation, use: Use) -> None:
    """``amp.reduce_mean(loss)`` becomes ``all_reduce_mean(loss)``."""
    _by_helper(translation, use, _MEAN)


def _by_helper(translation: Translation, use: Use, wanted: Helper) -> None:
    if use.call is None or len(use.call.args) != 1 or use.call.keywords:
        _decline(translation, use, "is not called with one value")
        return
    if any(value.kind == "sequence" for value in translation.program.flow.values(use.argument, use.scope)):
        _decline(translation, use, "exchanges several numbers at once")
        return
    name = translation.helper(use, wanted, "distribution")
    translation.do(use.module, Replace(use.call, change_function(name)))


def _sum_of_shares(translation: Translation, use: Use) -> None:
    """``amp.sum_of_shares(total, loader)``: a sum where the loader is shared out, else what it is."""
    if use.call is None or len(use.call.args) != 2 or use.call.keywords or not is_plain(use.call.args[1]):
        _decline(translation, use, "is not called with a value and a loader in a variable")
        return
    value, loader = use.call.args
    name = translation.helper(use, _SUM, "distribution")
    shared = translation.part(SharedLoaders)
    held = {item for item in translation.program.flow.values(loader, use.scope) if is_loader(item)}
    if held and held <= shared.values and not any(shared.is_one_of_several(item) for item in held):
        edit = call_with(name)
        translation.do(use.module, Replace(use.whole, lambda node: edit(node.args[0].value)))  # type: ignore[attr-defined]
        return
    condition = f"isinstance({source_of(use.module, loader)}.sampler, {{sampler}})"
    text = source_of(use.module, value)
    if _is_own_line(use):
        _under_one_condition(translation, use, name, condition)
    elif is_plain(value):
        code = f"{name}({text}) if {condition} else {text}"
        parent = use.module.parents[use.whole]
        is_alone = isinstance(parent, (ast.Assign, ast.Call, ast.keyword, ast.Return)) and use.whole is not getattr(
            parent, "func", None
        )
        translation.replace(use.module, use.whole, code if is_alone else f"({code})")
    else:
        _decline(translation, use, "computes the value that is summed over a loader that is split across processes")


def _is_own_line(use: Use) -> bool:
    """Whether it is ``total = amp.sum_of_shares(total, loader)``."""
    statement = use.statement
    return (
        isinstance(statement, ast.Assign)
        and statement.value is use.whole
        and len(statement.targets) == 1
        and ast.unparse(statement.targets[0]) == ast.unparse(use.argument)
    )


def _under_one_condition(translation: Translation, use: Use, name: str, condition: str) -> None:
    """Sums over one loader that stand below each other are under one condition."""
    others = {
        other.statement: source_of(other.module, other.argument)
        for other in translation.uses_of("sum_of_shares")
        if other.call is not None and len(other.call.args) == 2 and other.module is use.module and _is_own_line(other)
        if ast.dump(other.call.args[1]) == ast.dump(use.call.args[1])  # type: ignore[union-attr]
    }
    where = blocks.place(use.module, use.statement)
    if where.index and where.suite[where.index - 1] in others:
        translation.take_out(use)
        return
    lines = []
    for statement in where.suite[where.index :]:
        if statement not in others:
            break
        lines.append(f"    {others[statement]} = {name}({others[statement]})")
    translation.put_for(use, "\n".join([f"if {condition}:", *lines]))


def _share_of(translation: Translation, use: Use) -> None:
    """``amp.share_of(steps, loader)``: how many of the steps one process makes."""
    if use.call is None or not 1 <= len(use.call.args) <= 2 or use.call.keywords:
        _decline(translation, use, "is not called with a number and a loader")
        return
    samples = _samples_of_share(translation, use)
    if samples is not None:
        translation.replace(use.module, use.whole, samples)
        return
    if len(use.call.args) == 2:
        name = translation.helper(use, _SHARE, "distribution")
        translation.do(use.module, Replace(use.call, change_function(name)))
        return
    steps = use.call.args[0]
    text = source_of(use.module, steps)
    share = f"-(-({text}) // {{WORLD_SIZE}})" if isinstance(steps, ast.BinOp) else f"-(-{text} // {{WORLD_SIZE}})"
    if _is_whole(translation, steps, use):
        translation.replace(use.module, use.whole, share)
    elif is_plain(steps):
        translation.replace(use.module, use.whole, f"({text} if {{WORLD_SIZE}} == 1 else {share})")
    else:
        _decline(translation, use, "is given what may be no whole number")


def _samples_of_share(translation: Translation, use: Use) -> str | None:
    """``len(loader.sampler)`` for a process's share of ``len(loader.dataset)``."""
    assert use.call is not None
    count = use.argument
    is_length = isinstance(count, ast.Call) and blocks.path_of(count.func) == "len" and len(count.args) == 1
    if len(use.call.args) != 2 or not is_length:
        return None
    assert isinstance(count, ast.Call)
    loader, counted = use.call.args[1], count.args[0]
    values = {item for item in translation.program.flow.values(loader, use.scope) if is_loader(item)}
    shared = translation.part(SharedLoaders)
    if not values or not values <= shared.values or not is_plain(loader):
        return None
    made = [shared.made.get(item.site) for item in values if item.site is not None]
    is_data = isinstance(counted, ast.Attribute) and counted.attr == "dataset"
    is_data = is_data and ast.dump(counted.value) == ast.dump(loader)  # type: ignore[attr-defined]
    is_given = all(
        item is not None and item.body is use.body and ast.dump(item.dataset) == ast.dump(counted) for item in made
    )
    return f"len({source_of(use.module, loader)}.sampler)" if is_data or is_given else None


_WHOLE = frozenset({"builtins.len", "builtins.int", "math.ceil", "math.floor"})


def _is_whole(translation: Translation, node: ast.expr, use: Use) -> bool:
    """Whether a number is an ``int``: what is divided by one process is then just that number."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.FloorDiv, ast.Mult, ast.Add, ast.Sub)) and all(
            _is_whole(translation, part, use) for part in (node.left, node.right)
        )
    if isinstance(node, ast.Call):
        return bool(translation.program.callee_names(node, use.scope) & _WHOLE)
    values = translation.program.flow.values(node, use.scope)
    return bool(values) and all(value.kind == "constant" and type(value.ref) is int for value in values)


def _decline(translation: Translation, use: Use, reason: str) -> None:
    translation.decline(
        use.module,
        use.node,
        f"`{use.module.text(use.whole)}` {reason}",
        "keep the runtime (--target runtime), or write the exchange of this number by hand",
        "distribution",
    )


WORDS: dict[str, Translate] = {
    "reduce_sum": _sum,
    "reduce_mean": _mean,
    "sum_of_shares": _sum_of_shares,
    "share_of": _share_of,
}
