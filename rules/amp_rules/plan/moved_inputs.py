"""Whether ``DataParallel`` moved what a model is given: tensors that nothing else takes to the GPU."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.plan.definitions import Definitions
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.devices import MOVING
from amp_rules.torch.wrappers import DATA_PARALLEL

_GPU = ("cuda", "gpu")


def inputs_are_moved(program: Program) -> bool:
    """Whether a model in ``DataParallel`` may be given tensors of the CPU, where the model is on a GPU.

    The wrapper takes its inputs to the first of its devices, so a script that leaves it to do so would fail without.
    What is not known to be there counts as not there: keeping the wrapper is right in any case.
    """
    wrapped = _wrapped(program)
    if not wrapped or not any(_uses_gpu(node) for node, _, _ in program.nodes()):
        return False
    places = _Places(program)
    for call, body, scope in program.calls():
        if program.is_model_code(body) or not program.roles.modules(call.func, scope) & wrapped:
            continue
        given = [*call.args, *(item.value for item in call.keywords)]
        if not all(places.is_placed(item, scope) for item in given):
            return True
    return False


def _wrapped(program: Program) -> set[Value]:
    """The models that are given to the wrapper, and the wrappers."""
    found: set[Value] = set()
    for site in program.calls_to(DATA_PARALLEL):
        assert isinstance(site.node, ast.Call)
        found |= program.roles.modules(site.node, site.scope)
        for item in [*site.node.args[:1], *(item.value for item in site.node.keywords if item.arg == "module")]:
            found |= program.roles.modules(item, site.scope)
    return found


def _uses_gpu(node: ast.AST) -> bool:
    """Whether something is moved to a GPU: ``x.cuda()``, ``x.to(device)``, ``torch.device("cuda")``."""
    if isinstance(node, ast.Attribute):
        return node.attr in MOVING
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(_GPU)


class _Places:
    """Which expressions are known to be on the GPU: something moves them, or what they are computed with."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._definitions = Definitions(program)
        self._there: set[tuple[ast.expr, Scope]] = set()
        self._asked: set[tuple[ast.expr, Scope]] = set()
        self._elsewhere: set[tuple[ast.expr, Scope]] = set()

    def is_placed(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is on the GPU, or a literal. What hangs on itself is not.

        It is asked in rounds. In each, everything is decided on once, and what is not, or not yet, is not there;
        what was found to be there is kept. A round that finds nothing more was right about all the others.
        """
        while True:
            known = len(self._there)
            self._asked = set(self._elsewhere)
            placed = self._is_placed(node, scope)
            if len(self._there) == known:
                self._elsewhere = self._asked
                return placed
            if placed:
                return True

    def _is_placed(self, node: ast.expr, scope: Scope) -> bool:
        if _is_literal(node) or self._is_there(node, scope):
            return True
        given = self._given(node, scope) if isinstance(node, ast.Name) else []
        return bool(given) and all(part is not None and _is_literal(part) for part, _ in given)

    def _is_there(self, node: ast.expr, scope: Scope) -> bool:
        place = node, scope
        if place in self._there:
            return True
        if place in self._asked or _is_literal(node):
            return False
        self._asked.add(place)
        if self._decide(node, scope):
            self._there.add(place)
        return place in self._there

    def _decide(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return all(self._is_placed(item, scope) for item in node.elts)
        if isinstance(node, ast.Dict):
            return all(self._is_placed(item, scope) for item in node.values)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self._is_there(node.elt, scope)
        if isinstance(node, ast.DictComp):
            return self._is_there(node.value, scope)
        if isinstance(node, ast.IfExp):
            return self._is_there(node.body, scope) or self._is_there(node.orelse, scope)
        if isinstance(node, (ast.Starred, ast.Await)):
            return self._is_there(node.value, scope)
        if isinstance(node, ast.Subscript):
            return self._is_there(node.value, scope) or self._is_stored(node.value, scope)
        if isinstance(node, ast.Call):
            return self._is_call_placed(node, scope)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._is_variable_placed(node, scope)
        # Torch refuses to compute with tensors of two devices, so one of them tells.
        return any(isinstance(part, ast.expr) and self._is_there(part, scope) for part in ast.iter_child_nodes(node))

    def _is_call_placed(self, call: ast.Call, scope: Scope) -> bool:
        if isinstance(call.func, ast.Attribute):
            if call.func.attr in MOVING:
                return True
            if call.func.attr in ("cpu", "numpy"):
                return False
        if any(item.arg == "device" for item in call.keywords):
            return True
        if any(name.startswith("torch.cuda.") for name in self._program.callee_names(call, scope)):
            return True
        owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        parts = [*owner, *call.args, *(item.value for item in call.keywords)]
        return any(self._is_there(part, scope) for part in parts) or self._is_given_back(call)

    def _is_given_back(self, call: ast.Call) -> bool:
        """Whether all that functions of the project return is there."""
        callees = self._program.flow.callees(call)
        if not callees:
            return False
        for info in callees:
            inner = self._program.flow.scopes.get(info.node)
            returned = [*info.returns, *info.yields]
            if inner is None or not self._are_there((item, inner) for item in returned):
                return False
        return True

    def _is_variable_placed(self, node: ast.Name | ast.Attribute, scope: Scope) -> bool:
        definitions = self._definitions.of(node, scope)
        if any(self._is_there(item.value, item.scope) for item in definitions if not _is_own(item.value, node)):
            return True
        if self._is_stored(node, scope):
            return True
        if isinstance(node, ast.Attribute):
            return not definitions and self._is_there(node.value, scope)
        return self._is_loaded_there(node, scope) or self._is_given(node, scope)

    def _is_stored(self, node: ast.expr, scope: Scope) -> bool:
        """Whether elements of a variable are moved in place: ``batch[key] = batch[key].cuda()``."""
        path = blocks.path_of(node)
        if path is None:
            return False
        name = path.split(".")[0]
        owner = scope.owner(name).node
        return any(
            other.owner(name).node is owner and self._is_there(value, other)
            for value, other in self._stored.get(path, ())
        )

    @cached_property
    def _stored(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """What is put into elements of variables, and where, by the paths of these."""
        found: defaultdict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for item, _, scope in self._program.nodes():
            if not isinstance(item, ast.Assign):
                continue
            for target in item.targets:
                path = blocks.path_of(target.value) if isinstance(target, ast.Subscript) else None
                if path is not None:
                    found[path].append((item.value, scope))
        return found

    def _is_loaded_there(self, node: ast.Name, scope: Scope) -> bool:
        """Whether a loop goes through an object of the project that moves what it gives."""
        for item in self._definitions.of(node, scope):
            if not isinstance(item.statement, (ast.For, ast.AsyncFor)):
                continue
            parents = item.scope.module.parents
            for part in walk(item.value):
                if isinstance(parents[part], ast.Attribute) and not isinstance(parents[parents[part]], ast.Call):
                    continue  # of `self.workers` the attribute is handed on, and not its owner
                values = self._program.flow.values(part, item.scope) if isinstance(part, ast.expr) else ()
                for value in values:
                    if value.kind == "instance" and any(_uses_gpu(inner) for inner in walk(value.ref.facts.node)):
                        return True
        return False

    def _is_given(self, node: ast.Name, scope: Scope) -> bool:
        """Whether all callers give a parameter that is there."""
        return self._are_there(self._given(node, scope))

    def _are_there(self, parts: Iterable[tuple[ast.expr | None, Scope]]) -> bool:
        """Whether of several expressions one is there, and the others are or are literals, which are nowhere."""
        known = list(parts)
        return all(part is not None and self._is_placed(part, where) for part, where in known) and any(
            part is not None and self._is_there(part, where) for part, where in known
        )

    def _given(self, node: ast.Name, scope: Scope) -> list[tuple[ast.expr | None, Scope]]:
        """What the callers give a parameter; nothing for other variables."""
        function = self._definitions.parameter(node, scope)
        info = self._program.function_of(function) if function is not None else None
        if function is None or info is None:
            return []
        flow = self._program.flow
        given = [(item, info.argument_or_default(item.call, node.id)) for item in flow.callers(info)]
        return [(value, flow.scope_given(info, item, value)) for item, value in given]


def _is_literal(node: ast.expr) -> bool:
    """Whether something is written out: numbers, flags, and what holds nothing else."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_literal, node.elts))
    return isinstance(node, ast.Constant)


def _is_own(value: ast.expr, node: ast.expr) -> bool:
    """Whether a variable is only given to itself anew."""
    return ast.dump(value) == ast.dump(node)
