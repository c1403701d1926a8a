"""Whether DistributedDataParallel averages what the training steps of a program compute.

A forward pass of the wrapper lets the next backward pass through its parameters exchange their gradients; one that
follows without a forward pass in between is not averaged, and nothing says so. Gradients that add up over several pairs
of a forward and a backward pass are averaged; so are those of several forward passes before one backward pass, as long
as all of them use all parameters. A parameter that takes no part holds back the gradients of its bucket, unless the
wrapper looks for such, which it can do for one forward pass at a time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.plain_torch.changed_parts import ChangedParts
from amp_rules.plain_torch.dropped_outputs import drops_outputs
from amp_rules.plain_torch.loss_paths import LossPaths, Pass
from amp_rules.plain_torch.step_runs import Key, StepRun
from amp_rules.plain_torch.training_nodes import TrainingNodes
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use
from amp_rules.plain_torch.wrapped import Wrapped
from amp_rules.plain_torch.wrapped_references import WrappedReferences
from amp_rules.plan.left_out import why_left_out
from amp_rules.plan.precision import Precision
from amp_rules.roles.sites import Backward, Site
from amp_rules.source import blocks
from amp_rules.torch.gradients import GRADIENT_FUNCTIONS

_LOOKS = ", find_unused_parameters=True"


class AveragedPasses:
    """Decides for the models of a program.

    Attributes:
        options: the options of each wrapper as code, ``", find_unused_parameters=True"``; models that are declined are
            not among them.
    """

    def __init__(self, translation: Translation, models: list[Wrapped]) -> None:
        self._translation = translation
        self._program = translation.program
        self._models = models
        self.options: dict[Use, str] = {}
        for item in models:
            found = self._decide(item)
            if found is not None:
                self.options[item.use] = found

    def _decide(self, item: Wrapped) -> str | None:
        program = self._program
        if not any(map(program.is_trained, item.values)):
            return self._decline(
                item.use,
                "no optimizer is given its parameters, and DistributedDataParallel takes models that train alone",
                "leave it to each process, and write by hand what must be shared",
            )
        parts = ChangedParts(program, item)
        for site, reason, recipe in _reasons(parts):
            return self._decline(item.use, f"`{site.module.text(site.node)}` {reason}", recipe, site)
        delayed = item.use.keyword("delay_allreduce")
        if not (isinstance(delayed, ast.Constant) and delayed.value is True):
            if item.moved is not None and self._loose(item) is not None:
                return self._decline_loose(item)
            return _LOOKS if self._left_out else ""
        if self._gradients_by_hand is not None:
            site = self._gradients_by_hand
            reason = f"DistributedDataParallel averages no gradients of `{site.module.text(site.node)}`"
            return self._decline(item.use, reason, "let backward() compute them", site)
        if not self._forwards_of(item):
            return self._decline(item.use, "no training step is seen to call it", "call the model in the training step")
        if self._loose(item) is not None:
            return self._decline_loose(item)
        return self._of_passes(item)

    def _forwards_of(self, item: Wrapped) -> list[Site]:
        return [site for site in self._forwards if self._called(site) & item.values]

    def _loose(self, item: Wrapped) -> Site | None:
        """A forward pass through what may be the model itself."""
        found = (site for site in self._forwards_of(item) if not self._references.is_wrapped(_callee(site), site.scope))
        return next(found, None)

    def _decline_loose(self, item: Wrapped) -> str | None:
        loose = self._loose(item)
        assert loose is not None
        return self._decline(
            item.use,
            f"`{loose.module.text(loose.node)}` may call the model by a reference that was made before "
            "DistributedDataParallel was put around it",
            "put the model into one variable, and call it by that",
            loose,
        )

    def _of_passes(self, item: Wrapped) -> str | None:
        """The options of a model that takes part in several passes."""
        is_one_for_one = True
        for backward in self._program.backwards:
            found = self._paths.passes(backward)
            where = f"`{backward.module.text(backward.loss)}`"
            if not found:
                return self._decline(
                    item.use,
                    f"{where} is computed in another function: whether each backward pass follows a forward pass of "
                    "the model is not known",
                    "compute the loss in the function that calls backward()",
                    backward,
                )
            own = [one for one in found if one.values & item.values]
            if not own:
                continue
            earlier = self._earlier(backward, item)
            fresh = [
                one for one in own if one.is_plain and _comes_between(one, earlier, backward, self._paths.run(backward))
            ]
            if not fresh:
                return self._decline(
                    item.use,
                    f"the backward pass of {where} has no forward pass of its own before it, and "
                    "DistributedDataParallel averages one backward pass for each",
                    "add the losses up and call backward() once",
                    backward,
                )
            is_one_for_one = is_one_for_one and len(own) == 1 and not own[0].is_repeated
        if not self._left_out:
            return ""
        if is_one_for_one:
            return _LOOKS
        return self._decline(
            item.use,
            f"{self._left_out}, in a step of several forward passes, of which DistributedDataParallel waits for all "
            "parameters in each",
            "use all parts of the model in each forward pass",
        )

    def _earlier(self, backward: Backward, item: Wrapped) -> list[Key]:
        """Where backward passes go through the model before this one, or calls run such that are not looked into."""
        run = self._paths.run(backward)
        found: list[Key] = []
        for other in self._program.backwards:
            passes = self._paths.passes(other)
            if passes is not None and not any(one.values & item.values for one in passes):
                continue
            for frame in run.frames:
                if other.body is frame.site.body and not _leaves_before(other, backward):
                    found.append(frame.start(other.node))
                for node in self._program.nodes_of(frame.site.body):
                    if isinstance(node, ast.Call) and node not in run.inlined:
                        if other.body in self._program.called_from([node]):
                            found.append(frame.start(node))
        return [key for key in found if key < run.own.start(backward.node)]

    # ---- what the program does -------------------------------------------------------------------------------------

    def _decline(self, use: Use, reason: str, recipe: str, at: Site | None = None) -> str | None:
        module, node = (use.module, use.whole) if at is None else (at.module, at.node)
        name = next(item.variable for item in self._models if item.use is use) or use.module.text(use.argument)
        message = f"`{name}` over several processes: {reason}"
        self._translation.decline(module, node, message, recipe, "distribution")
        return None

    def _called(self, site: Site) -> frozenset[object]:
        assert isinstance(site.node, ast.Call)
        return frozenset(self._program.called_models(site.node, site.scope))

    @cached_property
    def _references(self) -> WrappedReferences:
        return WrappedReferences(self._program, self._models)

    @cached_property
    def _forwards(self) -> list[Site]:
        """Forward passes of wrapped models in training steps, outside of models' own code."""
        values = {value for item in self._models for value in item.values}
        return [
            Site(scope.module, scope, body, call)
            for call, body, scope in self._program.calls()
            if self._program.called_models(call, scope) & values
            and not self._is_of_itself(call, body)
            and self._training.has(call, body, scope.module)
            and not _is_of_runtime(call)
        ]

    def _is_of_itself(self, call: ast.Call, body: ast.AST) -> bool:
        """``self(x)`` in a method of a model, of which the call of the method is looked at."""
        info = self._program.function_of(body)
        return info is not None and self._program.is_model_code(body) and ast.unparse(call.func) == info.receiver

    @cached_property
    def _paths(self) -> LossPaths:
        return LossPaths(self._program, self._forwards)

    @cached_property
    def _left_out(self) -> str:
        """Why a step may leave parameters out; empty where nothing suggests that it does."""
        found = why_left_out(self._program, Precision(backwards=self._program.backwards), self._forwards)
        return found or ("an output of a part is not used" if drops_outputs(self._program) else "")

    @cached_property
    def _training(self) -> TrainingNodes:
        return TrainingNodes(self._program)

    @cached_property
    def _gradients_by_hand(self) -> Site | None:
        """A call of ``torch.autograd.grad`` for parameters, whose gradients no hook sees."""
        for site in self._program.calls_to(GRADIENT_FUNCTIONS):
            assert isinstance(site.node, ast.Call)
            inputs = site.node.args[1:2] or [item.value for item in site.node.keywords if item.arg == "inputs"]
            for given in inputs:
                values = self._program.given(site.node, [given])
                known = [part for part in ast.walk(given) if isinstance(part, (ast.Name, ast.Attribute))]
                if not known or any(value.kind == "parameters" for value in values) or "param" in ast.unparse(given):
                    return site
        return None


def _reasons(parts: ChangedParts) -> Iterator[tuple[Site, str, str]]:
    """Yield what DistributedDataParallel would not know of, why that is wrong, and what to do."""
    if (site := parts.thawed()) is not None:
        yield (
            site,
            "lets parameters train that may have been frozen when DistributedDataParallel was put around the model, "
            "which averages no gradients of those",
            "freeze parameters by leaving them out of the optimizer",
        )
    if (site := parts.replaced()) is not None:
        yield (
            site,
            "changes the model after DistributedDataParallel was put around it, which averages the gradients of the "
            "parameters that it had then",
            "change the model before it is trained, or make another one with the trained parts in it",
        )
    if (site := parts.written()) is not None:
        yield (
            site,
            "writes a buffer from the batch of each process, and DistributedDataParallel takes that of the first "
            "process for all",
            "write it from what all processes have, summed with torch.distributed.all_reduce",
        )


def _callee(site: Site) -> ast.expr:
    assert isinstance(site.node, ast.Call)
    node = site.node.func
    if isinstance(node, ast.Attribute) and node.attr in ("forward", "__call__"):
        return node.value
    return node


def _is_of_runtime(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("prepare_model", "unwrap")


def _leaves_before(other: Backward, backward: Backward) -> bool:
    """Whether what runs one backward pass of a body goes on to its next round, or out, before another is reached."""
    module, shared = other.module, set(other.module.ancestors(backward.node))
    for inner in [other.node, *module.ancestors(other.node)]:
        parent = module.parents.get(inner)
        if parent in shared or parent is None:
            return False
        suite = [parent.body, parent.orelse] if isinstance(parent, ast.If) else []
        last = next((rows[-1] for rows in suite if inner in rows), None)
        if isinstance(last, (ast.Return, ast.Raise)):
            return True
        if isinstance(last, (ast.Continue, ast.Break)):
            loops = (item for item in blocks.enclosing(module, last) if isinstance(item, blocks.LOOPS))
            return next(loops, None) in shared
    return False


def _comes_between(one: Pass, earlier: list[Key], backward: Backward, run: StepRun) -> bool:
    """Whether a forward pass runs after earlier backward passes and, each time, before its own."""
    place = one.frame.start(one.site.node)
    if place >= run.own.start(backward.node) or any(place <= key for key in earlier):
        return False
    around, above = run.own.around(backward.node), one.frame.around(one.site.node)
    loop = next((item for item in around if isinstance(item[1], blocks.LOOPS)), None)
    if loop is not None and loop not in above:
        return False
    return not any(isinstance(item[1], (ast.If, ast.Try, ast.While)) and item not in around for item in above)
