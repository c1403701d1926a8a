"""What the expressions of a program give, as far as the rewrites of old PyTorch need it.

Every definition of a variable counts, in whatever order they run, so what is said holds everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from amp_rules.plan.old_torch.definitions import Definition, Key, attribute_key, definitions
from amp_rules.plan.old_torch.tensor_facts import NUMBER, UNKNOWN, Facts, join
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.resolver import names_of, root_of
from amp_rules.source.syntax import own_name
from amp_rules.torch import old_torch as old
from amp_rules.torch.canonical_names import canonical

# Questions that wait for each other: each takes some frames, of which Python has 1000.
_MAX_DEPTH = 60

# Guesses about values that depend on themselves only grow coarser, so that a few rounds settle them.
_MAX_ROUNDS = 8
_NO_TENSOR = (ast.Constant, ast.JoinedStr, ast.Lambda)


class Tensors:
    """Facts about the expressions of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names = {module: names_of(module) for module in program.flow.modules}
        self._definitions: dict[Module, dict[Key, list[Definition]]] = {}
        self._known: dict[object, Facts | None] = {}
        self._round: dict[object, Facts | None] = {}
        self._guessed: dict[object, Facts | None] = {}
        self._used: dict[object, Facts | None] = {}
        self._open: set[object] = set()
        self._targets: dict[ast.AST, str | None] = {}
        self._buffers: dict[ast.AST, set[object]] = {}
        self._names_written: dict[ast.AST, frozenset[str]] = {}

    # ---- names ---------------------------------------------------------------------------------------------

    def target(self, module: Module, node: ast.expr) -> str | None:
        """What an expression means of another package: ``torch.zeros``; None when it is none or not certain."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        if node not in self._targets:
            self._targets[node] = self._target(module, node)
        return self._targets[node]

    def _target(self, module: Module, node: ast.expr) -> str | None:
        names = self.names[module]
        found = {canonical(item) for item in names.targets(node)}
        known = self._of_root(module, node)
        if found and any(item.kind != "other" for item in known):
            return None  # another value is assigned to the imported name as well
        if not found and not known:
            # What ``import *`` brings, and what Python itself has.
            found = {canonical(item) for item in self.program.names(node, names.scope_of(node))}
        return next(iter(found)) if len(found) == 1 else None

    def _of_root(self, module: Module, node: ast.expr) -> list[Definition]:
        root = root_of(node)
        if not isinstance(root, ast.Name):
            return []
        owner = self.names[module].scope_of(root).owner(root.id).node
        return self.definitions(module).get((owner, root.id), [])

    def definitions(self, module: Module) -> dict[Key, list[Definition]]:
        """Where the variables of a file get their values."""
        if module not in self._definitions:
            self._definitions[module] = definitions(self.names[module])
        return self._definitions[module]

    def key(self, module: Module, node: ast.expr) -> Key | None:
        """The variable that an expression is."""
        names = self.names[module]
        if isinstance(node, ast.Name):
            return names.scope_of(node).owner(node.id).node, node.id
        return attribute_key(names, node) if isinstance(node, ast.Attribute) else None

    @cached_property
    def _losses(self) -> dict[Module, set[Key]]:
        """Variables on which ``backward()`` is called, without a gradient: they hold a single number."""
        found: dict[Module, set[Key]] = {module: set() for module in self.names}
        for module in self.names:
            for node in module.nodes:
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == "backward"
                    and not node.args
                    and all(item.arg not in ("gradient", None) for item in node.keywords)
                ):
                    key = self.key(module, node.func.value)
                    if key is not None:
                        found[module].add(key)
        return found

    # ---- questions -----------------------------------------------------------------------------------------

    def of(self, module: Module, node: ast.expr) -> Facts:
        """What is known of an expression."""
        for _ in range(_MAX_ROUNDS):
            self._round, self._used = {}, {}
            found = self._eval(module, node)
            self._guessed = self._round
            if all(self._round.get(key) == value for key, value in self._used.items()):
                self._known.update(self._round)
                return found or UNKNOWN
        return UNKNOWN

    def is_single(self, module: Module, node: ast.expr) -> bool:
        """Whether a tensor certainly holds one number and nothing is known against its having no dimensions."""
        facts = self.of(module, node)
        if facts.rank is not None:
            return facts.rank == 0 and facts.tensor
        return self.key(module, node) in self._losses[module]

    def asks_for_gradient(self, module: Module, node: ast.AST) -> bool:
        """Whether a variable that an expression is assigned to is told later to ask for a gradient."""
        statement = blocks.statement_of(module, node)
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        parts = [item for target in targets for item in ast.walk(target) if isinstance(item, (ast.Name, ast.Attribute))]
        return any(self.key(module, item) in self._asking[module] for item in parts)

    @cached_property
    def _asking(self) -> dict[Module, set[Key | None]]:
        """Variables that are told to ask for a gradient."""
        found: dict[Module, set[Key | None]] = {module: set() for module in self.names}
        for module in self.names:
            for node in module.nodes:
                if not isinstance(node, ast.Attribute):
                    continue
                is_set = node.attr == "requires_grad" and isinstance(node.ctx, ast.Store)
                if is_set or node.attr in ("requires_grad_", "retain_grad"):
                    found[module].add(self.key(module, node.value))
            found[module].discard(None)
        return found

    # ---- evaluation ----------------------------------------------------------------------------------------

    def _eval(self, module: Module, node: ast.AST, path: tuple[int, ...] = ()) -> Facts | None:
        """What an expression gives, or an item of it; None for what is never there."""
        return self._settled((node, path), lambda: self._item_of_node(module, node, path))

    def _settled(self, key: object, compute: Callable[[], Facts | None]) -> Facts | None:
        """What is known of something, computed once; while that goes on, what the round before made of it."""
        for known in (self._known, self._round):
            if key in known:
                return known[key]
        if key in self._open:
            self._used[key] = self._guessed.get(key)
            return self._used[key]
        if len(self._open) > _MAX_DEPTH:
            return UNKNOWN
        self._open.add(key)
        try:
            found = compute()
        finally:
            self._open.discard(key)
        self._round[key] = found
        return found

    def _item_of_node(self, module: Module, node: ast.AST, path: tuple[int, ...]) -> Facts | None:
        found = self._of_node(module, node)
        for index in path:
            if found is not None:
                found = found.items[index] if found.items and index < len(found.items) else _item(found)
        return found

    def _of_node(self, module: Module, node: ast.AST) -> Facts | None:
        if isinstance(node, ast.Constant):
            return NUMBER if isinstance(node.value, (int, float, complex)) else Facts(number=True, plain=True)
        if isinstance(node, _NO_TENSOR):
            return Facts(number=True, plain=True)
        if isinstance(node, (ast.Tuple, ast.List)):
            items = tuple(self._eval(module, item) for item in node.elts)
            plain = all(item is not None and item.plain for item in items)
            return Facts(number=False, plain=plain, items=items if isinstance(node, ast.Tuple) else None)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._of_variable(module, node)
        if isinstance(node, ast.Call):
            return self._of_call(module, node)
        if isinstance(node, ast.BinOp):
            return _combined(self._eval(module, node.left), self._eval(module, node.right), node.op)
        if isinstance(node, ast.UnaryOp):
            inner = self._eval(module, node.operand)
            if isinstance(node.op, ast.Not):
                return NUMBER
            if inner is not None and inner.byte and isinstance(node.op, ast.Invert):
                return replace(inner, fresh=True, inverted=True)
            return inner and replace(inner, fresh=inner.tensor)
        if isinstance(node, ast.IfExp):
            return join(self._eval(module, node.body), self._eval(module, node.orelse))
        if isinstance(node, ast.Compare):
            return self._of_comparison(module, node)
        if isinstance(node, ast.Subscript):
            return self._of_item(module, node)
        if isinstance(node, ast.NamedExpr):
            return self._eval(module, node.value)
        return UNKNOWN

    def _of_variable(self, module: Module, node: ast.Name | ast.Attribute) -> Facts | None:
        if isinstance(node, ast.Attribute) and node.attr in ("data", "grad", "T", "shape"):
            if node.attr == "shape":
                return Facts(number=True, plain=True)
            inner = self._eval(module, node.value)
            if inner is None or node.attr == "grad":
                return inner and UNKNOWN
            if node.attr == "T":
                return replace(inner, fresh=False)
            return replace(inner, plain=True, fresh=True, number=False, items=None)
        key = self.key(module, node)
        if key is None:
            return UNKNOWN
        flowing = self.program.flow.values(node, self.names[module].scope_of(node))
        if flowing and all(value.kind == "batch" for value in flowing):
            return Facts(plain=True)
        known = self.definitions(module).get(key, [])
        if isinstance(node, ast.Attribute) and self._is_buffer(key):
            return Facts(tensor=True, plain=True)
        last = self._last(module, node) if isinstance(node, ast.Name) else None
        known = [last] if last is not None else known
        if not known or any(item.kind == "other" for item in known):
            return UNKNOWN
        if last is not None:
            found = self._defined(module, key, known)
        else:
            found = self._settled(key, lambda: self._defined(module, key, known))
        return replace(found, plain=False) if found is not None and key in self._asking[module] else found

    def _defined(self, module: Module, key: Key, known: list[Definition]) -> Facts | None:
        found: Facts | None = None
        for item in known:
            if item.kind == "parameter":
                one = self._given(item.node, key[1])
            elif item.kind == "element":
                one = _item(self._eval(module, item.node))
                for _ in item.path:
                    one = _item(one)
            else:
                one = self._eval(module, item.node, item.path)
            found = join(found, one)
        for item in known:
            if item.kind == "sum":
                added = self._eval(module, item.node)
                found = _combined(found, added, ast.Add()) if found is not None else added
        return found and replace(found, fresh=False)

    def _last(self, module: Module, node: ast.Name) -> Definition | None:
        """The one definition that a use in straight code can see; None when several may reach it."""
        names = self.names[module]
        if names.scope_of(node).owner(node.id).node is not blocks.body_of(module, node):
            return None
        current: ast.AST = blocks.statement_of(module, node)
        while isinstance(current, ast.stmt):
            if isinstance(module.parents[current], ast.ClassDef):
                return None
            where = blocks.place(module, current)
            for statement in reversed(where.suite[: where.index]):
                if node.id in self._written(statement):
                    return _definition(statement, node.id)
            current = where.parent
            if isinstance(current, (ast.For, ast.AsyncFor, ast.While)) and node.id in self._written(current):
                return None
            if not isinstance(current, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With)):
                return None
        return None

    def _written(self, statement: ast.AST) -> frozenset[str]:
        if statement not in self._names_written:
            self._names_written[statement] = frozenset(_written(statement))
        return self._names_written[statement]

    def arguments(self, function: ast.AST, name: str) -> list[tuple[Module, ast.expr]]:
        """What the callers of a function give for a parameter, or its default; nothing when one is not known."""
        info = self.program.flow.functions.get(function)
        found = []
        for caller in self.program.flow.callers(info) if info is not None else ():
            argument = info.argument_or_default(caller.call, name) if info is not None else None
            if info is None or argument is None:
                return []
            found.append((self.program.flow.scope_given(info, caller, argument).module, argument))
        return found

    def _given(self, function: ast.AST, name: str) -> Facts | None:
        found: Facts | None = None
        given = self.arguments(function, name)
        for module, argument in given:
            found = join(found, self._eval(module, argument))
        return found if given else UNKNOWN

    def _is_buffer(self, key: Key) -> bool:
        """Whether a class registers the attribute as a buffer, which has no gradient."""
        owner, name = key
        if owner not in self._buffers:
            calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call) and node.args]
            registered = [call.args[0] for call in calls if own_name(call.func) == "register_buffer"]
            self._buffers[owner] = {item.value for item in registered if isinstance(item, ast.Constant)}
        return name in self._buffers[owner]

    def _of_comparison(self, module: Module, node: ast.Compare) -> Facts | None:
        if len(node.ops) != 1 or isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            return NUMBER
        left, right = self._eval(module, node.left), self._eval(module, node.comparators[0])
        found = _combined(left, right, ast.Add())
        if found is None or not found.tensor:
            return found and Facts(plain=True)
        return replace(found, plain=True, fresh=True, boolean=True, byte=False)

    def _of_item(self, module: Module, node: ast.Subscript) -> Facts | None:
        inner = self._eval(module, node.value)
        if inner is None:
            return None
        index = node.slice
        if inner.items is not None and isinstance(index, ast.Constant) and isinstance(index.value, int):
            if -len(inner.items) <= index.value < len(inner.items):
                return inner.items[index.value]
        rank = inner.rank if inner.tensor else None
        if rank is not None:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            if all(isinstance(item, ast.Slice) or _is_integer(item) for item in parts):
                rank -= sum(not isinstance(item, ast.Slice) for item in parts)
            else:
                rank = None
        return _of_same_type(inner, rank)

    # ---- calls ---------------------------------------------------------------------------------------------

    def _of_call(self, module: Module, node: ast.Call) -> Facts | None:
        target = self.target(module, node.func)
        if target is not None:
            return self._of_library(module, node, target)
        several = self._alternatives(module, node.func)
        if several:
            either: Facts | None = None
            for name in several:
                either = join(either, self._of_library(module, node, name))
            return either
        infos = self._functions(module, node)
        if infos:
            found: Facts | None = None
            for info in infos:
                found = join(found, self._returned(info))
            return found and replace(found, fresh=False)
        loss = self._loss(module, node)
        if loss is not None:
            return loss
        if isinstance(node.func, ast.Attribute):
            return self._of_method(module, node, node.func)
        return UNKNOWN

    def _alternatives(self, module: Module, node: ast.expr) -> list[str]:
        """The constructors that a name can be, as in ``Tensor = torch.cuda.FloatTensor if cuda else ...``."""
        values = self.program.flow.values(node, self.names[module].scope_of(node))
        names = {canonical(value.ref) if value.kind == "external" else "" for value in values}
        return sorted(names) if names and names <= old.CONSTRUCTORS else []

    def _functions(self, module: Module, node: ast.Call) -> list[FunctionFacts]:
        found = self.program.flow.callees(node)
        if not found and isinstance(node.func, (ast.Name, ast.Attribute)):
            values = self.program.flow.values(node.func, self.names[module].scope_of(node))
            found = {value.ref for value in values if value.kind == "function"}
            if len(found) != len(values):
                return []
        return sorted(found, key=lambda info: info.place)

    def _returned(self, info: FunctionFacts) -> Facts | None:
        if info.yields or not info.returns or isinstance(info.node, ast.AsyncFunctionDef):
            return UNKNOWN
        found: Facts | None = None
        for item in info.returns:
            found = join(found, self._eval(info.module.module, item))
        return found

    def _loss(self, module: Module, node: ast.Call) -> Facts | None:
        """The result of a criterion of ``torch.nn``; None when the call is none."""
        values = self.program.flow.values(node.func, self.names[module].scope_of(node))
        if not values:
            return None
        found: Facts | None = None
        for value in values:
            name = canonical(value.ref) if value.kind == "object" and isinstance(value.ref, str) else ""
            head, _, last = name.rpartition(".")
            if head == "torch.nn" and last in old.LAYERS and node.args:
                inner = self._eval(module, node.args[0])
                found = join(found, inner and Facts(tensor=True, fresh=True, rank=inner.rank))
                continue
            if head != "torch.nn" or not (last in old.LOSS_MODULES or last in old.OTHER_LOSSES):
                return None
            known = isinstance(value.site, ast.Call) and averages(value.site, old.LOSS_MODULES.get(last, ()))
            found = join(found, Facts(tensor=True, fresh=True, rank=0 if known else None))
        return found

    def _of_library(self, module: Module, node: ast.Call, target: str) -> Facts | None:
        head, _, last = target.rpartition(".")
        keywords = {item.arg: item.value for item in node.keywords}
        if target == old.VARIABLE:
            return self._of_variable_call(module, node, keywords)
        if target in old.CONSTRUCTORS or (head == "torch" and last in old.LIKE):
            graph = "requires_grad" in keywords or None in keywords
            return Facts(
                tensor=True,
                plain=not graph,
                fresh=target not in ("torch.as_tensor", "torch.from_numpy"),
                rank=self._constructed(module, node, target, keywords),
                byte=last == "ByteTensor",
                boolean=last == "BoolTensor",
            )
        if head in ("torch", "torch.nn.functional") and (
            last in old.LOSS_FUNCTIONS or last in old.OTHER_LOSS_FUNCTIONS
        ):
            known = averages(node, old.LOSS_FUNCTIONS.get(last, ()))
            return Facts(tensor=True, fresh=True, rank=0 if known else None)
        if head == "torch" and last in old.TORCH_FUNCTIONS:
            return self._computed(module, node, last, node.args)
        if head in ("builtins", "math", "time", "random", "os", "os.path") or target.startswith("numpy."):
            if target in ("builtins.next", "builtins.iter", "builtins.enumerate", "builtins.zip", "builtins.list"):
                return UNKNOWN
            if target in ("builtins.sum", "builtins.max", "builtins.min", "builtins.map", "builtins.abs"):
                return UNKNOWN
            return (
                NUMBER
                if target in ("builtins.float", "builtins.int", "builtins.len")
                else Facts(number=True, plain=True)
            )
        if head == "torch.nn.functional":
            inner = self._eval(module, node.args[0]) if node.args else UNKNOWN
            return inner and Facts(
                tensor=True, fresh=True, rank=inner.rank if last in old.SAME_RANK_FUNCTIONS else None
            )
        return UNKNOWN

    def _of_variable_call(self, module: Module, node: ast.Call, keywords: dict[str | None, ast.expr]) -> Facts | None:
        data = node.args[0] if node.args else keywords.get("data")
        inner = self._eval(module, data) if data is not None else UNKNOWN
        asks = keywords.get("requires_grad", node.args[1] if len(node.args) > 1 else None)
        plain = asks is None or (isinstance(asks, ast.Constant) and not asks.value)
        return inner and replace(inner, tensor=True, number=False, plain=plain, fresh=True)

    def _constructed(
        self, module: Module, node: ast.Call, target: str, keywords: dict[str | None, ast.expr]
    ) -> int | None:
        last = target.rpartition(".")[2]
        if any(isinstance(item, ast.Starred) for item in node.args) or None in keywords:
            return None
        if last in ("arange", "range", "linspace", "randperm"):
            return 1
        if last == "eye":
            return 2
        if not node.args:
            return None
        first = node.args[0]
        if last in ("tensor", "FloatTensor", "LongTensor", "Tensor", "DoubleTensor", "IntTensor", "ByteTensor"):
            if isinstance(first, ast.List):
                return _depth(first)
            if last == "tensor" and isinstance(first, ast.Constant):
                return 0
        if last in ("zeros", "ones", "empty", "rand", "randn", "FloatTensor", "Tensor", "LongTensor", "ByteTensor"):
            if len(node.args) == 1 and isinstance(first, (ast.Tuple, ast.List)):
                return len(first.elts) if not any(isinstance(item, ast.Starred) for item in first.elts) else None
            if len(node.args) > 1:
                return len(node.args)
            return 1 if _is_integer(first) and last in ("zeros", "ones", "rand", "randn", "empty") else None
        return None

    def _of_method(self, module: Module, node: ast.Call, func: ast.Attribute) -> Facts | None:
        name = func.attr
        if name in old.NUMBERS:
            return NUMBER if name in ("numel", "item", "dim", "nelement") else Facts(number=True, plain=True)
        inner = self._eval(module, func.value)
        if inner is None:
            return None
        if name in old.NEW:
            graph = any(item.arg in ("requires_grad", None) for item in node.keywords)
            return Facts(tensor=True, plain=not graph, fresh=True)
        if inner.number or not (inner.tensor or inner.plain or name in old.TENSOR_METHODS):
            return UNKNOWN
        if name not in old.TENSOR_METHODS | old.BOOLEAN | old.WITHOUT_GRADIENT:
            return UNKNOWN
        return self._computed(module, node, name, [func.value, *node.args])

    def _computed(self, module: Module, node: ast.Call, name: str, inputs: list[ast.expr]) -> Facts | None:
        """What a function of tensors gives; a method's receiver is the first input."""
        known = [self._eval(module, item) for item in inputs]
        first = known[0] if known else UNKNOWN
        if first is None:
            return None
        plain = first.plain if name in old.OF_ONE else all(item is None or item.plain for item in known)
        keywords = {item.arg: item.value for item in node.keywords}
        for keyword, value in keywords.items():
            inner = self._eval(module, value)
            quiet = keyword in old.QUIET or inner is None or inner.plain
            plain = plain and keyword is not None and quiet
        keeps = name in old.KEEPS_TYPE
        return Facts(
            tensor=True,
            plain=(plain and name != "requires_grad_") or name in old.WITHOUT_GRADIENT or name in old.BOOLEAN,
            fresh=first.fresh or name not in ("to", "cuda", "cpu", "contiguous", "float", "type"),
            boolean=name in old.BOOLEAN or (first.boolean and keeps),
            byte=name == "byte" or (first.byte and keeps),
            inverted=first.inverted and keeps,
            rank=_rank(name, first, inputs, keywords),
        )


def _written(statement: ast.AST) -> set[str]:
    """The names that a statement may give a value."""
    found = set()
    for node in blocks.walk_own(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return found


def _definition(statement: ast.stmt, name: str) -> Definition | None:
    """What a plain assignment gives a name."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Name):
        # It may be a comprehension in the value that gives the name one.
        return Definition("value", value) if target.id == name else None
    if isinstance(target, ast.Tuple) and all(isinstance(item, ast.Name) for item in target.elts):
        index = next((place for place, item in enumerate(target.elts) if getattr(item, "id", "") == name), None)
        if index is None:
            return None
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            return (
                None
                if any(isinstance(item, ast.Starred) for item in value.elts)
                else Definition("value", value.elts[index])
            )
        return Definition("value", value, (index,))
    return None


def averages(node: ast.Call, parameters: tuple[str, ...]) -> bool:
    """Whether a loss, by the arguments of its call, certainly gives a single number."""
    given = dict(zip(parameters, node.args, strict=False))
    given |= {item.arg: item.value for item in node.keywords if item.arg is not None}
    if any(item.arg is None for item in node.keywords) or any(isinstance(item, ast.Starred) for item in node.args):
        return False
    reduce, reduction = given.get("reduce"), given.get("reduction")
    if reduce is not None and not (isinstance(reduce, ast.Constant) and reduce.value is not False):
        return False
    if reduction is None:
        return True
    return isinstance(reduction, ast.Constant) and reduction.value in ("mean", "sum", "batchmean", "elementwise_mean")


def _combined(one: Facts | None, other: Facts | None, op: ast.operator) -> Facts | None:
    if one is None or other is None:
        known = other if one is None else one
        return known and replace(known, boolean=False)
    ranks = [one.rank, other.rank]
    rank = max(item for item in ranks if item is not None) if None not in ranks else None
    if isinstance(op, ast.MatMult):
        rank = None
    tensor = one.tensor or other.tensor
    # Booleans that are multiplied or added stay booleans.
    logical = isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor)) or (
        isinstance(op, (ast.Mult, ast.Add)) and one.tensor and other.tensor
    )
    return Facts(
        tensor=tensor,
        number=one.number and other.number,
        plain=one.plain and other.plain,
        fresh=tensor,
        boolean=logical and one.boolean and other.boolean,
        byte=one.byte and other.byte,
        inverted=one.inverted or other.inverted,
        rank=rank,
    )


def _item(found: Facts | None) -> Facts | None:
    """An element of something, whichever."""
    if found is None:
        return None
    if found.items is not None:
        one: Facts | None = None
        for item in found.items:
            one = join(one, item)
        return one
    rank = found.rank - 1 if found.rank and found.tensor else None
    return _of_same_type(found, rank)


def _of_same_type(found: Facts, rank: int | None) -> Facts:
    """Elements of a tensor."""
    return Facts(
        tensor=found.tensor,
        plain=found.plain,
        boolean=found.boolean,
        byte=found.byte,
        inverted=found.inverted,
        rank=rank,
    )


def _rank(name: str, first: Facts, inputs: list[ast.expr], keywords: dict[str | None, ast.expr]) -> int | None:
    more = inputs[1:]
    if any(isinstance(item, ast.Starred) for item in more) or None in keywords:
        return None
    if name in old.REDUCTIONS:
        if not more and not keywords.keys() - {"dtype", "p", "unbiased"}:
            return 0
        return None
    if name in ("view", "reshape", "expand", "repeat", "permute") and more:
        return len(more) if len(more) > 1 or _is_integer(more[0]) else None
    if name in old.SAME_RANK and name not in old.SHAPED:
        # A tensor of higher rank among the arguments decides for both.
        quiet = name in ("cuda", "cpu", "to", "type", "pow", "clamp", "softmax", "log_softmax", "transpose", "cumsum")
        return first.rank if quiet or not more or name.endswith("_") else None
    if name == "unsqueeze" and first.rank is not None:
        return first.rank + 1
    return None


def _is_integer(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int


def _depth(node: ast.expr) -> int | None:
    """How deeply lists are nested; None when the innermost may hold more than numbers."""
    if isinstance(node, ast.List):
        inner = {_depth(item) for item in node.elts}
        found = next(iter(inner)) if len(inner) == 1 else None
        return None if found is None else found + 1
    return 0 if isinstance(node, ast.Constant) or _is_integer(node) else None
