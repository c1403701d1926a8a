"""What is known of the tensors that flow into a function, before anybody calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from abstractly import CUDA, HALF, IMPORTS, Mode, frame_in, frame_of, returned
from amp_rules.lattice.abstract_values import BOOL, F32, INT, LOW

MODULE = """
class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask, key_padding: torch.BoolTensor, labels):
        {body}
"""


def given(body: str, mode: Mode) -> int:
    return returned(frame_of(IMPORTS + MODULE.format(body=body), mode, "A.forward")).dtypes


@pytest.mark.parametrize(
    ("body", "types"),
    [
        ("return x", LOW),
        ("return mask", LOW | BOOL | INT),
        ("return 1.0 - mask", LOW),
        ("return (1.0 - mask[:, None, None, :]) * -1e9", LOW),
        ("return 1 - mask.unsqueeze(1)", LOW),
        ("m = mask.unsqueeze(1)\n        return 1 - m", LOW),
        # A use anywhere in the function says what the mask is.
        ("y = mask * -1e9\n        return y if y is not None else 1 - mask", LOW),
        ("return (~mask) * -1e9", BOOL | INT | F32),
        ("return (1.0 - mask.float()) * -1e9", F32),
        ("return (1.0 - mask.long()) * -1e9", F32),
        ("return 1 - labels", LOW | INT),
        ("return key_padding", BOOL),
    ],
)
def test_forward_is_given_half_tensors_where_the_model_is_half(body: str, types: int):
    assert given(body, HALF) & ~types == 0
    assert given(body, HALF) & LOW == types & LOW


@pytest.mark.parametrize(
    "dtype",
    ["next(self.parameters()).dtype", "self.dtype", "self.fc.weight.dtype", "next(iter(self.fc.parameters())).dtype"],
)
def test_the_type_of_the_weights_is_half_where_the_model_is_half(dtype: str):
    body = f"return (1.0 - mask.to({dtype})) * -1e9"
    assert given(body, CUDA) == F32
    assert given(body, HALF) == LOW


def test_a_mask_may_be_float32_under_autocast():
    assert given("return 1.0 - mask", CUDA) == LOW | F32


DOCUMENTED = '''
class A(nn.Module):
    """Attention.

    # Parameters

    mask : `torch.LongTensor`
        1 where there is a token.
    """

    def forward(self, x, mask):
        return (1.0 - mask) * -1e9
'''


def test_what_a_docstring_says_is_not_assumed_away():
    assert returned(frame_of(IMPORTS + DOCUMENTED, HALF, "A.forward")).dtypes == LOW | F32


def test_a_question_for_half_is_answered_where_the_mode_says_so():
    text = """
def type_of(model):
    return next(model.parameters()).dtype

class A(nn.Module):
    def forward(self, x):
        if type_of(self) == torch.float16:
            return x
        return x.double()
"""
    assert returned(frame_of(IMPORTS + text, HALF, "A.forward")).dtypes == LOW
    assert len(frame_of(IMPORTS + text, CUDA, "A.forward").returned) == 2


HELPERS = """
from einops import reduce
from somewhere import Elsewhere, foo, rearrange2
from torch.utils.checkpoint import checkpoint

class A(Elsewhere, nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def straight(self, x):
        return self.fc(x)

    def settings(self, x, *rest, **more):
        return x.unsqueeze(1)

    def f(self, x):
        return {expression}
"""


def helped(expression: str, mode: Mode) -> int:
    return returned(frame_of(IMPORTS + HELPERS.format(expression=expression), mode, "A.f")).dtypes


@pytest.mark.parametrize(
    "expression",
    [
        "rearrange2(self.fc(x))",
        "checkpoint(self.fc, x)",
        "checkpoint(self.straight, x, use_reentrant=False)",
        "checkpoint(lambda t: self.fc(t), x)",
        "self.settings(self.fc(x), 1, speed=2)",
        "super().split_heads(self.fc(x))",
    ],
)
def test_a_helper_gives_what_it_is_given(expression: str):
    assert helped(expression, CUDA) == LOW
    assert helped(expression, HALF) == LOW


@pytest.mark.parametrize("expression", ["foo(self.fc(x))", "reduce(self.fc(x), 'a b -> a', 'sum')", "foo(x, None)"])
def test_an_unknown_function_gives_half_where_everything_is_half(expression: str):
    assert helped(expression, HALF) == LOW
    assert helped(expression, CUDA) & F32


@pytest.mark.parametrize("expression", ["foo(x.float())", "foo(self.fc(x), x.float())", "foo(x.long())", "foo()"])
def test_an_unknown_function_of_something_else_is_not_half_for_certain(expression: str):
    assert helped(expression, HALF) != LOW


def test_a_view_as_another_type_has_that_type():
    assert helped("x.view(torch.int16)", HALF) == INT
    assert helped("x.view(2, -1)", HALF) == LOW
    assert helped("x.view(torch.int16).view(x.dtype)", HALF) == LOW


WITHOUT = """
import contextlib
from functools import wraps

def disabled(fn):
    @wraps(fn)
    def inner(*args, **kwargs):
        with torch.autocast("cuda", enabled={enabled}):
            return fn(*args, **kwargs)
    return inner

@contextlib.contextmanager
def region():
    with torch.autocast("cuda", enabled={enabled}):
        yield

@disabled
def decorated(a):
    return F.linear(a, a)

def f(a):
    a = a.float()
    with region():
        b = F.linear(a, a)
    return b

def g(a):
    return decorated(a.float())
"""


@pytest.mark.parametrize("name", ["f", "g"])
def test_wrappers_and_managers_of_the_project_turn_autocast_off(name: str):
    assert returned(frame_of(IMPORTS + WITHOUT.format(enabled="False"), CUDA, name)).dtypes == F32
    assert returned(frame_of(IMPORTS + WITHOUT.format(enabled="True"), CUDA, name)).dtypes == LOW


def test_a_wrapper_of_another_file_turns_autocast_off(tmp_path: Path):
    wrapper, _, use = (IMPORTS + WITHOUT.format(enabled="False")).partition("@contextlib")
    (tmp_path / "setup.cfg").write_text("")
    (tmp_path / "regions.py").write_text(wrapper)
    text = "from regions import disabled\n" + IMPORTS + use.partition("yield\n")[2]
    (tmp_path / "model.py").write_text(text)
    assert returned(frame_in(tmp_path / "model.py", CUDA, "g")).dtypes == F32
