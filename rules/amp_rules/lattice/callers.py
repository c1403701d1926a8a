"""What the calls of a function give to it: those in its own file, and in others where its own has none.

A function is judged without its callers first. Only where a rule has something to say is it asked who calls it: a
helper to which every call hands float32, or that is called with autocast off, is judged again knowing that.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import reduce

from amp_rules.lattice.abstract_values import ASSUMED, CAST, F32, IN_A_FEW_LINES, LOW, NUM, OTHER, TENSORS, Value, join
from amp_rules.lattice.decorators import turns_autocast_off
from amp_rules.lattice.frame import Frame, RunsFunctions
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import Function
from amp_rules.source.scopes import FunctionNode
from amp_rules.torch.idioms import NAMED_TRIAL

_MAX_DEPTH = 3
"""How many callers of callers are asked."""
_MAX_CALLS = 24
"""A function with more calls than these is a general helper: running all its callers costs more than it can settle."""


@dataclass
class Handed:
    """What the calls of a function give.

    Attributes:
        to: the function.
        calls: its calls in the file that Python runs.
        values: the arguments of each call, by parameter; a parameter that is not among them keeps its default.
        autocast: whether operations are cast at each call.
        seen: the calls that were reached, those of other functions too.
        complete: whether all arguments of all calls are known.
    """

    to: ast.AST
    calls: set[ast.AST]
    values: list[dict[str, Value]] = field(default_factory=list)
    autocast: list[bool] = field(default_factory=list)
    seen: set[ast.AST] = field(default_factory=set)
    complete: bool = True

    def take(
        self, frame: Frame, node: ast.Call, function: FunctionFacts, args: list[Value], kwargs: dict[str, Value] | None
    ) -> None:
        """Note a call that the running function makes itself."""
        if frame.caller is not None:
            return
        self.seen.add(node)
        if function.node is not self.to or node not in self.calls:
            return
        names = function.positional
        open_ended = any(item.op == "starred" for item in args) or any(item.arg is None for item in node.keywords)
        self.complete &= len(args) <= len(names) and not open_ended
        self.values.append({**dict(zip(names, args, strict=False)), **(kwargs or {})})
        self.autocast.append(frame.autocast)


def learn(machine: RunsFunctions, function: FunctionFacts, lines: set[int]) -> None:
    """Ask the callers of a judged function, of those in it that are in doubt, and of its class's constructor.

    Args:
        machine: runs the callers.
        function: the one that was judged.
        lines: where in it something was found.
    """
    _of_function(machine, function, _MAX_DEPTH)
    for item in function.nodes[1:]:
        if isinstance(item, Function) and _holds(item, lines):
            _of_function(machine, FunctionFacts(item, function.module, None, function), _MAX_DEPTH)
    init = function.cls.methods.get("__init__") if function.cls is not None else None
    if init is not None and _holds(init.node, lines):
        _of_function(machine, init, 1)


def _holds(function: FunctionNode, lines: set[int]) -> bool:
    return any(function.lineno <= line <= (function.end_lineno or function.lineno) for line in lines)


def _of_function(machine: RunsFunctions, function: FunctionFacts, depth: int) -> None:
    node = function.node
    if node in machine.handed or depth == 0:
        return
    machine.handed[node] = {}
    if turns_autocast_off(function):
        machine.uncast.add(node)
    calls = {call for call in _calls_of(function) if not _is_scripted(function, call)}
    callers = _callers(function, calls)
    if function.cls is None and function.outer is None and not function.module.index.uses(function.name):
        calls, callers = _elsewhere(machine, function)
    for caller in callers:
        _of_function(machine, caller, depth - 1)
    handed = Handed(node, calls)
    for caller in callers:
        machine.listen(caller, handed)
    if handed.values and handed.complete and calls <= handed.seen:
        machine.handed[node] = _seeds(function, handed)
        if not any(handed.autocast):
            machine.uncast.add(node)


def _calls_of(function: FunctionFacts) -> set[ast.AST]:
    """The calls in the file that may run a function; none where it is used in another way, too."""
    index = function.module.index
    name, kind = function.name, ast.Attribute if function.cls is not None else ast.Name
    building = name == "__init__" and function.cls is not None
    if building:
        assert function.cls is not None
        name, kind = function.cls.name, ast.Name
    elif function.is_forward or name.startswith("__") or _is_handed_over(function):
        return set()
    called: set[ast.AST] = set()
    for use in index.uses(name):
        parent = index.parents.get(use)
        if isinstance(parent, ast.Call) and parent.func is use:
            if isinstance(use, kind) and not function.node.lineno <= use.lineno <= (function.node.end_lineno or 0):
                called.add(parent)
        elif isinstance(use, kind) and not (building and _only_names(parent)):
            return set()
    return called if len(called) <= _MAX_CALLS else set()


def _is_scripted(function: FunctionFacts, call: ast.AST) -> bool:
    """Whether nobody trains through a call: it stands where ``torch.jit.is_scripting()`` holds."""
    inner = call
    for item in function.module.index.ancestors(call):
        if isinstance(item, ast.If):
            parts = item.test.values if isinstance(item.test, ast.BoolOp) else [item.test]
            if _asks_for_scripting(function, parts[0]):
                return inner in item.body
            negated = [isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) for part in parts]
            if negated[0] and _asks_for_scripting(function, parts[0].operand):  # type: ignore[attr-defined]
                # Tensors of the device "meta" hold nothing.
                rest = [part for part in parts[1:] if "meta" not in ast.unparse(part)]
                return inner in item.orelse and not rest
        inner = item
    return False


def _asks_for_scripting(function: FunctionFacts, test: ast.expr) -> bool:
    return isinstance(test, ast.Call) and function.module.dotted(test.func) == "torch.jit.is_scripting"


def _elsewhere(machine: RunsFunctions, function: FunctionFacts) -> tuple[set[ast.AST], list[FunctionFacts]]:
    """The calls of a function that its own file does not use, with the functions of other files that make them."""
    called: set[ast.AST] = set()
    callers: dict[FunctionFacts, None] = {}
    if _is_handed_over(function):
        return called, []
    for module in machine.project.users(function):
        known: dict[ast.AST, FunctionFacts] = {item.node: item for item in module.all_functions()}
        calls = module.index.named.get(function.name, [])
        if len(module.index.uses(function.name)) > len(calls):
            return set(), []
        for call in calls:
            around = [known[item] for item in module.index.ancestors(call) if item in known]
            if not around or around[-1].name.startswith(NAMED_TRIAL):
                return set(), []
            called.add(call)
            callers[around[-1]] = None
    return (called, list(callers)) if len(called) <= _MAX_CALLS else (set(), [])


def _only_names(parent: ast.AST | None) -> bool:
    """Whether a class is named where nobody makes an instance of it: in annotations, for ``isinstance``."""
    if isinstance(parent, ast.Call):
        return isinstance(parent.func, ast.Name) and parent.func.id in ("isinstance", "issubclass")
    return isinstance(parent, (ast.arg, ast.AnnAssign, ast.BinOp, ast.Subscript, *_FUNCTIONS))


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_HARMLESS = ("no_grad", "inference_mode", "compile", "script", "autocast", "custom_fwd", "staticmethod", "classmethod")


def _is_handed_over(function: FunctionFacts) -> bool:
    """Whether a decorator may give the function to somebody else who calls it."""
    return any(name.rpartition(".")[2] not in _HARMLESS for name, _ in function.decorators)


def _callers(function: FunctionFacts, calls: set[ast.AST]) -> list[FunctionFacts]:
    """The functions of the file around calls; none where a call is not in one, or in one that tries things out."""
    index = function.module.index
    known: dict[ast.AST, FunctionFacts] = {item.node: item for item in function.module.all_functions()}
    found: dict[FunctionFacts, None] = {}
    for call in calls:
        around = [known[item] for item in index.ancestors(call) if item in known]
        if not around or around[-1].name.startswith(NAMED_TRIAL):
            return []
        found[around[-1]] = None
    return list(found)


# ---- what that says of the parameters ----------------------------------------------------------------------------


def _seeds(function: FunctionFacts, handed: Handed) -> dict[str, Value]:
    private = function.name.startswith("_") or function.outer is not None
    found = {}
    arguments = function.node.args
    for item in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        given = [values[item.arg] for values in handed.values if item.arg in values]
        if given and len(given) == len(handed.values):
            seed = _seed(item, given, private)
            if seed is not None:
                found[item.arg] = seed
    return found


def _seed(item: ast.arg, given: list[Value], private: bool) -> Value | None:
    """A parameter, as all calls have it; None where they say nothing that is certain."""
    if all(value.dtypes == NUM for value in given):
        return reduce(join, [_number(item, value) for value in given])
    dtypes = 0
    for value in given:
        if value.is_const and value.const is None:
            continue
        certain = value.dtypes & TENSORS and not value.dtypes & (LOW | OTHER)
        mixed = value.dtypes & F32 and not value.dtypes & OTHER and value.tensor
        if not (certain and private) and not ((certain or mixed) and _is_converted(value)):
            return None
        dtypes |= value.dtypes
    if not dtypes:
        return None
    made = Value("param", item, (), dtypes, max(value.tensor for value in given))
    made.data = item.arg
    made.lo, made.hi = min(value.lo for value in given), max(value.hi for value in given)
    made.bits = reduce(lambda a, b: a & b, [value.bits for value in given]) & ~ASSUMED
    return made


def _number(item: ast.arg, value: Value) -> Value:
    made = Value("param", item, (), NUM)
    made.data = item.arg
    made.lo, made.hi, made.bits = value.lo, value.hi, value.bits
    made.const, made.is_const = value.const, value.is_const
    return made


def _is_converted(value: Value) -> bool:
    """Whether the author made a value float32 on purpose, or it is made of such."""
    return any(
        item.bits & CAST and item.dtypes & F32 and not item.dtypes & LOW for item in value.behind(IN_A_FEW_LINES)
    )
