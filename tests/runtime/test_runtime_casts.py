"""Decorated and registered functions, and the block without casts."""

from __future__ import annotations

import pickle
import sys
import types
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import amp_runtime as amp
import pytest
import torch
import torch.nn.functional as F
from torch import nn

HALF, FLOAT = torch.bfloat16, torch.float32
Pair = namedtuple("Pair", ["first", "second"])
DECORATORS = {"half": amp.half_function, "float": amp.float_function, "promote": amp.promote_function}
REGISTER = {
    "half": amp.register_half_function,
    "float": amp.register_float_function,
    "promote": amp.register_promote_function,
}


@dataclass
class Batch:
    x: torch.Tensor
    label: str = "a"


def kind(*values: torch.Tensor) -> list[torch.dtype]:
    return [value.dtype for value in values]


def h(*shape: int) -> torch.Tensor:
    return torch.full(shape or (2, 2), 0.5, dtype=HALF)


def f(*shape: int) -> torch.Tensor:
    return torch.full(shape or (2, 2), 0.5)


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """A user's module of functions and classes, made anew for every test."""
    made = types.ModuleType("users_ops")
    exec(
        "import torch\n"
        "from torch import nn\n"
        "def fused(*tensors, scale=None): return [t.dtype for t in tensors]\n"
        "class Layer(nn.Module):\n"
        "    def forward(self, x): return x.dtype\n"
        "class Child(Layer): pass\n"
        "class Ops:\n"
        "    @staticmethod\n"
        "    def static(x): return x.dtype\n"
        "    @classmethod\n"
        "    def of_class(cls, x): return cls.__name__, x.dtype\n"
        "    def method(self, x): return type(self).__name__, x.dtype\n"
        "class Double(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        ctx.seen = x.dtype\n"
        "        return x * 2\n"
        "    @staticmethod\n"
        "    def backward(ctx, g): return g * 2\n"
        "class Pair:\n"
        "    def __init__(self, x, y=None): self.kinds = [x.dtype, None if y is None else y.dtype]\n"
        "number = 3\n",
        made.__dict__,
    )
    sys.modules["users_ops"] = made
    yield made
    del sys.modules["users_ops"]


@pytest.mark.parametrize(
    ("name", "seen"), [("half", [HALF, HALF]), ("float", [FLOAT, FLOAT]), ("promote", [FLOAT, FLOAT])]
)
def test_decorators_cast_functions_methods_and_forwards(name: str, seen: list[torch.dtype]) -> None:
    decorate = DECORATORS[name]

    class Net(nn.Module):
        @decorate
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> list[torch.dtype]:
            assert isinstance(self, Net)
            return kind(x, y)

        @decorate
        @staticmethod
        def above(x: torch.Tensor, y: torch.Tensor) -> list[torch.dtype]:
            return kind(x, y)

        @staticmethod
        @decorate
        def below(x: torch.Tensor, y: torch.Tensor) -> list[torch.dtype]:
            return kind(x, y)

        @decorate
        @classmethod
        def of_class(cls, x: torch.Tensor, y: torch.Tensor) -> list[torch.dtype]:
            assert cls is Net
            return kind(x, y)

    plain = decorate(kind)
    calls = (plain, Net().above, Net.below, Net.of_class, lambda x, y: Net()(x, y=y))
    for call in calls:
        assert call(h(), f()) == [HALF, FLOAT], "inert before amp.init"
    amp.init("O1", dtype="bf16")
    for call in calls:
        assert call(h(), f()) == seen
        with amp.autocast():
            assert call(h(), f()) == seen
    amp.init("O0")
    for call in calls:
        assert call(h(), f()) == [HALF, FLOAT], "inert at O0"


@pytest.mark.parametrize("name", ["half", "float", "promote"])
def test_nested_arguments_are_cast_and_others_passed_as_they_are(name: str) -> None:
    amp.init("O1", dtype="bf16")
    other = object()
    nested = {"a": [h(), (f(), other)], "b": Pair(h(), "text"), "c": Batch(f())}
    integers, double = torch.arange(3), torch.ones(1, dtype=torch.float64)

    @DECORATORS[name]
    def run(value: Any, *rest: Any) -> list[Any]:
        assert value["a"][1][1] is other and value["b"].second == "text" and value["c"].label == "a"
        assert rest[0] is integers and rest[1] is double and rest[2] is None
        return [value["a"][0].dtype, value["a"][1][0].dtype, value["b"].first.dtype, value["c"].x.dtype]

    assert run(nested, integers, double, None) == [HALF if name == "half" else FLOAT] * 4
    assert nested["a"][0].dtype is HALF, "the caller's own structure stays"


def test_promote_function_takes_the_widest_type_that_occurs() -> None:
    amp.init("O1", dtype="bf16")
    run = amp.promote_function(kind)
    half = torch.ones(1, dtype=torch.float16)
    assert run(h(), h()) == [HALF, HALF]
    assert run(half, half) == [torch.float16] * 2
    assert run(half, h()) == [FLOAT, FLOAT], "neither holds the other"
    assert run(h(), torch.ones(1, dtype=torch.float64)) == [HALF, torch.float64]
    assert run() == []
    layer = nn.Bilinear(2, 2, 1)
    assert amp.promote_function(layer) is layer and layer(h(), f()).dtype is FLOAT


def test_a_module_that_is_a_dataclass_stays_itself() -> None:
    @dataclass(eq=False)
    class Scale(nn.Module):
        by: torch.Tensor

        def __post_init__(self) -> None:
            super().__init__()

        @amp.float_function
        def forward(self, x: torch.Tensor) -> Any:
            return self, x.dtype

    amp.init("O1", dtype="bf16")
    scale = object.__new__(Scale)
    nn.Module.__init__(scale)
    scale.by = h()
    assert scale(h()) == (scale, FLOAT)


@pytest.mark.parametrize("above", [True, False])
def test_autograd_functions_are_cast_in_forward_and_give_gradients_back(above: bool) -> None:
    seen: list[torch.dtype] = []

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        ctx.save_for_backward(x)
        return x**3

    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient

    decorated = amp.float_function(staticmethod(forward)) if above else staticmethod(amp.float_function(forward))
    cube = type("Cube", (torch.autograd.Function,), {"forward": decorated, "backward": staticmethod(backward)})
    amp.init("O1", dtype="bf16")
    x = h().requires_grad_()
    with amp.autocast():
        y = cube.apply(x)
    y.sum().backward()
    assert seen == [FLOAT] and y.dtype is FLOAT
    assert x.grad is not None and x.grad.dtype is HALF and torch.equal(x.grad, torch.full((2, 2), 0.75, dtype=HALF))


def test_decorators_refuse_what_they_cannot_wrap() -> None:
    with pytest.raises(TypeError, match=r"amp.promote_function got the class Linear; give it an instance"):
        amp.promote_function(nn.Linear)
    with pytest.raises(TypeError, match=r"amp.promote_function got 3; allowed"):
        amp.promote_function(3)  # type: ignore[type-var]


def test_disable_casts_is_reentrant_and_safe() -> None:
    amp.init("O1", dtype="bf16")
    decorated = amp.half_function(kind)
    with amp.autocast():
        with pytest.raises(KeyError), amp.disable_casts():
            with amp.disable_casts():
                assert decorated(f()) == [FLOAT]
            assert decorated(f()) == [FLOAT], "the outer block goes on"
            assert (f() @ f()).dtype is FLOAT and h().softmax(-1).dtype is HALF
            with amp.autocast():
                assert (f() @ f()).dtype is FLOAT, "regions in it do nothing"
            raise KeyError
        assert decorated(f()) == [HALF]
        assert (f() @ f()).dtype is HALF and h().softmax(-1).dtype is FLOAT


def test_disable_casts_is_nothing_before_init() -> None:
    with amp.disable_casts():
        assert (f() @ f()).dtype is FLOAT


@pytest.mark.parametrize("name", ["half", "float", "promote"])
@pytest.mark.parametrize("first", ["register", "init"])
def test_registered_functions_of_a_module_are_cast(module: Any, name: str, first: str) -> None:
    original = module.fused
    if first == "init":
        amp.init("O1", dtype="bf16")
    REGISTER[name](module, "fused")
    if first == "register":
        assert module.fused is original and module.fused(h(), f()) == [HALF, FLOAT]
        amp.init("O0")
        assert module.fused is original
        amp.init("O1", dtype="bf16")
    assert module.fused(h(), f(), scale=2) == [HALF if name == "half" else FLOAT] * 2
    with amp.disable_casts():
        assert module.fused(h(), f()) == [HALF, FLOAT]
    amp.init("O0")
    assert module.fused is original
    amp.init("O1", dtype="bf16")
    assert module.fused is not original, "registered for every level above O0"
    amp.shutdown()
    assert module.fused is original
    amp.init("O1", dtype="bf16")
    assert module.fused is original, "a shutdown forgets it"


def test_the_last_registration_of_a_name_holds(module: Any) -> None:
    original = module.fused
    amp.init("O1", dtype="bf16")
    for _ in range(2):
        amp.register_half_function(module, "fused")
    amp.register_float_function(module, "fused")
    assert module.fused(h(), f()) == [FLOAT, FLOAT]
    assert module.fused.amp_original is original, "one wrapper, not three"


def test_methods_of_every_sort_can_be_registered(module: Any) -> None:
    amp.init("O1", dtype="bf16")
    for name in ("static", "of_class", "method"):
        amp.register_half_function(module.Ops, name)
    assert module.Ops.static(f()) is module.Ops().static(f()) is HALF
    assert module.Ops.of_class(f()) == ("Ops", HALF)
    assert module.Ops().method(f()) == ("Ops", HALF)
    amp.shutdown()
    amp.init("O1", dtype="bf16")
    instance = module.Ops()
    amp.register_float_function(instance, "method")
    assert instance.method(h()) == ("Ops", FLOAT) and module.Ops().method(h()) == ("Ops", HALF)
    amp.shutdown()
    assert isinstance(vars(module.Ops)["static"], staticmethod)
    assert isinstance(vars(module.Ops)["of_class"], classmethod)
    assert module.Ops().method(f()) == ("Ops", FLOAT) and "method" not in vars(instance)


def test_a_class_of_modules_is_cast_in_forward(module: Any) -> None:
    amp.init("O1", dtype="bf16")
    before, layer = vars(module.Layer)["forward"], module.Layer()
    amp.register_float_function(module, "Layer")
    assert isinstance(module.Layer, type) and isinstance(layer, module.Layer)
    assert layer(h()) is module.Child()(h()) is FLOAT
    assert type(pickle.loads(pickle.dumps(layer))) is module.Layer
    amp.register_float_function(nn, "MaxPool2d")
    assert nn.MaxPool2d(1)(h(1, 2, 2)).dtype is FLOAT
    amp.register_half_function(module, "Child")
    assert module.Child()(f()) is FLOAT, "the class it inherits from is registered as well, and comes last"
    amp.shutdown()
    assert vars(module.Layer)["forward"] is before and "forward" not in vars(module.Child)
    assert nn.MaxPool2d(1)(h(1, 2, 2)).dtype is HALF


def test_an_autograd_function_is_cast_in_forward(module: Any) -> None:
    amp.init("O1", dtype="bf16")
    amp.register_float_function(module, "Double")
    x = h().requires_grad_()
    y = module.Double.apply(x)
    y.sum().backward()
    assert y.dtype is FLOAT and x.grad is not None and x.grad.dtype is HALF
    amp.shutdown()
    assert module.Double.apply(h()).dtype is HALF


def test_calling_another_class_is_cast(module: Any) -> None:
    amp.register_float_function(module, "Pair")
    amp.register_float_function(nn, "Parameter")
    pair, parameter = module.Pair, nn.Parameter
    assert pair(h(), f()).kinds == [HALF, FLOAT] and parameter(h()).dtype is HALF
    amp.init("O1", dtype="bf16")
    assert module.Pair is not pair and module.Pair(h(), y=h()).kinds == [FLOAT, FLOAT]
    made = nn.Parameter(h(), requires_grad=False)
    assert type(made) is parameter and made.dtype is FLOAT and not made.requires_grad
    assert isinstance(made, nn.Parameter) and not isinstance(f(), nn.Parameter)
    assert issubclass(parameter, nn.Parameter) and (nn.Parameter | None) == (parameter | None)
    own = types.new_class("Own", (module.Pair,))
    assert own.__mro__[1] is pair and issubclass(own, module.Pair)
    layer = nn.Linear(2, 2)
    layer.scale = nn.Parameter(h())
    assert len(list(layer.parameters())) == 3 and pickle.loads(pickle.dumps(layer)).scale.dtype is FLOAT
    with amp.disable_casts():
        assert nn.Parameter(h()).dtype is HALF
    amp.shutdown()
    assert nn.Parameter is parameter and module.Pair is pair


@pytest.mark.parametrize("name", ["half", "float", "promote"])
def test_wrong_registrations_are_errors(module: Any, name: str) -> None:
    register = REGISTER[name]
    caller = f"amp.register_{name}_function"
    with pytest.raises(
        ValueError, match=rf"{caller} got name='fusde', which users_ops does not have; did you mean 'fused'"
    ):
        register(module, "fusde")
    with pytest.raises(ValueError, match=rf"{caller} got name='bbm', which torch does not have.*'bmm'"):
        register(torch, "bbm")
    with pytest.raises(TypeError, match=rf"{caller} got name='number', which is 3 in users_ops"):
        register(module, "number")
    with pytest.raises(TypeError, match="got name=3; allowed"):
        register(module, 3)


def test_operations_registered_as_half_win_over_autocast() -> None:
    early = torch.exp
    amp.register_half_function(torch, "exp")
    assert torch.exp is early
    amp.init("O1", dtype="bf16")
    assert torch.exp(f()).dtype is HALF, "outside of regions too, as with Apex"
    with amp.autocast():
        for y in (torch.exp(f()), f().exp(), early(f())):
            assert y.dtype is HALF
        value = f()
        assert value.exp_() is value and value.dtype is FLOAT
        assert h().softmax(-1).dtype is FLOAT, "others follow autocast"
    with amp.autocast(custom_black_list={"exp"}):
        assert torch.exp(h()).dtype is FLOAT, "a region's list wins"
    with amp.autocast(enabled=False):
        assert torch.exp(f()).dtype is HALF, "as outside of regions"
    with amp.disable_casts():
        assert torch.exp(f()).dtype is FLOAT
    amp.shutdown()
    assert torch.exp is early
    amp.init("O1", dtype="bf16")
    with amp.autocast():
        assert torch.exp(h()).dtype is FLOAT


def test_operations_registered_as_float_win_over_autocast() -> None:
    amp.init("O1", dtype="bf16")
    amp.register_float_function(torch, "bmm")
    amp.register_float_function(torch, "matmul")
    amp.register_float_function(torch, "sigmoid")
    amp.register_float_function(F, "softsign")
    amp.register_promote_function(torch.Tensor, "lerp")
    batch = h(2, 2, 2)
    with amp.autocast():
        ours = (torch.bmm(batch, batch), batch.bmm(batch), batch @ batch, torch.matmul(h(), h()), h().matmul(h()))
        for y in (*ours, torch.sigmoid(h()), h().sigmoid(), F.sigmoid(h()), nn.Sigmoid()(h()), F.softsign(h())):
            assert y.dtype is FLOAT
        assert h().lerp(f(), 0.5).dtype is FLOAT
        assert torch.mm(h(), h()).dtype is HALF
    assert torch.bmm(batch, batch).dtype is FLOAT
    amp.shutdown()
    assert "lerp" not in vars(torch.Tensor)


def test_a_registered_function_written_in_python_is_cast_once_and_as_registered() -> None:
    amp.init("O1", dtype="bf16")
    amp.register_half_function(F, "softmax")
    with amp.autocast():
        assert F.softmax(f(), -1).dtype is nn.Softmax(-1)(f()).dtype is f().softmax(-1).dtype is HALF
        assert F.gumbel_softmax(f()).dtype is HALF
    assert F.softmax(f(), -1).dtype is HALF
