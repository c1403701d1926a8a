"""Training steps without mixed precision in a script whose other steps have their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.library_uses import Spared, uses
from amp_rules.roles.autocast_contexts import may_cast
from amp_rules.roles.loss_regions import Regions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import leaves_before
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.torch.mixed_precision import SCALERS, STEPS_OF_SCALERS, TORCH_AMP, is_scaler_name, scaler_of

_MAX_CALLERS = 4
"""Calls between a step and a condition that chooses it; the steps of a longer chain count as having their own."""

_MAX_NAMED = 4
"""Steps that the reason names; more say the same."""

_Way = tuple[Site, FunctionFacts | None]


def reasons(program: Program, spared: Spared) -> Iterator[Declined]:
    """Decline where some steps have mixed precision, and others run beside them without.

    Args:
        program: a program that uses ``torch.amp``.
        spared: uses of it that mix nothing.
    """
    steps = _Steps(program, spared)
    own = [site for site in program.backwards if steps.has_own(site)]
    plain = [site for site in program.backwards if site not in own and not _fits_loose_tensors(program, site)]
    alone = [site for site in plain if not any(is_instead_of(program, site, other) for other in own)]
    if not own or not alone:
        return
    places = ", ".join(_place(site, alone[0].module) for site in alone[:_MAX_NAMED])
    many = len(alone) > 1
    yield declining.decline(
        declining.ALREADY_MIXED,
        alone[0].module,
        alone[0].node,
        f"the step of `{own[0].module.text(own[0].call)}` ({_place(own[0], alone[0].module)}) has its own mixed "
        f"precision; {f'{len(alone)} others have' if many else 'this one has'} none ({places})",
        "put the script's autocast and scaler around these steps, too; or remove them from the script, then migrate "
        "again",
    )


def _fits_loose_tensors(program: Program, site: Backward) -> bool:
    """Whether all steps of a backward pass's function, or of the one around its closure, train no model."""
    info = program.function_of(site.body)
    around = {site.body} | ({info.outer.node} if info is not None and info.outer is not None else set())
    steps = [step for step in program.steps if step.body in around]
    return bool(steps) and all(map(program.fits_loose_tensors, steps))


def scaled_by_others(program: Program) -> Iterator[Declined]:
    """Decline where another scaler has the loss of some step already: fairscale's, or one that callers may give."""
    for site in program.backwards:
        scaler = scaler_of(site.loss)
        if site.is_scaled or scaler is None:
            continue
        held = program.flow.values(scaler, site.scope)
        names = sorted(value.ref for value in held if value.kind in ("object", "external"))
        name = next(filter(is_scaler_name, names), None)
        is_own = any(value.kind not in ("object", "external") for value in held)
        if name is not None or (not is_own and program.roles.uses(scaler, site.scope) >= STEPS_OF_SCALERS):
            whose = f"the script's own `{name}`" if name else f"`{site.module.text(scaler)}`, which is not followed"
            yield declining.decline(
                declining.ALREADY_MIXED,
                site.module,
                site.node,
                f"`{site.module.text(site.loss)}` scales the loss with {whose}, and a second scaler would scale it "
                "twice",
                "keep one of the two: migrate the script without that scaler",
                already=True,
            )


def _place(site: Site, seen_from: Module) -> str:
    return f"line {site.told_line}" if site.module is seen_from else f"{site.module.path.name}:{site.told_line}"


class _Steps:
    def __init__(self, program: Program, spared: Spared) -> None:
        self._program = program
        self._spared = spared

    @cached_property
    def _uses(self) -> set[ast.AST]:
        return {node for module, node, name in uses(self._program, TORCH_AMP) if not self._spared(name, node, module)}

    def has_own(self, site: Backward) -> bool:
        """Whether the loss is scaled, or computed under an autocast, as far as that is known."""
        if site.is_scaled:
            return True
        runs, lost = Regions(self._program).training([site])
        if lost or not runs:
            return True
        parts: list[ast.AST] = [statement for run in runs for statement in run.statements()]
        parts.append(site.statement)
        nodes = [node for part in parts for node in blocks.walk_own(part)]
        bodies = self._program.called_from(nodes)
        around = {blocks.body_of(run.module, run.first) for run in runs} | {site.body}
        if any(self._mixes(node, scope) for node, scope in self._located(nodes)):
            return True
        if any(self._is_decorated(body) or self._has_mixed(body) for body in bodies):
            return True
        starts = [Site(run.module, self._scope(run.first, site.scope), site.body, run.first) for run in runs]
        return any(self._is_decorated(body) for body in around) or any(map(self._is_called_mixed, [site, *starts]))

    def _located(self, nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, Scope | None]]:
        for node in nodes:
            located = self._program.locate(node)
            yield node, located[1] if located is not None else None

    def _scope(self, node: ast.AST, default: Scope) -> Scope:
        located = self._program.locate(node)
        return located[1] if located is not None else default

    def _has_mixed(self, body: ast.AST) -> bool:
        located = self._program.locate(body)
        scope = self._program.flow.scopes.get(body, located[1] if located is not None else None)
        return any(self._mixes(node, scope) for node in self._program.nodes_of(body))

    def _is_decorated(self, body: ast.AST) -> bool:
        return any(node in self._uses for item in getattr(body, "decorator_list", ()) for node in walk(item))

    def _mixes(self, node: ast.AST, scope: Scope | None) -> bool:
        """Whether a node is of ``torch.amp``, is a scaler, or opens a context that may be autocast."""
        if node in self._uses:
            return True
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return any(may_cast(self._program, item.context_expr, scope) for item in node.items)
        if scope is None or not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        return any(
            value.ref in SCALERS
            for value in self._program.flow.values(node, scope)
            if value.kind in ("object", "external")
        )

    def _is_called_mixed(self, site: Site, depth: int = 0) -> bool:
        """Whether a place is run within a context that may be autocast."""
        for parent in blocks.enclosing(site.module, site.node):
            if isinstance(parent, (ast.With, ast.AsyncWith)) and self._mixes(parent, site.scope):
                return True
        info = self._program.function_of(site.body)
        callers = self._program.flow.callers(info) if info is not None else []
        if depth > _MAX_CALLERS:
            return True
        return self._is_decorated(site.body) or any(
            self._is_called_mixed(calling(caller), depth + 1) for caller in callers
        )


def is_instead_of(program: Program, one: Site, other: Site) -> bool:
    """Whether a round runs only one of the two steps, or one program does."""
    mine, others = _ways(program, one), _ways(program, other)
    return any(_is_choice(here, there) or _are_alike(program, here[0], there[0]) for here in mine for there in others)


def _ways(program: Program, site: Site, called: FunctionFacts | None = None, depth: int = 0) -> list[_Way]:
    """The place, and the calls that lead to it, each with the function that it calls on the way."""
    found = [(site, called)]
    info = program.function_of(site.body)
    if info is not None and depth <= _MAX_CALLERS:
        for caller in program.flow.callers(info):
            found += _ways(program, calling(caller), info, depth + 1)
    return found


def _are_alike(program: Program, one: Site, other: Site) -> bool:
    """Methods of one name in different classes: ``Trainer.step`` and ``MixedTrainer.step``."""
    mine, others = program.function_of(one.body), program.function_of(other.body)
    if mine is None or others is None or mine is others or mine.name != others.name:
        return False
    return program.flow.class_of(mine) is not None


def _is_choice(one: _Way, other: _Way) -> bool:
    """Whether one of the two is left out: they stand in different branches, or the first leaves before the second."""
    (here, mine), (there, others) = one, other
    if here.body is not there.body:
        return False
    if here.node is there.node:
        return mine is not others  # of one call that runs the function that a variable holds
    if blocks.choice_between(here.module, here.node, there.node) is not None:
        return True
    nodes = (here.node, there.node)
    return leaves_before(here.module, *nodes) or leaves_before(here.module, *nodes[::-1])
