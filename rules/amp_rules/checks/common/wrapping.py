"""Where a model is wrapped for several processes, and where its parameters become other objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from amp_rules.checks.common.calls import calls_named, own_name_of
from amp_rules.checks.common.origins import functions_called, origins
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.index import FileIndex, Function, before, keyword, literal
from amp_rules.source.syntax import last_name, spelling
from amp_rules.torch.distributed import CONVERTING_NAMES
from amp_rules.torch.idioms import NAMED_NETWORK, NAMED_OPTIMIZER_BUILDER

_OPTIMIZERS = frozenset(
    """
    SGD Adam AdamW Adamax RAdam NAdam Adagrad Adadelta RMSprop Rprop ASGD LBFGS SparseAdam Adafactor Lion FusedAdam
    FusedSGD FusedLAMB FusedNovoGrad FusedAdagrad BertAdam LAMB Lamb AdaBelief AdamP RangerLars Ranger Novograd
    """.split()
)


BUILDS_OPTIMIZER = re.compile("|".join(["[oO]ptim", *sorted(_OPTIMIZERS)]))
"""Without one of these in its text no file builds an optimizer; asking for each call takes long."""


class WrapEvent(NamedTuple):
    """Something that happens to a model.

    Attributes:
        node: the call or statement.
        model: the model's path in the text, as ``self.model``.
        what: what happens, for people.
    """

    node: ast.AST
    model: str
    what: str


def first_model(call: ast.Call) -> str | None:
    """The path of the first argument of a call, whether by place or by name."""
    given = call.args[0] if call.args else keyword(call, "module") or keyword(call, "model")
    return spelling(given) if given is not None else None


def second_names(index: FileIndex, name: str) -> set[str]:
    """The names that are given what ``name`` holds, and nothing else."""
    given: dict[str, list[ast.expr]] = {}
    for target, value, _ in index.assignments:
        held = spelling(target)
        if held is not None:
            given.setdefault(held, []).append(value)
    return {held for held, values in given.items() if all(spelling(value) == name for value in values)}


def is_ddp(module: ModuleFacts, call: ast.AST) -> bool:
    """Whether a call wraps a model in torch's or Apex's DistributedDataParallel."""
    if not isinstance(call, ast.Call):
        return False
    return (module.dotted(call.func) or "").endswith("DistributedDataParallel")


def wrapped_models(module: ModuleFacts) -> Iterator[WrapEvent]:
    """Yield the assignments ``model = DistributedDataParallel(model)``, by the name of the result.

    Functions of the project that return a wrapped model and Accelerate's ``prepare`` count as well.
    """
    for target, value, statement in module.index.assignments:
        if not isinstance(value, ast.Call):
            continue
        name = spelling(target)
        if name is not None and (is_ddp(module, value) or _gives_ddp(module, value)):
            yield WrapEvent(statement, name, "wrapped in DistributedDataParallel")
        elif last_name(value.func) == "prepare" and _is_accelerator(module, value.func):
            for path in _prepared(target, value):
                yield WrapEvent(statement, path, "wrapped in DistributedDataParallel by Accelerate")


def _gives_ddp(module: ModuleFacts, call: ast.Call) -> bool:
    """Whether a function of the project gives back what it has wrapped."""
    return any(
        isinstance(item.node, ast.Call) and is_ddp(item.module, item.node)
        for function in functions_called(module, call)
        if function.name != "__init__"
        for value in function.returns
        for item in origins(function.module, value)
    )


def _is_accelerator(module: ModuleFacts, func: ast.expr) -> bool:
    if not isinstance(func, ast.Attribute):
        return False
    return any(
        isinstance(item.node, ast.Call) and (item.module.dotted(item.node.func) or "") == "accelerate.Accelerator"
        for item in origins(module, func.value)
    )


def _prepared(target: ast.expr, call: ast.Call) -> Iterator[str]:
    """The paths of what ``prepare`` gives back in place of something that may be a model."""
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    for given, result in zip(call.args, targets, strict=False):
        path = spelling(result)
        if path is not None and path == spelling(given) and any(part in path.lower() for part in NAMED_NETWORK):
            yield path


def conversions(module: ModuleFacts) -> Iterator[WrapEvent]:
    """Yield the calls that make batch norm synchronised."""
    for call in calls_named(module, CONVERTING_NAMES):
        model = first_model(call)
        if model is not None:
            yield WrapEvent(call, model, own_name_of(module, call))


def replacements(module: ModuleFacts) -> Iterator[WrapEvent]:
    """Yield what puts other parameters into a model: who holds the old ones holds what is never used again."""
    index = module.index
    for call in index.calls:
        event = _replacing_call(module, call)
        if event is not None:
            yield event
    for target, value, statement in index.assignments:
        if isinstance(target, ast.Attribute) and _is_layer(module, value):
            model = spelling(target.value)
            if model not in (None, "self"):
                assert model is not None
                yield WrapEvent(statement, model, f"`{spelling(target)}` is replaced")


def _replacing_call(module: ModuleFacts, call: ast.Call) -> WrapEvent | None:
    model = first_model(call)
    dotted = module.dotted(call.func) or ""
    name = dotted.rpartition(".")[2] or last_name(call.func)
    if name == "resize_token_embeddings" and isinstance(call.func, ast.Attribute):
        owner = spelling(call.func.value)
        return WrapEvent(call, owner, "`resize_token_embeddings` makes new embeddings") if owner else None
    if model is None:
        return None
    if name == "convert_syncbn_model":
        return WrapEvent(
            call, model, "Apex's `convert_syncbn_model` makes new batch norm layers with copied parameters"
        )
    if name == "fully_shard":
        return WrapEvent(call, model, "`fully_shard` puts sharded parameters in their place")
    if dotted.endswith("FullyShardedDataParallel") and literal(keyword(call, "use_orig_params")) is not True:
        return WrapEvent(call, model, "FullyShardedDataParallel flattens them into new ones")
    if name == "get_peft_model":
        return WrapEvent(call, model, "`get_peft_model` freezes them and adds the ones to be trained")
    return None


def _is_layer(module: ModuleFacts, value: ast.expr) -> bool:
    """Whether an expression builds a layer of torch that has parameters."""
    if not isinstance(value, ast.Call):
        return False
    name = module.dotted(value.func) or ""
    last = name.rpartition(".")[2]
    return name.startswith("torch.nn.") and last.startswith(
        ("Linear", "Conv", "Sequential", "Embedding", "LSTM", "GRU", "Parameter")
    )


def optimizers(module: ModuleFacts) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that build an optimizer, with the path of the model whose parameters it takes.

    Functions that are called after that and given a model count as well.
    """
    for call in module.index.calls:
        name = own_name_of(module, call)
        dotted = module.dotted(call.func) or ""
        if name in _OPTIMIZERS or (dotted.startswith("torch.optim.") and "lr_scheduler" not in dotted):
            for model in models_in(module.index, call):
                yield call, model
        elif NAMED_OPTIMIZER_BUILDER.search(name):
            for item in [*call.args, *(part.value for part in call.keywords)]:
                path = spelling(item)
                if path is not None and any(part in path.lower() for part in NAMED_NETWORK):
                    yield call, path


_MAX_NAMES = 3
"""Names on the way from an optimizer to its models: a list of groups, a group, its parameters."""


def models_in(index: FileIndex, call: ast.Call) -> set[str]:
    """The paths of the models whose parameters are among the arguments of a call."""
    found: set[str] = set()
    pending = [*call.args, *(item.value for item in call.keywords)]
    for _ in range(_MAX_NAMES):
        following: list[ast.expr] = []
        for item in pending:
            for inner in ast.walk(item):
                model = parameters_of(inner)
                if model is not None:
                    found.add(model)
                elif isinstance(inner, ast.Name):
                    following += index.values_of(inner) if not found else []
        pending = following
    return found


def parameters_of(node: ast.AST) -> str | None:
    """``model`` of ``model.parameters()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("parameters", "named_parameters"):
            return spelling(node.func.value)
    return None


def is_assigned_between(index: FileIndex, path: str, first: ast.AST, second: ast.AST) -> bool:
    """Whether a name is given another value between two places of the text."""
    return any(
        spelling(target) == path and before(first, statement) and before(statement, second)
        for target, _, statement in index.assignments
    )


def comes_first(module: ModuleFacts, first: WrapEvent, second: ast.AST) -> bool:
    """Whether something happens to a model before another place is reached.

    Both stand in one function in this order, or in methods that one method of their class calls in this order, where
    ``self`` holds the model and nothing else is put there between.
    """
    index = module.index
    if index.scope(first.node) is index.scope(second):
        return index.precedes(first.node, second)
    if not first.model.startswith("self."):
        return False
    known = [index.statement(first.node), index.statement(second)]
    others = [item for target, _, item in index.assignments if spelling(target) == first.model and item not in known]
    return _called_first(index, first.node, second) and all(
        _called_first(index, item, first.node) for item in others if _class_of(index, item) is _class_of(index, second)
    )


def _called_first(index: FileIndex, first: ast.AST, second: ast.AST) -> bool:
    """Whether a method runs ``first``, or calls the method that does, before it does so with ``second``."""
    return any(index.precedes(one, other) for one in _stands_for(index, first) for other in _stands_for(index, second))


def _stands_for(index: FileIndex, node: ast.AST) -> list[ast.AST]:
    """A place, and the calls ``self.method()`` of the method that it stands in."""
    function = index.scope(node)
    owner = index.owner(function) if function is not None else None
    if not isinstance(function, Function) or owner is None:
        return [node]
    return [node] + [
        call
        for call in index.named.get(function.name, ())
        if spelling(call.func) == f"self.{function.name}" and _class_of(index, call) is owner
    ]


def _class_of(index: FileIndex, node: ast.AST) -> ast.ClassDef | None:
    return next((item for item in index.ancestors(node) if isinstance(item, ast.ClassDef)), None)
