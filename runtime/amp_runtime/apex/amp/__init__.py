"""Apex's mixed precision, ``from apex import amp``, on a current torch, and on the CPU as well.

``amp.initialize``, ``amp.scale_loss`` and what goes with them have Apex's signatures, checks and messages. Deliberate
differences are in favour of the training run:

- an overflow skips the step under a fixed loss scale too, and all ranks that train a model together skip together;
- the scale never falls to 0, and after many skips in a row an error says so;
- master weights are made in ``initialize`` and saved by ``amp.state_dict``, so a run at O2 resumes exactly;
- casts of weights are not kept between uses, since they went out of date;
- optimizers may be given to ``scale_loss`` as a tuple, ``zero_grad`` takes ``set_to_none``, ``disable_casts`` may nest.
"""

from amp_runtime.apex.amp import scaler as scaler
from amp_runtime.apex.amp._amp_state import _amp_state as _amp_state  # shadows the module of that name, as in Apex
from amp_runtime.apex.amp._amp_state import master_params as master_params
from amp_runtime.apex.amp._functions import float_function as float_function
from amp_runtime.apex.amp._functions import half_function as half_function
from amp_runtime.apex.amp._functions import init as init
from amp_runtime.apex.amp._functions import promote_function as promote_function
from amp_runtime.apex.amp._functions import register_float_function as register_float_function
from amp_runtime.apex.amp._functions import register_half_function as register_half_function
from amp_runtime.apex.amp._functions import register_promote_function as register_promote_function
from amp_runtime.apex.amp.frontend import initialize as initialize
from amp_runtime.apex.amp.frontend import load_state_dict as load_state_dict
from amp_runtime.apex.amp.frontend import state_dict as state_dict
from amp_runtime.apex.amp.handle import disable_casts as disable_casts
from amp_runtime.apex.amp.handle import scale_loss as scale_loss

__all__ = [
    "disable_casts",
    "float_function",
    "half_function",
    "init",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "scale_loss",
    "scaler",
    "state_dict",
]
