"""Writes down what a training script computes, without changing the script or drawing a random number.

The folder named by ``PROOF_RECORD`` gets one file for each rank, ``rank<R>.jsonl``. Every backward call
appends ``{"loss": "<float.hex>"}``, the mean of the tensor in float64. At exit
``{"parameters": ["<sha256>", ...]}`` follows, one digest for each optimizer in the order of their making,
over the bytes of all its parameters.
"""

import atexit
import functools
import hashlib
import json
import os
from pathlib import Path

import torch

_optimizers = []
_inside = False


def install():
    """Wrap torch's backward calls and remember every optimizer. To be called once, before the script."""
    torch.Tensor.backward = _recording(torch.Tensor.backward)
    torch.autograd.backward = _recording(torch.autograd.backward)
    torch.optim.Optimizer.__init__ = _remembering(torch.optim.Optimizer.__init__)
    atexit.register(_write_parameters)


def _recording(backward):
    @functools.wraps(backward)
    def recorded(tensors, *args, **kwargs):
        # Tensor.backward calls autograd.backward: one entry, not two.
        global _inside
        if _inside:
            return backward(tensors, *args, **kwargs)
        _write({"loss": _mean(tensors).hex()})
        _inside = True
        try:
            return backward(tensors, *args, **kwargs)
        finally:
            _inside = False

    return recorded


def _remembering(init):
    @functools.wraps(init)
    def remembered(self, *args, **kwargs):
        # A strong reference: an optimizer that is local to main() must still be there at exit.
        _optimizers.append(self)
        return init(self, *args, **kwargs)

    return remembered


def _mean(tensors):
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    # Autocast never touches float64, so this reads the same inside and outside of its regions.
    return sum(float(t.detach().to(torch.float64).mean()) for t in tensors)


def _write_parameters():
    # The launcher of several processes comes by here too, with nothing to say.
    if _optimizers:
        _write({"parameters": [_digest(optimizer) for optimizer in _optimizers]})


def _digest(optimizer):
    digest = hashlib.sha256()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            data = parameter.detach().cpu().contiguous().reshape(-1)
            digest.update(data.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write(entry):
    path = Path(os.environ["PROOF_RECORD"]) / f"rank{os.environ.get('RANK', '0')}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
