"""Run what has no half kernel in FP32.

## What it does
Decompositions, quantiles and Fourier transforms of half tensors, and products of sparse matrices, are computed in FP32:
`amp.float_function(torch.linalg.inv)(cov)`. So are complex numbers that are made of half ones: `torch.polar(r, angle)`,
of which one part may be half, and `1j * angle`. Which operands are half is what `amp-lint` finds. So are the bits that
`x.view(torch.int32)` reads, losses of other libraries that are compiled for FP32 alone, such as `CTCLoss` of
`warpctc_pytorch`, and layers that people compile beside a script, deformable convolutions and correlations, and
layers and functions on sets of points, as `PointnetSAModule`, `pointnet2_utils.gather_operation` and `knn_points` of
PyTorch3D, and renderers, as those of `nvdiffrast` and `gsplat`. So is `selective_scan_fn` of `mamba_ssm`, which refuses
operands of two types. So is an `nn.AdaptiveLogSoftmaxWithLoss`, which joins its input's type with that of a logarithm.

So do solvers that go on until an error is small, as `odeint` of `torchdiffeq` does with a method that chooses its
steps, with what they integrate; also those of a copy of the package that the project keeps.

A function of the project that asks for the type of a tensor, knows FP32 and FP64, and raises for others gets
`@amp.float_function`: `if x.dtype == torch.float32: ... else: raise TypeError`. So does the one that gives it the type
of its own argument, as in `cast(grid, image.dtype)`; and one that asks for a class or its name, as
`assert isinstance(x, torch.cuda.FloatTensor)`.

Where the requirements of the project pin a DGL before 0.9, whose kernels refuse half, a function that passes messages
(`g.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))`) gets it too, and so do layers of `dgl.nn`.

## Why
They raise: "linalg_inv: Low precision dtypes not supported. Got Half". The backward pass of a sparse product raises
where autocast made one operand half. An adaptive solver ends in a thousand tiny steps where half has no digits for
the tolerance.

## Before
    inverse = torch.linalg.inv(x.t() @ x)
    h = torch.sparse.mm(adjacency, h)

## After
    inverse = amp.float_function(torch.linalg.inv)(x.t() @ x)
    h = amp.float_function(torch.sparse.mm)(adjacency, h)

## When it declines
Never. Where the type of an operand is not known, the call stays, and so does compiled code of a library that is not
known.

## Leaving it out
No: the training step raises.

## Source
https://pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.lattice.operation_names import VIEWS
from amp_rules.plan.context import Change, Context
from amp_rules.plan.float32_calls import in_float32
from amp_rules.plan.missing_kernels import has_imaginary, raising
from amp_rules.plan.old_kernels import is_dgl_without_half
from amp_rules.plan.rule import Rule
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none
from amp_rules.torch.half_precision import (
    COMPILED_RENDERERS,
    FIXED_STEPS,
    KEEPS_TYPE_OF_INPUT,
    KERNELS_IN_FLOAT32,
    PRODUCTS,
    SCANNED,
    SCANS,
    SOLVERS,
    SPARSE_MAKERS,
    SPARSE_PRODUCTS,
    STAYING_SPARSE,
    TYPES_OF_BITS,
    is_function_in_float32,
    is_layer_in_float32,
)

RULE = Rule("AMP113", "no-half-kernel", "What has no half kernel runs in FP32.", "precision")


def changes(context: Context) -> Iterator[Change]:
    """Yield an edit for each operation that would raise."""
    done: set[ast.AST] = set()
    for site in raising(context.program, context.precision, context.options):
        text, node = site.module.text(site.node), site.node
        message = f"`{text}` runs in FP32: it has no half kernel, and what it is given is half"
        if isinstance(node, ast.BinOp):
            message = f"`{text}` runs in FP32: few operations take complex numbers of float16"
        number_first = isinstance(node, ast.BinOp) and has_imaginary(node.left)
        yield from in_float32(context, RULE, site, message, done, tensor_last=number_first)
    for item in context.precision.refusing:
        module, node = item.info.module.module, item.info.node
        assert not isinstance(node, ast.Lambda)
        message = f"`{item.info.name}` runs in FP32: `{item.where}` knows no half types"
        yield Change.written(RULE, module, node, message, context.vocabulary.decorated_in_float32(module, node))
    for site in context.precision.nodes(context.program):
        if _is_sparse_product(context.program, site):
            message = f"`{site.module.text(site.node)}` runs in FP32: a sparse product takes operands of one type"
            yield from in_float32(context, RULE, site, message, done)
        elif _reads_bits(context.program, site):
            message = f"`{site.module.text(site.node)}` reads the bits of FP32, of which a half type has half as many"
            yield from in_float32(context, RULE, site, message, done)
        elif _goes_on_until_exact(context.program, site):
            message = (
                f"`{site.module.text(site.node)}` runs in FP32: it goes on until an error is smaller than half can tell"
            )
            assert isinstance(site.node, ast.Call)
            written = context.vocabulary.in_float32(site.module, site.node.func)
            yield Change.written(RULE, site.module, site.node, message, written)
        elif _takes_points(context.program, site):
            message = f"`{site.module.text(site.node)}` runs in FP32: its compiled code takes no half"
            yield from in_float32(context, RULE, site, message, done)
        elif _scans(context.program, site):
            message = f"`{site.module.text(site.node)}` runs in FP32: its compiled code takes operands of one type"
            yield from in_float32(context, RULE, site, message, done)
    old_dgl = is_dgl_without_half(context.program)
    for site in _of_two_types(context):
        assert isinstance(site.node, ast.Call)
        message = f"`{site.module.text(site.node)}` runs in FP32: in half it joins tensors of two types, which raises"
        written = context.vocabulary.in_float32(site.module, site.node)
        yield Change.written(RULE, site.module, site.node, message, written)
    for call, body, scope in context.program.calls():
        name = _in_own_kernels(context.program, call, body, scope, old_dgl)
        if name is not None:
            message = f"`{name}` runs in FP32: its compiled code takes nothing else, and autocast does not know it"
            is_class = name.rpartition(".")[2][0].isupper() or is_layer_in_float32(name)
            made = call if is_class else call.func  # what a class makes, or a function
            yield Change.written(RULE, scope.module, call, message, context.vocabulary.in_float32(scope.module, made))


def _of_two_types(context: Context) -> list[Site]:
    """Where layers are made that regions run, and that join their input's type with another."""
    program = context.program
    made = program.calls_to(KEEPS_TYPE_OF_INPUT)
    calls = context.precision.nodes(program) if made else ()
    run = {
        value.site
        for site in calls
        if isinstance(site.node, ast.Call)
        for value in program.called_models(site.node, site.scope)
    }
    return [site for site in made if site.node in run]


def _in_own_kernels(program: Program, call: ast.Call, body: ast.AST, scope: Scope, old_dgl: bool) -> str | None:
    """The name of a package's loss, or of a layer that a model makes, whose kernels take FP32 alone."""
    names = sorted(program.callee_names(call, scope))
    losses = [name for name in names if name in KERNELS_IN_FLOAT32]
    layers = [name for name in names if is_layer_in_float32(name)] if program.is_model_code(body) else []
    if old_dgl and program.is_model_code(body):
        layers += [name for name in names if name.startswith("dgl.nn.") and name.rpartition(".")[2][0].isupper()]
    return next(iter(losses + layers), None)


def _takes_points(program: Program, site: Site) -> bool:
    """``knn_points(x, y, K=8)``, or what renders points, unless the script casts what it gives."""
    call = site.node
    if not isinstance(call, ast.Call):
        return False
    names = program.callee_names(call, site.scope)
    if names & COMPILED_RENDERERS:
        return True
    if not any(map(is_function_in_float32, names)):
        return False
    return not all(map(_is_cast, call.args[:2]))


def _is_cast(node: ast.expr) -> bool:
    """``x.float()``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "float"


def _scans(program: Program, site: Site) -> bool:
    """``selective_scan_fn(u, delta, A, B, C, D)``, unless the script casts all that is to be of one type."""
    call = site.node
    if not isinstance(call, ast.Call) or not program.callee_names(call, site.scope) & SCANS:
        return False
    given = [item.value for item in call.keywords if item.arg in SCANNED]
    given += [call.args[place] for place in SCANNED.values() if place < len(call.args)]
    return not all(is_none(node) or _was_cast(node, site) for node in given)


def _was_cast(node: ast.expr, site: Site) -> bool:
    """Whether a value is one that ``.float()`` gave in the statements above, whatever its shape is since."""
    if isinstance(node, ast.Name):
        last = blocks.given_just_above(site.module, site.statement, site.body, node.id)
        return last is not None and not isinstance(last, ast.Name) and _was_cast(last, site)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if _is_cast(node):
            return True
        if node.func.attr not in VIEWS:
            return False
        node = node.func.value
    return False


def _goes_on_until_exact(program: Program, site: Site) -> bool:
    """``odeint(field, x, t, method="dopri5")``, which chooses its steps by their errors."""
    call = site.node
    if not isinstance(call, ast.Call) or not _calls_solver(program, call, site):
        return False
    method = next((item.value for item in call.keywords if item.arg in ("method", "solver")), None)
    return not (isinstance(method, ast.Constant) and method.value in FIXED_STEPS)


def _calls_solver(program: Program, call: ast.Call, site: Site) -> bool:
    """Whether a call is of a solver of a package, or of one in the copy of that package that a project keeps."""
    if program.callee_names(call, site.scope) & SOLVERS:
        return True
    around = _folders(program, site.module)
    for info in program.flow.callees(call):
        inside = _folders(program, info.module.module) - around  # the copy calls its own solvers in its own ways
        if any(path[0] in inside and path[-1] == info.name for path in (name.split(".") for name in SOLVERS)):
            return True
    return False


def _folders(program: Program, module: Module) -> set[str]:
    """The names of the project's folders that a file lies in."""
    root = program.project.root
    return set(module.path.relative_to(root).parts[:-1]) if module.path.is_relative_to(root) else set()


def _reads_bits(program: Program, site: Site) -> bool:
    """``x.view(torch.int32)``."""
    call = site.node
    is_view = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "view"
    if not (is_view and isinstance(call, ast.Call) and len(call.args) == 1) or program.callee_names(call, site.scope):
        return False
    return bool(program.names(call.args[0], site.scope) & TYPES_OF_BITS)


def _is_sparse_product(program: Program, site: Site) -> bool:
    node, scope = site.node, site.scope
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult) and any(
            _is_sparse(program, item, site) for item in (node.left, node.right)
        )
    if not isinstance(node, ast.Call):
        return False
    names = program.callee_names(node, scope)
    if names & SPARSE_PRODUCTS:
        return True
    operands = list(node.args)
    if not names and isinstance(node.func, ast.Attribute) and node.func.attr in PRODUCTS:
        operands.append(node.func.value)
    elif not names & {f"torch.{name}" for name in PRODUCTS}:
        return False
    return any(_is_sparse(program, item, site) for item in operands)


def _is_sparse(program: Program, node: ast.expr, site: Site) -> bool:
    """Whether an expression holds what a maker of sparse tensors gave, and nothing else."""
    values = program.flow.values(node, site.scope)
    return bool(values) and all(
        value.kind == "object" and _was_made_sparse(str(value.ref).split(".")) for value in values
    )


def _was_made_sparse(path: list[str]) -> bool:
    """Whether a chain of methods ends in a sparse tensor: not ``torch.sparse_coo_tensor.to_dense``."""
    while path and path[-1] in STAYING_SPARSE:
        path = path[:-1]
    return bool(path) and path[-1] in SPARSE_MAKERS
