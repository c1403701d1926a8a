"""One spelling for each thing that torch, torchvision and Apex let be imported from several places.

Taken from the packages' own ``__init__.py`` files, which import these names from the modules that define them.
"""

from __future__ import annotations

import re
from functools import lru_cache

_MOVED = (
    (re.compile(r"^torch\.autograd\.variable\."), "torch.autograd."),
    (re.compile(r"^torch\.Variable$"), "torch.autograd.Variable"),
    (re.compile(r"^torch\.nn\.utils\.clip_grad\."), "torch.nn.utils."),
    # Classes alone: ``torch.nn`` has ``BatchNorm2d`` and no ``batchnorm``, which a longer chain still goes through.
    (re.compile(r"^torch\.nn\.modules\.(?:\w+\.)?(_?[A-Z])"), r"torch.nn.\1"),
    (re.compile(r"^torch\._C\._nn\."), "torch.nn.functional."),
    (re.compile(r"^torch\.serialization\."), "torch."),
    (re.compile(r"^torch\.functional\."), "torch."),
    (re.compile(r"^torchvision\.transforms\.transforms\."), "torchvision.transforms."),
    (re.compile(r"^torchvision\.datasets\.\w+\.(\w*MNIST)$"), r"torchvision.datasets.\1"),
)

_OF_APEX = {
    "apex.amp.frontend.initialize": "apex.amp.initialize",
    "apex.amp.frontend.state_dict": "apex.amp.state_dict",
    "apex.amp.frontend.load_state_dict": "apex.amp.load_state_dict",
    "apex.amp.handle.scale_loss": "apex.amp.scale_loss",
    "apex.amp.handle.disable_casts": "apex.amp.disable_casts",
    "apex.amp._amp_state.master_params": "apex.amp.master_params",
    "apex.amp.amp.half_function": "apex.amp.half_function",
    "apex.amp.amp.float_function": "apex.amp.float_function",
    "apex.amp.amp.promote_function": "apex.amp.promote_function",
    "apex.parallel.distributed.DistributedDataParallel": "apex.parallel.DistributedDataParallel",
    "apex.parallel.distributed.Reducer": "apex.parallel.Reducer",
    "apex.parallel.LARC.LARC": "apex.parallel.LARC",
    "apex.normalization.fused_layer_norm.FusedLayerNorm": "apex.normalization.FusedLayerNorm",
    "apex.optimizers.fused_adam.FusedAdam": "apex.optimizers.FusedAdam",
    "apex.optimizers.fused_lamb.FusedLAMB": "apex.optimizers.FusedLAMB",
    "apex.optimizers.fused_sgd.FusedSGD": "apex.optimizers.FusedSGD",
    "apex.optimizers.fused_novograd.FusedNovoGrad": "apex.optimizers.FusedNovoGrad",
    "apex.optimizers.fused_adagrad.FusedAdagrad": "apex.optimizers.FusedAdagrad",
}


# The same few hundred names are asked for again and again, and patterns are slow.
@lru_cache(maxsize=8192)
def canonical(name: str) -> str:
    """The one spelling of a dotted name; the name itself where there is no other."""
    if name.startswith("torch"):
        for pattern, moved in _MOVED:
            name = pattern.sub(moved, name)
        return name
    return _OF_APEX.get(name, name)
