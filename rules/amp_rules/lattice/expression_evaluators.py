"""Evaluates expressions to abstract values and shows the operations among them to the rules."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from amp_rules.lattice import torch_operations as ops
from amp_rules.lattice.abstract_values import (
    BOOL,
    F32,
    F64,
    INT,
    INTEGRAL,
    LEFT_OUT,
    LOW,
    NUM,
    OTHER,
    TENSORS,
    Value,
    constant,
    join,
    promote,
)  # fmt: skip
from amp_rules.lattice.binding import EXTREMES, bind_generators, element, forget_targets, given_by_key, key_of
from amp_rules.lattice.conditions import asks_for_half, narrowed
from amp_rules.lattice.frame import Evaluators, Frame, evaluate
from amp_rules.lattice.intervals import fill_interval
from amp_rules.lattice.operation_names import DTYPES, FACTORIES, MODULES, PAIRS, TENSOR_METHODS
from amp_rules.lattice.parameter_types import not_of_booleans
from amp_rules.source.resolver import member_of
from amp_rules.torch.canonical_names import canonical
from amp_rules.torch.command_lines import DATACLASS
from amp_rules.torch.functions import INFINITIES
from amp_rules.torch.half_precision import BFLOAT16, FLOAT16, HalfNumbers

_BINARY: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "lshift", ast.RShift: "rshift",
}  # fmt: skip
_MAX_EXPONENT = 400
"""Powers of Python's integers grow without end, and no float holds more than 10 ** 308, which this allows."""
_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod,
}  # fmt: skip
_SAME_DATA = frozenset({"T", "mT", "H", "data", "real", "values"})
_TORCH_STARS = frozenset({"torch", "torch.nn", "torch.nn.functional"})
_NOT_TENSORS = frozenset({"shape", "device", "layout", "names", "is_cuda", "requires_grad", "is_leaf", "grad_fn"})


# ---- names -------------------------------------------------------------------------------------------------------


def _name(frame: Frame, node: ast.Name) -> Value:
    value = frame.variables.get(node.id)
    if value is not None:
        return value
    if frame.caller is not None:
        value = _of_statements(frame, node.id)
        if value is not None:
            return value
    return global_value(frame, node.id, node)


def _of_statements(frame: Frame, name: str) -> Value | None:
    """The variable of a file that its own statements made before they called this function."""
    outer = frame
    while outer.caller is not None:
        outer = outer.caller
    return outer.variables.get(name) if outer.function is None and outer.module is frame.module else None


def global_value(frame: Frame, name: str, node: ast.AST) -> Value:
    """What a name means outside of the function."""
    known = frame.known.variables
    found = known.get(name)
    if found is None:
        found = known[name] = _global_value(frame, name, node)
    return found


def _is_only_read(frame: Frame, name: str) -> bool:
    """Whether a file does nothing with a variable but to take items of it: what it holds is what it was made with."""
    index = frame.module.index
    return all(
        isinstance(parent, ast.Subscript) and parent.value is use and isinstance(parent.ctx, ast.Load)
        for use in index.uses(name)
        if isinstance(use, ast.Name) and isinstance(use.ctx, ast.Load)
        for parent in [index.parents.get(use)]
    )


def _global_value(frame: Frame, name: str, node: ast.AST) -> Value:
    module = frame.module
    made: Value
    if name in module.functions:
        made = Value("function", node)
        made.data = module.functions[name]
        made.sym = name
    elif name in module.classes:
        made = Value("class", node)
        made.data = module.classes[name]
        made.sym = name
    elif name in module.constants:
        frame.known.variables[name] = Value("name", node)
        made = frame.machine.module_value(module, module.constants[name])
        if made.op == "call" or not (
            made.is_const
            or made.sym
            or made.op in ("tuple", "list", "finfo")
            or (made.op == "dict" and _is_only_read(frame, name))
        ):
            made = frame.machine.unknown("name", node, name)
    elif name in module.imports:
        made = _imported(frame, module.imports[name], node)
    elif name in _BUILTINS:
        made = Value("name", node)
        made.sym = f"builtins.{name}"
    else:
        made = frame.machine.unknown("name", node, name)
        for star in module.stars:
            if star in _TORCH_STARS and (name in TENSOR_METHODS or name in MODULES or name in FACTORIES):
                made = Value("name", node)
                made.sym = f"{star}.{name}"
                return made
        if module.stars and name.isupper():
            for star in module.stars:
                found = frame.machine.imported_constant(module, member_of(star, name))
                if found is not None:
                    return found
    return made


_BUILTINS = frozenset(
    """
    float int bool max min abs sum len range enumerate zip print isinstance getattr setattr hasattr super round sorted
    list tuple dict set map any all str type pow reversed iter next frozenset
    """.split()
)


def _imported(frame: Frame, dotted: str, node: ast.AST) -> Value:
    last = dotted.rpartition(".")[2]
    if last.isupper() and not dotted.startswith("torch."):
        found = frame.machine.imported_constant(frame.module, dotted)
        if found is not None:
            return found
    made = Value("name", node)
    made.sym = dotted
    if dotted in INFINITIES:
        return constant(float("inf"), node)
    return made


def _attribute(frame: Frame, node: ast.Attribute) -> Value:
    return attribute_of(frame, evaluate(frame, node.value), node)


def attribute_of(frame: Frame, base: Value, node: ast.Attribute) -> Value:
    """An attribute of ``base``."""
    attr = node.attr
    if base.sym is not None and base.op not in ("instance", "layer"):
        return _member(frame, base, attr, node)
    if base.op == "self":
        return frame.machine.attribute_of_self(frame, base, attr, node)
    if attr == "indices" and base.op in PAIRS | EXTREMES:
        return Value("getitem", node, (base,), INT, 2, INTEGRAL)
    if attr in _SAME_DATA and base.tensor:
        made = Value("data" if attr == "data" else "transpose" if attr in ("T", "mT", "H") else "alias", node, (base,))
        ops.apply(made, None)
        return made
    if attr == "dtype":
        made = Value("dtype", node, (base,))
        return made
    if attr in _NOT_TENSORS:
        return Value("shape" if attr == "shape" else "fact", node, (base,))
    if attr == "grad":
        made = Value("grad", node, (base,), base.dtypes if base.dtypes & TENSORS else LOW | F32, 2)
        made.anchor = base.root
        frame.machine.show(made, frame)
        return made
    if base.op == "finfo":
        return _finfo(frame, base, attr, node)
    if base.op == "layer":
        if attr.endswith(("weight", "bias")):
            return frame.machine.parameter(node, base)
        if not attr.startswith("running_"):
            return Value("attr", node, (base,), NUM | OTHER)
    if attr == "ndim":
        return Value("dim", node, (base,), NUM)
    setting = _setting(frame, base, attr)
    if setting is not None:
        return setting
    made = frame.machine.unknown("attr", node, attr)
    made.args = (base,)
    return made


def _setting(frame: Frame, base: Value, attr: str) -> Value | None:
    """The number that a data class of settings has under a name, if the file makes none with another one.

    The class is known by the annotation of a parameter, ``config: Config``, also where it was kept as ``self.config``.
    """
    held = base.args[0] if base.op == "attr" and base.args else base
    annotation = held.node.annotation if held.op == "param" and isinstance(held.node, ast.arg) else None
    cls = frame.module.class_named(annotation) if annotation is not None else None
    if cls is None or all(name != DATACLASS for name, _ in cls.decorators):
        return None
    value = frame.machine.class_attribute(cls, attr)
    if value is None or value.number is None:
        return None
    given = {item.arg for call in frame.module.index.named.get(cls.name, ()) for item in call.keywords}
    return None if given & {attr, None} else value


def _member(frame: Frame, base: Value, attr: str, node: ast.Attribute) -> Value:
    """A member of a module or class that is known by name."""
    assert base.sym is not None
    if base.op == "class":
        cls = base.data
        item = cls.method(attr) if cls is not None else None
        if item is not None:
            made = Value("function", node)
            made.data = item
            return made
        value = frame.machine.class_attribute(cls, attr) if cls is not None else None
        return value if value is not None else frame.machine.unknown("attr", node, attr)
    dotted = canonical(f"{base.sym}.{attr}")
    if dotted in INFINITIES:
        return constant(float("inf"), node)
    if dotted in _NUMBERS:
        return constant(_NUMBERS[dotted], node)
    if base.op in ("instance", "dtype") or base.sym in DTYPES:
        return frame.machine.unknown("attr", node, attr)
    if attr.isupper() and not base.sym.startswith("torch"):
        found = frame.machine.imported_constant(frame.module, dotted)
        if found is not None:
            return found
    made = Value("name", node)
    made.sym = dotted
    return made


_NUMBERS = {
    "math.pi": math.pi, "numpy.pi": math.pi, "math.e": math.e, "numpy.e": math.e, "sys.maxsize": 2**63 - 1,
    "sys.float_info.max": 1.7976931348623157e308, "sys.float_info.min": 2.0**-1022, "sys.float_info.epsilon": 2.0**-52,
}  # fmt: skip
"""What members of Python's modules and of numpy are on every machine."""


def _limits(held: HalfNumbers) -> dict[str, float]:
    """What ``torch.finfo`` says of a half type."""
    tiny = held.smallest_normal
    return {"min": -held.largest, "max": held.largest, "eps": held.eps, "tiny": tiny, "smallest_normal": tiny}


_FINFO = {
    LOW: _limits(FLOAT16),
    F32: {
        "min": -3.4028234663852886e38, "max": 3.4028234663852886e38, "eps": 2.0**-23, "tiny": 2.0**-126,
        "smallest_normal": 2.0**-126,
    },
    F64: {"min": -1.7976931348623157e308, "max": 1.7976931348623157e308, "eps": 2.0**-52, "tiny": 2.0**-1022},
}  # fmt: skip
_BF16_FINFO = _limits(BFLOAT16)


def _finfo(frame: Frame, base: Value, attr: str, node: ast.Attribute) -> Value:
    """A limit of a type: a number where the type is named, else one that fits whatever the type is."""
    given = base.args[0] if base.args else None
    outright = given is not None and (given.sym is not None or given.is_const)
    named = ops.dtype_named(given) if outright else F32 if given is None else 0
    table = _BF16_FINFO if given is not None and given.sym == "torch.bfloat16" else _FINFO.get(named)
    if table and attr in table:
        made = constant(table[attr], node)
        made.op = "finfo_" + attr
        made.args = base.args
        return made
    made = Value("finfo_" + attr, node, base.args, NUM)
    if attr == "min":
        made.hi = 0.0
    else:
        made.lo = 0.0
    return made


# ---- operators ---------------------------------------------------------------------------------------------------


def _binary(frame: Frame, node: ast.BinOp) -> Value:
    return binary(frame, _BINARY[node.op.__class__], evaluate(frame, node.left), evaluate(frame, node.right), node)


def binary(frame: Frame, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    """The result of an operator."""
    if left.is_const and right.is_const:
        folded = _fold(op, left.const, right.const, node)
        if folded is not None:
            return folded
    if op == "add" and left.op == right.op and left.op in ("list", "tuple"):
        joint = Value(left.op, node, (*left.args, *right.args))
        joint.data = left.data or right.data
        return joint
    if left.tensor == 0 and right.tensor == 0:
        kinds = left.dtypes | right.dtypes
        made = Value(op, node, (left, right), NUM if kinds & NUM or not kinds & TENSORS else OTHER)
        fill_interval(made)
        frame.machine.show(made, frame)
        return made
    if op in ("and", "or", "xor", "lshift", "rshift"):
        made = Value(op, node, (left, right), promote(left.dtypes, right.dtypes), max(left.tensor, right.tensor))
        made.bits = left.bits & right.bits
        return made
    if op == "pow" and left.is_const:
        op = "rpow"
    if op == "sub" and left.tensor == 0 and right.dtypes & BOOL:
        not_of_booleans(right)
    made = Value(op, node, (left, right))
    table = frame.machine.table if frame.autocast else None
    ops.apply(made, table)
    if table is not None and "pow" in table.float32:
        if op == "rpow" or (op == "div" and left.number is not None and right.tensor):
            # 2 ** x and 1 / x are pow and reciprocal to the dispatcher.
            made.dtypes = F32 if made.dtypes & (LOW | F32) else made.dtypes
    frame.machine.show(made, frame)
    return made


def _fold(op: str, left: Any, right: Any, node: ast.AST) -> Value | None:
    numbers = (int, float)
    if not (isinstance(left, numbers) and isinstance(right, numbers)):
        return None
    try:
        if op == "pow":
            if abs(right) > _MAX_EXPONENT:
                return None
            return constant(left**right, node)
        function = _FOLDS.get(op)
        return constant(function(left, right), node) if function else None
    except (ArithmeticError, ValueError):
        return None


def _unary(frame: Frame, node: ast.UnaryOp) -> Value:
    operand = evaluate(frame, node.operand)
    if isinstance(node.op, ast.USub):
        if operand.is_const and isinstance(operand.const, (int, float)):
            made = constant(-operand.const, node)
            if operand.op.startswith("finfo"):
                made.op, made.args = "finfo_negative", operand.args
            return made
        made = Value("neg", node, (operand,))
        if operand.tensor:
            ops.apply(made, None)
        else:
            made.dtypes = operand.dtypes
            made.lo, made.hi = -operand.hi, -operand.lo
        return made
    if isinstance(node.op, ast.Not):
        return Value("not", node, (operand,), NUM)
    if isinstance(node.op, ast.Invert):
        made = Value("invert", node, (operand,), operand.dtypes, operand.tensor)
        if operand.tensor:
            # Torch refuses to invert floats.
            made.dtypes = operand.dtypes & ~(LOW | F32 | F64) & ~OTHER or BOOL | INT
        return made
    return operand


_COMPARISONS: dict[type, str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip


def _compare(frame: Frame, node: ast.Compare) -> Value:
    values = [evaluate(frame, node.left), *(evaluate(frame, item) for item in node.comparators)]
    if len(values) == 2 and values[0].data == LEFT_OUT and values[1].is_const and values[1].const is None:
        return constant(isinstance(node.ops[0], (ast.Is, ast.Eq)), node)
    op = _COMPARISONS.get(node.ops[0].__class__) if len(values) == 2 else None
    made = Value(op or "compare", node, tuple(values))
    if op is None:
        made.dtypes = NUM
        return made
    ops.apply(made, None)
    answer = asks_for_half(frame, node, values)
    if answer is not None:
        made.const, made.is_const = answer, True
    frame.machine.show(made, frame)
    return made


def _boolean(frame: Frame, node: ast.BoolOp) -> Value:
    values = [evaluate(frame, item) for item in node.values]
    result = values[0]
    for item in values[1:]:
        result = join(result, item)
    return result


def _if_expression(frame: Frame, node: ast.IfExp) -> Value:
    test = evaluate(frame, node.test)
    if test.is_const and test.op != "param":
        return evaluate(frame, node.body if test.const else node.orelse)
    yes, no = narrowed(frame, node.test)
    kept = frame.variables
    results = []
    for changed, branch in ((yes, node.body), (no, node.orelse)):
        if changed:
            frame.variables = {**kept, **changed}
        results.append(evaluate(frame, branch))
        frame.variables = kept
    return join(*results)


# ---- collections -------------------------------------------------------------------------------------------------


def _tuple(frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = tuple([evaluate(frame, item) for item in node.elts])
    return Value("tuple" if node.__class__ is ast.Tuple else "list", node, items)


def _dict(frame: Frame, node: ast.Dict) -> Value:
    made = Value("dict", node)
    made.data = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = evaluate(frame, item)
        if isinstance(key, ast.Constant):
            made.data[key.value] = value
    return made


def _subscript(frame: Frame, node: ast.Subscript) -> Value:
    base = evaluate(frame, node.value)
    index = evaluate(frame, node.slice)
    if base.op in ("tuple", "list") and index.is_const and isinstance(index.const, int) and base.data is None:
        if -len(base.args) <= index.const < len(base.args):
            return base.args[index.const]
    if base.op == "dict" and base.data is not None and index.is_const and index.const in base.data:
        found: Value = base.data[index.const]
        return found
    if base.op == "param" and isinstance(index.const, str):
        held = frame.variables.get(key_of(base, index))
        return held if held is not None else given_by_key(frame, base, node, index.const)
    if base.op == "shape":
        made = Value("size", node, (base,), NUM, 0, INTEGRAL)
        made.lo = 0.0
        return made
    return element(frame, base, node, index)


def _comprehension(frame: Frame, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    kept = frame.variables
    frame.variables = dict(kept)
    frame.loops += 1
    bind_generators(frame, node.generators)
    item = evaluate(frame, node.elt)
    frame.loops -= 1
    forget_targets(frame, kept)
    made = Value("list", node, (item,))
    made.data = "comprehension"
    return made


def _dict_comprehension(frame: Frame, node: ast.DictComp) -> Value:
    kept = frame.variables
    frame.variables = dict(kept)
    bind_generators(frame, node.generators)
    evaluate(frame, node.value)
    forget_targets(frame, kept)
    return Value("dict", node)


# ---- the rest ----------------------------------------------------------------------------------------------------


def _constant(frame: Frame, node: ast.Constant) -> Value:
    return constant(node.value, node)


def _lambda(frame: Frame, node: ast.Lambda) -> Value:
    made = Value("lambda", node)
    made.data = frame.variables
    return made


def _joined(frame: Frame, node: ast.JoinedStr) -> Value:
    return Value("other", node)


def _starred(frame: Frame, node: ast.Starred) -> Value:
    return Value("starred", node, (evaluate(frame, node.value),))


def _named(frame: Frame, node: ast.NamedExpr) -> Value:
    value = evaluate(frame, node.value)
    frame.variables[node.target.id] = value
    return value


def _inner(frame: Frame, node: ast.Await | ast.YieldFrom) -> Value:
    return evaluate(frame, node.value)


def _yield(frame: Frame, node: ast.Yield) -> Value:
    if node.value is not None:
        evaluate(frame, node.value)
    return Value("other", node)


def _slice(frame: Frame, node: ast.Slice) -> Value:
    made = Value("slice", node)
    bounds = [
        "" if item is None else evaluate(frame, item).const if item.__class__ is not ast.Constant else item.value
        for item in (node.lower, node.upper, node.step)
    ]
    if all(item == "" or isinstance(item, int) for item in bounds):
        made.sym = ":".join(map(str, bounds))
    return made


EXPRESSIONS: Evaluators = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _if_expression,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Set: _tuple,
    ast.Dict: _dict,
    ast.Subscript: _subscript,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _dict_comprehension,
    ast.Lambda: _lambda,
    ast.JoinedStr: _joined,
    ast.Starred: _starred,
    ast.NamedExpr: _named,
    ast.Await: _inner,
    ast.Yield: _yield,
    ast.YieldFrom: _inner,
    ast.Slice: _slice,
}
"""Every kind of expression but calls, which build on all the others."""
