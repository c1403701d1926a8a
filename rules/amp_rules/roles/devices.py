"""Which device a program uses: the places that take one, and where the value comes from.

A device is a value like any other: a text such as ``"cuda:0"``, a number, a default of an option. It is followed from
where it is used to where it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.roles.device_origins import DeviceOrigins, DeviceUse
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at, literal
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch.checkpoints import LOADS
from amp_rules.torch.devices import CHOOSING, DEVICE, KEYWORDS, MOVING, SPREADING
from amp_rules.torch.wrappers import DATA_PARALLEL


class Devices(DeviceOrigins):
    """Answers about the devices that one program names."""

    # ---- places --------------------------------------------------------------------------------------------------

    @cached_property
    def uses(self) -> list[DeviceUse]:
        """Every place that takes a device, in the order of files and lines."""
        found: dict[ast.AST, DeviceUse] = {}
        for call, body, scope in self.program.calls():
            for node, kind in self._taken(call, scope):
                use = DeviceUse(
                    scope.module,
                    scope,
                    body,
                    node,
                    is_constructor=kind == "constructor",
                    is_certain=kind != "maybe",
                    chooses=kind == "chooses",
                    of_storage=kind == "chooses" and self._is_of_storage(call, scope),
                )
                if kind == "constructor":
                    found[node] = use
                else:
                    found.setdefault(node, use)
        return list(found.values())

    def _taken(self, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, str]]:
        """The devices that a call is given, and how."""
        names = self.program.callee_names(call, scope)
        if DEVICE in names:
            yield call, "constructor"
            return
        if names & CHOOSING and call.args:
            yield call.args[0], "chooses"
        elif isinstance(call.func, ast.Attribute) and call.func.attr in MOVING and call.args and not names:
            if self._may_move(call, call.func, scope) and not _is_flag(call.args[0]):
                chooses = call.func.attr == "cuda" or self._is_of_listed(call, scope)
                yield call.args[0], "chooses" if chooses else "maybe"
        if not self.program.flow.callees(call):
            for item in call.keywords:
                if item.arg in KEYWORDS and not isinstance(item.value, (ast.Lambda, ast.Dict)):
                    yield item.value, "named"

    def _may_move(self, call: ast.Call, function: ast.Attribute, scope: Scope) -> bool:
        """Whether a call may be one of torch's methods: also where one of several models has a method of its own.

        That one may do nothing with the device but hand it on, because it gets a device for a number.
        """
        callees = self.program.flow.callees(call)
        if not callees:
            return True
        held = [value for value in self.program.flow.values(function.value, scope) if is_module(value)]
        is_torchs = [value.kind != "instance" or value.ref.find_method(function.attr) is None for value in held]
        return any(is_torchs) and all(
            isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr in MOVING
            for info in callees
            for name, argument in info.bound(call)
            if argument is call.args[0]
            for parent in self._parents_of(info, name)
        )

    def _parents_of(self, info: FunctionFacts, name: str | None) -> list[ast.AST]:
        """What the reads of a parameter stand in."""
        parents = self.program.flow.scopes[info.node].module.parents
        nodes = self.program.nodes_of(info.node)
        return [parents[node] for node in nodes if isinstance(node, ast.Name) and node.id == name]

    def _is_of_listed(self, call: ast.Call, scope: Scope) -> bool:
        """Whether an item of a list of devices is given: ``net.to(ids[0])`` beside ``DataParallel(net, ids)``."""
        given = call.args[0]
        if not isinstance(given, ast.Subscript):
            return False
        listed = ast.dump(given.value)
        body = blocks.body_of(scope.module, call)
        return any(
            ast.dump(item) == listed
            for node in self.program.nodes_of(body)
            if isinstance(node, ast.Call) and self.program.callee_names(node, scope) & DATA_PARALLEL
            for item in [*node.args[1:2], *(part.value for part in node.keywords if part.arg == "device_ids")]
        )

    def _is_of_storage(self, call: ast.Call, scope: Scope) -> bool:
        """Whether ``cuda`` is called of what a function is given that says where a checkpoint's storages go."""
        moved = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda" else None
        body = blocks.body_of(scope.module, call)
        if not isinstance(moved, ast.Name) or isinstance(body, ast.Module) or body not in self._placing:
            return False
        assert isinstance(body, FunctionNode)
        parameters = [*body.args.posonlyargs, *body.args.args]
        return bool(parameters) and parameters[0].arg == moved.id

    @cached_property
    def _placing(self) -> set[FunctionNode]:
        """Functions that are given as ``map_location``: torch calls them with a storage and where it was."""
        return {
            value.ref.node
            for call, _, scope in self.program.calls()
            if self.program.callee_names(call, scope) & LOADS
            for given in [argument_at(call, "map_location", 1)]
            if given is not None
            for value in self.program.flow.values(given, scope)
            if value.kind == "function"
        }

    def is_of_no_use(self, use: DeviceUse) -> bool:
        """Whether a device stands in a list of which others alone are taken: the second, beside ``devices[0]``."""
        listed = use.module.parents.get(use.node)
        statement = use.module.parents.get(listed) if isinstance(listed, (ast.List, ast.Tuple)) else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement.value is not listed:
            return False
        assert isinstance(listed, (ast.List, ast.Tuple))
        target = statement.targets[0]
        is_variable = isinstance(target, (ast.Name, ast.Attribute))
        key = self.program.flow.key(blocks.reading(target), use.scope) if is_variable else None
        if key is None:
            return False
        taken: set[int] = set()
        for node, scope in self.loads(key):
            item = scope.module.parents[node]
            number = literal(item.slice) if isinstance(item, ast.Subscript) and item.value is node else None
            if not isinstance(number, int):
                return False
            taken.add(number % len(listed.elts))
        return bool(taken) and use.node not in {listed.elts[number] for number in taken}

    @cached_property
    def spread(self) -> list[Site]:
        """Calls that spread a model over all devices that they see."""
        return [
            Site(scope.module, scope, body, call)
            for call, body, scope in self.program.calls()
            for item in call.keywords
            if item.arg == SPREADING and not is_none(item.value)
            if not self.program.flow.callees(call)
        ]

    # ---- values --------------------------------------------------------------------------------------------------

    def may_be_tensor(self, use: DeviceUse, origins: list[DeviceUse]) -> bool:
        """Whether an expression may be what a function of torch computed, as in ``x.to(other)``, and no device."""
        made = [value for value in self.program.flow.values(use.expression, use.scope) if value.kind == "object"]
        return any(_computes(str(value.ref)) for value in made) or any(
            _computes(name)
            for origin in origins
            for part in walk(origin.expression)
            if isinstance(part, ast.Call)
            for name in self.program.callee_names(part, origin.scope)
        )

    @cached_property
    def spelled_out(self) -> set[ast.AST]:
        """The origins of what is compared with a text of its own, such as ``"gpu"``, or looked up by it.

        The device of a rank, ``cuda:1``, is another text, and some of these words are no devices at all.
        """
        found: set[ast.AST] = set()
        for node, _, scope in self.program.nodes():
            for item in _asked_exactly(node):
                if isinstance(item, (ast.Name, ast.Attribute)):
                    found.update(origin.node for origin in self.origins(item, scope) or ())
        return found

    def loads(self, key: CellKey) -> Iterator[tuple[ast.expr, Scope]]:
        """Every place that reads a variable."""
        for node, _, scope in self.program.nodes():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                if self.program.flow.key(node, scope) == key:
                    yield node, scope


def _asked_exactly(node: ast.AST) -> Iterator[ast.expr]:
    """What must be one of some words: each rank's device is still ``cpu`` where that is asked for."""
    if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
        operands = [node.left, *node.comparators]
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            if _is_several(node.comparators[0]):  # `"cuda" in device` looks for a part of it
                yield node.left
        elif any(_is_word(item) for item in operands):
            yield from operands
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
        yield node.slice
    elif isinstance(node, ast.Match):
        yield node.subject


def _is_several(node: ast.expr) -> bool:
    """A list of words, not all of them ``cpu``; of a list in a variable it is not known."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return any(map(_is_word, node.elts))
    return isinstance(node, ast.Dict)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != "cpu"


def _computes(function: str) -> bool:
    """Whether a function of torch gives a tensor, for all that is known: those about devices and processes do not."""
    return function.startswith("torch.") and not function.startswith((DEVICE, "torch.cuda.", "torch.distributed."))


def _is_flag(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))
