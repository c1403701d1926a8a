"""Run precision-sensitive products in FP32.

## What it does
Products that are half under autocast are computed in FP32 where rounding spoils what is made of them:
`amp.float_function(torch.matmul)(x, x.t())`. These are:

- products of a matrix with itself (Gram matrices, covariances) and products with what is made of one, and squared
  distances (`a ** 2 + b ** 2 - 2 * a @ b`);
- arguments of a sine or cosine, and cosines of which the angle or the sine is taken (`sqrt(1 - cosine ** 2)`); and a
  layer, where it makes the angle of what the model is given, as of a time: `cos(self.layer(time))`;
- places that an image is sampled at (`grid_sample`, `affine_grid`), also where functions of other files make them, with
  all products of cameras, poses and points beside the model on the way there;
- matrices that are inverted or decomposed, also those of kernels, `torch.exp(-torch.norm(scales @ x, dim=1))`;
  and divisors;
- sums of squares, as in `(x * x).sum()` and `sqrt(x * x + y * y)`, and the areas of boxes whose overlap is measured;
- products of a spectrum, such as that with a bank of mel filters, and those whose logarithm is taken;
- convolutions for a local variance (`conv(x * x) - conv(x) ** 2`, as in SSIM), means for a variance
  (`(x * x).mean() - x.mean() ** 2`), and what is subtracted from its own input (`x - F.conv2d(x, blur)`);
- products whose mean is the loss, and those that are sums: of all elements (`torch.einsum("bhw,bhw->b", p, t)`), or of
  the rows of each kind (`one_hot.t() @ x`, `x.t() @ one_hot`);
- what is made an index, `(bits @ powers).long()` and `(y * width + x).long()`;
- products with places that are counted (a buffer of `torch.meshgrid`), and with matrices of two to four rows, which
  turn and move places (`points @ r.view(-1, 3, 3)`): those that are put together of an angle's sine and cosine, and
  those that a function of the project gives back, too; and the products that they move further;
- products with the turning part of a pose, `pose[..., :3] @ points` where `pose[..., 3:]` is taken, too, and with
  points that have a one at their end: `torch.cat([points, ones], -1) @ matrix`;
- products of data that has not passed through a model, such as the rays of a camera; and products with a tensor that is
  FP32 where it is multiplied, comes from no layer and is no weight: an input of the model (`neighbours @ x`), a buffer,
  what a function computes in FP32 under autocast (`torch.exp(-d) @ x`);
- steps of an iteration that makes a matrix orthogonal (`a @ (eye + (eye - a.t() @ a) / 2)`);
- a matrix times factors that were divided by a product with it, as the plan of Sinkhorn's iteration;
- convolutions and products with a fixed table of coefficients, which no one trains: where the script converts the input
  itself (`F.conv2d(x.float(), kernel)`), and where the coefficients have both signs, as those of a Laplacian;
- what libraries compute so: warps of `kornia`, SSIM losses of `kornia`, `piq`, `pytorch_msssim` and others, mel
  spectra of `torchaudio`, renderers of `pytorch3d` beside the model.

A chain of products with an inverse, `a @ b @ inverse @ c`, runs in FP32 as a whole. So do later products with its
result in the same function.

## Why
Autocast makes the operands and the result half. The sum over the pixels of an image passes 65504 early, a difference of
rounded numbers finds other neighbours, 1e-5 keeps seven bits in fp16 and the gradient of its logarithm is 1e5, a
coordinate of 400 has steps of 0.25 in fp16 and of 2 in bfloat16, and a covariance that is rounded is not positive
definite any more.

## Before
    gram = features @ features.t()

## After
    gram = amp.float_function(torch.matmul)(features, features.t())

## When it declines
Never. Products with weights, of what layers and norms give, and of rows before and after a softmax stay half; attention
over channels does not, whose scores are sums over all pixels.

## Leaving it out
No: sums overflow in fp16, and distances and places are wrong in half, without an error.

## Source
https://pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float16
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.plan.context import Change, Context
from amp_rules.plan.exact_products import Need, exact_products
from amp_rules.plan.float32_calls import in_float32
from amp_rules.plan.model_parts import trained_classes
from amp_rules.plan.rule import Rule
from amp_rules.roles.kinds import is_chain
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.syntax import walk
from amp_rules.torch.half_precision import EXACT_IN_LIBRARIES, RENDERERS, SPECTRAL_LAYERS

RULE = Rule("AMP116", "exact-product", "Precision-sensitive products run in FP32.", "precision", after=("AMP113",))

_WHY: dict[Need, str] = {
    "itself": "sums of squares overflow in fp16",
    "gram": "sums of squares, which it multiplies, overflow in fp16",
    "distance": "a distance is a small difference of large numbers",
    "angle": "a sine needs the digits of its argument",
    "cosine": "near one, the angle of a cosine needs all digits of it",
    "place": "half has too few digits for places in an image",
    "matrix": "a rounded matrix has another inverse",
    "divisor": "what rounds to zero is divided by",
    "square": "its elements overflow in fp16 from 256 on",
    "area": "areas in pixels overflow in fp16",
    "theta": "half has too few digits for places in an image",
    "variance": "a variance is a small difference of large means",
    "logarithm": "below 6e-5 fp16 has too few digits for a logarithm, and its gradient overflows",
    "spectrum": "a spectrum spans more powers of ten than fp16 has digits for",
    "loss": "a mean of it, as a loss is, would be half",
    "data": "it is made of data alone, which no model has rounded",
    "scaled": "entries of a matrix that is scaled to its sums are below the smallest numbers of fp16",
    "asked": "the script converts its input to float32, which autocast would undo",
    "stencil": "a difference of neighbours is a small difference of large numbers",
    "rest": "what is left of a tensor without its local mean is a small difference of large numbers",
    "index": "half has no odd numbers beyond 2048",
    "exact": "what it multiplies is no weight and has passed no layer, so only autocast would round it",
    "sum": "a sum of many elements overflows in fp16",
    "encoded": "half has too few digits for a number of which a sine is taken",
    "orthogonal": "an iteration towards an orthogonal matrix needs the digits of each step",
}

_EXACT = EXACT_IN_LIBRARIES | SPECTRAL_LAYERS | RENDERERS


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each product."""
    made = {change.node for change in context.made}
    done: set[ast.AST] = set()
    for site, need in exact_products(context.program, context.precision, context.options):
        if site.node in made:
            continue
        message = f"`{site.module.text(site.node)}` runs in FP32: {_WHY[need]}"
        yield from in_float32(context, RULE, site, message, done)
    yield from _in_libraries(context)


def _made_and_run(program: Program, sites: Sequence[Site]) -> set[ast.AST | None]:
    """Where the layers of libraries are made that some places run, alone or in a chain."""
    called = [(site.node.func, site.scope) for site in sites if isinstance(site.node, ast.Call)]
    found: set[ast.AST | None] = set()
    for func, scope in called:
        for value in program.flow.values(func, scope) if isinstance(func, (ast.Name, ast.Attribute)) else ():
            if value.kind == "object" and not value.is_result:
                found.add(value.site)
                if is_chain(value) and isinstance(value.site, ast.Call):
                    found.update(node for node in walk(value.site) if isinstance(node, ast.Call))
    return found


def _in_libraries(context: Context) -> Iterator[Change]:
    """Yield an edit for each function of a region, and each layer, whose library needs the digits of its products."""
    sites = context.precision.nodes(context.program)
    inside = {site.node for site in sites}
    run: set[ast.AST | None] | None = None
    trained: set[object] | None = None
    for site in context.program.calls_to(_EXACT):
        call, scope = site.node, site.scope
        assert isinstance(call, ast.Call)
        names = context.program.callee_names(call, scope) & _EXACT
        if names <= RENDERERS:
            trained = trained_classes(context.program) if trained is None else trained
            if context.program.owner_of(site.body) in trained:
                continue  # scenes of a model's own half tensors would meet float32 rays
        if names <= SPECTRAL_LAYERS | RENDERERS:  # a data set has them, too
            run = _made_and_run(context.program, sites) if run is None else run
            if call not in run:
                continue
        is_layer = min(names).rpartition(".")[2][0].isupper()
        if not is_layer and call not in inside:
            continue
        name = scope.module.text(call.func)
        message = f"`{name}` runs in FP32: its library multiplies or convolves what has to keep its digits"
        written = context.vocabulary.in_float32(scope.module, call if is_layer else call.func)
        yield Change.written(RULE, scope.module, call, message, written)
