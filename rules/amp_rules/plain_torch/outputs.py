"""Outputs of models that are read after their region: the runtime gives them in float32, torch in half.

A loss of evaluation would be rounded to half there, and a product with a tensor of float32 raises. What is used as a
tensor of floating point for certain is made float32 in words: ``output = model(x).float()``. In the original, which
computes in float32, ``.float()`` gives the very same tensor.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from amp_rules.plain_torch.regions import regions
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.source import blocks
from amp_rules.text.actions import Insert

_KEEPING = frozenset(
    "clone contiguous cpu data detach flatten permute reshape squeeze t transpose unflatten unsqueeze view".split()
)
"""Methods that give a tensor of the same type."""
_OF_FLOATS = re.compile(
    r"torch\.(nn\.functional\.)?(\w+_loss|cross_entropy|binary_cross_entropy\w*|kl_div|\w*softmax|\w*sigmoid|normalize|"
    r"cosine_similarity|pairwise_distance|cdist|dist|quantile|matmul|mm|bmm|exp|log)"
)
"""Functions whose first argument is a tensor of floating point."""
_LAYERS = re.compile(r"torch\.nn\.(\w+Loss|\w*Softmax|\w*Sigmoid|CosineSimilarity|PairwiseDistance)")
"""Objects of whose call the same holds."""
_OTHER_FLOATS = frozenset({"double", "float64", "set_default_dtype", "set_default_tensor_type", "complex64"})


def widen(translation: Translation) -> None:
    """Have outputs of models, that are read after their region as numbers, made float32."""
    modules = translation.program.flow.modules
    if any(getattr(node, "attr", None) in _OTHER_FLOATS for module in modules for node in module.nodes):
        return
    for use in regions(translation):
        region = use.statement
        assert isinstance(region, (ast.With, ast.AsyncWith))
        again = []
        for target, call in _outputs(translation, use, region):
            if not _is_read_as_floats(translation, use, region, target.id):
                continue
            if isinstance(use.module.parents[target], ast.Assign):
                translation.replace(use.module, call, _floated)
            else:
                again.append(f"{target.id} = {target.id}.float()")
        if again:
            translation.do(use.module, Insert(region, "\n".join(again), after=True, order=-5))


def _floated(node: cst.BaseExpression) -> cst.BaseExpression:
    """``model(x)`` becomes ``model(x).float()``."""
    return cst.Call(cst.Attribute(node, cst.Name("float")))


def _outputs(
    translation: Translation, use: Use, region: ast.With | ast.AsyncWith
) -> Iterator[tuple[ast.Name, ast.Call]]:
    """The names to which a region gives what a model returns."""
    for statement in region.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        call, target = statement.value, statement.targets[0]
        if not isinstance(call, ast.Call) or not translation.program.roles.modules(call.func, use.scope):
            continue
        names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        yield from ((item, call) for item in names if isinstance(item, ast.Name) and item.id != "_")


def _is_read_as_floats(translation: Translation, use: Use, region: ast.stmt, name: str) -> bool:
    """Whether what a region gives a name is read after it where only a tensor of floating point can stand."""
    own = {item for other in regions(translation) if other.body is use.body for item in ast.walk(other.statement)}
    mentions = [item for item in blocks.walk_body(use.body) if isinstance(item, ast.Name) and item.id == name]
    if any(item not in own for item in mentions if not isinstance(item.ctx, ast.Load)):
        return False
    stored = [item for item in mentions if isinstance(item.ctx, ast.Store)]
    if any(use.module.parents[item] not in _of_outputs(translation, use) for item in stored):
        return False
    last = region.end_lineno or region.lineno
    after = [item for item in mentions if item not in own and item.lineno > last]
    return any(_stands_for_floats(translation, use, item) for item in after)


def _of_outputs(translation: Translation, use: Use) -> set[ast.AST]:
    """What gives names what models return, in the regions of a function."""
    found: set[ast.AST] = set()
    for other in regions(translation):
        if other.body is use.body and isinstance(other.statement, (ast.With, ast.AsyncWith)):
            found |= {use.module.parents[target] for target, _ in _outputs(translation, other, other.statement)}
    return found


def _stands_for_floats(translation: Translation, use: Use, name: ast.Name) -> bool:
    module = use.module
    node: ast.AST = name
    while True:
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute) and parent.attr in _KEEPING:
            called = module.parents[parent]
            node = called if isinstance(called, ast.Call) and called.func is parent else parent
        elif isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Tuple):
            node = parent
        else:
            break
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.MatMult)
    if not isinstance(parent, ast.Call) or not parent.args or parent.args[0] is not node:
        return False
    names = translation.program.callee_names(parent, use.scope)
    if names:
        return all(_OF_FLOATS.fullmatch(item) for item in names)
    made = translation.program.flow.values(parent.func, use.scope)
    return bool(made) and all(item.kind == "object" and _LAYERS.fullmatch(str(item.ref)) for item in made)
