"""Models that a script for Apex trains and does not give to ``amp.initialize``: nothing averages their gradients.

Apex needs to know of no loss with weights of its own, as centers of classes are. Several processes do: without the
average each would train other centers.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_rules.flow.values import Value
from amp_rules.plan import declining
from amp_rules.plan.declining import Declined
from amp_rules.plan.model_homes.home import Home
from amp_rules.plan.model_homes.homes import Homes
from amp_rules.plan.prepared_always import models_given
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program


def reasons(program: Program, preparing: frozenset[str]) -> Iterator[Declined]:
    """Yield the models that an optimizer trains and nothing prepares.

    Args:
        program: the program without Apex, whose other models are prepared.
        preparing: the names of what prepares a model.
    """
    given = [models_given(program, site) for site in program.calls_to(preparing)]
    if not given or not all(given):
        return  # a model of which nothing is known may be any
    homes = Homes(program)
    prepared = {whole for models in given for model in models for whole in {model, *homes.wholes(model)}}
    for value in homes.roots():
        if is_module(value) and not _is_among(value, prepared) and (home := homes.of(value)) is not None:
            yield _left_out(home)


def _is_among(value: Value, prepared: set[Value]) -> bool:
    """Whether a model is prepared, or may be for all that its class tells."""
    if value in prepared or value.kind != "instance":
        return value in prepared
    family = set(value.ref.mro())
    return any(other.kind == "instance" and family & set(other.ref.mro()) for other in prepared)


def _left_out(home: Home) -> Declined:
    return declining.decline(
        declining.GRADIENTS_OUTSIDE,
        home.module,
        home.statement,
        f"`{home.variable}` is trained and was not given to `amp.initialize`: nothing averages its gradients, and each "
        "process would train another one",
        "give it to `amp.initialize` too, with its optimizer, and migrate again",
    )
