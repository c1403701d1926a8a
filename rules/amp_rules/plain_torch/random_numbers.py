"""Random numbers that all processes draw alike, or each for itself."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.ranks import from_main_process, put
from amp_rules.plain_torch.streams import Streams
from amp_rules.plain_torch.translation import Translate, Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.source import blocks
from amp_rules.source.resolver import names_of
from amp_rules.text.expression_edits import call_with, substitute
from amp_rules.torch.replication import DRAWING_METHODS, RESETTING, SEEDS

_APART = {
    "torch": "    {torch}.manual_seed({torch}.initial_seed() + {RANK})",
    "random": "    {random}.seed({torch}.initial_seed())",
    "numpy": "    {np}.random.seed({torch}.initial_seed() % 2**32)",
}
"""The seeds follow torch's, which differ: by these lines, or as each process has its own from the start."""

_WEIGHTS = """\
if {WORLD_SIZE} > 1:
    for parameter in %s.parameters():
        {dist}.broadcast(parameter.data, src=0)"""

_OF_CPU = frozenset({"torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.normal"})
"""Draws whose tensors lie on the CPU unless they are told a device."""


def _drawn_alike(translation: Translation, use: Use) -> None:
    """``amp.drawn_alike(random.choice)(tasks)``: the first process's draw on all; weights are broadcast."""
    outer = use.module.parents[use.call] if use.call is not None else None
    if use.call is None or not (isinstance(outer, ast.Call) and outer.func is use.call):
        _decline(translation, use, f"`{use.module.text(use.whole)}` is handed on")
        return
    function = use.argument
    names = translation.program.names(function, use.scope)
    translation.replace(use.module, use.call, substitute(use.module.text(function)))
    if names & SEEDS:
        return  # one seed on all processes is the same draw on all
    if isinstance(use.module.parents[outer], ast.Expr):
        _weights(translation, use, outer, names)
        return
    roots = {name.split(".")[0] for name in names}
    if roots and not any(map(translation.part(Streams).parts, roots)) and not any(translation.uses_of("seed_by_rank")):
        return  # nothing leads the processes' generators apart
    is_tensor = any(name.startswith("torch.") for name in names)
    is_elsewhere = not names & _OF_CPU or any(item.arg == "device" for item in outer.keywords)
    if not names or (is_tensor and is_elsewhere):
        _decline(translation, use, f"`{use.module.text(outer)}` may lie on another device in each process")
        return
    helper = from_main_process(translation, use)
    translation.replace(use.module, outer, call_with(helper))


def _weights(translation: Translation, use: Use, call: ast.Call, names: set[str]) -> None:
    """Weights that are drawn anew are those of the first process on all."""
    function = use.argument
    drawn: ast.expr | None = None
    if any(name.startswith("torch.nn.init.") for name in names):
        drawn = call.args[0] if call.args else None
    elif isinstance(function, ast.Attribute) and (
        function.attr in RESETTING or function.attr == "apply" or function.attr in DRAWING_METHODS
    ):
        drawn = function.value
    model = _model_of(translation, use, drawn) if drawn is not None else None
    if model is None or names_of(use.module).is_taken("parameter"):
        _decline(translation, use, f"`{use.module.text(call)}` draws what is not found again")
    else:
        translation.insert(use.module, use.statement, _WEIGHTS % use.module.text(model), after=True)


def _model_of(translation: Translation, use: Use, drawn: ast.expr) -> ast.expr | None:
    """The model that weights belong to, as the outermost one that the expression names."""
    found = None
    node = drawn
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Name)):
        if translation.program.roles.modules(node, use.scope):
            found = node
        if isinstance(node, ast.Name):
            return found
        node = node.value
    return None


def _same_seed(translation: Translation, use: Use) -> None:
    """``np.random.default_rng(amp.same_seed())``: a seed of all where there are several processes, else none."""
    translation.part(Streams).seeds += 1
    more = f" + {translation.part(Streams).seeds - 1}" if translation.part(Streams).seeds > 1 else ""
    seed = f"({{torch}}.initial_seed(){more}) % 2**32" if more else "{torch}.initial_seed() % 2**32"
    put(translation, use.module, use.whole, seed + " if {WORLD_SIZE} > 1 else None")


def _seed_of_rank(translation: Translation, use: Use) -> None:
    """``amp.seed_of_rank(seed)`` becomes ``seed + RANK``."""
    if use.call is None or len(use.call.args) != 1:
        _decline(translation, use, f"`{use.module.text(use.whole)}` is used in a way that is not understood")
        return
    seed = use.argument
    values = translation.program.flow.values(seed, use.scope)
    is_number = bool(values) and all(value.kind == "constant" and type(value.ref) is int for value in values)
    text = use.module.text(seed)
    if blocks.path_of(seed) is None and not isinstance(seed, ast.Constant):
        text = f"({text})"
    code = f"{text} + {{RANK}}"
    if not is_number:
        code += f" if isinstance({use.module.text(seed)}, int) else {text}"
    put(translation, use.module, use.call, code)


def _seed_by_rank(translation: Translation, use: Use) -> None:
    """From ``amp.seed_by_rank()`` on each process draws numbers of its own."""
    if not use.is_statement:
        _decline(translation, use, f"`{use.module.text(use.whole)}` is used in a way that is not understood")
        return
    lines = [_APART[library] for library in translation.part(Streams).alike]
    if not lines:
        translation.take_out(use)
        return
    lines[0] += "  # each process draws its own batches"
    translation.put_for(use, "\n".join(["if {WORLD_SIZE} > 1:", *lines]))


def _seed_alike(translation: Translation, use: Use) -> None:
    """``amp.seed_alike()``: all go on with the numbers of the first process."""
    if not use.is_statement:
        _decline(translation, use, f"`{use.module.text(use.whole)}` is used in a way that is not understood")
        return
    translation.put_for(use, translation.part(Streams).same_again(use.module))


def _same_order(translation: Translation, use: Use) -> None:
    """``amp.same_order(names)``: sorted where there are several processes."""
    if use.call is None or len(use.call.args) != 1:
        _decline(translation, use, f"`{use.module.text(use.whole)}` is used in a way that is not understood")
        return
    elements = use.module.text(use.argument)
    put(translation, use.module, use.call, f"sorted({elements}, key=str) if {{WORLD_SIZE}} > 1 else {elements}")


def _same_hash(translation: Translation, use: Use) -> None:
    translation.decline(
        use.module,
        use.node,
        f"`{use.module.text(use.whole)}` has to be the same in all processes, and Python hashes texts anew in each",
        "take a hash of the content (`zlib.crc32(word.encode())`), or keep the runtime (--target runtime)",
        "distribution",
    )


def _decline(translation: Translation, use: Use, message: str) -> None:
    translation.decline(
        use.module,
        use.node,
        message,
        "draw it from a generator of its own with one seed on all processes, or keep the runtime (--target runtime)",
        "distribution",
    )


WORDS: dict[str, Translate] = {
    "drawn_alike": _drawn_alike,
    "same_seed": _same_seed,
    "seed_of_rank": _seed_of_rank,
    "seed_by_rank": _seed_by_rank,
    "seed_alike": _seed_alike,
    "same_order": _same_order,
    "same_hash": _same_hash,
}
