"""Losses that relate the samples of a batch, and sums over one: several processes change what they see.

Each process computes its loss over its own batch, and gradients are averaged. Of a mean over samples that is the
gradient of all of them. A sample that meets the others of its batch meets those of its process only; and of sums the
average is as large as one of them, where one process with all samples would have them together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain

from amp_rules.flow.values import ClassInfo, Value
from amp_rules.plan.arrays import Arrays
from amp_rules.plan.definitions import Definitions
from amp_rules.plan.losses_of_inputs import trains_no_model
from amp_rules.plan.notes import LOSS_OVER_BATCH, note
from amp_rules.plan.picked_losses import picks_losses
from amp_rules.plan.places_in_batches import is_given_places
from amp_rules.plan.precision import Precision
from amp_rules.plan.report import Note
from amp_rules.plan.summed_terms import SummedTerms, is_of_batch
from amp_rules.ranks.analysis import Ranks
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import called_name, is_none, own_name, values_given, walk
from amp_rules.torch.losses import COSINES, OF_ALL_PAIRS, OF_OWN_PAIRS, PRODUCTS, SPREADS, SUMMED_BY

_EQUATION_AND_TWO = 3
_ALL_PAIRS = re.compile(r"([a-z])([a-z]),(?!\1)([a-z])\2->(\1\3|\3\1)")
"""Each row of one matrix with each of another, as an equation of einsum: ``nc,mc->nm``."""

_DIAGONALS = frozenset({"diag", "diagonal"})
_AS_COLUMN = frozenset({"view", "reshape", "unsqueeze"})
_REPEATS = frozenset({"repeat", "expand", "expand_as"})

_COMPARES = "compares the samples of a batch: each process compares only those of its own batch"
_PICKS = "orders the losses of a batch, of which some are picked: each process picks among those of its own batch"
_MEAN = "is made of the mean of a batch: each process takes that of its own batch"
_SUM = (
    "is a sum over the batch, and gradients are averaged over the processes: each step is as large as with the batch "
    "of one process"
)
_OF_EACH_ROW = frozenset({"normalize", "detach", "float", "double", "contiguous", "clone"})
"""Functions and methods whose result has the same samples in its rows."""

_DIVIDES = frozenset({"div", "div_", "divide", "true_divide"})

_WITHOUT_GRADIENT = frozenset({"item", "detach", "float", "tolist", "numpy"})
"""Functions and methods whose result is shown or added up, and trained on no more."""

_MAX_CALLERS = 3
"""Functions that give a loss back to others; beyond, nobody is known to divide it."""


def notes(program: Program, precision: Precision, ranks: Ranks) -> Iterator[Note]:
    """Yield the first place of either kind."""
    nodes = list(_loss_nodes(program, precision))
    arrays = Arrays(program)
    definitions = Definitions(program)
    terms = SummedTerms(program, ranks)
    for node, scope in nodes:
        if _relates_samples(program, definitions, node, scope) or is_given_places(
            program, definitions, node, scope, ranks
        ):
            if arrays.may_be_of(Site(scope.module, scope, scope.node, node)):
                continue
            yield note(LOSS_OVER_BATCH, scope.module, node, f"`{_short(scope.module.text(node))}` {_COMPARES}")
            break
    else:
        for call, scope in chain(_less_means(program, nodes, ranks), terms.of_means()):
            yield note(LOSS_OVER_BATCH, scope.module, call, f"`{_short(scope.module.text(call))}` {_MEAN}")
            break
    for node, scope in nodes:
        if picks_losses(program, definitions, node, scope):
            yield note(LOSS_OVER_BATCH, scope.module, node, f"`{_short(scope.module.text(node))}` {_PICKS}")
            break
    for node, scope in nodes:
        if _sums_samples(program, node, scope) and not trains_no_model(program, node, scope):
            consequence = (
                "may be a sum over the batch, and gradients are averaged over the processes: each step would be as "
                "large as with the batch of one process"
                if _is_one_of_several(program, node, scope)
                else _SUM
            )
            yield note(LOSS_OVER_BATCH, scope.module, node, f"`{_short(scope.module.text(node))}` {consequence}")
            return
    for call, scope in terms.of_samples():
        if _is_divided(program, call, scope) or _is_weighted(definitions, call, scope):
            continue
        if not trains_no_model(program, call, scope):
            yield note(LOSS_OVER_BATCH, scope.module, call, f"`{_short(scope.module.text(call))}` {_SUM}")
            return


def _less_means(
    program: Program, nodes: list[tuple[ast.expr, Scope]], ranks: Ranks
) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a loss is given less the mean over a batch: the scores of a relativistic discriminator."""
    for node, scope in nodes:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
            continue
        if _is_mean_of_all(program, node.left, scope) is _is_mean_of_all(program, node.right, scope):
            continue
        parent = scope.module.parents[node]
        if isinstance(parent, ast.Call) and node in parent.args and called_name(parent) != "mean":
            if all(is_of_batch(side, ranks) for side in (node.left, node.right)):
                yield node, scope


def _is_mean_of_all(program: Program, node: ast.expr, scope: Scope) -> bool:
    """``x.mean()``, ``torch.mean(x)``: one number, whatever the batch has."""
    if not (isinstance(node, ast.Call) and called_name(node) == "mean") or node.keywords:
        return False
    return len(node.args) == ("torch.mean" in program.callee_names(node, scope))


def _short(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _loss_nodes(program: Program, precision: Precision) -> Iterator[tuple[ast.expr, Scope]]:
    """The expressions that compute losses: in training statements and in what they call, models left out."""
    statements = [item for run in precision.losses for item in run.statements()]
    covered = {node for item in statements for node in blocks.walk_own(item)}
    called = program.called_from(covered)
    # Matrices in a network, and in the functions that it alone calls, are of other kinds.
    networks = {body for body in called if program.is_model_code(body) and not is_of_loss(program, body)}
    called = program.called_from(covered, networks)
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.expr) or not (node in covered or body in called):
            continue
        if program.without_gradients(scope.module, node, body):
            continue
        yield node, scope


def is_of_loss(program: Program, body: ast.AST) -> bool:
    """Whether a module has nothing that is trained, as losses have not."""
    info = program.function_of(body)
    owner = program.flow.class_of(info) if info is not None else None
    return owner is not None and not program.is_trained(Value("instance", owner)) and not _is_part(program, owner)


def _is_part(program: Program, owner: ClassInfo) -> bool:
    """Whether some model keeps an object of the class."""
    return any(
        value.kind == "instance" and owner in value.ref.mro()
        for info in program.flow.classes.values()
        if is_module(Value("instance", info))
        for values in program.flow.held_by(info.facts.node)
        for value in values
    )


def _relates_samples(program: Program, definitions: Definitions, node: ast.expr, scope: Scope) -> bool:
    """``a @ b.t()``, ``torch.cdist(a, b)``, ``z.std(0)``, a miner of pairs."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return _is_product(program, [node.left, node.right], scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return {_axis_given(definitions, node.left, scope), _axis_given(definitions, node.right, scope)} == {0, 1}
    if not isinstance(node, ast.Call):
        return False
    if _is_of_own_pairs(program, definitions, node, scope):
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("addmm", "addmm_"):
        return _is_product(program, node.args[-2:], scope)  # ``distances.addmm_(1, -2, x, y.t())``
    names = program.callee_names(node, scope)
    if names & PRODUCTS:
        return _is_product(program, node.args, scope)
    if any(value.name.startswith(OF_ALL_PAIRS) for value in program.flow.values(node.func, scope)):
        return True
    if names & {"torch.einsum"}:
        return _pairs_rows(node)
    modules = {value.name for value in program.flow.values(node.func, scope) if value.kind == "object"}
    if (names | modules) & COSINES:
        return {_widened(argument) for argument in node.args[:2]} == {0, 1}
    if names & {"torch.cdist"}:
        return all(isinstance(_rows(_without_first_axis(argument)), ast.Name) for argument in node.args[:2])
    if names & OF_OWN_PAIRS:
        return isinstance(_rows(node.args[0]), ast.Name) if node.args else False
    return isinstance(node.func, ast.Attribute) and node.func.attr in SPREADS and _over_samples(node)


def _is_of_own_pairs(program: Program, definitions: Definitions, call: ast.Call, scope: Scope) -> bool:
    """``scores.diag().view(n, 1)``: of the scores of each sample with each other, those with itself as a column.

    Or in two steps: ``own = torch.diag(scores)``, ``own.unsqueeze(1)``.
    """
    owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in _AS_COLUMN else None
    last = call.args[-1] if call.args else None
    if owner is None or not (isinstance(last, ast.Constant) and last.value == 1):
        return False
    given = [item.value for item in definitions.of(owner, scope)] if isinstance(owner, ast.Name) else [owner]
    return any(_is_diagonal(program, item, scope) for item in given)


def _is_diagonal(program: Program, node: ast.expr, scope: Scope) -> bool:
    """``scores.diag()``, ``torch.diag(scores)`` of a variable."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _DIAGONALS):
        return False
    is_function = bool(program.callee_names(node, scope) & {"torch.diag", "torch.diagonal"})
    of = node.args[0] if is_function and node.args else node.func.value
    return isinstance(of, ast.Name)


def _pairs_rows(call: ast.Call) -> bool:
    """``torch.einsum("nc,mc->nm", a, b)`` of two variables: each row of one with each of the other."""
    equation = call.args[0] if len(call.args) == _EQUATION_AND_TWO else None
    if not (isinstance(equation, ast.Constant) and isinstance(equation.value, str)):
        return False
    pairs = _ALL_PAIRS.fullmatch(equation.value.replace(" ", "")) is not None
    return pairs and all(isinstance(item, ast.Name) for item in call.args[1:])


def _is_product(program: Program, factors: list[ast.expr], scope: Scope) -> bool:
    """Whether a product is of the rows of two variables; what an object holds is a weight of its own: ``self.m``.

    So is a parameter that a variable has of a model.
    """
    if any((blocks.path_of(_base(item)) or "").startswith("self.") for item in factors):
        return False
    return any(_is_transposed(item) and not _is_weight(program, item, scope) for item in factors)


def _is_weight(program: Program, factor: ast.expr, scope: Scope) -> bool:
    """``weight.t()``, where ``weight`` comes of ``model.named_parameters()``."""
    names = [part for part in walk(factor) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
    held = [program.flow.values(part, scope) for part in names]
    return any(values and all(value.kind == "parameters" for value in values) for values in held)


def _base(node: ast.expr) -> ast.expr:
    """What is indexed: ``self.m`` of ``self.m[None, :]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _is_transposed(node: ast.expr) -> bool:
    """``z.t()``, ``z.T``, ``F.normalize(z).transpose(0, 1)`` of a variable; of an attribute it is a weight.

    Behind it may stand what leaves its elements as they are: ``z.t().contiguous()``.
    """
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_EACH_ROW:
        if node.args:
            break
        node = node.func.value
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return isinstance(_rows(node.value), ast.Name)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if not isinstance(_rows(node.func.value), ast.Name):
        return False
    axes = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return (node.func.attr == "t" and not node.args) or (node.func.attr == "transpose" and axes == {0, 1})


def _rows(node: ast.expr) -> ast.expr:
    """What has the same samples in its rows: ``z`` of ``F.normalize(z.float(), dim=1)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_EACH_ROW:
        # A method is given no tensor: ``F.normalize(z)`` is a function, ``z.detach()`` is not.
        node = node.args[0] if node.func.attr == "normalize" and node.args else node.func.value
    return node


def _without_first_axis(node: ast.expr) -> ast.expr:
    """``z`` of ``z.unsqueeze(0)`` and of ``z[None]``: a batch of one matrix."""
    if _widened(node) != 0:
        return node
    return node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else _base(node)


def _widened(node: ast.expr) -> int | None:
    """Which of the two axes of samples a variable was given anew: ``z.unsqueeze(1)``, ``z[:, None]``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "unsqueeze":
        given = node.args[0] if len(node.args) == 1 and isinstance(node.func.value, ast.Name) else None
        return given.value if isinstance(given, ast.Constant) and isinstance(given.value, int) else None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        places = [place for place, axis in enumerate(axes) if is_none(axis)]
        return places[0] if places else None
    return None


def _axis_given(definitions: Definitions, node: ast.expr, scope: Scope) -> int | None:
    """The same, where a variable holds that, or where it is repeated along it: ``z.unsqueeze(1).repeat(1, n, 1)``."""
    if isinstance(node, ast.Name):
        given = definitions.of(node, scope)
        node = given[0].value if len(given) == 1 and given[0].whole else node
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _REPEATS:
        node = node.func.value
    return _widened(node)


def _over_samples(call: ast.Call) -> bool:
    given = [*call.args[:1], *(item.value for item in call.keywords if item.arg == "dim")]
    return any(isinstance(axis, ast.Constant) and axis.value == 0 for axis in given)


def _sums_samples(program: Program, node: ast.expr, scope: Scope) -> bool:
    """``F.mse_loss(x, y, reduction="sum")``, or a loss that was made with that."""
    if not isinstance(node, ast.Call) or _makes_module(program, node, scope):
        return False  # making a loss computes none
    made = [value.site for value in program.flow.values(node.func, scope) if isinstance(value.site, ast.Call)]
    return any(map(_is_summed, [node, *made])) and not _is_divided(program, node, scope)


def _makes_module(program: Program, call: ast.Call, scope: Scope) -> bool:
    """``nn.CrossEntropyLoss(reduction="sum")``, beside what calls it."""
    names = program.callee_names(call, scope)
    return any(name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper() for name in names)


def _is_one_of_several(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a setting may choose another loss, which is not known to be a sum."""
    if not isinstance(node, ast.Call) or _is_summed(node):
        return False
    held = program.flow.values(node.func, scope)
    return any(not (isinstance(value.site, ast.Call) and _is_summed(value.site)) for value in held)


def _is_divided(program: Program, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
    """Whether a sum, or what is made of it, is divided by more than a constant: by a number of samples it is a mean.

    It is followed through what is made of it with its gradient, to where a function gives it back, and to its callers.
    """
    child: ast.AST = node
    for parent in scope.module.ancestors(node):
        if isinstance(parent, ast.stmt):
            break
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div) and parent.left is child:
            if not _is_fixed(program, parent.right, scope):
                return True
        elif isinstance(parent, ast.Call) and called_name(parent) in _DIVIDES:
            given = [item for item in parent.args if item is not child]
            if given and not _is_fixed(program, given[-1], scope):
                return True
        child = parent
    statement = blocks.statement_of(scope.module, node)
    info = program.function_of(blocks.body_of(scope.module, node))
    nodes = list(program.nodes_of(blocks.body_of(scope.module, node)))
    made = _made_of(blocks.writes(statement), nodes)
    if any(_divides(program, item, made, scope) for item in nodes):
        return True
    if info is None or depth >= _MAX_CALLERS:
        return False
    if not any(node in walk(value) or _reads(value, made) for value in info.returns):
        return False
    callers = program.flow.callers(info)
    return any(_is_divided(program, caller.call, caller.scope, depth + 1) for caller in callers)


def _is_weighted(definitions: Definitions, node: ast.expr, scope: Scope) -> bool:
    """Whether what is added up was multiplied by weights that a number of samples divides: ``(losses * w).sum()``."""
    factors = [
        side
        for part in walk(node)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult)
        for side in (part.left, part.right)
    ]
    for _ in range(_MAX_CALLERS):
        if any(
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div) and any(map(_is_count, walk(part.right)))
            for factor in factors
            for part in walk(factor)
        ):
            return True
        factors = [item.value for factor in factors for item in definitions.of(_base(factor), scope)]
    return False


def _is_count(node: ast.AST) -> bool:
    """``x.shape[0]``, ``x.size(0)``, ``len(x)``, ``x.numel()``, ``mask.sum()``."""
    if isinstance(node, ast.Subscript):
        return own_name(node.value) == "shape" and isinstance(node.slice, ast.Constant) and node.slice.value == 0
    if not isinstance(node, ast.Call):
        return False
    name, given = called_name(node), [item.value for item in node.args if isinstance(item, ast.Constant)]
    return name == "len" or (name == "size" and given == [0]) or (name in ("numel", "sum") and not values_given(node))


def _made_of(paths: set[str], nodes: list[ast.AST]) -> set[str]:
    """The variables that are made of others, with their gradient."""
    made = set(paths)
    while True:
        added = {
            path
            for item in nodes
            if isinstance(item, (ast.Assign, ast.AugAssign)) and _reads(item.value, made)
            for path in blocks.writes(item)
        }
        if added <= made:
            return made
        made |= added


def _divides(program: Program, node: ast.AST, made: set[str], scope: Scope) -> bool:
    """``loss /= n``, ``loss / n``, ``loss.div(n)``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return blocks.path_of(node.target) in made and not _is_fixed(program, node.value, scope)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _reads(node.left, made) and not _is_fixed(program, node.right, scope)
    if isinstance(node, ast.Call) and called_name(node) in _DIVIDES and node.args:
        return _reads(node, made) and not _is_fixed(program, node.args[-1], scope)
    return False


def _reads(node: ast.expr, made: set[str]) -> bool:
    """Whether an expression reads one of the variables, and keeps its gradient."""
    if any(isinstance(part, ast.Call) and called_name(part) in _WITHOUT_GRADIENT for part in walk(node)):
        return False
    called = {blocks.path_of(part.func) for part in walk(node) if isinstance(part, ast.Call)}
    return not (blocks.reads(node) | called).isdisjoint(made)


def _is_fixed(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether a divisor has nothing to do with how many samples there are: a constant, the length of another axis."""
    if isinstance(node, ast.Constant):
        return True
    axis: ast.expr | None = None
    if isinstance(node, ast.Subscript) and own_name(node.value) == "shape":
        axis = node.slice
    elif isinstance(node, ast.Call) and called_name(node) == "size" and node.args:
        axis = node.args[0]
    if isinstance(axis, ast.Constant):
        return axis.value != 0
    given = Definitions(program).of(node, scope)
    return bool(given) and all(item.whole and isinstance(item.value, ast.Constant) for item in given)


def _is_summed(call: ast.Call) -> bool:
    return any(
        item.arg in SUMMED_BY and isinstance(item.value, ast.Constant) and item.value.value == SUMMED_BY[item.arg]
        for item in call.keywords
        if item.arg is not None
    )
