"""Batch norm over all processes: whether a program may have batch norm, and whether torch's own can take its place."""

from __future__ import annotations

import ast
import sys

from amp_rules.flow.values import Value
from amp_rules.plain_torch.translation import Translation
from amp_rules.roles import batch_norm
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import GRADIENT_FUNCTIONS
from amp_rules.torch.models import WITH_BATCH_NORM
from amp_rules.torch.packages import NEVER_FOLLOWED

_RECIPE = "run with --no-sync-bn, which leaves batch norm to each process"
_AT_ANY_TIME = frozenset({"train", "eval", "forward"})


def may_have_batch_norm(program: Program) -> bool:
    """Whether a model of the program may hold batch norm, by its own words or from a package."""
    return any(batch_norm.names_batch_norm(module.nodes) for module in program.flow.modules) or any(
        map(_has_models, program.flow.imported)
    )


def names_batch_norm(program: Program) -> bool:
    """Whether the program speaks of batch norm, or of models of torchvision that are known to have it."""
    if any(batch_norm.names_batch_norm(module.nodes) for module in program.flow.modules):
        return True
    return any(
        name.startswith("torchvision.models.") and name.rpartition(".")[2].lower().startswith(WITH_BATCH_NORM)
        for node, _, scope in program.nodes()
        if isinstance(node, (ast.Name, ast.Attribute))
        for name in program.names(node, scope)
    )


_WITHOUT_MODELS = frozenset(
    """
    numpy scipy sklearn pandas matplotlib tqdm PIL cv2 yaml tensorboardX wandb transformers datasets tokenizers h5py
    skimage imageio gym gymnasium nltk sentencepiece torchtext torchaudio amp_runtime apex seaborn requests psutil
    """.split()
)


def _has_models(name: str) -> bool:
    """Whether what is imported may give models with batch norm: ``torchvision.models``, ``timm``."""
    package = name.partition(".")[0]
    if package == "torchvision":
        return not name.startswith(("torchvision.datasets", "torchvision.transforms", "torchvision.utils"))
    if package == "torch":
        return name.startswith("torch.hub")
    return package not in sys.stdlib_module_names and package not in _WITHOUT_MODELS | NEVER_FOLLOWED


def reasons_against(translation: Translation) -> None:
    """Decline where the script would notice another class of batch norm, or differentiates twice through it."""
    program = translation.program
    late = _run_late(program)
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Call):
            continue
        names = program.callee_names(node, scope)
        if "builtins.isinstance" in names or (isinstance(node.func, ast.Name) and node.func.id == "isinstance"):
            info = program.function_of(body)
            is_late = body in late or (info is not None and info.name in _AT_ANY_TIME)
            if is_late and len(node.args) == 2 and any(map(_is_one_kind, ast.walk(node.args[1]))):
                text = scope.module.text(node)
                message = f"`{text}` looks for batch norm, which has another class over several processes"
                translation.decline(scope.module, node, message, _RECIPE, "distribution")
        elif any(item.arg == "create_graph" and not _is_false(item.value) for item in node.keywords):
            if _is_of_models_without(program, node, body, scope):
                continue
            text = scope.module.text(node)
            message = f"`{text}` is differentiated again, which torch's synchronised batch norm cannot be"
            translation.decline(scope.module, node, message, _RECIPE, "distribution")


def _is_of_models_without(program: Program, call: ast.Call, body: ast.AST, scope: Scope) -> bool:
    """Whether ``torch.autograd.grad(model(x), x)`` goes through models alone that have no batch norm, for certain."""
    given = {item.arg: item.value for item in call.keywords}
    outputs = call.args[0] if call.args else given.get("outputs")
    inputs = call.args[1] if len(call.args) > 1 else given.get("inputs")
    if not (program.callee_names(call, scope) & GRADIENT_FUNCTIONS and isinstance(inputs, ast.Name)):
        return False
    nodes = program.nodes_of(body)
    made: list[ast.expr | None] = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(outputs, ast.Name)
        and outputs.id
        in {part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    ] or [outputs]
    if not all(_is_call_with(program, item, inputs.id, scope) for item in made):
        return False
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    values = {value for node in calls for value in program.called_models(node, scope)}
    return bool(values) and not any(_may_hold(program, value) for value in program.with_parts(values))


def _is_call_with(program: Program, node: ast.expr | None, name: str, scope: Scope) -> bool:
    """``model(x)``."""
    return (
        isinstance(node, ast.Call)
        and bool(program.called_models(node, scope))
        and any(isinstance(item, ast.Name) and item.id == name for item in node.args)
    )


def _may_hold(program: Program, value: Value) -> bool:
    """Whether a module may be batch norm, or make some."""
    texts: list[ast.AST] = [*walk(value.site)] if value.site is not None else []
    if value.kind == "instance":
        for info in value.ref.mro():
            texts += walk(info.facts.node)
            if any(_has_models(base) for base in info.external_bases()):
                return True
    elif not value.name.startswith("torch.nn."):
        return True
    texts += [node for body in program.called_from(texts) for node in walk(body)]
    return "BatchNorm" in value.name or batch_norm.names_batch_norm(texts)


def _run_late(program: Program) -> set[ast.AST]:
    """Bodies that training steps and what is around them call: all that loops with a backward pass run."""
    found: set[ast.AST] = set()
    for module in program.flow.modules:
        for loop in module.nodes:
            if isinstance(loop, (ast.For, ast.While)) and program.runs_backward(loop):
                found |= program.called_from(ast.walk(loop))
    return found


def _is_one_kind(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.startswith("BatchNorm")


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value
