"""Where the values of a device come from: through variables, parameters and options to where they are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from amp_rules.flow.cells import CellKey
from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import Form, Value
from amp_rules.roles.device_texts import index_of, is_index, is_read_off, writes_index
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.containers import LOADED_OBJECTS, MADE_OF_SETTINGS
from amp_rules.torch.devices import DEVICE

Origin = Literal["plain", "text", "number", "option", "unknown"]
"""``plain`` names no number; ``text`` is a text that does, or may, or an option that is one; ``number`` is a number
itself; ``option`` comes from the command line."""


@dataclass(frozen=True)
class DeviceUse(Site):
    """An expression that says which device to use; ``is_constructor`` where it is a call of ``torch.device``.

    ``is_certain`` says that it can be nothing but a device, as the argument of ``to`` can; ``chooses`` that it names
    one by its number as a rule, as ``cuda(n)`` and ``set_device(n)`` do; ``of_storage`` that the ``cuda`` of a storage
    is given it, which takes a number and no device.
    """

    is_constructor: bool = False
    is_certain: bool = True
    chooses: bool = False
    of_storage: bool = False

    @property
    def expression(self) -> ast.expr:
        """The node as the expression that it is."""
        assert isinstance(self.node, ast.expr)
        return self.node


class DeviceOrigins:
    """Follows the devices that one program names."""

    def __init__(self, program: Program) -> None:
        self.program = program

    # ---- what an expression is -----------------------------------------------------------------------------------

    def kind(self, node: ast.expr, scope: Scope) -> Origin:
        """What an expression is that says which device to use, without following it."""
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            found = {self.kind(part, scope) for part in parts}
            return next(kind for kind in ("number", "text", "option", "unknown", "plain") if kind in found)
        if self.is_option(node, scope):
            return "text" if self._holds_text(node, scope) else "option"
        if isinstance(node, ast.Call) and self._is_device(node, scope):
            return "plain"  # a place of its own
        if writes_index(node):
            return "text"
        if isinstance(node, ast.Constant):
            return "number" if is_index(node.value) else "plain"
        if self.has_index(node, scope):
            return "text" if self._holds_text(node, scope) else "number"
        if self._is_loaded(node, scope):
            return "text"
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            return self._kind_of_item(node.value, scope)
        # That of a tensor, or the one that the process has chosen.
        is_known = isinstance(node, ast.Call) and own_name(node.func) in ("get_device", "current_device")
        return "plain" if is_known or is_read_off(node) else "unknown"

    def _is_loaded(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression is an entry of a file of settings, which may name any device.

        ``config["device"]``, and ``config.train.device`` of what ``EasyDict(yaml.safe_load(file))`` made.
        """
        known = self.program.flow.values(node, scope)
        if known and all(value.ref is Form.LOADED for value in known):
            return True
        if any(value.kind != "attribute" for value in known):
            return False  # the script gives it a value of its own
        owner = node
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            owner = owner.value
            made = self.program.flow.values(owner, scope)
            if made and all(map(self._holds_settings, made)):
                return True
        return False

    def _holds_settings(self, value: Value) -> bool:
        """Whether an object has the entries of a file of settings as its attributes."""
        if value.kind != "object" or value.ref in LOADED_OBJECTS:
            return value.kind == "object" and not value.is_result
        if value.ref not in MADE_OF_SETTINGS or not isinstance(value.site, ast.Call):
            return False
        located = self.program.locate(value.site)
        whole = [*value.site.args, *(item.value for item in value.site.keywords if item.arg is None)]
        if located is None or len(whole) != 1 or len(value.site.keywords) + len(value.site.args) != 1:
            return False
        given = self.program.flow.values(whole[0], located[1])
        return bool(given) and all(item.ref is Form.LOADED for item in given)

    def _kind_of_item(self, node: ast.expr, scope: Scope) -> Origin:
        """What the items of a list are: the numbers of GPUs, or those of an option, ``args.gpu_ids[0]``."""
        origins = self.origins(node, scope)
        found = {self._kind_of_items(item.expression, item.scope) for item in origins or ()}
        return found.pop() if len(found) == 1 else "unknown"

    def _kind_of_items(self, made: ast.expr, scope: Scope) -> Origin:
        if self.is_option(made, scope):
            return "option"
        if isinstance(made, ast.Call) and made.args:
            names = self.program.callee_names(made, scope)
            if names & {"builtins.list", "builtins.sorted", "builtins.tuple"}:
                return self._kind_of_items(made.args[0], scope)
            is_mapped = "builtins.map" in names and isinstance(made.args[0], ast.Name) and made.args[0].id == "int"
            return "number" if is_mapped or "builtins.range" in names else "unknown"
        if isinstance(made, ast.ListComp) and isinstance(made.elt, ast.Call):
            return "number" if "builtins.int" in self.program.callee_names(made.elt, scope) else "unknown"
        return "unknown"

    def _holds_text(self, node: ast.expr, scope: Scope) -> bool:
        return any(isinstance(value.ref, str) for value in self.program.flow.values(node, scope))

    def _is_device(self, call: ast.Call, scope: Scope) -> bool:
        return DEVICE in self.program.callee_names(call, scope)

    def has_index(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the values that are known of an expression name a device by its number."""
        return any(is_index(value.ref) for value in self.program.flow.values(node, scope) if value.kind == "constant")

    def indices(self, node: ast.expr, scope: Scope) -> set[int]:
        """The numbers of devices that the expression may hold; empty where one of its origins is not known."""
        origins = self.origins(node, scope)
        if origins is None:
            known = self.program.flow.values(node, scope)
            if any(value.kind != "constant" for value in known):
                return set()
            return set().union(*(index_of(value.ref) or () for value in known))
        found: set[int] = set()
        for origin in origins:
            numbers = self._numbers(origin.expression, origin.scope)
            if numbers is None:
                return set()
            found |= numbers
        return found

    def _numbers(self, node: ast.expr, scope: Scope) -> set[int] | None:
        """The numbers that an expression certainly chooses from; None where one is computed."""
        if isinstance(node, ast.IfExp):
            one, other = self._numbers(node.body, scope), self._numbers(node.orelse, scope)
            return None if one is None or other is None else one | other
        if isinstance(node, ast.Call) and node.args and not node.keywords and self._is_device(node, scope):
            return self._numbers(node.args[-1], scope)
        if self._is_constant_of_file(node, scope):
            return set().union(*(index_of(value.ref) or () for value in self.program.flow.values(node, scope)))
        return index_of(node.value) if isinstance(node, ast.Constant) else None

    # ---- options -------------------------------------------------------------------------------------------------

    def is_option(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the expression is an option of the command line, which may hold any device."""
        if isinstance(node, ast.Name):
            return self._is_parameter_of_command(node.id, scope.owner(node.id))
        if not isinstance(node, ast.Attribute):
            return False
        return self._is_of_arguments(node, scope) and not self._kept_among_options(node, scope)

    def _is_of_arguments(self, node: ast.Attribute, scope: Scope) -> bool:
        """Whether an attribute is one of what the command line was parsed to."""
        owners = self.program.flow.values(node.value, scope)
        return any(value.is_result and str(value.ref).startswith("argparse.") for value in owners)

    def parsed_at(self, node: ast.expr, scope: Scope) -> Site | None:
        """The one statement ``args = parser.parse_args()`` that all reads of an option have its value of.

        None where there are several, where the option is given another value or is no text by default, and where
        options are not told apart.
        """
        if not isinstance(node, ast.Attribute) or self._declared_options is None:
            return None
        if node.attr not in self._declared_options or node.attr in self._set_in_arguments:
            return None
        found: set[object] = set()
        for read, where in self.reads_of_option(node.attr):
            if not self._holds_text(read, where):
                return None
            found |= {value.site for value in self.program.flow.values(read.value, where)}
        call = found.pop() if len(found) == 1 else None
        located = self.program.locate(call) if isinstance(call, ast.Call) else None
        statement = located[1].module.parents[call] if located is not None and isinstance(call, ast.Call) else None
        if located is None or not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            return None
        is_variable = isinstance(statement.targets[0], ast.Name)
        return Site(located[1].module, located[1], located[0], statement) if is_variable else None

    def reads_of_option(self, name: str) -> Iterator[tuple[ast.Attribute, Scope]]:
        """Yield the reads of one option of the command line."""
        for node, _, scope in self.program.nodes():
            if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
                if self._is_of_arguments(node, scope):
                    yield node, scope

    def _kept_among_options(self, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """What a script keeps among its options though no option has the name: ``args.device = device``.

        Nothing where one of the values cannot be followed: it is taken for an option then.
        """
        if not isinstance(node, ast.Attribute) or self._declared_options is None:
            return []
        if not self._is_of_arguments(node, scope):
            return []
        kept = self._set_in_arguments.get(node.attr, [])
        if node.attr in self._declared_options and not any(self._is_replaced(node, scope, *item) for item in kept):
            return []
        return kept if all(self._is_followed(value, where) for value, where in kept) else []

    def _is_replaced(self, node: ast.Attribute, scope: Scope, value: ast.expr, where: Scope) -> bool:
        """Whether an option was given a device of the script's own before: ``args.device = torch.device(args.device)``.

        The assignment is made whatever comes, and nothing above it in its function runs the one that asks.
        """
        if self.kind(value, where) != "plain":
            return False
        module = where.module
        statement = blocks.statement_of(module, value)
        body, asking = blocks.body_of(module, value), blocks.body_of(scope.module, node)
        whole = next(
            (
                item
                for item in (statement, *blocks.enclosing(module, statement))
                if (parent := module.parents[item]) is body or (isinstance(parent, ast.If) and is_main_guard(parent))
            ),
            None,
        )
        # All branches of a test may replace it: ``if args.gpu >= 0: args.gpu = ...``, ``else: args.gpu = ...``.
        if whole is None or not blocks.writes(statement) <= blocks.certainly_bound(whole) or node in set(walk(whole)):
            return False
        if asking is body:
            return whole.lineno < node.lineno
        place = blocks.place(module, whole)
        above = [part for item in place.suite[: place.index] for part in walk(item)]
        return asking not in self.program.called_from(above)

    def _is_followed(self, value: ast.expr, scope: Scope) -> bool:
        if isinstance(value, ast.Name):
            return bool(self.origins(value, scope))
        return self.kind(value, scope) in ("plain", "text")

    @cached_property
    def _set_in_arguments(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        found: dict[str, list[tuple[ast.expr, Scope]]] = {}
        for node, _, scope in self.program.nodes():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                for part, value in blocks.unpacked(target, node.value):  # type: ignore[attr-defined]
                    if isinstance(part, ast.Attribute) and self._is_of_arguments(part, scope):
                        found.setdefault(part.attr, []).append((value, scope))
        return found

    @cached_property
    def _declared_options(self) -> set[str] | None:
        """The names of the options that the program declares; None where one has a name made at run time."""
        found: set[str] = set()
        for node, _, scope in self.program.nodes():
            if not (isinstance(node, ast.Attribute) and node.attr == "add_argument"):
                continue
            call = scope.module.parents[node]
            if not (isinstance(call, ast.Call) and call.func is node):
                return None
            named = [*call.args, *(item.value for item in call.keywords if item.arg == "dest")]
            if any(item.arg is None for item in call.keywords):
                return None
            for item in named:
                name = literal(item)
                if not isinstance(name, str):
                    return None
                found.add(name.lstrip("-").replace("-", "_"))
        return found

    def _is_parameter_of_command(self, name: str, owner: Scope) -> bool:
        """Whether a name is a parameter that click fills in."""
        info = self.program.function_of(owner.node)
        if info is None or name not in info.parameters or isinstance(info.node, ast.Lambda):
            return False
        outer = owner.parent or owner
        decorators = [item.func for item in info.node.decorator_list if isinstance(item, ast.Call)]
        return any(name.startswith("click.") for item in decorators for name in self.program.names(item, outer))

    # ---- origins -------------------------------------------------------------------------------------------------

    def origins(self, node: ast.expr, scope: Scope) -> list[DeviceUse] | None:
        """The expressions whose values a variable takes, through variables and parameters; None if one is not known."""
        found: dict[ast.AST, DeviceUse] = {}
        pending: list[tuple[ast.expr, Scope]] = [(node, scope)]
        seen: set[ast.AST] = set()
        while pending:
            current, where = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            if isinstance(current, ast.Call) and (returned := self._returned(current)):
                pending.extend(returned)
                continue
            followed = isinstance(current, (ast.Name, ast.Attribute)) and not is_read_off(current)
            if not followed or self.is_option(current, where) or self._is_loaded(current, where):
                body = blocks.body_of(where.module, current)
                found[current] = DeviceUse(where.module, where, body, current)
                continue
            assert isinstance(current, (ast.Name, ast.Attribute))
            before = self._behind(current, where)
            if before is None and current is not node and self._is_constant_of_file(current, where):
                found[current] = DeviceUse(where.module, where, blocks.body_of(where.module, current), current)
                continue
            if before is None:
                return None
            pending.extend(before)
        return list(found.values())

    def _is_constant_of_file(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an expression asks a file of the project for a text that it names: ``config.device``."""
        if not isinstance(node, ast.Attribute):
            return False
        owners = self.program.flow.values(node.value, scope)
        known = self.program.flow.values(node, scope)
        return (
            {value.kind for value in owners} == {"module"}
            and self._with_settings.isdisjoint(value.ref for value in owners)
            and {value.kind for value in known} == {"constant"}
            and all(isinstance(value.ref, str) for value in known)
        )

    def _returned(self, call: ast.Call) -> list[tuple[ast.expr, Scope]]:
        """What the functions of the project that a call runs return: ``self.get_device()``."""
        callees = self.program.flow.callees(call)
        if any(info.yields or info.name == "__init__" or not info.returns for info in callees):
            return []
        return [(value, self.program.flow.scopes[info.node]) for info in callees for value in info.returns]

    def _behind(self, node: ast.Name | ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]] | None:
        """What a variable is assigned, or a parameter is given; None where that is not all plain."""
        kept = self._kept_among_options(node, scope)
        if kept:
            return kept
        key = self.program.flow.key(node, scope)
        if key is None or key in self._assignments.otherwise:
            return None
        found = list(self._assignments.plain.get(key, ()))
        if isinstance(node, ast.Name):
            if scope.owner(node.id) is scope.top and scope.module in self._with_settings:
                return None
            if not self._is_made_above(node, scope, found):
                given = self._given(node.id, scope.owner(node.id))
                if given is None:
                    return None
                found += given
        return found or None

    def _is_made_above(self, node: ast.Name, scope: Scope, assigned: list[tuple[ast.expr, Scope]]) -> bool:
        """Whether a function has made a device of a parameter before the place: what callers give is not used there."""
        body = blocks.body_of(scope.module, node)
        if body is not scope.owner(node.id).node or isinstance(body, ast.Lambda):
            return False
        if not any(isinstance(parent, ast.stmt) for parent in scope.module.ancestors(node)):
            return False  # a call that a configuration writes
        above = blocks.statements_above(scope.module, blocks.statement_of(scope.module, node), body)
        return any(node.id in blocks.certainly_bound(item) for item in above) and all(
            self.kind(value, where) == "plain" for value, where in assigned
        )

    def _given(self, name: str, owner: Scope) -> list[tuple[ast.expr, Scope]] | None:
        """What the callers give for a parameter; nothing if the name is none."""
        info = self.program.function_of(owner.node)
        if info is None or name not in info.parameters:
            return []
        callers = self.program.flow.callers(info)
        found = []
        for caller in callers:
            argument = info.argument(caller.call, name)
            if argument is None:
                return None
            found.append((argument, calling(caller).scope))
        return found or None

    @cached_property
    def _with_settings(self) -> set[Module]:
        """Files whose variables can be set by names made at run time: ``globals()[key] = value``."""
        return {site.module for site in self.program.calls_to(frozenset({"builtins.globals", "builtins.exec"}))}

    @cached_property
    def _assignments(self) -> _Assignments:
        plain: dict[CellKey, list[tuple[ast.expr, Scope]]] = {}
        otherwise: set[CellKey] = set()
        for node, _, scope in self.program.nodes():
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target, value = node.target, node.value
            else:
                target, value = None, None
            if isinstance(target, (ast.Name, ast.Attribute)) and value is not None:
                key = self.program.flow.key(blocks.reading(target), scope)
                if key is not None:
                    plain.setdefault(key, []).append((value, scope))
                continue
            for path in _bound(node):
                key = self.program.flow.key(blocks.reading(path), scope)
                if key is not None:
                    otherwise.add(key)
        return _Assignments(plain, otherwise)


@dataclass(frozen=True)
class _Assignments:
    """What variables are assigned one by one, and those that are bound in another way too."""

    plain: dict[CellKey, list[tuple[ast.expr, Scope]]]
    otherwise: set[CellKey]


def _bound(node: ast.AST) -> Iterator[ast.expr]:
    """The variables that a node binds otherwise than by an assignment of its own."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.AugAssign, ast.NamedExpr, ast.comprehension)):
        targets = [node.target]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        targets = [item.optional_vars for item in node.items if item.optional_vars is not None]
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets.extend(target.elts)
        elif isinstance(target, (ast.Name, ast.Attribute)):
            yield target
