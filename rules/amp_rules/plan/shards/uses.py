"""What a program does with a sharded model besides calling it: a weight is whole in the model's forward pass only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from amp_rules.plan.declining import Declined
from amp_rules.plan.shards.afterwards import Afterwards
from amp_rules.plan.shards.declined import not_sharded
from amp_rules.roles.gradient_accesses import gradient_accesses
from amp_rules.roles.kinds import is_optimizer
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import CLIP_FUNCTIONS, FACTS_OF_TENSORS
from amp_rules.torch.models import RETURNS_RECEIVER, TELLS_OF_MODEL

_ALLOWED = (TELLS_OF_MODEL - {"buffers", "named_buffers"}) | {"load_state_dict", "requires_grad_", "forward", "module"}
"""What may be asked of a sharded model; parameters are looked at for themselves."""

_PARAMETERS = frozenset({"parameters", "named_parameters"})
_COPIES = frozenset(
    {"copy.deepcopy", "copy.copy", "torch.save", "torch.compile", "torch.jit.script", "torch.jit.trace"}
)
TAKES_PARAMETERS = CLIP_FUNCTIONS | {"builtins.list", "builtins.filter", "itertools.chain", "builtins.tuple"}
KEEPS = frozenset({"append", "add", "extend"})
TELLS = frozenset({"builtins.print", "builtins.len", "builtins.any", "builtins.all", "builtins.id"})


def reasons(program: Program, afterwards: Afterwards) -> Iterator[Declined]:
    """Yield what the shards of a model do not bear."""
    looked_at = _methods_called_alone(program)
    for node, body, scope in program.nodes():
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or not isinstance(node.ctx, ast.Load):
            continue
        if not afterwards.runs(node, body) or (program.is_model_code(body) and body not in looked_at):
            continue
        if any(map(is_optimizer, program.flow.values(node, scope))):
            continue
        if any(map(program.is_trained, program.roles.modules(node, scope))):
            found = _Use(program, Site(scope.module, scope, body, node)).problem()
            if found is not None:
                yield not_sharded(scope.module, node, *found)
    for access in gradient_accesses(program):
        if not (isinstance(access.node, ast.Call) and program.callee_names(access.node, access.scope) & CLIP_FUNCTIONS):
            yield not_sharded(
                access.module,
                access.node,
                f"`{access.what}` reads or changes gradients, and each process has only its shard of them",
                "clip them by `amp.clip_grad_norm_`",
            )


def _methods_called_alone(program: Program) -> set[ast.AST]:
    """Methods of models that run no forward pass, which the program calls beside it: ``model.optimizer_groups()``."""
    found: set[ast.AST] = set()
    for call, body, scope in program.calls():
        if isinstance(call.func, ast.Attribute) and not program.is_model_code(body) and not program.runs_model(call):
            if any(map(program.is_trained, program.roles.modules(call.func.value, scope))):
                found |= program.called_from([call])
    return {body for body in found if program.is_model_code(body)}


class _Use:
    """One place that reads a trained model."""

    def __init__(self, program: Program, site: Site) -> None:
        self._program = program
        self._site = site
        self._parents = site.module.parents

    def problem(self) -> tuple[str, str] | None:
        """What is not borne, and what may be changed; None where nothing is wrong."""
        node = self._site.node
        parent = self._parents[node]
        text = self._site.module.text(node)
        if isinstance(parent, ast.Attribute):
            return self._asked(parent)
        if isinstance(parent, ast.Call) and parent.func is not node:
            names = self._program.callee_names(parent, self._site.scope)
            if names & _COPIES:
                what = "saved whole" if "torch.save" in names else "copied or compiled"
                return f"`{text}` is {what}, which a sharded model cannot be", "save its state"
        if isinstance(parent, ast.Call) and parent.func is node and self._is_part(node):
            return (
                f"`{text}` is a part of a sharded model and is called alone, where its weights are not whole",
                "call the whole model",
            )
        return None

    def _is_part(self, node: ast.AST) -> bool:
        """Whether an expression is an attribute of another trained model."""
        if not isinstance(node, ast.Attribute):
            return False
        owners = self._program.roles.modules(node.value, self._site.scope)
        return any(map(self._program.is_trained, owners))

    def _asked(self, parent: ast.Attribute) -> tuple[str, str] | None:
        text = self._site.module.text(parent)
        call = self._parents[parent]
        is_called = isinstance(call, ast.Call) and call.func is parent
        if parent.attr in _PARAMETERS and is_called:
            assert isinstance(call, ast.Call)
            return self._parameters(call)
        if parent.attr in _ALLOWED or parent.attr == "state_dict":
            return None
        if not isinstance(parent.ctx, ast.Load):
            return (
                f"`{text}` is set on a model that is sharded already",
                "set it before the model is trained",
            )
        if parent.attr in RETURNS_RECEIVER and is_called:
            return (
                f"`{text}()` moves or copies a model that is sharded already",
                "do it before the optimizer is built",
            )
        if not is_called and self._is_plain(parent):
            return None
        if any(map(self._program.is_trained, self._program.roles.modules(parent, self._site.scope))):
            return None  # that part is looked at for itself
        if is_called:
            assert isinstance(call, ast.Call)
            if self._program.flow.callees(call) and not self._program.runs_model(call):
                return None  # what it does is looked at for itself
            return (
                f"`{text}()` is not the model's forward pass: its weights are not whole there",
                "let `forward` do it, and call the model",
            )
        return (
            f"`{text}` is read from a sharded model, and each process has only its shard",
            "read it before the model is trained",
        )

    def _is_plain(self, node: ast.Attribute) -> bool:
        """Whether an attribute of the project's own classes is given nothing that torch makes: a size, a name."""
        infos = {
            info
            for value in self._program.roles.modules(node.value, self._site.scope)
            for info in (value.ref.mro() if value.kind == "instance" else ())
        }
        given = [
            (statement.value, self._program.flow.scopes[method.node])
            for info in infos
            for method in info.facts.methods.values()
            if method.node in self._program.flow.scopes
            for statement in blocks.walk_body(method.node)
            if isinstance(statement, ast.Assign)
            and any(_is_own_attribute(target, node.attr) for target in statement.targets)
        ]
        return bool(given) and not any(self._is_of_torch(value, scope) for value, scope in given)

    def _is_of_torch(self, given: ast.expr, scope: Scope) -> bool:
        names = {
            name
            for part in walk(given)
            if isinstance(part, ast.Call)
            for name in self._program.callee_names(part, scope)
        }
        values = self._program.flow.values(given, scope)
        return any(name.startswith("torch.") for name in names) or any(
            value.name.startswith("torch.") or value.kind == "instance" for value in values
        )

    def _parameters(self, call: ast.Call) -> tuple[str, str] | None:
        """Parameters go to an optimizer or a function that clips, or are counted."""
        text = self._site.module.text(call)
        problem = (
            f"`{text}` is read for more than sizes, and each process has only its shard of a weight",
            "",
        )
        _, parent = taken_by(call, self._parents)
        if isinstance(parent, ast.Call):
            names = self._program.callee_names(parent, self._site.scope)
            makes = any(map(is_optimizer, self._program.flow.values(parent, self._site.scope)))
            known = makes or names & TAKES_PARAMETERS or self._program.flow.callees(parent)
            return None if known else problem
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return)):
            return None  # where it goes on to, an optimizer takes it
        if isinstance(parent, (ast.For, ast.comprehension)):
            return None if is_only_kept(parent, self._parents, FACTS_OF_TENSORS, self._keeps) else problem
        return problem

    def _keeps(self, call: ast.Call) -> bool:
        """Whether a call only keeps what it is given, or tells of it: ``decayed.append(p)``, ``len(p)``."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in KEEPS:
            return True
        return bool(self._program.callee_names(call, self._site.scope) & TELLS)


def _is_own_attribute(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == name and isinstance(target.value, ast.Name)


def taken_by(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> tuple[ast.AST, ast.AST]:
    """What takes an expression, through displays, sums and keywords: its outermost part, and what that is in."""
    parent = parents[node]
    while isinstance(parent, (ast.keyword, ast.Dict, ast.List, ast.Tuple, ast.Starred, ast.BinOp, ast.IfExp)):
        node, parent = parent, parents[parent]
    return node, parent


def is_only_kept(
    loop: ast.For | ast.comprehension,
    parents: Mapping[ast.AST, ast.AST],
    facts: frozenset[str],
    keeps: Callable[[ast.Call], bool],
) -> bool:
    """Whether a loop over parameters freezes them, or keeps them for an optimizer, and does nothing else.

    Args:
        loop: over parameters, or their names and themselves.
        parents: by node.
        facts: the attributes that it may ask for.
        keeps: whether a call only keeps what it is given, or tells of it.
    """
    target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    names = {node.id for node in walk(target) if isinstance(node, ast.Name)}
    inside = loop if isinstance(loop, ast.For) else parents[loop]
    for node in walk(inside):
        if not (isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Attribute) and parent.attr not in facts:
            return False
        if isinstance(parent, (ast.BinOp, ast.UnaryOp)):
            return False
        if isinstance(parent, ast.Call) and not keeps(parent):
            return False
    return True
