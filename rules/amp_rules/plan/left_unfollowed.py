"""Scripts in which no backward pass was found although they train, by all that they say: why it was not found."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.file_names import name_of, place_of
from amp_rules.plan.library_uses import imports_torch
from amp_rules.plan.unresolved import comes_of, iterated_for, trail_end
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name
from amp_rules.torch.frameworks import OTHERS_TENSORS
from amp_rules.torch.idioms import NAMED_OPTIMIZER, NAMED_TRAINER, NAMED_TRAINING, NO_STEP, NO_TRAINING
from amp_rules.torch.mixed_precision import SCALERS
from amp_rules.torch.packages import is_known_library

_RECIPES = {
    True: "construct what trains by the name of its class, so that it can be followed; or migrate the file that trains "
    "by itself",
    False: "call what trains by the name that it is defined under, so that it can be followed; or migrate the file "
    "that trains by itself",
}
"""What to do where a method may train, and where what is called by a name alone may."""
_RECIPE_OF_OWN = "where that is what trains, use its own mixed precision; else migrate the file that trains by itself"
_MAKES_NAMES = ("globals(", "exec(", "__getattr__", "sys.modules")
"""What gives a file names that no statement of it says."""
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def reasons(program: Program) -> Iterator[Declined]:
    """Yield what may train and could not be followed, the first of each kind that settles it."""
    if OTHERS_TENSORS.search(program.entry.source.text):
        return
    yield from _unread(program)
    for node, scope in _named_for_training(program):
        found = _import_of(program, node, scope)
        if found is not None:
            module, statement, name = found
            yield declining.decline(
                declining.UNREADABLE,
                module,
                statement,
                f"no backward pass was found: `{scope.module.text(node)}` may run one, and `{name}` was not found in "
                "this project",
                "start from a folder that has it, or say where it is: in `sys.path`, the packaging, or `PYTHONPATH` in "
                "a script of the project; of an installed library, migrate the file that trains",
            )
        lacking = _lacking_import(program, node, scope) if found is None else None
        if lacking is not None:
            module, statement, holder = lacking
            yield declining.decline(
                declining.UNREADABLE,
                module,
                statement,
                f"no backward pass was found: `{scope.module.text(node)}` may run one, and {name_of(program, holder)}, "
                "from which it is imported, has no such name: the import raises ImportError",
                "add the function to that file, or import the one that is meant, then migrate again",
            )
    yield from _found_by_name(program)
    if imports_torch(program):
        calls = [call for call, _, scope in program.calls() if _may_train(program, call, scope)]
        own = _own_scaler(program) if calls else None
        said = f"; it may scale its loss by itself ({own})" if own is not None else ""
        for call in calls:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                program.entry,
                call,
                f"no backward pass was found, but `{program.entry.text(call)}` may run one: what it calls could not be "
                f"followed{said}",
                _RECIPE_OF_OWN if said else _RECIPES[isinstance(call.func, ast.Attribute)],
            )


def _may_train(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call of the script says that it trains, and what it runs is not known."""
    return (
        scope.module is program.entry
        and not program.flow.callees(call)
        and _says_training(call)
        and not _is_librarys(program, call, scope)
        and not _only_makes(program, call, scope)
    )


def _only_makes(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether a call makes an object of a class of the project that runs nothing then: ``TrainerSettings()``."""
    values = program.flow.values(call.func, scope)
    return bool(values) and all(value.kind == "class" for value in values)


def _own_scaler(program: Program) -> str | None:
    """The first scaler that a file of the program makes, run or not, and its place."""
    for module in program.flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Call) and (names_of(module).dotted(node.func) or "") in SCALERS:
                return f"`{module.text(node)}`, {place_of(program, module, node)}"
    return None


def _found_by_name(program: Program) -> Iterator[Declined]:
    """What trains itself, ``model.train()``, and is of a class that a name finds which is known at run time alone."""
    for call, body, scope in program.calls():
        if scope.module is not program.entry or program.flow.callees(call) or not _may_train_itself(scope.module, call):
            continue
        assert isinstance(call.func, ast.Attribute)
        trail = trail_end(program, call.func.value, scope, body)
        if "by a name" in trail:
            yield declining.decline(
                declining.UNKNOWN_STEP,
                scope.module,
                call,
                f"no backward pass was found, but `{scope.module.text(call)}` may run one: "
                f"`{scope.module.text(call.func.value)}` is not known{trail}",
                "import the class that trains by its name, so that it can be followed",
            )


def _may_train_itself(module: Module, call: ast.Call) -> bool:
    """``model.train()``, which puts a model into training mode or is a method of the project that trains."""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr in ("train", "fit")
        and isinstance(module.parents[call], ast.Expr)
    )


def _unread(program: Program) -> Iterator[Declined]:
    """Modules that could not be parsed and that hold a backward pass, as far as the text tells."""
    for error in program.project.unreadable:
        try:
            text = error.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if ".backward(" in text:
            yield declining.decline(
                declining.UNREADABLE,
                program.entry,
                None,
                f"no backward pass was found, and {error.path.name}, which calls `backward`, cannot be read: "
                f"{error.message}",
                "fix that file first, then migrate again",
            )


def _named_for_training(program: Program) -> Iterator[tuple[ast.expr, Scope]]:
    """What is called, or handed to something that calls it, and is named for training."""
    for call, _, scope in program.calls():
        if not program.flow.callees(call) and (_says_training(call) or _may_step(call)):
            yield call.func, scope
        for argument in (*call.args, *(item.value for item in call.keywords)):
            if isinstance(argument, (ast.Name, ast.Attribute)) and _is_named_for_training(own_name(argument)):
                yield argument, scope


def _may_step(call: ast.Call) -> bool:
    """Whether what is called is given an optimizer, and neither saves it nor makes its schedule."""
    words = {word.lower() for word in _WORDS.findall(own_name(call.func))}
    given = [*call.args, *(item.value for item in call.keywords)]
    return not words & NO_STEP and any(NAMED_OPTIMIZER.search(own_name(item)) for item in given)


def _says_training(call: ast.Call) -> bool:
    """Whether what is called is named for training: ``train(...)``, ``trainer.fit()``, ``Trainer(...)``."""
    name = own_name(call.func)
    if name == "train" and isinstance(call.func, ast.Attribute):
        # A model is set to training mode in the same words.
        return NAMED_TRAINER.search(own_name(call.func.value)) is not None or len(call.args) > 1
    return _is_named_for_training(name)


def _is_named_for_training(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    return bool(words) and not set(words) & NO_TRAINING and bool({words[0], words[-1]} & NAMED_TRAINING)


def unfound_imports(program: Program) -> Iterator[tuple[Module, ast.stmt, str]]:
    """Yield imports that lead to no file of the project and to no library that is known."""
    for module in program.flow.modules:
        for statement in module.nodes:
            found = _unfound(program, module, statement)
            if found is not None and isinstance(statement, ast.stmt):
                yield module, statement, found


def unfound_optimizers(program: Program) -> Iterator[Declined]:
    """Yield the first step whose optimizer is made by what comes from a file that was not found."""
    for step in program.steps:
        for value in program.flow.values(step.optimizer, step.scope):
            call = value.site
            located = program.locate(call) if isinstance(call, ast.Call) and value.kind == "object" else None
            found = _import_of(program, call.func, located[1]) if located and isinstance(call, ast.Call) else None
            if found is None or not isinstance(call, ast.Call):
                continue
            module, statement, name = found
            yield declining.decline(
                declining.UNREADABLE,
                module,
                statement,
                f"`{step.module.text(step.optimizer)}` ({place_of(program, step.module, step.node)}) may be made by "
                f"`{module.text(call.func)}`, and `{name}`, from which that comes, was not found in this project: "
                "which gradients it holds is not known",
                "add the files, as `git submodule update --init` does where they are a submodule of git, or say where "
                "they are: in `sys.path`, the packaging, or `PYTHONPATH` in a script of the project; where it is an "
                "installed library, do what the other reasons say",
            )
            return


def unfound_batches(program: Program, site: Site) -> tuple[str, str] | None:
    """What a loop around a backward pass goes over, and the import without a file from which that comes."""
    for iterated in iterated_for(program, site):
        for source in comes_of(program, iterated):
            assert isinstance(source.node, ast.expr)
            found = _import_of(program, source.node, source.scope)
            if found is not None:
                return iterated.module.text(iterated.node), found[2]
    return None


def _import_of(program: Program, node: ast.expr, scope: Scope) -> tuple[Module, ast.stmt, str] | None:
    """The import that gives what is called, where it leads to no file and to no library that is known."""
    path = blocks.path_of(node)
    name = path.split(".")[0] if path is not None else None
    for statement in scope.module.nodes:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        if name in {item.asname or item.name.split(".")[0] for item in statement.names}:
            origin = _unfound(program, scope.module, statement)
            return (scope.module, statement, origin) if origin is not None else None
    return _star_import_of(program, node, scope) if name is not None else None


def _lacking_import(program: Program, node: ast.expr, scope: Scope) -> tuple[Module, ast.stmt, Module] | None:
    """The import of a name from a file of the project that has none of this name, and that file."""
    if not isinstance(node, ast.Name):
        return None
    for statement in scope.module.nodes:
        if not isinstance(statement, ast.ImportFrom):
            continue
        asked = next((item.name for item in statement.names if (item.asname or item.name) == node.id), None)
        origin = statement.module or ""
        holder = program.project.find(scope.module, origin, statement.level) if asked is not None else None
        if asked is None or holder is None or not origin:
            continue
        is_module = program.project.find(scope.module, f"{origin}.{asked}", statement.level) is not None
        if not is_module and not _may_have(program, holder, asked):
            return scope.module, statement, holder
    return None


def _may_have(program: Program, holder: Module, name: str) -> bool:
    """Whether a file may have a global variable of a name, as far as its text tells."""
    scope = program.flow.scopes.get(holder.tree)
    if scope is None or name in scope.bound or any(made in holder.source.text for made in _MAKES_NAMES):
        return True
    return any(
        (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (isinstance(node, ast.Global) and name in node.names)
        for node in holder.nodes
    )


def _star_import_of(program: Program, node: ast.expr, scope: Scope) -> tuple[Module, ast.stmt, str] | None:
    """The last ``from main import *`` that leads nowhere, for a name that nothing else is known to give."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if not isinstance(node, ast.Name) or program.flow.values(node, scope):
        return None
    if node.id in scope.owner(node.id).bound:
        return None
    for statement in reversed(scope.module.nodes):
        if isinstance(statement, ast.ImportFrom) and any(item.name == "*" for item in statement.names):
            origin = _unfound(program, scope.module, statement)
            if origin is not None:
                return scope.module, statement, origin
    return None


def _unfound(program: Program, module: Module, statement: ast.AST) -> str | None:
    """What an import names, where it leads to no file and to no library that is known."""
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        return None
    level = statement.level if isinstance(statement, ast.ImportFrom) else 0
    origin = (statement.module or "") if isinstance(statement, ast.ImportFrom) else statement.names[0].name
    if program.project.find(module, origin, level) is not None or (not level and is_known_library(origin)):
        return None
    if not level and program.project.is_folder(module, origin):
        return None
    return "." * level + origin


def _is_librarys(program: Program, call: ast.Call, scope: Scope) -> bool:
    """Whether it is a function of a library that is known, or a method of an object of one."""
    names = program.callee_names(call, scope)
    if isinstance(call.func, ast.Attribute):
        owners = program.flow.values(call.func.value, scope)
        names = names | {value.ref for value in owners if value.kind == "object" and isinstance(value.ref, str)}
    return any(name and is_known_library(name) for name in names)
