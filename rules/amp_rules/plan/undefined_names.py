"""Names that a file reads and never binds: where the training comes to one, it ends in a ``NameError``."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from amp_rules.plan.notes import NOT_REACHED, note
from amp_rules.plan.report import Note
from amp_rules.roles.file_effects import try_that_catches
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.resolver import bound_name, names_of
from amp_rules.source.scopes import Scope, bindings
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.apex_names import DROPIN_NAMES

_BUILTINS = frozenset(dir(builtins)) | {"__file__", "__path__", "__class__", "__annotations__"}
_BINDS_BY_TEXT = frozenset({"__builtins__", "__dict__", "builtins", "exec", "globals", "vars"})
_OF_OTHER_PYTHONS = frozenset(
    {
        "WindowsError", "basestring", "cmp", "display", "execfile", "file", "get_ipython", "long", "profile",
        "raw_input", "reduce", "reload", "unichr", "unicode", "xrange",
    }
)  # fmt: skip
"""What other versions, systems and tools bind: scripts ask for it behind tests of their own."""

_PARAMETERS_OF_TYPES = tuple(
    getattr(ast, name) for name in ("TypeVar", "ParamSpec", "TypeVarTuple") if hasattr(ast, name)
)
"""``def first[T](items: list[T])``, since Python 3.12."""

_MAX_SHOWN = 4
"""Names beside the first that a note lists: a template of a script may leave out a dozen."""


def is_undefined(name: ast.expr, scope: Scope) -> bool:
    """Whether a name is one that its file never binds, as far as its text says: reading it raises a ``NameError``."""
    if not isinstance(name, ast.Name) or name.id in _BUILTINS or scope.module.cells:
        return False
    return name.id not in _bound(scope.module) and not _binds_by_text(scope.module)


def _bound(module: Module) -> frozenset[str]:
    """All names that a file binds somewhere, in a comprehension or a class too: it says nothing of where they hold."""
    known: frozenset[str] | None = module.kept.get("bound names")
    if known is None:
        known = module.kept["bound names"] = frozenset(
            name for node in walk(module.tree) for name in (*bindings(node), *_declared(node))
        )
    return known


def _declared(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node declares besides: parameters, also of types, and those of other scopes."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names
    elif isinstance(node, _PARAMETERS_OF_TYPES):
        yield node.name


def _binds_by_text(module: Module) -> bool:
    known: bool | None = module.kept.get("binds by text")
    if known is None:
        known = module.kept["binds by text"] = any(
            (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
            or (isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _BINDS_BY_TEXT)
            for node in module.nodes
            if not _is_of_object(module, node)
        )
    return known


def _is_of_object(module: Module, node: ast.AST) -> bool:
    """``args.__dict__`` and ``vars(args)``: attributes of what the file makes, and not of a module."""
    parent = module.parents.get(node)
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        owner: ast.expr | None = node.value
    elif isinstance(node, ast.Name) and node.id == "vars" and isinstance(parent, ast.Call) and parent.func is node:
        owner = parent.args[0] if parent.args else None
    else:
        return False
    return isinstance(owner, ast.Name) and names_of(module).target(owner) is None


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each file with such names, in the suites that train or that call what trains."""
    for module, names in _undefined(program).items():
        (name, first), *others = names.items()
        text = f"`{name}` is defined nowhere in this file, and nothing imports it: this line ends in a `NameError`"
        text += f", as it did before{_advice(name)}"
        if others:
            shown = [f"`{other}` (line {node.lineno})" for other, node in others[:_MAX_SHOWN]]
            rest = len(others) - len(shown)
            more = f" and {rest} more" if rest else ""
            text += f"; the same holds for {', '.join(shown)}{more}"
        yield note(NOT_REACHED, module, first, text)


def _undefined(program: Program) -> dict[Module, dict[str, ast.Name]]:
    """The names, by file, each with the first place that reads it."""
    found: dict[Module, dict[str, ast.Name]] = {}
    trains: dict[ast.AST, bool] = {}
    for node, body, scope in program.nodes():
        module = scope.module
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id in found.get(module, ()):
            continue
        if node.id in _OF_OTHER_PYTHONS or not is_undefined(node, scope) or not _is_read(module, node):
            continue
        if body not in trains:
            trains[body] = any(map(program.runs_backward, blocks.own_parts(body)))
        if not trains[body] or _is_imported(module, node.id) or _is_set_elsewhere(program, node.id):
            continue
        found.setdefault(module, {})[node.id] = node
    return found


def _is_read(module: Module, node: ast.Name) -> bool:
    """Whether a name is read where it stands: no annotation, and nothing that goes on without it."""
    child: ast.AST = node
    for parent in module.ancestors(node):
        if child in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
            return False
        if isinstance(parent, blocks.BODIES):
            break
        child = parent
    return try_that_catches(module, node, {"NameError", "Exception", "BaseException"}) is None


def _is_imported(module: Module, name: str) -> bool:
    """Whether another function imports it: a name of Apex, for one, becomes the runtime's at the head of the file."""
    return any(
        isinstance(node, (ast.Import, ast.ImportFrom)) and name in map(bound_name, node.names) for node in module.nodes
    )


def _is_set_elsewhere(program: Program, name: str) -> bool:
    """Whether some file sets an attribute of this name, which may be one of the file's: ``train.args = args``."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.Call) and last_name(node.func) == "setattr" and _may_name(node, name))
        for module in program.flow.modules
        for node in module.nodes
    )


def _may_name(call: ast.Call, name: str) -> bool:
    """Whether ``setattr(module, key, value)`` may set this name; what an object of its own gets is none of a file's."""
    key = call.args[1] if len(call.args) > 1 else None
    is_own = bool(call.args) and any(isinstance(item, ast.Name) and item.id == "self" for item in walk(call.args[0]))
    return not is_own and not (isinstance(key, ast.Constant) and key.value != name)


def _advice(name: str) -> str:
    """Where the runtime has what Apex calls so."""
    found = sorted((item for item in DROPIN_NAMES if item.rpartition(".")[2] == name), key=lambda item: item.count("."))
    known = [item for item in found if not item.startswith("apex.contrib")]
    return f"; Apex has one of this name, `{known[0]}`: import that, then migrate again" if known else ""
