"""The generators that a program draws from, and what makes them the same on all processes."""

from __future__ import annotations

import ast
from collections.abc import Callable

from amp_rules.flow.statements import is_main_guard
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.drawn_samples import draws_samples
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import FunctionNode
from amp_rules.torch.replication import DRAWING_METHODS, DRAWS, GENERATORS, NOT_DRAWN, SEEDS

_STATES = {
    "torch": ("{torch}.get_rng_state()", "{torch}.set_rng_state"),
    "random": ("{random}.getstate()", "{random}.setstate"),
    "numpy": ("{np}.random.get_state()", "{np}.random.set_state"),
}

_APART = {
    "torch": "{torch}.manual_seed({torch}.initial_seed() + {RANK})",
    "random": "{random}.seed({random}.randrange(2**31) + {RANK})",
    "numpy": "{np}.random.seed({np}.random.randint(2**31) + {RANK})",
}
"""The first process goes on with the numbers that it would draw alone."""

_SEEDS_ALL = frozenset(
    {"transformers.set_seed", "transformers.trainer_utils.set_seed", "lightning.seed_everything",
     "pytorch_lightning.seed_everything", "lightning.pytorch.seed_everything", "accelerate.utils.set_seed"}
)  # fmt: skip

DRAWS_FROM_NUMPY = frozenset({"sklearn", "scipy", "pandas"})
"""Libraries that draw from NumPy's generator of the process where they are given none."""

DRAW_NOTHING = frozenset(
    {
        "torch", "torchvision", "torchaudio", "numpy", "amp_runtime", "tqdm", "matplotlib", "PIL", "cv2", "yaml",
        "tensorboard", "tensorboardX", "wandb", "sklearn", "scipy", "pandas", "einops", "h5py", "omegaconf",
        "unidecode", "termcolor", "colorama", "tabulate", "prettytable", "imageio", "seaborn", "visdom", "psutil",
        "requests", "click", "fire", "docopt", "easydict", "apex", "mpl_toolkits", "onnx", "onnxruntime",
    }
)  # fmt: skip
"""Libraries that take no numbers from Python's generators while a batch is worked on, unless they are told to."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_LISTING = frozenset({"locals", "globals", "vars", "dir"})
"""Functions that list the variables of the place where they are called."""

_MAX_CALLS = 8
"""Calls from the entry to where a script sets its seeds; helpers of helpers do so in two or three."""


def same_states(module: Module, libraries: list[str]) -> str:
    """The lines, a template within a block, with which every process goes on with the random numbers of the first."""
    is_taken = names_of(module).is_taken
    name = next(item for item in ("states", "random_states", "states_of_generators") if not is_taken(item))
    getters = ", ".join(_STATES[library][0] for library in libraries)
    setters = [f"    {_STATES[library][1]}({name}[{index}])" for index, library in enumerate(libraries)]
    head = [
        f"    {name} = [{getters}]",
        f"    {{dist}}.broadcast_object_list({name})  # all draw the same random numbers",
    ]
    gone = [f"    del {name}"] if _lists_variables(module) else []
    return "\n".join([*head, *setters, *gone])


def _lists_variables(module: Module) -> bool:
    """Whether a script takes all variables of a place as they are: ``Config(locals().copy())``, which it may save."""
    return any(
        isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Name) and node.func.id in _LISTING
        for node in module.nodes
    )


def apart(libraries: list[str]) -> str:
    """The lines, a template, from which on all processes but the first draw other random numbers than that."""
    lines = ["if {RANK} > 0:", *(f"    {_APART[library]}" for library in libraries)]
    lines[1] += "  # each process draws its own noise"
    return "\n".join(lines)


def drawn_from(program: Program) -> list[str]:
    """The libraries whose generators the program draws from: torch, for weights at least."""
    imported = {name.split(".")[0] for name in program.flow.imported}
    found = ["torch"]
    if "random" in imported:
        found.append("random")
    if "numpy" in imported and (imported & DRAWS_FROM_NUMPY or _names_numpy_random(program)):
        return [*found, "numpy"]
    makes_samples = any(draws_samples(program.callee_names(call, scope), call) for call, _, scope in program.calls())
    return [*found, "numpy"] if makes_samples else found


def _names_numpy_random(program: Program) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and any(name == "numpy.random" or name.startswith("numpy.random.") for name in program.names(node, scope))
        for node, _, scope in program.nodes()
    )


def draws_of(program: Program) -> list[ast.Call]:
    """The calls that draw from the generators of the process."""
    found = []
    for call, _, scope in program.calls():
        names = program.callee_names(call, scope) - NOT_DRAWN - GENERATORS
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr in DRAWING_METHODS
        if is_method or any(name.startswith(DRAWS) for name in names) or draws_samples(names, call):
            found.append(call)
    return found


def library_of(program: Program, call: ast.Call) -> str:
    """The library whose generator a call draws from."""
    located = program.locate(call)
    names = program.callee_names(call, located[1]) if located is not None else set()
    if draws_samples(names, call):
        return "numpy"
    return next((root for name in names for root in ("random", "numpy") if name.startswith(f"{root}.")), "torch")


def seeds_of(program: Program) -> list[Site]:
    """Where the script seeds generators of the process."""
    return program.calls_to(SEEDS | _SEEDS_ALL)


def is_seeded(program: Program, library: str) -> bool:
    """Whether the script seeds a library's generator before it draws, whatever it is started with."""
    draws = set(draws_of(program))
    is_drawn = program.closure(lambda node: node in draws)
    for site in seeds_of(program):
        assert isinstance(site.node, ast.Call)
        names = program.callee_names(site.node, site.scope)
        seeds = names & _SEEDS_ALL or any(
            name.split(".")[0] == library and not name.startswith("torch.cuda") for name in names
        )
        if seeds and _is_number(program, site.node) and _comes_first(program, site.module, site.node, is_drawn):
            return True
    return False


def _is_number(program: Program, call: ast.Call) -> bool:
    """Whether a seed is certain to be a number: None lets the system choose, but for torch, which refuses it."""
    given = [*call.args, *(item.value for item in call.keywords)][:1]
    if not given:
        return False
    others = [site.node for site in program.calls_to(frozenset({"torch.manual_seed", "torch.random.manual_seed"}))]
    of_torch = {ast.unparse(item) for other in others if isinstance(other, ast.Call) for item in other.args}
    return (isinstance(given[0], ast.Constant) and given[0].value is not None) or ast.unparse(given[0]) in of_torch


def _comes_first(
    program: Program, module: Module, node: ast.AST, is_drawn: Callable[[ast.AST], bool], depth: int = 0
) -> bool:
    """Whether the script comes to a node once it is started, whatever it is told, and draws nothing on the way."""
    statement = blocks.statement_of(module, node)
    around = [item for item in blocks.enclosing(module, statement) if not isinstance(item, ast.With)]
    body = blocks.body_of(module, node)
    for item in [statement, *blocks.enclosing(module, statement)]:
        where = blocks.place(module, item)
        above = [other for other in where.suite[: where.index] if not isinstance(other, _DEFINITIONS)]
        if any(map(is_drawn, above)):
            return False
    if isinstance(body, ast.Module):
        return all(isinstance(item, ast.If) and is_main_guard(item) and module.is_entry for item in around)
    if around or not isinstance(body, FunctionNode) or isinstance(body, ast.Lambda) or depth > _MAX_CALLS:
        return False
    return any(
        _comes_first(program, caller.scope.module, caller.call, is_drawn, depth + 1)
        for caller in program.flow.callers(program.flow.functions[body])
    )
