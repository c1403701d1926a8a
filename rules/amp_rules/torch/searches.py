"""Libraries that search for settings: they run a function of the script again and again, with others each time."""

from __future__ import annotations

STUDIES = frozenset(
    {"optuna.create_study", "optuna.load_study", "optuna.study.create_study", "optuna.study.load_study"}
)
"""What gives an object whose ``optimize`` runs a function.

Source: https://optuna.readthedocs.io/en/stable/reference/generated/optuna.study.Study.html
"""

SEARCHES = frozenset(
    {"hyperopt.fmin", "wandb.agent", "skopt.dummy_minimize", "skopt.forest_minimize", "skopt.gp_minimize"}
)
"""Functions that run the one that they are given.

Source: https://docs.wandb.ai/ref/python/agent, https://hyperopt.github.io/hyperopt/getting-started/minimizing_functions/,
https://scikit-optimize.github.io/stable/modules/minimize_functions.html
"""

OWN_TRIALS = frozenset({"wandb.agent"})
"""Of these, those that ask a server what to try: no seed makes that alike."""

SEEDS_OF_SEARCH = frozenset({"seed", "random_state", "rstate"})
"""Arguments by which a search, or what chooses for it, draws the same in each process."""

SHARED_BETWEEN_SEARCHES = frozenset({"storage"})
"""Arguments that name a place which the searches of several processes share: each makes other trials then."""
