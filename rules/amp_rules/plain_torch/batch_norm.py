"""Batch norm over all processes: whether a program may have batch norm, and whether torch's own can take its place."""

from __future__ import annotations

import ast
import sys

from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.steps import Program
from amp_rules.source.modules import Module
from amp_rules.torch.models import WITH_BATCH_NORM
from amp_rules.torch.packages import NEVER_FOLLOWED

_RECIPE = "run with --no-sync-bn, which leaves batch norm to each process"
_AT_ANY_TIME = frozenset({"train", "eval", "forward"})


def may_have_batch_norm(program: Program) -> bool:
    """Whether a model of the program may hold batch norm, by its own words or from a package."""
    return any(map(_names_batch_norm, program.flow.modules)) or any(map(_has_models, program.flow.imported))


def names_batch_norm(program: Program) -> bool:
    """Whether the program speaks of batch norm, or of models of torchvision that are known to have it."""
    if any(map(_names_batch_norm, program.flow.modules)):
        return True
    return any(
        name.startswith("torchvision.models.") and name.rpartition(".")[2].lower().startswith(WITH_BATCH_NORM)
        for node, _, scope in program.nodes()
        if isinstance(node, (ast.Name, ast.Attribute))
        for name in program.names(node, scope)
    )


def _names_batch_norm(module: Module) -> bool:
    """``nn.BatchNorm2d``, ``"batchnorm"``, ``getattr(nn, name)``."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            words = node.attr
        elif isinstance(node, ast.Name):
            words = node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            if len(node.args) > 1 and not isinstance(node.args[1], ast.Constant) and "nn" in ast.unparse(node.args[0]):
                return True
            continue
        else:
            continue
        if "batchnorm" in words.lower().replace("_", ""):
            return True
    return False


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
            text = scope.module.text(node)
            message = f"`{text}` is differentiated again, which torch's synchronised batch norm cannot be"
            translation.decline(scope.module, node, message, _RECIPE, "distribution")


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
