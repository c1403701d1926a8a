"""Functions that write and read checkpoints."""

from __future__ import annotations

SAVES = frozenset({"torch.save"})
"""Functions whose first argument, ``obj``, becomes a file."""

LOADS = frozenset({"torch.load", "torch.hub.load_state_dict_from_url", "torch.utils.model_zoo.load_url"})
"""Functions that give what such a file holds, from wherever it comes."""

SCALER_KEYS = ("scaler", "grad_scaler", "loss_scaler")
"""What the state of a scaler is saved under; the first that a program does not use for something else."""

KEY_METHODS = frozenset({"get", "pop", "setdefault"})
"""Methods of a dictionary that ask for one key."""
