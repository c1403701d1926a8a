"""``apex.RNN``: recurrent layers in plain torch, step by step, with Apex's parameter names.

``torch.nn.LSTM`` and its kind are faster; these are for scripts and checkpoints that have Apex's.
"""

from amp_runtime.apex.RNN.models import GRU as GRU
from amp_runtime.apex.RNN.models import LSTM as LSTM
from amp_runtime.apex.RNN.models import ReLU as ReLU
from amp_runtime.apex.RNN.models import Tanh as Tanh
from amp_runtime.apex.RNN.models import mLSTM as mLSTM

__all__ = ["GRU", "LSTM", "ReLU", "Tanh", "mLSTM"]
