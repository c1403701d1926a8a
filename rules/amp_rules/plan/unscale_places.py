"""Where gradients are unscaled: before the first look at them between the backward pass and the step."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from functools import cached_property

from amp_rules.flow.reflection import IMPORTS_BY_NAME
from amp_rules.flow.values import CallSite, Value
from amp_rules.plan import declining, hand_updates
from amp_rules.plan.attacks import Attacks
from amp_rules.plan.exchanged_gradients import ExchangedGradients
from amp_rules.plan.given_gradients import given_by
from amp_rules.plan.gradient_owners import GradientOwners, Owners
from amp_rules.plan.gradient_state import GradientState
from amp_rules.plan.next_steps import NotToldError, next_to_step
from amp_rules.plan.optimizer_names import OptimizerNames
from amp_rules.plan.perturbations import Perturbations
from amp_rules.plan.scale_free import is_scale_free
from amp_rules.plan.step_conditions import conditions_at
from amp_rules.roles.bodies import told_owner
from amp_rules.roles.gradient_accesses import GradientAccess, gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name, walk
from amp_rules.text.vocabulary import Unscaled
from amp_rules.torch.gradients import GRADIENT, RUNS_TEXT

# Callers above a function that looks at gradients. A hook is called by a method of a trainer, which a loop calls: two.
# One more for a wrapper; beyond that the place where the look belongs is no longer to be seen at a glance.
_MAX_CALLERS = 3
# What finds a class by a text that may be made anywhere.
_BY_TEXT = frozenset({"eval", "globals", "getmembers", "import_module", "locals", "vars"})
_UNKNOWN = Value("object", "whatever else it is")
"""Stands for what an expression can be besides what is known: no step unscales that."""


@dataclass(frozen=True)
class Unscale:
    """``unscale_`` of some optimizers before a statement."""

    module: Module
    statement: ast.stmt
    optimizers: tuple[Unscaled, ...]
    what: str
    values: frozenset[Value] = frozenset()

    def together(self, other: Unscale) -> Unscale:
        """Both, where they stand before one statement."""
        optimizers = tuple(dict.fromkeys([*self.optimizers, *other.optimizers]))
        return replace(self, optimizers=optimizers, values=self.values | other.values)


def unscales(program: Program, perturbed: Perturbations) -> list[Unscale]:
    """What must be unscaled before something of the program looks at gradients.

    Args:
        program: the program.
        perturbed: what is right in any unit.

    Raises:
        Declined: with every look that cannot be made right.
    """
    found: dict[ast.stmt, Unscale] = {}
    reasons = declining.Reasons()
    places = _Places(program)
    accesses = gradient_accesses(program)
    reasons.extend(hand_updates.reasons(program, accesses, perturbed.writes))
    attacks = Attacks(program, places.owners)
    exchanged = ExchangedGradients(program, accesses)
    reasons.extend(_lost_on_the_way(access) for access in exchanged.lost)
    left_out = perturbed.accesses | exchanged.in_any_unit | {access.node for access in exchanged.lost}
    looks = [access for access in accesses if access.node not in left_out]
    # What is kept to be put back is asked about last: it may be scaled if it is so in all of its time.
    for access in sorted(looks, key=lambda item: item.node in perturbed.kept):
        if access.node in perturbed.kept and perturbed.are_kept_scaled(found):
            continue
        if is_scale_free(program, access):
            reasons.extend(filter(None, [attacks.reason(access)]))
            continue
        with reasons.collecting():
            for unscale in places.of(access):
                known = found.get(unscale.statement)
                found[unscale.statement] = unscale if known is None else known.together(unscale)
                places.plan(found[unscale.statement])
    reasons.extend(_unscaled_before(access) for access in exchanged.sums if places.are_unscaled_before(access))
    reasons.decline()
    # Of several accesses before one step only the first needs it.
    hoisted = [_hoisted(program, item, list(found.values())) for item in found.values()]
    hoisted = [_before_branches(program, item, hoisted) for item in hoisted]
    merged = list({item.statement: item for item in hoisted}.values())
    kept = [item for item in merged if not any(_precedes(program, other, item) for other in merged)]
    return [_without_what_holds(item) for item in kept]


def _without_what_holds(item: Unscale) -> Unscale:
    """Without the conditions on optimizers that hold anyway where they are unscaled."""
    holding = conditions_at(item.module, item.statement)
    optimizers = tuple(
        replace(one, conditions=tuple(text for text in one.conditions if text not in holding))
        for one in item.optimizers
    )
    return replace(item, optimizers=optimizers)


def _hoisted(program: Program, item: Unscale, others: list[Unscale]) -> Unscale:
    """Before the condition around an access that may not run, where another access follows that does.

    What runs a backward pass too leaves scaled gradients, whatever was unscaled before it.
    """
    for other in others:
        if other is item or other.module is not item.module or other.optimizers != item.optimizers:
            continue
        where = blocks.place(other.module, other.statement)
        for earlier in where.suite[: where.index]:
            if earlier is item.statement or program.runs_backward(earlier):
                continue
            if item.statement in set(walk(earlier)):
                return replace(item, statement=earlier)
    return item


def _before_branches(program: Program, item: Unscale, others: list[Unscale]) -> Unscale:
    """Before the condition around an access whose other branch has one too."""
    for branch in blocks.enclosing(item.module, item.statement):
        if not isinstance(branch, ast.If):
            continue
        whole = _first_of_chain(item.module, branch)
        if program.runs_backward(whole):
            continue
        for other in others:
            choice = blocks.choice_between(item.module, item.statement, other.statement)
            if other.optimizers == item.optimizers and choice is branch:
                return replace(item, statement=whole)
    return item


def _first_of_chain(module: Module, branch: ast.If) -> ast.If:
    """The ``if`` that an ``elif`` belongs to."""
    while blocks.is_elif(module, branch):
        holder = module.parents[branch]
        assert isinstance(holder, ast.If)
        branch = holder
    return branch


def _precedes(program: Program, one: Unscale, two: Unscale) -> bool:
    """Whether the first is always done before the second, with no backward pass in between."""
    if one is two or one.module is not two.module or not set(two.optimizers) <= set(one.optimizers):
        return False
    if one.statement is two.statement:
        return False
    where = blocks.place(one.module, one.statement)
    for later in where.suite[where.index :]:
        if later is two.statement:
            return True
        if program.runs_backward(later):
            return False
        if later is not one.statement and two.statement in set(blocks.walk_own(later)):
            return True
    return False


class _Places:
    """Finds where gradients are unscaled for an access, given what is planned for those before it.

    Attributes:
        owners: whose gradients are looked at.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.owners = GradientOwners(program)
        self._state = GradientState(program, self.owners)
        self._names = OptimizerNames(program, self.owners)

    def plan(self, unscale: Unscale) -> None:
        """Take what is unscaled there into account from now on."""
        self._state.planned[unscale.statement] = unscale.values

    def are_unscaled_before(self, access: GradientAccess) -> bool:
        """Whether something that is planned unscales the gradients before this, on some way there."""
        planned, self._state.planned = self._state.planned, {}
        try:
            alone = self.of(access)
        except declining.Declined:
            alone = []
        finally:
            self._state.planned = planned
        return bool(alone and planned) and len(self.of(access)) < len(alone)

    def of(self, access: GradientAccess) -> list[Unscale]:
        """What is to be unscaled, and before which statement; nothing where the gradients are true already.

        Raises:
            Declined: it is not known whose gradients they are, or they stay scaled.
        """
        if access.owner is None and isinstance(access.node, ast.Call):
            is_text = bool(self._program.callee_names(access.node, access.scope) & RUNS_TEXT)
            why = "code in a text is not followed" if is_text else "what it is called with later was not followed"
            raise _gradient(access, why)
        owners = self.owners.of(access.owner, access.scope)
        wanted = owners.optimizers | owners.strangers | (frozenset() if owners.is_known else {_UNKNOWN})
        try:
            found = self._for(access, access, wanted, access.owner)
            if found:
                _require_held(access, owners)
        except declining.Declined:
            told = self._told(access)
            if told is None:
                raise
            target, _ = self._beside_the_step(access)
            return [Unscale(access.module, target, (Unscaled(told),), access.what, owners.optimizers)]
        return found

    def _hold_all_of(self, optimizers: frozenset[Value], access: GradientAccess) -> bool:
        """Whether the access reaches no gradient but those of these optimizers, whatever others were given before.

        One that trains the same model in another function has the same gradients, and is not known by name here.
        """
        models = self.owners.of(access.owner, access.scope).models
        given = self.owners.is_given_whole
        return bool(models) and all(any(given(optimizer, model) for optimizer in optimizers) for model in models)

    def _told(self, access: GradientAccess) -> str | None:
        """The optimizer that holds the gradients by what the script said of them elsewhere."""
        if access.owner is None:
            return None
        return self._program.told_owners.get(told_owner(access.module, access.owner))

    def _for(
        self,
        access: GradientAccess,
        site: Site,
        optimizers: frozenset[Value],
        owner: ast.expr | None,
        depth: int = 0,
        hook: _Hook | None = None,
    ) -> list[Unscale]:
        """Before the access, or before what calls its function; ``owner`` is what it looks at there."""
        left = self._state.before(site, optimizers)
        if left is not None and not left:
            return []
        target, beside = self._beside_the_step(site)
        if beside is not None or left is None:
            if beside is None and self._is_cleared_without_a_step(site):
                raise _gradient(access, _NOT_LEFT_OUT, _UNSCALED_ELSEWHERE)
            # One may have stepped already, and its step unscales what it holds.
            optimizers = frozenset(item for item in optimizers if self._may_be_scaled(site, item))
            return [self._at(access, site, target, beside, optimizers)]
        info = self._program.function_of(site.body)
        if info is None:
            return []
        callers = self._program.flow.callers(info)
        if not callers or depth > _MAX_CALLERS:
            if depth == 0 and _may_be_called(self._program, info):
                raise _gradient(access, f"it is not known when `{info.name}` runs")
            if callers:
                raise _gradient(access, "no optimizer steps after it in the same place")
            return []
        found: list[Unscale] = []
        for caller in _callers(self._program, info, hook):
            own, given = given_by(self.owners, caller, info, owner) or (left, None)
            found.extend(self._for(access, calling(caller), left & own, given, depth + 1, _hook(caller, info)))
        return found

    def _is_cleared_without_a_step(self, site: Site) -> bool:
        """Whether each round of the loop around a look makes gradients anew, and no step follows in any."""
        loops = (item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS))
        loop = next(filter(self._program.runs_backward, loops), None)
        if loop is None or self._program.runs_step(loop):
            return False
        calls = (node for node in blocks.walk_own(loop) if isinstance(node, ast.Call))
        return any(last_name(call.func) == "zero_grad" for call in calls) and not self._gives_gradients

    @cached_property
    def _gives_gradients(self) -> bool:
        """Whether the program gives parameters gradients of its own, as those that it has put together."""
        return any(
            isinstance(target, ast.Attribute) and target.attr == GRADIENT
            for node, _, _ in self._program.nodes()
            if isinstance(node, ast.Assign) and not is_none(node.value)
            for target in node.targets
        )

    def _may_be_scaled(self, site: Site, optimizer: Value) -> bool:
        left = self._state.before(site, frozenset({optimizer}))
        return left is None or bool(left)

    def _beside_the_step(self, site: Site) -> tuple[ast.stmt, blocks.Place | None]:
        """Before which statement gradients are unscaled, and beside which of the same function a step follows next."""
        statement = target = site.statement
        while True:
            where = blocks.place(site.module, statement)
            for later in where.suite[where.index + 1 :]:
                if self._program.runs_backward(later):
                    break
                if self._program.runs_step(later):
                    return target, where
            if self._program.runs_step(statement) and statement is not site.statement:
                if isinstance(statement, blocks.LOOPS):
                    return target, None
            parent = where.parent
            if isinstance(parent, ast.ExceptHandler):
                parent = site.module.parents[parent]
            if not isinstance(parent, ast.stmt) or isinstance(parent, (*blocks.BODIES, ast.ClassDef)):
                return target, None
            statement = parent
            if isinstance(parent, blocks.LOOPS):
                if self._program.runs_backward(parent):
                    return target, None
                target = parent

    def _at(
        self,
        access: GradientAccess,
        site: Site,
        target: ast.stmt,
        beside: blocks.Place | None,
        optimizers: frozenset[Value],
    ) -> Unscale:
        try:
            named = next_to_step(self._program, self.owners, site, beside) if beside is not None else {}
        except NotToldError as error:
            raise _gradient(access, str(error)) from None
        names = list(named)
        known = frozenset(value for values in named.values() for value in values)
        optimizers &= known if self._hold_all_of(known, access) else self.owners.optimizers
        for optimizer in sorted(optimizers - known, key=_place_of):
            name = self._names.at(optimizer, site, target)
            if name is None:
                recipe = _CLIP_ELSEWHERE if _clips_norm(access) else _UNSCALE_ELSEWHERE
                raise _gradient(access, "the optimizer that holds these gradients is not known here", recipe)
            names.append(name)
        return Unscale(site.module, target, tuple(dict.fromkeys(names)), access.what, known | optimizers)


def _place_of(optimizer: Value) -> tuple[int, int, str]:
    site = optimizer.site
    return getattr(site, "lineno", 0), getattr(site, "col_offset", 0), str(optimizer.ref)


def _require_held(access: GradientAccess, owners: Owners) -> None:
    """Gradients that no optimizer holds are unscaled by none."""
    owner = access.module.text(access.owner).partition("\n")[0] if access.owner is not None else access.what
    is_of_none = bool(owners.strangers) and not owners.optimizers
    if is_of_none and _is_handed_on(access):
        # Computed again for itself it would not be scaled, and the pass would add gradients in another unit.
        raise declining.decline(
            declining.GRADIENT_ACCESS,
            access.module,
            access.node,
            f"`{access.what}`, which is scaled, is handed on to another backward pass: whether that one ends before "
            "the gradients are unscaled was not followed",
            "migrate by hand: let that pass begin with the gradient as it is, scaled, before the optimizer steps, and "
            "compute what it goes back through under `amp.autocast()`",
        )
    if is_of_none:
        why = f"no optimizer that steps holds `{owner}`, so nothing unscales its gradient"
        raise _gradient(
            access, why, "compute them with `torch.autograd.grad(loss, parameters)`, which does not scale them"
        )
    if not owners.is_known or owners.strangers:
        given = f"{owner}.grad" if access.owner is not None and access.what == f"{owner}.grad" else "tensor.grad"
        raise _gradient(
            access, f"it is not known whether an optimizer holds `{owner}`", _UNSCALE + _OF_NO_OPTIMIZER.format(given)
        )


def _is_handed_on(access: GradientAccess) -> bool:
    """Whether a gradient is what another backward pass begins with: ``again.backward(out.grad)``."""
    call = access.module.parents.get(access.node)
    if isinstance(call, ast.keyword):
        call = access.module.parents.get(call)
    return isinstance(call, ast.Call) and last_name(call.func) == "backward"


@dataclass(frozen=True)
class _Hook:
    """``getattr(callback, name)(...)``: which of the calls of the function around it run this method.

    Attributes:
        parameter: the parameter that the name is made of.
        looked: the expression of the name.
        name: the method's name.
    """

    parameter: str
    looked: ast.expr
    name: str


def _hook(caller: CallSite, info: FunctionFacts) -> _Hook | None:
    """What is known where a caller looks the function up by a name that it was given."""
    looked = caller.call.func
    if not (isinstance(looked, ast.Call) and blocks.path_of(looked.func) == "getattr" and len(looked.args) > 1):
        return None
    names = [node.id for node in walk(looked.args[1]) if isinstance(node, ast.Name)]
    return _Hook(names[0], looked.args[1], info.name) if len(names) == 1 else None


def _spelled(node: ast.expr, value: object) -> str | None:
    """The string that ``"on_" + event`` or ``f"on_{event}"`` is for a value of its only name."""
    if isinstance(node, ast.Name):
        return str(value)
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
    texts = [_spelled(part, value) for part in parts]
    return "".join(text for text in texts if text is not None) if texts and None not in texts else None


def _callers(program: Program, info: FunctionFacts, hook: _Hook | None) -> list[CallSite]:
    """The callers of a function, without those that ask it for another hook."""
    callers = program.flow.callers(info)
    if hook is None or hook.parameter not in info.positional:
        return callers
    found = []
    for caller in callers:
        given = info.argument(caller.call, hook.parameter)
        spelled = _spelled(hook.looked, given.value) if isinstance(given, ast.Constant) else None
        if spelled in (None, hook.name):
            found.append(caller)
    return found


def _may_be_called(program: Program, info: FunctionFacts) -> bool:
    """Whether a function without a known caller is named somewhere, so that something else may call it."""
    if info.cls is not None and _is_never_made(program, info):
        return False
    own = set(walk(info.node))
    for node, _, scope in program.nodes():
        if node in own:
            continue
        if isinstance(node, ast.Attribute) and node.attr == info.name and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Constant) and node.value == info.name:
            return True
        if info.cls is not None and _looks_up_any(program, node, scope):
            return True
    return False


def _is_never_made(program: Program, info: FunctionFacts) -> bool:
    """Whether a method belongs to a class that nothing names, so that there is no object of it."""
    definition = program.module_of(info.node)
    holder = definition.parents.get(info.node) if definition is not None else None
    if not isinstance(holder, ast.ClassDef) or holder.decorator_list or holder.keywords:
        return False
    if any(blocks.path_of(base) != "object" for base in holder.bases):
        return False  # something may go through the classes that derive from another
    own = set(walk(holder))
    return not any(_names_class(node, holder.name) for node, _, _ in program.nodes() if node not in own)


def _names_class(node: ast.AST, name: str) -> bool:
    """Whether an expression or import names a class, or may find any by a text."""
    if isinstance(node, ast.Name):
        return node.id == name or node.id in _BY_TEXT
    if isinstance(node, ast.Attribute):
        return node.attr in (name, "getmembers", "import_module")
    if isinstance(node, ast.Constant):
        return node.value == name
    return isinstance(node, (ast.Import, ast.ImportFrom)) and any(
        alias.name.rpartition(".")[2] == name for alias in node.names
    )


def _looks_up_any(program: Program, node: ast.AST, scope: Scope) -> bool:
    """``getattr(callback, name)(...)`` with a name that is put together; what a module has is no method."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Call)):
        return False
    found = node.func
    if blocks.path_of(found.func) != "getattr" or len(found.args) < 2 or isinstance(found.args[1], ast.Constant):
        return False
    owners = program.flow.values(found.args[0], scope)
    if not owners and _is_imported_by_name(program, found.args[0], scope):
        return False
    return not owners or any(owner.kind not in ("external", "module") for owner in owners)


def _is_imported_by_name(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is a module that ``import_module(name)`` gives, which a variable may hold."""
    given = blocks.given_once(program.nodes_of(scope.node), node.id) if isinstance(node, ast.Name) else node
    return isinstance(given, ast.Call) and bool(program.callee_names(given, scope) & IMPORTS_BY_NAME)


_BY_HAND = "wrap the model in `torch.nn.parallel.DistributedDataParallel` in place of the sum by hand"


def _unscaled_before(access: GradientAccess) -> declining.Declined:
    return _exchanged(
        access,
        "what else looks at them has them unscaled first, and each process would find infinities of its own alone",
    )


def _lost_on_the_way(access: GradientAccess) -> declining.Declined:
    return _exchanged(access, "what else becomes of the scaled gradients there was not followed")


def _exchanged(access: GradientAccess, why: str) -> declining.Declined:
    return declining.decline(
        declining.GRADIENT_ACCESS,
        access.module,
        access.node,
        f"`{access.what}` is summed over the processes by hand: {why}",
        _BY_HAND,
    )


_UNSCALE = (
    "call `amp.scaler.unscale_(optimizer)` once, after the backward pass and before the first use of the gradients"
)


_OF_NO_OPTIMIZER = (
    "; that does nothing to what no optimizer holds, as a tensor that the forward pass computes: read "
    "`amp.scaler.unscale_gradients({})` there, and leave out steps in which it is not finite"
)


_CLIP_ELSEWHERE = (
    "where optimizers hold all that is clipped, write `amp.clip_grad_norm_(...)`, which unscales by them, and migrate "
    "again; else give the function these optimizers, and call `amp.scaler.unscale_(optimizer)` for each before it clips"
)
_UNSCALE_ELSEWHERE = (
    "give the function the optimizer that holds them, and call `amp.scaler.unscale_(optimizer)` before it reads them; "
    "or compute them with `torch.autograd.grad(loss, parameters)`, which does not scale them"
)


_NOT_LEFT_OUT = "no step follows that would leave out what overflows in fp16: it would stay in what is made of them"
_UNSCALED_ELSEWHERE = "compute them with `torch.autograd.grad(loss, parameters)`, which does not scale them"


def _clips_norm(access: GradientAccess) -> bool:
    return isinstance(access.node, ast.Call) and last_name(access.node.func) == "clip_grad_norm_"


def _gradient(access: GradientAccess, why: str, recipe: str = _UNSCALE) -> declining.Declined:
    return declining.decline(
        declining.GRADIENT_ACCESS,
        access.module,
        access.node,
        f"`{access.what}` would read gradients that the rewrite scales, perhaps without unscaling them: {why}",
        recipe,
    )
