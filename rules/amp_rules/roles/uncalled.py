"""Functions that nothing in the program can call: what stands in them is not run with it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Set
from weakref import WeakKeyDictionary

from amp_rules.flow.statements import is_main_guard
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.roles.uncalled_methods import only_without_gradients, uncalled_methods
from amp_rules.roles.uncalled_objects import uncalled_objects
from amp_rules.roles.workers import training_workers
from amp_rules.source.modules import Module
from amp_rules.source.resolver import bound_name
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import COMPREHENSIONS, last_name, names_written, walk
from amp_rules.torch.gradients import GRADIENT_HOOKS

_BY_TEXT = frozenset(
    {"__dict__", "__import__", "Fire", "eval", "exec", "getmembers", "globals", "import_module", "locals", "vars"}
)
"""By these a function is found without its name being written."""


_FOUND: WeakKeyDictionary[Program, frozenset[ast.AST]] = WeakKeyDictionary()
"""What is known of each program: several parts of the plan ask for it."""


def without_idle_steps(program: Program) -> Program:
    """The program without functions of older versions: nothing calls them, and nothing gives what they step or train.

    Nor with those that only read gradients, as normals of a surface are that another script draws. A script that
    imports such a function trains in full precision with it, as before.
    """
    unknown = {site.body for site in program.unknown_steps} | _of_unknown_models(program) | _of_gradients(program)
    idle = set(unknown & uncalled(program)) if unknown else set()
    idle |= _with_idle_hooks(program)
    return Program(program.project, program.flow, idle) if idle else program


def _with_idle_hooks(program: Program) -> set[ast.AST]:
    """What hangs hooks into backward passes in the ``__call__`` of objects that are only made, as maps of a class are.

    With it go the backward passes that such hooks are for, in the ``__call__`` of other such objects, and what is
    defined within.
    """
    hooked = _objects_calls_with(program, GRADIENT_HOOKS)
    if not hooked or program.entry.cells or not _trains(program) or finds_any_by_text(program):
        return set()
    found = uncalled_objects(program, uncalled(program))
    if hooked.isdisjoint(found):
        return set()
    idle = found & (hooked | _objects_calls_with(program, {"backward"}))
    return {node for body in idle for node in walk(body) if isinstance(node, FunctionNode)}


def _objects_calls_with(program: Program, names: Set[str]) -> set[ast.AST]:
    """The ``__call__`` methods in which some attributes are asked for."""
    return {
        parent
        for node, body, scope in program.nodes()
        if isinstance(node, ast.Attribute) and node.attr in names
        for parent in (body, *scope.module.ancestors(body))
        if isinstance(parent, ast.FunctionDef) and parent.name == "__call__"
    }


def finds_any_by_text(program: Program) -> bool:
    """Whether the program looks functions up by a text, so that one may run whose call is not known."""
    return any(found_by_text(program, scope.module, node) != frozenset() for node, _, scope in program.nodes())


def _of_unknown_models(program: Program) -> set[ast.AST]:
    """Functions without a caller whose steps train what they would be given, beside others of which more is known."""
    infos = {step: program.function_of(step.body) for step in program.steps}
    if all(info is None or program.flow.callers(info) for info in infos.values()):
        return set()
    unknown = {step: all(model.is_given_model for model in program.models_of_step(step)) for step in program.steps}
    found = {
        step.body
        for step, info in infos.items()
        if unknown[step] and info is not None and not program.flow.callers(info)
    }
    return found if not all(unknown.values()) else set()


def _of_gradients(program: Program) -> set[ast.AST]:
    """Functions that read gradients and make no step."""
    stepping = {parent for step in program.steps for parent in (step.body, *step.module.ancestors(step.body))}
    bodies = {access.body for access in gradient_accesses(program)} - stepping
    return {body for body in bodies if isinstance(body, FunctionNode)}


def uncalled(program: Program) -> frozenset[ast.AST]:
    """The functions and methods of a script that trains by itself which nothing in it can call.

    Functions that something decorates or that are defined in one which is called may be called by others, as may
    everything in a notebook, in a file that runs no training by itself, and where functions are looked up by a text.
    """
    found = _FOUND.get(program)
    if found is None:
        functions = _uncalled_functions(program) if not program.entry.cells and _trains(program) else None
        idle = set() if functions is None else functions | uncalled_methods(program, functions)
        # What is defined within is made by nobody.
        found = frozenset(idle | {node for body in idle for node in walk(body) if isinstance(node, FunctionNode)})
        _FOUND[program] = found
    return found


def _trains(program: Program) -> bool:
    """Whether running the script trains, in its own process or in others that it starts."""
    return (
        any(map(program.runs_backward, program.entry.tree.body))
        or any(site.module is program.entry for site, _ in training_workers(program))
        or _hands_on_training(program)
    )


def _hands_on_training(program: Program) -> bool:
    """``app.run(main)``: whether the file's own suite gives a library the function that trains."""
    given = (
        (argument, scope)
        for call, body, scope in program.calls()
        if body is program.entry.tree and not program.flow.callees(call)
        for argument in (*call.args, *(item.value for item in call.keywords))
        if isinstance(argument, (ast.Name, ast.Attribute))
    )
    return any(
        value.kind == "function" and any(map(program.runs_backward, getattr(value.ref.node, "body", ())))
        for argument, scope in given
        for value in program.flow.values(argument, scope)
    )


def _uncalled_functions(program: Program) -> set[ast.AST]:
    """The plain functions whose names are written nowhere but in each other."""
    candidates = _candidates(program)
    if not candidates:
        return set()
    written: defaultdict[tuple[Module | None, str], set[ast.AST]] = defaultdict(set)
    by_text: set[Module] = set()
    for module in program.flow.modules:
        imported = _imported_names(module)
        own = _own_names(module, imported)
        for statement in module.tree.body:
            if module is not program.entry and isinstance(statement, ast.If) and is_main_guard(statement):
                continue  # it runs where the file is the script
            for node in walk(statement):
                found_here = found_by_text(program, module, node)
                if found_here is None:
                    return set()
                by_text |= found_here
                if isinstance(node, ast.Attribute) and not _may_be_of_module(program, node, imported):
                    continue
                for name in names_written(node):
                    written[module if isinstance(node, ast.Name) and name in own else None, name].add(statement)
    named = {name for module in by_text for name in _imported_names(module)}
    if "*" in named:
        return set()
    alive = {node for node, (module, name) in candidates.items() if module not in by_text and name not in named}
    found: set[ast.AST] = set()

    def calls(node: ast.AST) -> set[ast.AST]:
        module, name = candidates[node]
        return written[None, name] | written[module, name]

    # What only uncalled functions call is not called either.
    while added := {node for node in alive if calls(node) <= {*found, node}}:
        found |= added
        alive -= added
    return found


def _own_names(module: Module, imported: set[str]) -> set[str]:
    """The names that a file's own functions have, and that it imports from nowhere."""
    made = {item.name for item in module.tree.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return made - imported if "*" not in imported else set()


def _imported_names(module: Module) -> set[str]:
    """The names that a file imports anywhere; ``*`` among them where it imports all of another file's."""
    return {
        bound_name(alias)
        for node in walk(module.tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _may_be_of_module(program: Program, node: ast.Attribute, imported: set[str]) -> bool:
    """Whether an attribute may be a function of a file: ``model.train`` is none, where nothing imports ``model``."""
    owner = node.value
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    if not isinstance(owner, ast.Name) or owner.id in imported:
        return True
    located = program.locate(node)
    values = program.flow.values(node.value, located[1]) if located is not None else set()
    if located is None or ("*" in imported and not values):
        return True
    return any(value.kind == "module" for value in values)


def _candidates(program: Program) -> dict[ast.AST, tuple[Module, str]]:
    """Plain functions of the files, which no decorator gives to others, each with its file and name."""
    return {
        statement: (module, statement.name)
        for module in program.flow.modules
        for statement in module.tree.body
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        if only_without_gradients(statement.decorator_list)
    }


def found_by_text(program: Program, module: Module, node: ast.AST) -> frozenset[Module] | None:
    """The files of whose functions a node may give one whose name it does not write; None for any.

    What the names of a file are asked for in a dictionary, ``models.__dict__[name]``, is one that the file has.
    """
    if isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _BY_TEXT:
        if isinstance(node, ast.Attribute) and node.attr == "eval":
            return frozenset()  # ``model.eval()``
        return frozenset() if _is_of_function(module, node) else _asked_of(program, module, node)
    if not (isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1):
        return frozenset()
    if isinstance(node.args[1], ast.Constant):
        return frozenset()
    located = program.locate(node)
    if located is None:
        # Nothing runs the function around it; what is a variable of that is no file.
        return frozenset() if _is_of_function(module, node.args[0]) else None
    values = program.flow.values(node.args[0], located[1])
    return frozenset(value.ref for value in values if value.kind == "module")


def _is_of_function(module: Module, node: ast.AST) -> bool:
    """Whether a name is a parameter or variable around it: ``def convert(vars):``, ``[eval for eval in runs]``."""
    if not isinstance(node, ast.Name):
        return False
    around = (parent for parent in module.ancestors(node) if isinstance(parent, (FunctionNode, *COMPREHENSIONS)))
    return any(
        (isinstance(parent, FunctionNode) and node.id in {item.arg for item in arguments_of(parent)})
        or any(
            isinstance(part, ast.Name) and part.id == node.id and isinstance(part.ctx, ast.Store)
            for part in walk(parent)
        )
        for parent in around
    )


def _asked_of(program: Program, module: Module, node: ast.expr) -> frozenset[Module] | None:
    """The files whose names ``vars(models)`` and ``models.__dict__`` give; none where it is an object that is asked."""
    parent = module.parents[node]
    owner: ast.expr | None = None
    if _is_taken_over(module, node):
        return frozenset()
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        owner = node.value
    elif isinstance(node, ast.Name) and node.id == "vars" and isinstance(parent, ast.Call) and parent.func is node:
        owner = parent.args[0] if len(parent.args) == 1 else None
    located = program.locate(node) if owner is not None else None
    values = program.flow.values(owner, located[1]) if owner is not None and located is not None else set()
    if not values and isinstance(owner, ast.Name) and (_is_made_here(module, owner) or _is_receiver(module, owner)):
        return frozenset()
    if not values or not all(value.kind in _WITHOUT_FUNCTIONS or value.kind == "module" for value in values):
        return None
    return frozenset(value.ref for value in values if value.kind == "module")


def _is_taken_over(module: Module, node: ast.expr) -> bool:
    """Whether one object gets all attributes of another, under their names: ``a.__dict__.update(b.__dict__)``."""
    call = module.parents[node]
    updated = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "update"
        and call.args == [node]
        and all(isinstance(item, ast.Attribute) and item.attr == "__dict__" for item in (node, updated))
        and isinstance(module.parents[call], ast.Expr)
    )


_WITHOUT_FUNCTIONS = frozenset({"object", "instance", "sequence", "external"})
"""What has none of the program's functions among its attributes, for all that a text can ask for."""


def _is_made_here(module: Module, name: ast.Name) -> bool:
    """Whether the function around a name gives it what calls make: ``args = parser.parse_args()``."""
    body = next((item for item in module.ancestors(name) if isinstance(item, FunctionNode)), module.tree)
    given = [
        node.value
        for node in walk(body)
        if isinstance(node, ast.Assign)
        if any(isinstance(part, ast.Name) and part.id == name.id for item in node.targets for part in walk(item))
    ]
    return bool(given) and all(isinstance(item, ast.Call) for item in given)


def _is_receiver(module: Module, name: ast.Name) -> bool:
    """Whether a name is the object of the method around it: ``"{avg}".format(**self.__dict__)``."""
    body = next((item for item in module.ancestors(name) if isinstance(item, FunctionNode)), None)
    if body is None or not isinstance(module.parents[body], ast.ClassDef):
        return False
    first = next(arguments_of(body), None)
    return first is not None and first.arg == name.id
