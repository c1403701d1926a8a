"""Gradients whose scale does not matter: signs, comparisons with zero, and hooks that grow with what they are given."""

from __future__ import annotations

import textwrap

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{functions}
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(4, 1)
mask = torch.ones(1, 4)
{setup}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x.requires_grad_(True)
    nn.functional.mse_loss(model(x), y).backward()
{look}
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x.detach()), y)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def precision(tmp_path):
    def made(look="    pass", functions="", setup=""):
        look = textwrap.indent(textwrap.dedent(look).strip(), "    ")
        path = tmp_path / "train.py"
        path.write_text(SCRIPT.format(look=look, functions=textwrap.dedent(functions), setup=setup))
        return migrate(path, Options()).precision

    return made


@pytest.mark.parametrize(
    "look",
    [
        "harder = x + 0.1 * x.grad.sign()",
        "harder = x + 0.1 * x.grad.data.sign()",
        "harder = x + 0.1 * torch.sign(x.grad.detach())",
        "harder = x + 0.1 * torch.sgn(input=x.grad)",
        "g = x.grad\nharder = x + 0.1 * g.sign()",
        "g = x.grad.data\nh = 2 * g.abs().sum(1)\nworst = h.argmax()",
        "g = x.grad\ng = g.sum(0)\ng = g.abs()\nharder = x + g.sign()",
        "up = x.grad > 0",
        "noise = torch.rand_like(x.grad)\nharder = x + noise",
        "shown = mask.expand_as(x.grad)\nsize = mask.to(x.grad) + 1",
        "kept = (x.grad != 0).float() * x",
        "larger = x.grad > x.grad.mean()",
        "harder = attacked(x, 0.1, x.grad)",
        "harder = attacked(x, eps=0.1, gradient=x.grad.data)",
    ],
)
def test_what_is_the_same_in_any_unit_is_no_reason(precision, look):
    functions = """
    def attacked(x, eps, gradient):
        direction = gradient.sign()
        return x + eps * direction
    """
    assert precision(look, functions) == "migrated"


@pytest.mark.parametrize(
    "look",
    [
        "harder = x + 0.1 * x.grad",
        "large = x.grad > 0.1",
        "harder = x + 0.1 * x.grad / x.grad.norm()",  # an overflow would make it no number
        "g = x.grad\nharder = x + 0.1 * g.sign()\nprint(g)",
        "g = x.grad\ng = g.sum(0)\nprint(g)",
        "g = x.grad\ng += 1\nharder = x + g.sign()",
        "harder = x + (x.grad + 0.1).sign()",
        "harder = x + (x.grad * x.grad).sign()",
        "shown = attacked(x, x.grad)",
        "g = x.grad\nlater = lambda: g.sum()\nharder = x + g.sign()",
        "model.weight.data.add_(model.weight.grad.sign())",
    ],
)
def test_what_the_scale_changes_still_declines(precision, look):
    functions = """
    def attacked(x, gradient):
        print(gradient.norm())
        return x + gradient.sign()
    """
    assert precision(look, functions) == "declined"


@pytest.mark.parametrize(
    ("hook", "wanted"),
    [
        ("lambda g: g * mask", "migrated"),
        ("lambda g: -0.5 * g", "migrated"),
        ("lambda g, m=mask: g * m", "migrated"),
        ("lambda g: g * (g > 0)", "migrated"),
        ("lambda g: g / 4", "migrated"),
        ("lambda g: g * mask.expand_as(g)", "migrated"),
        ("lambda g: g * torch.randn_like(g)", "migrated"),
        ("lambda g: mask.expand_as(g)", "declined"),
        ("masked", "migrated"),
        ("masked_or_not", "migrated"),
        ("Masker(mask).mask_gradient", "migrated"),
        ("rows_left", "migrated"),
        ("rows_set", "declined"),
        ("halved_or_signed", "declined"),
        ("lambda g: g.clamp(-1, 1)", "declined"),
        ("lambda g: g.sign()", "declined"),
        ("lambda g: g / g.norm()", "declined"),
        ("lambda g: g + 0.1", "declined"),
        ("lambda g: g * g", "declined"),
        ("lambda g: seen.append(g)", "declined"),
        ("remembers", "declined"),
    ],
)
def test_a_hook_whose_result_grows_with_the_gradient_is_right(precision, hook, wanted):
    functions = """
    seen = []

    def masked(gradient):
        '''Leave some rows as they are.'''
        kept = gradient != 0
        shown = gradient * kept
        return shown

    def masked_or_not(gradient):
        if mask is None:
            return None
        elif mask.any():
            return gradient * mask

    def rows_left(gradient, first=2):
        gradient[first:] = 0
        gradient[:, 0] = gradient[:, 1] / 2
        gradient *= mask
        return gradient

    def rows_set(gradient):
        gradient[2:] = 0.1
        return gradient

    def halved_or_signed(gradient):
        if mask.any():
            gradient = gradient.sign()
        return gradient / 2

    class Masker:
        def __init__(self, mask):
            self.mask = mask

        def mask_gradient(self, gradient):
            if self.mask is not None:
                return gradient.mul(self.mask)

    def remembers(gradient):
        seen.append(gradient)
        return gradient
    """
    assert precision("pass", functions, f"model.weight.register_hook({hook})") == wanted


FUNCTION = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        {backward}

class Wrapped(nn.Module):
    def forward(self, x):
        return Own.apply(x)
"""


@pytest.mark.parametrize(
    ("backward", "wanted"),
    [
        ("noise = torch.rand(gradient.size(0), 1).expand_as(gradient); return (1 - noise) * gradient", "migrated"),
        ("noise = torch.randn_like(gradient); return gradient * (noise + 1)", "migrated"),
        ("kept = (mask - 0.5).view_as(gradient); return gradient * (kept > 0.1)", "migrated"),
        ("made = torch.zeros_like(gradient); made[0] = gradient[0]; return made", "migrated"),
        ("made = torch.empty_like(gradient); torch.mul(gradient, mask, out=made); return made", "migrated"),
        ("return (1 - gradient.expand_as(mask)) * gradient", "declined"),
        ("return torch.ones_like(gradient)", "declined"),
        ("(x,) = ctx.saved_tensors; return x.type_as(gradient)", "declined"),
    ],
)
def test_the_shape_of_a_gradient_is_not_its_size(precision, backward, wanted):
    body = "\n        ".join(backward.split("; "))
    assert precision("pass", FUNCTION.format(backward=body), "model = nn.Sequential(model, Wrapped())") == wanted
