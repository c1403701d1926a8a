"""What a program does with tables whose rows are shared out, and with models that have such, besides calling them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan.declining import Declined
from amp_rules.plan.shards.afterwards import Afterwards
from amp_rules.plan.shards.declined import TABLES
from amp_rules.plan.shards.table_kinds import CONTAINERS
from amp_rules.plan.shards.tables import Tables
from amp_rules.plan.shards.uses import KEEPS, TAKES_PARAMETERS, TELLS, is_only_kept, taken_by
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import CLIP_FUNCTIONS, FACTS_OF_TENSORS
from amp_rules.torch.models import EMBEDDINGS, RETURNS_RECEIVER, TELLS_OF_MODEL
from amp_rules.torch.wrappers import DATA_PARALLEL

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_ALLOWED = (TELLS_OF_MODEL - _PARAMETERS - {"modules", "named_modules", "children", "named_children"}) | {
    "load_state_dict",
    "forward",
    "module",
    "register_buffer",
}
_SIZES = frozenset({"numel", "nelement", "shape", "size", "nbytes"})
"""What a rank's rows have another one of than a whole table has."""
_TAKES_OUT = frozenset({"builtins.getattr", "builtins.setattr", "builtins.vars", "builtins.delattr"})
_WHOLE_STATE = "initialise and load tables above the optimizer, and read them in a checkpoint"


def reasons(program: Program, tables: Tables, afterwards: Afterwards) -> Iterator[Declined]:
    """Yield what tables do not bear whose rows are shared out."""
    for node, body, scope in program.nodes():
        if not afterwards.runs(node, body) or _makes_model(program, body):
            continue
        site = Site(scope.module, scope, body, node)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load):
            found = _Use(program, tables, site).problem()
            if found is None and afterwards.certainly(node, body) and program.names(node, scope) & EMBEDDINGS:
                found = _of_kind(site)
            if found is not None:
                yield TABLES.decline(scope.module, node, *found)
    for access in gradient_accesses(program):
        if not (isinstance(access.node, ast.Call) and program.callee_names(access.node, access.scope) & CLIP_FUNCTIONS):
            yield TABLES.decline(
                access.module,
                access.node,
                f"`{access.what}` reads or changes gradients, and each process has only its rows of a table's gradient",
                "clip them by `amp.clip_grad_norm_`",
            )


def _makes_model(program: Program, body: ast.AST) -> bool:
    """Whether a body is the constructor of a model: each model is shared out after it was made."""
    return getattr(body, "name", "") == "__init__" and program.is_model_code(body)


def _of_kind(site: Site) -> tuple[str, str] | None:
    """What tells tables from other layers behind the place where they are shared out, to do something with them."""
    parent = site.module.parents[site.node]
    if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is site.node):
        return None
    return f"`{site.module.text(site.node)}` is used after the tables are sharded", _WHOLE_STATE


def _is_harmless(name: str) -> bool:
    """Whether a function of a library does nothing with the tables of a model that it is given."""
    return (name.startswith("builtins.") and name not in _TAKES_OUT) or name in DATA_PARALLEL | CONTAINERS


class _Use:
    """One place that may read a model with tables, one of its tables, or their parameters."""

    def __init__(self, program: Program, tables: Tables, site: Site) -> None:
        self._program = program
        self._tables = tables
        self._site = site
        self._parents = site.module.parents

    def problem(self) -> tuple[str, str] | None:
        """What is not borne, and what may be changed; None where nothing is wrong."""
        node = self._site.node
        assert isinstance(node, ast.expr)
        values = self._program.flow.values(node, self._site.scope)
        if any(value.kind == "parameters" and self._are_rows(value.ref) for value in values):
            return self._parameters(node)
        if any(map(is_optimizer, values)) or not any(map(self._bears, self._modules(node))):
            return None
        parent = self._parents[node]
        if isinstance(parent, ast.Attribute):
            return self._asked(parent)
        if isinstance(parent, ast.keyword):
            parent = self._parents[parent]
        if isinstance(parent, ast.Call) and parent.func is not node:
            return self._given(parent)
        return None

    def _are_rows(self, owner: object) -> bool:
        """Whether parameters of a model or an optimizer may be those of a table."""
        return self._bears(owner) or (isinstance(owner, Value) and is_optimizer(owner))

    def _bears(self, value: object) -> bool:
        return isinstance(value, Value) and self._tables.bears(value)

    def _modules(self, node: ast.expr) -> set[Value]:
        return self._program.roles.modules(node, self._site.scope)

    def _asked(self, parent: ast.Attribute) -> tuple[str, str] | None:
        """What is asked of a model."""
        text = self._site.module.text(parent)
        call = self._parents[parent]
        is_called = isinstance(call, ast.Call) and call.func is parent
        if parent.attr in _PARAMETERS and isinstance(call, ast.Call):
            return self._parameters(call)
        if any(map(self._tables.is_large, self._modules(parent.value))) and not is_called:
            if parent.attr in ("num_embeddings", "embedding_dim", "padding_idx"):
                return None
            return f"`{text}` belongs to a sharded table, and no process has all of its rows", _WHOLE_STATE
        if parent.attr in _ALLOWED:
            return None
        if not is_called:
            is_set = not isinstance(parent.ctx, ast.Load) and any(map(self._bears, self._modules(parent)))
            return (f"`{text}` is replaced after it was sharded", _WHOLE_STATE) if is_set else None
        assert isinstance(call, ast.Call)
        if parent.attr in ("train", "eval", "requires_grad_") or self._is_known(call, parent):
            return None  # what it does is looked at for itself
        if parent.attr in RETURNS_RECEIVER:
            return f"`{text}()` changes or moves a model whose tables are sharded", "do it above the optimizer"
        return f"`{text}()` may read sharded tables", _WHOLE_STATE

    def _is_known(self, call: ast.Call, called: ast.Attribute) -> bool:
        """Whether a part of a model, a method of the project or a function of a library is called."""
        values = self._program.flow.values(called, self._site.scope)
        return bool(self._program.flow.callees(call)) or any(value.kind != "attribute" for value in values)

    def _given(self, call: ast.Call) -> tuple[str, str] | None:
        """A function that a model is given to."""
        names = self._program.callee_names(call, self._site.scope)
        if self._program.flow.callees(call) or (names and all(map(_is_harmless, names))):
            return None
        if any(map(is_optimizer, self._program.flow.values(call, self._site.scope))):
            return None
        text, given = self._site.module.text(call.func), self._site.module.text(self._site.node)
        if "torch.save" in names:
            return f"`{given}` is saved whole, and each process has only its rows of a table", "save its state"
        return f"`{text}` gets `{given}`, and it is not known what it does with sharded tables", ""

    def _parameters(self, given: ast.expr) -> tuple[str, str] | None:
        """Parameters go to an optimizer or a function that clips."""
        text = self._site.module.text(self._gone_through(given))
        problem = (
            f"`{text}` is read for more than training and clipping, and each process has only its rows of a table",
            "do it above the optimizer",
        )
        node, parent = taken_by(given, self._parents)
        if isinstance(parent, ast.Call):
            if parent.func is node:
                return None
            names = self._program.callee_names(parent, self._site.scope)
            makes = any(map(is_optimizer, self._program.flow.values(parent, self._site.scope)))
            keeps = isinstance(parent.func, ast.Attribute) and parent.func.attr in (*KEEPS, "add_param_group")
            return None if makes or keeps or names & TAKES_PARAMETERS else problem
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return, ast.AugAssign)):
            return None  # looked at where it goes on to
        if isinstance(parent, (ast.For, ast.comprehension)):
            return None if is_only_kept(parent, self._parents, FACTS_OF_TENSORS - _SIZES, self._keeps) else problem
        return problem

    def _gone_through(self, given: ast.expr) -> ast.expr:
        """What a loop goes through, of one of its variables."""
        if not isinstance(given, ast.Name):
            return given
        node: ast.AST | None = given
        while node is not None and not isinstance(node, FunctionNode):
            node = self._parents.get(node)
            loops = [node] if isinstance(node, (ast.For, ast.comprehension)) else getattr(node, "generators", [])
            for loop in loops:
                if any(isinstance(part, ast.Name) and part.id == given.id for part in walk(loop.target)):
                    return loop.iter
        return given

    def _keeps(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Attribute) and call.func.attr in KEEPS:
            return True
        return bool(self._program.callee_names(call, self._site.scope) & (TELLS - {"builtins.len", "builtins.print"}))
