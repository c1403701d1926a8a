"""What one process may run alone: statements that leave nothing behind but files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cached_property

from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import COMPREHENSIONS, own_variables, walk
from amp_rules.torch.accumulation import MADE_TO_FILL
from amp_rules.torch.failures import ENDS_PROCESS
from amp_rules.torch.replication import DRAWING_METHODS, DRAWS

_MUTATORS = frozenset(
    {
        "append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault", "pop", "popleft",
        "popitem", "remove", "discard", "clear", "sort", "reverse", "shuffle", "send", "throw", "step", "backward",
        "zero_grad", "put", "get_nowait", "advance", "__next__",
        "load_state_dict",
    }
)  # fmt: skip
"""Methods that change what they are asked of."""

_MOVES_MODEL = frozenset({"cpu", "cuda", "to", "eval", "train", "half", "float", "double", "bfloat16", "apply", "type"})
"""Methods of a model that change it in place; of a tensor they make another."""

_COLLECTIVE = ("torch.distributed.", "amp_runtime.", "horovod.")

_DRAWING_OBJECTS = ("numpy.random.", "random.", "torch._C.Generator", "torch.Generator", "torch.distributions.")

_MADE_NEW = frozenset(
    {
        "builtins.list", "builtins.dict", "builtins.set", "collections.OrderedDict", "collections.defaultdict",
        "collections.deque", "collections.Counter", *MADE_TO_FILL,
    }
)  # fmt: skip
"""Functions that make a container or an array in memory of its own."""

_WAITS = ENDS_PROCESS | {"builtins.input", "builtins.next"}


class Skippable:
    """Questions about statements that all but one process would leave out.

    Args:
        program: the program.
        meets: nodes that all processes have to run.
    """

    def __init__(self, program: Program, meets: frozenset[ast.AST] = frozenset()) -> None:
        self._program = program
        self._meets = meets

    @cached_property
    def disturbs(self) -> Callable[[ast.AST], bool]:
        """Whether leaving a node out would be missed: it draws, moves on, meets other processes, or changes an object.

        Assignments to local variables are not seen here: see :meth:`alone`.
        """
        return self._program.closure(self._disturbs)

    def _disturbs(self, node: ast.AST) -> bool:
        if node in self._meets:
            return True
        if isinstance(node, (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            return not self._is_local_container(node)
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return self._draws_from_loader(node)
        return isinstance(node, ast.Call) and self._call_disturbs(node)

    def _call_disturbs(self, call: ast.Call) -> bool:
        located = self._program.locate(call)
        if located is None:
            return False
        scope = located[1]
        names = self._program.callee_names(call, scope)
        if any(name.startswith((*_COLLECTIVE, *DRAWS)) or name in _WAITS for name in names):
            return not names <= {"amp_runtime.unwrap"}
        if self._program.forwards(call, scope):
            return True
        if not isinstance(call.func, ast.Attribute):
            return False
        attr, receiver = call.func.attr, call.func.value
        if attr in _MUTATORS or (attr.endswith("_") and not attr.endswith("__")):
            return not names and not self._is_local_container(receiver)
        if attr in DRAWING_METHODS:
            return True
        if attr in _MOVES_MODEL:
            return bool(self._program.roles.modules(receiver, scope))
        return any(value.name.startswith(_DRAWING_OBJECTS) for value in self._program.flow.values(receiver, scope))

    def _draws_from_loader(self, loop: ast.For | ast.AsyncFor) -> bool:
        located = self._program.locate(loop)
        return located is not None and any(
            value.kind == "batch" for value in self._program.flow.values(loop.target, located[1])
        )

    def _is_local_container(self, node: ast.expr) -> bool:
        """Whether it is a part of a list, a dictionary or an array that the same function has made, and stays there."""
        base = node
        while isinstance(base, (ast.Subscript, ast.Call)):
            base = base.value if isinstance(base, ast.Subscript) else base.func
        located = self._program.locate(node)
        if not isinstance(base, ast.Name) or located is None or not isinstance(located[0], FunctionNode):
            return False
        body, scope = located
        if scope.owner(base.id).node is not body:
            return False
        made = [
            other.value
            for other in blocks.walk_body(body)
            if isinstance(other, ast.Assign) and any(isinstance(t, ast.Name) and t.id == base.id for t in other.targets)
        ]
        return bool(made) and all(
            isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp))
            or (isinstance(value, ast.Call) and bool(self._program.callee_names(value, scope) & _MADE_NEW))
            for value in made
        )

    def alone(self, module: Module, scope: Scope, statements: Sequence[ast.stmt]) -> bool:
        """Whether only files would be missing if these statements of one suite were left out."""
        inside = {node for statement in statements for node in walk(statement)}
        names = {
            node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del))
        }
        if any(self._leaves(statement) for statement in statements):
            return False
        if any(isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)) for node in inside):
            return False
        if self._read_outside(module, scope, names, inside) or any(self._changes(node, names) for node in inside):
            return False
        return not any(self._is_in_the_way(node, names) for item in statements for node in _outermost(item, names))

    def _is_in_the_way(self, node: ast.AST, names: set[str]) -> bool:
        """Whether leaving a part out would be missed; ``remove(old.pop(0))`` is what ``remove`` does, and the rest."""
        inner = isinstance(node, ast.Call) and any(_changes_inside(part, names) for part in walk(node))
        if inner and isinstance(node, ast.Call) and not self._program.flow.callees(node):
            return self._disturbs(node)
        return self.disturbs(node)

    def is_missed(self, node: ast.AST) -> bool:
        """Whether all processes need what an expression does besides what it gives."""
        return self.disturbs(node) or any(self._changes(part, set()) for part in walk(node))

    def _changes(self, node: ast.AST, names: set[str]) -> bool:
        """Whether a container changes that the function has made elsewhere: the others' would stay as it is."""
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            base = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            base = node.func.value
        else:
            return False
        while isinstance(base, (ast.Attribute, ast.Subscript)):
            base = base.value
        return isinstance(base, ast.Name) and base.id not in names and self._is_local_container(base)

    @staticmethod
    def _leaves(statement: ast.stmt) -> bool:
        """Whether it goes on elsewhere than at the statement below."""

        def goes(node: ast.AST, in_loop: bool) -> bool:
            if isinstance(node, FunctionNode):
                return False
            if isinstance(node, (ast.Return, ast.Raise)):
                return True
            if isinstance(node, (ast.Break, ast.Continue)):
                return not in_loop
            inner = in_loop or isinstance(node, blocks.LOOPS)
            return any(goes(child, inner) for child in ast.iter_child_nodes(node))

        return goes(statement, False)

    @staticmethod
    def _read_outside(module: Module, scope: Scope, names: set[str], inside: set[ast.AST]) -> bool:
        """Whether something else reads a variable that is assigned inside, before it assigns it itself."""
        if not names:
            return False
        owner = scope.node if scope.is_function else module.tree
        own = list(walk(owner))
        others = [node for node in own if isinstance(node, ast.Name) and node.id in names and node not in inside]
        others = [node for node in others if not _is_of_comprehension(module, node)]
        for name in names:
            uses = [node for node in others if node.id == name]
            reads = [node for node in uses if isinstance(node.ctx, ast.Load)]
            if reads and not all(_assigned_beside(module, node, uses) for node in reads):
                return True
        return False


def _outermost(statement: ast.stmt, names: set[str]) -> list[ast.AST]:
    """The parts of a statement to look at: all but changes of what is made inside: ``rows.append(x)``."""
    skipped = {node for node in walk(statement) if _changes_inside(node, names)}
    if not skipped:
        return [statement]
    # Looked at one by one: a statement as a whole would hold what is skipped.
    return [node for node in walk(statement) if isinstance(node, ast.Call) and node not in skipped]


def _changes_inside(node: ast.AST, names: set[str]) -> bool:
    """Whether a call changes one of the variables."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MUTATORS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in names
    )


def _is_of_comprehension(module: Module, name: ast.Name) -> bool:
    """Whether a comprehension around a name has a variable of its own that is called so."""
    for parent in module.ancestors(name):
        if isinstance(parent, ast.stmt):
            return False
        # What its first loop goes through is read outside.
        if isinstance(parent, COMPREHENSIONS) and all(node is not name for node in walk(parent.generators[0].iter)):
            if name.id in own_variables(parent):
                return True
    return False


def _assigned_beside(module: Module, read: ast.Name, uses: Sequence[ast.Name]) -> bool:
    """Whether the suite that reads a variable, or one around it, assigns it above: the head of its own ``with``."""
    for parent in module.ancestors(read):
        if not isinstance(parent, ast.stmt):
            continue
        if isinstance(parent, FunctionNode):
            return False
        heads = [
            node
            for node in uses
            if isinstance(node.ctx, ast.Store)
            and (node.lineno, node.col_offset) <= (read.lineno, read.col_offset)
            and isinstance(parent, (ast.With, ast.For))
            and parent.lineno <= node.lineno <= (parent.end_lineno or parent.lineno)
            and read is not node
        ]
        if heads:
            return True
    return False
