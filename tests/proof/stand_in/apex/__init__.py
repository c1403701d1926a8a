"""What scripts import of Apex without asking whether it is there, to run them with Apex switched off."""

from . import amp, optimizers, parallel

__all__ = ["amp", "optimizers", "parallel"]
