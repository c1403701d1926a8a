"""Load whole objects where a file holds one.

## What it does
`torch.load(path)` gets `weights_only=False` where the loaded object is used as a model, or an entry of it
(`checkpoint["model"].state_dict()`, through a variable too, or `model, loss = torch.load(path)`), or where the same
program saves a model, or an object of a class of its own, under that path, or in a file that it opens there. So it does
where the program saves its settings in its checkpoints, `"args": args`, a number of NumPy,
`"best": np.mean(scores)` or `"best": np.sqrt(error)`, the state of an optimizer whose learning rate NumPy works out
(`group["lr"] = rate * np.power(0.9, epoch)`, or the function of a `LambdaLR`), or an object of a class of its own,
`"meter": meter`, and asks what is loaded for the keys of such a checkpoint alone, and where it saves a list under that
path and reads attributes of what stands in it, `[f.input_ids for f in features]`, and where a function keeps what
transformers gives it (`squad_convert_examples_to_features`) in a file of its own.

## Why
Since PyTorch 2.6 `torch.load` reads tensors and plain containers only: a pickled model raises UnpicklingError, and so
does an `argparse.Namespace`, a `CfgNode` or a `numpy.float64` beside the weights. With
`weights_only=False` the file can run any code while it is loaded, as it always could: do so with files you trust.

## Before
    model = torch.load("model.pt")
    model.eval()

## After
    model = torch.load("model.pt", weights_only=False)
    model.eval()

## When it declines
Where the object is read like a dictionary of tensors, or handed to `load_state_dict`, and no checkpoint of the program
is known to hold settings, numbers of NumPy, or objects of its classes, beside these keys.

## Leaving it out
Yes: the line stays and raises UnpicklingError since PyTorch 2.6.

## Source
https://pytorch.org/docs/stable/generated/torch.load.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from amp_rules.plan.context import Change
from amp_rules.plan.old_torch.old import OldProgram, Use, change
from amp_rules.plan.old_torch.pickled import Kind, pickled
from amp_rules.plan.rule import Rule
from amp_rules.roles.kinds import is_module
from amp_rules.source import blocks
from amp_rules.source.syntax import walk
from amp_rules.text.actions import Replace
from amp_rules.text.expression_edits import add_keyword
from amp_rules.torch.gradients import FACTS_OF_TENSORS
from amp_rules.torch.old_torch import GIVES_FEATURES

RULE = Rule("AMP511", "load-objects", "Whole objects are loaded as such.", "modern", optional=True)

_OF_MODELS = frozenset(
    {"apply", "children", "eval", "modules", "named_modules", "named_parameters", "parameters", "state_dict", "train"}
)
_GIVES_ITSELF = frozenset({"bfloat16", "cpu", "cuda", "double", "float", "half", "to"})
"""Methods of tensors and models, of which a model gives itself."""
_OF_TENSORS = FACTS_OF_TENSORS | {"T", "data", "grad", "imag", "real"}
_HELD: dict[Kind, str] = {
    "settings": "the script's own checkpoints hold its settings, which are no tensors",
    "numbers": "the script's own checkpoints hold numbers of NumPy, which are no tensors",
    "objects": "the script's own checkpoints hold objects of its classes, which are no tensors",
}
_MAX_NAMES = 3
"""Variables that a loaded object, or an entry of it, goes through."""


def changes(old: OldProgram) -> Iterator[Change]:
    """Yield an edit for each file that holds a model."""
    saved = {ast.dump(_file(use, call.args[1])): what for use, call, what in _saves(old)}
    written = {ast.dump(_file(use, call.args[1])) for use, call in _all_saves(old)}
    checkpoints = list(pickled(old))
    for use in old.uses_of("torch.load"):
        call = use.call
        if use.target != "torch.load" or call is None or not call.args:
            continue
        if any(item.arg in ("weights_only", "pickle_module", None) for item in call.keywords) or len(call.args) > 2:
            continue
        why = ""
        if _is_used_as_model(old, use, call):
            why = "what it gives is used as a model"
        elif (file := ast.dump(_file(use, call.args[0]))) in saved:
            why = f"{saved[file]} is saved there"
        elif file in written and _is_list_of_objects(old, use, call):
            why = "objects of a class are saved there"
        elif name := _kept_of_library(old, use, call):
            why = f"what `{name}` gives is saved there"
        elif read := _keys_read(old, use, call):
            why = next((_HELD[kind] for keys, kind in checkpoints if read <= keys), "")
        if why:
            message = f"{why}; the file can run code while it is loaded, so load only files that you trust"
            yield change(RULE, use.module, call, message, Replace(call, add_keyword("weights_only=False")))


def _all_saves(old: OldProgram) -> Iterator[tuple[Use, ast.Call]]:
    for use in old.uses_of("torch.save"):
        call = use.call
        if use.target == "torch.save" and call is not None and len(call.args) >= 2:
            yield use, call


def _kept_of_library(old: OldProgram, use: Use, call: ast.Call) -> str:
    """The function of transformers whose samples the body that loads a file saves under the same path.

    ``torch.save({"features": features, "dataset": dataset}, path)``; it gives objects of its classes, and data sets.
    """
    body, file = blocks.body_of(use.module, call), ast.dump(_file(use, call.args[0]))
    saved = [
        save.args[0]
        for other, save in _all_saves(old)
        if blocks.body_of(other.module, save) is body and ast.dump(_file(other, save.args[1])) == file
    ]
    names = {part.id for item in saved for part in _parts(item) if isinstance(part, ast.Name)}
    for node in blocks.walk_body(body) if names else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target = old.tensors.names[use.module].target(node.value.func) or ""
        given = {part.id for item in node.targets for part in _parts(item) if isinstance(part, ast.Name)}
        if given & names and target.startswith("transformers.") and target.endswith(GIVES_FEATURES):
            return blocks.path_of(node.value.func) or target
    return ""


def _parts(node: ast.expr) -> list[ast.expr]:
    """What a dictionary, a list or a tuple that is written out holds; the expression itself where it is none."""
    if isinstance(node, ast.Dict):
        return node.values
    return node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]


def _saves(old: OldProgram) -> Iterator[tuple[Use, ast.Call, str]]:
    """The calls that save a whole model, or an object of another class of the project, and which of the two."""
    for use, call in _all_saves(old):
        scope = old.tensors.names[use.module].scope_of(call)
        # A variable that holds a model may have been given one that was saved before, too.
        values = [value for value in old.program.flow.values(call.args[0], scope) if value.ref != "torch.load"]
        if values and all(map(is_module, values)):
            yield use, call, "a whole model"
        elif values and all(value.kind == "instance" for value in values):
            yield use, call, "an object of the project's own class"


def _file(use: Use, node: ast.expr) -> ast.expr:
    """The path of a file: of ``f``, what the ``with open(path, "rb") as f:`` around it is given."""
    if not isinstance(node, ast.Name):
        return node
    opened = blocks.opened_around(use.module, node, node.id)
    is_open = isinstance(opened, ast.Call) and blocks.path_of(opened.func) == "open"
    return opened.args[0] if is_open and isinstance(opened, ast.Call) and opened.args else node


def _keys_read(old: OldProgram, use: Use, call: ast.Call) -> set[str]:
    """The keys that the variable which takes a loaded object is asked for, each by a text.

    Another branch asks what it loads itself.
    """
    parent = use.module.parents[call]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return set()
    key = old.tensors.key(use.module, parent.targets[0])
    if key is None:
        return set()
    is_it = partial(_is_variable, old, use, key)
    asked = [
        _key_asked(use, node)
        for node in use.module.parents
        if isinstance(node, ast.expr) and is_it(node) and not _is_elsewhere(use, parent, node)
    ]
    return {item for item in asked if item is not None}


def _is_elsewhere(use: Use, loading: ast.stmt, read: ast.expr) -> bool:
    """Whether a read stands in another branch than the statement that loads."""
    return blocks.exclude_each_other(use.module, loading, blocks.statement_of(use.module, read))


def _key_asked(use: Use, node: ast.expr) -> str | None:
    """``"model"`` of ``checkpoint["model"]``."""
    parent = use.module.parents[node]
    if not (isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.slice, ast.Constant)):
        return None
    return parent.slice.value if isinstance(parent.slice.value, str) else None


def _is_used_as_model(old: OldProgram, use: Use, node: ast.expr, depth: int = _MAX_NAMES) -> bool:
    """Whether the object, an entry of it or the variable that takes one is called or asked for what a model has."""
    if _asks(use, node):
        return True
    parent = use.module.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node and _is_text(parent.slice):
        node, parent = parent, use.module.parents[parent]
    if not isinstance(parent, ast.Assign) or parent.value is not node or len(parent.targets) != 1 or not depth:
        return False
    target = parent.targets[0]
    for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,):
        key = old.tensors.key(use.module, item)
        if key is not None and any(
            _is_used_as_model(old, use, read, depth - 1) for read in _reads_of(old, use, parent, key)
        ):
            return True
    return False


def _reads_of(old: OldProgram, use: Use, loading: ast.stmt, key: tuple[ast.AST, str]) -> list[ast.expr]:
    """The places where a variable holds what was loaded."""
    reads = [item for item in use.module.parents if isinstance(item, ast.expr) and _is_variable(old, use, key, item)]
    if len(old.tensors.definitions(use.module).get(key, [])) != 1:
        reads = [item for item in reads if _is_of_this(old, use, loading, key, item)]
    return reads


def _is_of_this(old: OldProgram, use: Use, loading: ast.stmt, key: tuple[ast.AST, str], read: ast.expr) -> bool:
    """Whether a statement behind the loading one, in the same block or one around, reads what was loaded there.

    Behind ``if``, it may be what another branch gives: a model as well, for it is used as one.
    """
    place: ast.stmt = loading
    while True:
        where = blocks.place(use.module, place)
        for statement in where.suite[where.index + 1 :]:
            if any(part is read for part in walk(statement)):
                return True
            if any(_is_given_anew(old, use, key, part) for part in walk(statement)):
                return False
        if not isinstance(where.parent, (ast.With, ast.If)):
            return False
        place = where.parent


def _is_given_anew(old: OldProgram, use: Use, key: tuple[ast.AST, str], node: ast.AST) -> bool:
    """Whether the variable is assigned something else there; ``model = model.float()`` leaves it what it is."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or isinstance(node.ctx, ast.Load):
        return False
    if old.tensors.key(use.module, node) != key:
        return False
    value = getattr(use.module.parents[node], "value", None)
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return True
    return not _is_variable(old, use, key, value.func.value)


def _is_list_of_objects(old: OldProgram, use: Use, call: ast.Call) -> bool:
    """Whether attributes are read of what a loop takes out of the variable, which no tensor or container has."""
    parent = use.module.parents[call]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    key = old.tensors.key(use.module, parent.targets[0])
    for node in use.module.parents if key is not None else ():
        if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or not isinstance(node.generators[0].iter, ast.Name):
            continue
        over, element = node.generators[0].iter, node.generators[0].target
        if old.tensors.key(use.module, over) == key and isinstance(element, ast.Name):
            read = node.elt
            if isinstance(read, ast.Attribute) and isinstance(read.value, ast.Name) and read.value.id == element.id:
                if read.attr not in _OF_TENSORS:
                    return True
    return False


def _is_variable(old: OldProgram, use: Use, key: tuple[ast.AST, str], node: ast.expr) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return False
    return old.tensors.key(use.module, node) == key


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _asks(use: Use, node: ast.expr) -> bool:
    """Whether the expression is called, or its method that only models have."""
    parent = use.module.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node and _is_text(parent.slice):
        node, parent = parent, use.module.parents[parent]  # ``checkpoint["model"].state_dict()``
    if isinstance(parent, ast.Attribute) and parent.attr == "module":
        node, parent = parent, use.module.parents[parent]  # the model in a wrapper
    while isinstance(parent, ast.Attribute) and parent.attr in _GIVES_ITSELF:
        call = use.module.parents[parent]
        if not isinstance(call, ast.Call) or call.func is not parent:
            break
        node, parent = call, use.module.parents[call]  # ``checkpoint["model"].float().state_dict()``
    if isinstance(parent, ast.Call):
        return parent.func is node
    if not isinstance(parent, ast.Attribute) or parent.attr not in _OF_MODELS:
        return False
    above = use.module.parents[parent]
    return isinstance(above, ast.Call) and above.func is parent
