"""What the body of an ``autograd.Function`` does with its tensors, read from its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.checks.common.calls import own_name_of
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts
from amp_rules.source.syntax import last_name

LOWER = frozenset(
    """
    matmul mm bmm mv addmm addmv addbmm baddbmm linear einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d chain_matmul scaled_dot_product_attention
    """.split()
)
"""Operations that autocast lowers and that refuse operands of different types."""
_EXTENSION = re.compile(
    r"(?:^|_)(?:cuda|ext|ext_module|_?C|kernels?|backend|cpp|gpu)(?:$|_|\d)|_cuda|cuda_|_ext$|^ops$"
)
_OTHER = re.compile(
    r"^(?:numpy|math|triton|torch\w*|jax|os|sys|time|warnings|logging|functools|itertools|scipy|einops|copy)(?:$|\.)|"
    r"dist|comm|parallel|mpu|checkpoint|util|profil|helper|config|logger"
)
"""Modules that hold something else than kernels."""
_LOADERS = ("load_ext", "load", "load_inline", "_import_extension", "import_module")
_WHOLE = re.compile(
    r"ind(?:ex|ices)|idx|ids?$|offset(?!s?$)|length|len(?:$|_)|count|num|size|stride|pad|dim|batch|shape|coord|label|target|lens|"
    r"cu_|seed|axis|mode|eps|scale$|shift|rank|group|ptr|perm|graph|gidx|name|handle|segment|riv|running|mean|var$|stats?$|ctx|rois?$|xyz|dense_shape"
)
_TOGETHER = (ast.Tuple, ast.List)
_CASTS = frozenset("to type_as type float half double bfloat16".split())


def tensor_inputs(forward: FunctionFacts) -> list[str]:
    """The parameters of ``forward`` that may hold floating point tensors."""
    found = []
    arguments = forward.node.args
    for item in [*arguments.posonlyargs, *arguments.args][1:]:
        default = forward.defaults.get(item.arg)
        if isinstance(default, ast.Constant) and default.value is not None:
            continue
        if item.annotation is not None and "Tensor" not in ast.unparse(item.annotation):
            continue
        if not _WHOLE.search(item.arg.lower()):
            found.append(item.arg)
    return found


def names_in(node: ast.AST) -> Iterator[str]:
    """The names of an operand: of itself, its views and its conversions, not of what is computed from it."""
    while True:
        if isinstance(node, ast.Name):
            yield node.id
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _CASTS:
            node = node.func.value
        elif (isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data", "H")) or isinstance(
            node, ast.Subscript
        ):
            node = node.value
        else:
            return


def aliases(root: ast.AST) -> dict[str, set[str]]:
    """Names that are given to a tensor, to a view of it or to a product with it, as a second one."""
    found: dict[str, set[str]] = {}
    for item in ast.walk(root):
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            value = item.value
            sides = [value.left, value.right] if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) else []
            for behind in (name for side in sides or [value] for name in names_in(side)):
                if behind != item.targets[0].id:
                    found.setdefault(item.targets[0].id, set()).add(behind)
    return found


def products(root: ast.AST) -> Iterator[tuple[ast.expr, list[str]]]:
    """Yield each operation that autocast lowers, with the names of its operands."""
    for item in ast.walk(root):
        if isinstance(item, ast.BinOp) and isinstance(item.op, ast.MatMult):
            yield item, [*names_in(item.left), *names_in(item.right)]
        elif isinstance(item, ast.Call) and last_name(item.func) in LOWER:
            # ``einsum`` also takes its operands as one tuple.
            operands: list[ast.expr] = [
                part for given in item.args for part in (given.elts if isinstance(given, _TOGETHER) else [given])
            ]
            if isinstance(item.func, ast.Attribute):
                operands.insert(0, item.func.value)
            yield item, [name for operand in operands for name in names_in(operand)]


def mixing(backward: ast.AST) -> Iterator[tuple[ast.expr, list[str]]]:
    """Yield the products of a backward pass that may meet its gradient as it came.

    ``grad * (a @ b)`` has the wider type of both. Where that is what all further products are given, beside what was
    saved, the types fit: everything that was saved has been multiplied by each other already.
    """
    saved: set[str] = set()
    wide: set[str] = set()
    for item in ast.walk(backward):
        if isinstance(item, ast.Assign):
            names = [part.id for target in item.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            if "saved_tensors" in ast.unparse(item.value):
                saved.update(names)
            elif any(True for _ in products(item.value)) or wide & _named(item.value):
                wide.update(names)
    multiplies = [item for item in ast.walk(backward) if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Mult)]
    widens = any(
        any(True for _ in products(side)) or wide & _named(side)
        for item in multiplies
        for side in (item.left, item.right)
    )
    own = {item.id for item in ast.walk(backward) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
    own |= {item.arg for item in ast.walk(backward) if isinstance(item, ast.arg)}
    for node, names in products(backward):
        if not widens or not set(names) & own <= saved | wide:
            yield node, names


def _named(root: ast.AST) -> set[str]:
    return {item.id for item in ast.walk(root) if isinstance(item, ast.Name)}


def kernels(root: ast.AST, module: ModuleFacts) -> Iterator[tuple[ast.Call, list[str]]]:
    """Yield each call of a compiled extension, with the names that it is given."""
    for item in ast.walk(root):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and _is_extension(item.func, module):
            given = [*item.args, *(word.value for word in item.keywords)]
            yield item, [name for operand in given for name in names_in(operand)]


def _is_extension(function: ast.Attribute, module: ModuleFacts) -> bool:
    dotted = module.dotted(function) or ""
    if dotted.startswith("torch."):
        return dotted.startswith("torch.ops.")
    holder = function.value
    if not isinstance(holder, ast.Name):
        return isinstance(holder, ast.Attribute) and bool(_EXTENSION.search(holder.attr))
    made = module.constants.get(holder.id)
    if isinstance(made, ast.Call):
        return own_name_of(module, made) in _LOADERS and not _is_for_cpu(module)
    if _is_loaded_late(holder.id, module):
        return not _is_for_cpu(module)
    if holder.id not in module.imports or _OTHER.search(module.imports[holder.id]):
        return False
    return module.project.resolve(module, module.imports[holder.id]) is None


def _is_for_cpu(module: ModuleFacts) -> bool:
    """Whether the extensions that a file builds have no CUDA sources: autocast on CUDA does not touch what they get."""
    text = module.module.source.text
    return ".cpp" in text and ".cu" not in text and "cuda" not in text.lower()


def _is_loaded_late(name: str, module: ModuleFacts) -> bool:
    """Whether a function of the file loads an extension into a variable of the file."""
    loads = any(
        isinstance(target, ast.Name) and target.id == name and own_name_of(module, value) in _LOADERS
        for target, value, _ in module.index.assignments
        if isinstance(value, ast.Call)
    )
    return loads and any(isinstance(item, ast.Global) and name in item.names for item in ast.walk(module.module.tree))


def aligned(root: ast.AST) -> dict[str, str]:
    """For each name that is converted to the type of another, a name that all of one type share."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.get(name, name) != name:
            name = parent[name]
        return name

    for item in ast.walk(root):
        if not (isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name)):
            continue
        value = item.value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _CASTS:
            like = next(
                (part.id for given in value.args for part in ast.walk(given) if isinstance(part, ast.Name)), None
            )
            parent[find(item.targets[0].id)] = find(like) if like and like != "torch" else "float"
    return {name: find(name) for name in parent}


def alignments(root: ast.AST) -> list[ast.Assign]:
    """The statements that convert one tensor to the type of another."""
    return [
        item
        for item in ast.walk(root)
        if isinstance(item, ast.Assign)
        and isinstance(item.value, ast.Call)
        and isinstance(item.value.func, ast.Attribute)
        and item.value.func.attr == "type_as"
    ]


def called_with_care(cls: ClassFacts) -> bool:
    """Whether the calls of ``apply`` in the file see to the types themselves."""
    text = cls.module.module.source.text
    if "_cast_if_autocast_enabled" in text:
        return True
    for item in ast.walk(cls.module.module.tree):
        if not (isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr == "apply"):
            continue
        if last_name(item.func.value) != cls.name:
            continue
        for given in item.args:
            casts = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute)
            if casts and given.func.attr in _CASTS:  # type: ignore[attr-defined]
                return True
    return False


def recomputed(forward: FunctionFacts, backward: FunctionFacts) -> ast.Call | None:
    """The call in ``backward`` that runs again, for its gradients, a callable that ``forward`` is given and runs."""
    given = set(forward.positional[1:])
    context, kept = backward.positional[:1], {}
    for item in ast.walk(forward.node):
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Name) and item.value.id in given:
            kept.update({target.attr: item.value.id for target in item.targets if isinstance(target, ast.Attribute)})
    run = {
        kept.get(item.func.attr, "") if isinstance(item.func, ast.Attribute) else getattr(item.func, "id", "")
        for item in ast.walk(forward.node)
        if isinstance(item, ast.Call)
    }
    calls = [item for item in ast.walk(backward.node) if isinstance(item, ast.Call)]
    if not any(last_name(item.func) in _RECORDING for item in calls):
        return None
    for item in calls:
        called = item.func
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in context:
            if kept.get(called.attr) in run & given:
                return item
    return None


_RECORDING = frozenset({"enable_grad", "set_grad_enabled"})
"""What ``backward`` needs for the gradients of what it runs itself."""
