"""``apex.mlp``."""

from amp_runtime.apex.mlp.mlp import MLP as MLP
from amp_runtime.apex.mlp.mlp import MlpFunction as MlpFunction
from amp_runtime.apex.mlp.mlp import mlp_function as mlp_function

__all__ = ["MLP", "MlpFunction", "mlp_function"]
