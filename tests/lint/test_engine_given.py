"""What is known of the tensors that flow into a function, before anybody calls it."""

from __future__ import annotations

import pytest
from abstractly import CUDA, HALF, IMPORTS, Mode, frame_of, returned
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
