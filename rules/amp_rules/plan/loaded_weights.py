"""Checkpoints that every process reads to the GPU that they were saved from, though all of it is copied to its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.plan.file_guards import is_guarded
from amp_rules.plan.whole_optimizers import whole_optimizers
from amp_rules.roles.kinds import is_optimizer, is_scheduler
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name
from amp_rules.torch.file_access import WEIGHT_LOADERS
from amp_rules.torch.mixed_precision import SCALERS

_MAX_NAMES = 6
"""Variables that what is loaded goes through: the file, its weights, each of them, those of the model."""
_OF_NAMES_OR_SHAPES = frozenset({"keys", "update", "size", "numel", "dim"})
"""Methods of checkpoints and tensors that ask for nothing on a device, and the one that puts entries in."""

_ORDERS = (ast.Lt, ast.Gt, ast.LtE, ast.GtE)

_NUMBERS = frozenset(
    """
    acc accuracy arch args auc avg best bleu cer config count counter cur curr current dev dice eer eiters ep epoch
    epochs err error f fid global iou it iter iteration iterations iters its iu kappa last learning loss
    lr lrs mae map max mean metric min miou mse n name num options ppl prec precision psnr rate recall rmse rsum
    score seed ssim start step steps test top total train val valid wer
    """.split()
)
"""Words in keys of checkpoints under which scripts keep numbers and settings, which may be compared anywhere."""

_OF_THE_BEST = frozenset({"pred", "prediction", "result", "metrics", "value", "val"})
"""Words that name a number beside "best", ``best_pred``, and may name anything alone."""


def read_to_one_gpu(program: Program) -> Iterator[Site]:
    """Yield the calls that load what models and optimizers alone copy, without a word on where to."""
    sites = [site for site in program.calls_to(WEIGHT_LOADERS) if _is_unplaced(site.node)]
    if not sites or not _uses_gpu(program):
        return
    for site in sites:
        assert isinstance(site.node, ast.Call)
        if not is_guarded(site.module, site.node) and _is_copied(program, site.node, site.scope):
            yield site


def read_whole(program: Program) -> list[Site]:
    """The calls that load an optimizer as a whole, without a word on where to: what it remembers stays where it is put.

    A model that is loaded with it goes to the GPU of its process, and the optimizer keeps the same parameters.
    """
    found = {load.node: load for item in whole_optimizers(program) for load in item.loads}
    if not found or not _uses_gpu(program):
        return []
    return [load for load in found.values() if _is_unplaced(load.node) and not is_guarded(load.module, load.node)]


def _is_unplaced(call: ast.AST) -> bool:
    if not isinstance(call, ast.Call) or len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
        return False
    return all(item.arg in ("weights_only", "mmap") for item in call.keywords)


def _uses_gpu(program: Program) -> bool:
    """Whether the program names a GPU at all: else its files hold nothing of one."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "cuda")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda"))
        for node, _, _ in program.nodes()
    )


_Names = frozenset[tuple[ast.AST, str]]
"""The variables, with their bodies, whose reads are being looked at: each once, however weights go round in them."""


def _is_copied(program: Program, node: ast.expr, scope: Scope, seen: _Names = frozenset()) -> bool:
    """Whether a value goes nowhere but into ``load_state_dict``, but for its numbers and the names of its entries."""
    parent = scope.module.parents[node]
    if isinstance(parent, ast.Call) and node in parent.args:
        if _copies(program, parent, scope) or _is_handed_on(program, parent, node, scope, seen):
            return True
        return _are_copied_by_helper(program, parent, node, seen)
    if isinstance(parent, ast.keyword):
        call = scope.module.parents[parent]
        return isinstance(call, ast.Call) and _are_copied_by_helper(program, call, node, seen)
    if isinstance(parent, ast.Subscript) and parent.value is node:
        if not isinstance(parent.ctx, ast.Load):
            return True  # an entry is put in, or taken out
        if _is_number(parent.slice) or _is_given_as_number(program, parent, scope):
            return True
        return _is_copied(program, parent, scope, seen)
    if isinstance(parent, ast.Return):
        return _are_copied_by_callers(program, parent, scope, seen)
    if isinstance(parent, ast.Compare) and parent.left is node:
        return (
            len(parent.ops) == 1 and isinstance(parent.ops[0], (ast.Is, ast.IsNot)) and is_none(parent.comparators[0])
        )
    if isinstance(parent, ast.Compare) and node in parent.comparators:
        return all(isinstance(item, (ast.In, ast.NotIn)) for item in parent.ops)
    if isinstance(parent, ast.Attribute):
        return _is_read_alike(program, parent, scope, seen)
    if (isinstance(parent, ast.DictComp) and parent.value is node) or (
        isinstance(parent, ast.IfExp) and parent.test is not node
    ):
        return _is_copied(program, parent, scope, seen)
    if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Subscript):
            return _are_put(program, target.value, scope, seen)
        return isinstance(target, ast.Name) and _are_copied(program, target, scope, seen)
    return False


def _is_handed_on(program: Program, call: ast.Call, node: ast.expr, scope: Scope, seen: _Names) -> bool:
    """Whether a call puts a value into what is copied itself: ``weights.update(loaded)``; or asks for its kind alone.

    ``weight.copy_(value)`` copies from any device.
    """
    is_first = call.args[0] is node
    if isinstance(call.func, ast.Name):
        return call.func.id in ("len", "isinstance", "type") and is_first
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "get":
        return not is_first and _is_copied(program, call, scope, seen)  # where there is no such entry
    if call.func.attr == "update" and len(call.args) == 1:
        return _are_put(program, call.func.value, scope, seen)
    return call.func.attr == "copy_" and is_first


def _is_read_alike(program: Program, attribute: ast.Attribute, scope: Scope, seen: _Names) -> bool:
    """Whether an attribute or a method says the same on every device, or gives what is copied alone."""
    parents = scope.module.parents
    call = parents[attribute]
    if attribute.attr == "shape":
        return True
    if attribute.attr == "data":
        return _is_copied(program, attribute, scope, seen)
    if not isinstance(call, ast.Call) or call.func is not attribute:
        return False
    if attribute.attr in _OF_NAMES_OR_SHAPES:
        return True
    if attribute.attr in ("pop", "get") and call.args:
        is_dropped = isinstance(parents[call], ast.Expr)
        return is_dropped or _is_number(call.args[0]) or _is_copied(program, call, scope, seen)
    loop = parents[call]
    if attribute.attr != "items" or not isinstance(loop, (ast.For, ast.comprehension)) or loop.iter is not call:
        return False
    pair = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    return len(pair) == 2 and isinstance(pair[1], ast.Name) and _are_copied(program, pair[1], scope, seen)


def _are_copied_by_helper(program: Program, call: ast.Call, given: ast.expr, seen: _Names) -> bool:
    """Whether so does what a function of the project is given: ``load_what_fits(model, weights)``."""
    callees = program.flow.callees(call)
    for info in callees:
        name = next((name for name, value in info.bound(call) if value is given), None)
        if name is None or not _are_all_copied(program, name, program.flow.scopes[info.node], seen):
            return False
    return bool(callees)


def _are_copied_by_callers(program: Program, given: ast.Return, scope: Scope, seen: _Names) -> bool:
    """Whether so does what a function gives back, wherever it is called: ``saved = load_last(args)``."""
    info = program.function_of(blocks.body_of(scope.module, given))
    item = (info.node, "return") if info is not None else None
    if info is None or item is None or info.yields or len(seen) == _MAX_NAMES:
        return False
    if item in seen:
        return True
    callers = program.flow.callers(info)
    return bool(callers) and all(_is_copied(program, site.call, site.scope, seen | {item}) for site in callers)


def _are_put(program: Program, weights: ast.expr, scope: Scope, seen: _Names) -> bool:
    """Whether what a variable is given entries of is itself copied, and goes nowhere else.

    What lists a model's own weights may go nowhere at all: only its names and shapes are asked for.
    """
    if not isinstance(weights, ast.Name) or not _are_copied(program, weights, scope, seen):
        return False
    given = _given(program, weights.id, scope)
    if given and all(isinstance(item, ast.Call) and last_name(item.func) == "state_dict" for item in given):
        return True
    reads = ((scope.module.parents[node], where) for node, where in _reads(program, weights.id, scope))
    if any(isinstance(parent, ast.Call) and _copies(program, parent, where) for parent, where in reads):
        return True
    return _is_listing_of_model(program, weights.id, scope)


def _is_listing_of_model(program: Program, name: str, scope: Scope) -> bool:
    """Whether a variable holds what ``model.state_dict()`` has listed: entries put there do not reach the model."""
    owner = scope.owner(name)
    stores = [
        where.module.parents[node]
        for node, _, where in program.nodes()
        if isinstance(node, ast.Name)
        and node.id == name
        and where.owner(name) is owner
        and not isinstance(node.ctx, ast.Load)
    ]
    return bool(stores) and all(
        isinstance(item, ast.Assign)
        and isinstance(item.value, ast.Call)
        and isinstance(item.value.func, ast.Attribute)
        and item.value.func.attr == "state_dict"
        for item in stores
    )


def _are_copied(program: Program, target: ast.Name, scope: Scope, seen: _Names) -> bool:
    """Whether so do all reads of a variable of a body that others do not see."""
    return _are_all_copied(program, target.id, scope, seen)


def _are_all_copied(program: Program, name: str, scope: Scope, seen: _Names) -> bool:
    item = (scope.owner(name).node, name)
    if item in seen:
        return True
    if len(seen) == _MAX_NAMES:
        return False
    reads = [read for read in _reads(program, name, scope) if not _is_of_display(*read)]
    return bool(reads) and all(_is_copied(program, node, where, seen | {item}) for node, where in reads)


def _is_of_display(node: ast.Name, scope: Scope) -> bool:
    """Whether the variable was given a dictionary of the script's own above: ``state = {...}``, to be saved."""
    for suite, index in blocks.suites_around(scope.module, blocks.statement_of(scope.module, node)):
        writing = [item for item in suite[:index] if node.id in blocks.writes(item)]
        if writing:
            return isinstance(blocks.given_last(writing, node.id), ast.Dict)
    return False


def _reads(program: Program, name: str, scope: Scope) -> list[tuple[ast.Name, Scope]]:
    owner = scope.owner(name)
    return [
        (node, where)
        for node, where in program.reads_named(name)
        if isinstance(node, ast.Name) and where.owner(name) is owner
    ]


def _given(program: Program, name: str, scope: Scope) -> list[ast.expr]:
    """What a variable is assigned, where each assignment is of it alone."""
    owner = scope.owner(name)
    return [
        node.value
        for node, _, where in program.nodes()
        if isinstance(node, ast.Assign)
        and [*map(blocks.path_of, node.targets)] == [name]
        and where.owner(name) is owner
    ]


def _is_given_as_number(program: Program, entry: ast.Subscript, scope: Scope) -> bool:
    """Whether a variable takes an entry that a number is its first value: ``best = -1.0``, ``best = saved["best"]``.

    It has one element, as the script asks whether another is greater: it may be on the CPU beside others on a GPU.
    """
    parent = scope.module.parents[entry]
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name)):
        return False
    name = parent.targets[0].id
    starts = [item for item in _given(program, name, scope) if isinstance(item, (ast.Constant, ast.UnaryOp))]
    compared = (where.module.parents[node] for node, where in _reads(program, name, scope))
    return any(isinstance(_number(item), (int, float)) for item in starts) and any(
        isinstance(item, ast.Compare) and isinstance(item.ops[0], _ORDERS) for item in compared
    )


def _number(node: ast.expr) -> object:
    return literal(node.operand if isinstance(node, ast.UnaryOp) else node)


def _is_number(key: ast.expr) -> bool:
    """``"best_acc1"``."""
    text = literal(key)
    words = [item for item in re.split(r"[\W_\d]+", text.lower()) if item] if isinstance(text, str) else []
    if "best" in words:
        words = [item for item in words if item not in _OF_THE_BEST]
    return bool(words) and _NUMBERS.issuperset(words)


def _copies(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call has a model, an optimizer, a schedule or a scaler of torch's kind copy what it is given."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict":
        return False
    owner = call.func.value
    values = program.flow.values(owner, scope)
    if any(value.kind == "instance" and value.ref.find_method("load_state_dict") for value in values):
        return False
    # The state of a scaler is numbers alone.
    known = [value for value in values if is_optimizer(value) or is_scheduler(value) or value.ref in SCALERS]
    return bool(known) or bool(program.roles.modules(owner, scope))
