"""Uses of the runtime as no migration writes them: what somebody edited since, which only a guess could translate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plain_torch.uses import Use, alike, import_of_runtime
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.report import Refusal
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.text.runtime_vocabulary import RUNTIME
from amp_rules.torch import apex as api

# The positional arguments, fewest and most, and the keywords that migrations give; names that are not listed take any.
_GIVEN: dict[str, tuple[int, int, frozenset[str]]] = {
    "init": (
        0,
        0,
        frozenset({"opt_level", "override", "dtype", "loss_scale", "ddp", "sync_bn", *api.INIT_ARGUMENTS.values()}),
    ),
    "autocast": (0, 0, frozenset({"enabled"})),
    "float_function": (1, 1, frozenset()),
    "at_least_float32": (1, 1, frozenset()),
    "in_this_region": (1, 1, frozenset()),
    "scaler.scale": (1, 1, frozenset({"loss_id"})),
    "scaler.unscale_": (1, 1, frozenset()),
    "scaler.step": (1, 1, frozenset()),
    "scaler.update": (0, 1, frozenset()),
    "scaler.get_scale": (0, 0, frozenset()),
    "scaler.state_dict": (0, 0, frozenset()),
    "scaler.load_state_dict": (1, 1, frozenset()),
    "prepare_model": (1, 1, frozenset({"delay_allreduce"})),
    "prepare_loader": (1, 1, frozenset()),
    "unwrap": (1, 1, frozenset()),
    "keep_module_prefix": (1, 1, frozenset()),
    "is_main_process": (0, 0, frozenset()),
    "on_main": (1, 1, frozenset({"share_folder"})),
    "main_process_first": (0, 0, frozenset()),
    "barrier": (0, 0, frozenset()),
    "reduce_sum": (1, 1, frozenset()),
    "reduce_mean": (1, 1, frozenset()),
    "sum_of_shares": (2, 2, frozenset()),
    "share_of": (1, 2, frozenset()),
    "seed_by_rank": (0, 0, frozenset()),
    "seed_alike": (0, 0, frozenset()),
    "drawn_alike": (1, 1, frozenset()),
    "same_seed": (0, 0, frozenset()),
    "seed_of_rank": (1, 1, frozenset()),
    "same_order": (1, 1, frozenset()),
    "from_main_process": (1, 1, frozenset()),
    "world_size": (0, 0, frozenset()),
}
_FUNCTIONS = frozenset({"float_function", "same_hash"})
"""What a migration also names without calling it: as a decorator, or in the place of another function."""


def reasons(program: Program, uses: list[Use]) -> Iterator[Declined]:
    """Yield what is not as a migration writes it, in the files of a program."""
    for module in program.flow.modules:
        yield from _second_imports(module)
    for use in uses:
        if use.call is None:
            if use.path not in _FUNCTIONS and not use.path.startswith("optim."):
                yield _edited(use.module, use.node, "is not called here")
        elif use.path in _GIVEN:
            given = _not_given_by_migrations(use.call, *_GIVEN[use.path])
            if given is not None:
                yield _edited(use.module, use.call, given)
    # Those of Apex's scripts may let the processes join first.
    starts = [use for use in uses if use.path == "init"]
    joins = [use for use in starts if use.keyword("ddp") is not None]
    for use in joins:
        value = use.keyword("ddp")
        if not (isinstance(value, ast.Constant) and value.value is True):
            yield _edited(use.module, use.whole, "has several processes join under a condition")
    alone = [item for item in starts if item not in joins]
    # A process that trains alone or starts others, and these, start alike.
    for use in ([] if alike(alone) and not joins else alone[1:]) + joins[1:]:
        yield _edited(use.module, use.whole, "starts the runtime a second time")


def _not_given_by_migrations(call: ast.Call, fewest: int, most: int, keywords: frozenset[str]) -> str | None:
    """What is said of arguments that no migration gives."""
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return "unpacks its arguments"
    if not fewest <= len(call.args) <= most:
        return f"has {len(call.args)} arguments without a name"
    other = next((item.arg for item in call.keywords if item.arg not in keywords), None)
    return None if other is None else f"is given `{other}`"


def parts(program: Program) -> Iterator[Declined]:
    """Yield imports of parts of the runtime, which stand in for what Apex had."""
    for module in program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == RUNTIME:
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith(f"{RUNTIME}.")]
            else:
                continue
            for name in names:
                own = name.rpartition(".")[2]
                yield _declined(
                    module,
                    node,
                    f"torch has nothing in the place of `{own}`",
                    "write what uses it with torch alone, then migrate again; or migrate with --target runtime",
                )


def _second_imports(module: Module) -> Iterator[Declined]:
    """Imports of the runtime that are not the one line at the head of a file."""
    head = import_of_runtime(module)
    for node in module.nodes:
        if isinstance(node, ast.Import) and any(alias.name == RUNTIME for alias in node.names):
            if node is not head:
                yield _edited(module, node, "is a second import of the runtime, or not at the head of the file")
            elif len(node.names) > 1:
                yield _edited(module, node, "imports the runtime together with something else")


def _edited(module: Module, node: ast.AST, what: str) -> Declined:
    message = f"`{module.text(node)}` {what}, as no migration writes it"
    recipe = "write this place as the migration did, or with torch alone, then migrate again; or keep the runtime"
    return _declined(module, node, message, recipe)


def _declined(module: Module, node: ast.AST, message: str, recipe: str) -> Declined:
    rule = declining.NOT_IN_TORCH
    return Declined(Refusal(module.path, module.span(node), rule.code, rule.name, rule.unit, message, recipe))
