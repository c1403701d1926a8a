"""``apex.normalization``: the same layers of torch."""

import torch

FusedLayerNorm = MixedFusedLayerNorm = torch.nn.LayerNorm
