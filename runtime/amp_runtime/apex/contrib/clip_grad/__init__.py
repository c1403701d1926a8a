"""``apex.contrib.clip_grad``: torch's function, which goes over many tensors at once."""

from torch.nn.utils import clip_grad_norm_ as clip_grad_norm_

__all__ = ["clip_grad_norm_"]
