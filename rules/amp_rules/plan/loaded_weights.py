"""Checkpoints that every process reads to the GPU that they were saved from, though all of it is copied to its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.plan.file_guards import is_guarded
from amp_rules.roles.kinds import is_optimizer, is_scheduler
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import literal
from amp_rules.source.scopes import Scope
from amp_rules.torch.file_access import WEIGHT_LOADERS
from amp_rules.torch.mixed_precision import SCALERS

_MAX_NAMES = 4
"""Variables and entries that what is loaded goes through."""

_NUMBERS = frozenset(
    """
    acc accuracy arch args auc avg best bleu cer config count counter cur curr current dev dice eer ep epoch
    epochs err error f fid global iou it iter iteration iterations iters its iu kappa last learning loss
    lr lrs mae map max mean metric min miou mse n name num options ppl prec precision psnr rate recall rmse score
    seed ssim start step steps test top total train val valid wer
    """.split()
)
"""Words in keys of checkpoints under which scripts keep numbers and settings, which may be compared anywhere."""


def read_to_one_gpu(program: Program) -> Iterator[Site]:
    """Yield the calls that load what models and optimizers alone copy, without a word on where to."""
    sites = [site for site in program.calls_to(WEIGHT_LOADERS) if _is_unplaced(site.node)]
    if not sites or not _uses_gpu(program):
        return
    for site in sites:
        assert isinstance(site.node, ast.Call)
        if not is_guarded(site.module, site.node) and _is_copied(program, site.node, site.scope, _MAX_NAMES):
            yield site


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


def _is_copied(program: Program, node: ast.expr, scope: Scope, depth: int) -> bool:
    """Whether a value goes nowhere but into ``load_state_dict``, but for its numbers."""
    parent = scope.module.parents[node]
    if isinstance(parent, ast.Call) and node in parent.args:
        return _copies(program, parent, scope)
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Load):
        return _is_number(parent.slice) or _is_copied(program, parent, scope, depth)
    if isinstance(parent, ast.Compare) and node in parent.comparators:
        return all(isinstance(item, (ast.In, ast.NotIn)) for item in parent.ops)
    if isinstance(parent, ast.Assign) and parent.value is node and len(parent.targets) == 1 and depth:
        target = parent.targets[0]
        return isinstance(target, ast.Name) and _are_copied(program, target, scope, depth - 1)
    return False


def _are_copied(program: Program, target: ast.Name, scope: Scope, depth: int) -> bool:
    """Whether so do all reads of a variable of a body that others do not see."""
    owner = scope.owner(target.id)
    reads = [
        (node, where)
        for node, _, where in program.nodes()
        if isinstance(node, ast.Name)
        and node.id == target.id
        and where.owner(target.id) is owner
        and isinstance(node.ctx, ast.Load)
    ]
    return bool(reads) and all(_is_copied(program, node, where, depth) for node, where in reads)


def _is_number(key: ast.expr) -> bool:
    """``"best_acc1"``."""
    text = literal(key)
    words = [item for item in re.split(r"[\W_\d]+", text.lower()) if item] if isinstance(text, str) else []
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
