"""What takes a device, by its name."""

from __future__ import annotations

DEVICE = "torch.device"
"""The class itself."""

SET_DEVICE = "torch.cuda.set_device"
"""It makes a GPU the current one of its process: what plain ``cuda`` names."""

ASKS_FOR_CUDA = frozenset({"torch.cuda.is_available"})
"""Functions that say whether there is a GPU."""

CHOOSING = frozenset({SET_DEVICE, "torch.cuda.device", "torch.set_default_device"})
"""Functions whose first argument is the device that is used from then on."""

MOVING = frozenset({"to", "cuda"})
"""Methods of tensors and modules whose first argument is a device; that of ``to`` may be a type instead."""

MOVING_MODELS = MOVING | {"cpu", "to_empty", "xpu", "ipu"}
"""Methods that move a module in place."""

KEEPS_DEVICE = frozenset({"apex.amp.initialize"})
"""Functions that give a model back where it was."""

KEYWORDS = frozenset({"device", "map_location"})
"""Keywords that take a device wherever they are given to something of a library."""

SPREADING = "device_map"
"""A keyword that spreads one model over all devices."""

DEFAULT_DEVICE = frozenset({"set_default_device", "set_default_tensor_type"})
"""Last names of functions that choose where everything is made from then on."""

READ_BY_CUDA = ("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "PYTORCH_", "TORCH_")
"""How variables of the environment begin that CUDA, NCCL and torch's allocator read when they start."""
