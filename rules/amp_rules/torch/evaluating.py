"""What an evaluation computes with: calls that leave nothing behind, and what shows how far it is."""

from __future__ import annotations

COMPUTING = (
    "torch.", "numpy.", "math.", "builtins.", "itertools.", "functools.", "operator.", "collections.", "copy.",
    "sklearn.metrics.", "scipy.", "skimage.metrics.", "skimage.measure.", "torchvision.ops.", "torchvision.transforms.",
    "einops.", "statistics.", "string.", "re.", "tqdm.", "contextlib.",
)  # fmt: skip
"""Beginnings of the names of functions that compute from what they are given."""

NOT_COMPUTING = (
    "torch.save", "torch.load", "torch.set_", "torch.manual_seed", "torch.seed", "torch.cuda.manual_seed",
    "torch.distributed.", "torch.utils.tensorboard.", "torch.multiprocessing.", "torch.onnx.", "torch.jit.save",
    "torch.autograd.grad", "torch.autograd.backward", "torch.nn.init.", "torch.hub.", "torch.utils.data.",
    "numpy.save", "numpy.load", "builtins.open", "builtins.next", "builtins.iter", "builtins.input", "builtins.exec",
    "builtins.eval", "builtins.setattr", "builtins.delattr", "builtins.exit", "builtins.quit", "builtins.globals",
    "builtins.locals", "builtins.print", "builtins.breakpoint", "scipy.io.", "itertools.cycle", "itertools.count",
    "torch.Tensor.backward",
)  # fmt: skip
"""Those of them that do more, or that go on from one call to the next."""

READING_METHODS = frozenset(
    """
    to cuda cpu float half double long int bool type type_as item tolist numpy detach clone contiguous view view_as
    reshape reshape_as squeeze unsqueeze flatten permute transpose t expand expand_as repeat size dim numel nelement
    argmax argmin max min sum mean std var norm abs exp log sqrt pow eq ne gt lt ge le add sub mul div matmul mm bmm dot
    topk sort argsort softmax log_softmax sigmoid tanh relu clamp round floor ceil nonzero any all index_select gather
    masked_select masked_fill scatter cumsum split chunk unbind narrow where isnan isinf astype copy ravel get keys
    values items index count format join lower upper strip startswith endswith replace encode decode requires_grad_
    is_floating_point get_device element_size data_ptr new_zeros new_ones new_tensor new_full new_empty diag byte
    logical_and logical_or logical_not bitwise_and unfold roll flip prod median mode unique bincount histc fill_diagonal
    union intersection difference isdisjoint issubset
    """.split()
)
"""Methods that leave what they are asked of as it is."""

MODEL_METHODS = frozenset({"forward", "state_dict", "parameters", "named_parameters", "modules", "children", "buffers"})
"""Methods of a model that leave it as it is."""

GROWING_METHODS = frozenset({"append", "extend"})
"""Methods by which a list grows at its end."""

BAR_METHODS = frozenset(
    {"set_postfix", "set_postfix_str", "set_description", "set_description_str", "update", "refresh", "write", "close"}
)
"""Methods of a progress bar."""

LOG_METHODS = frozenset({"info", "debug", "warning", "log"})
"""Methods of a logger that show a line."""

STREAM_METHODS = frozenset({"sys.stdout.write", "sys.stdout.flush", "sys.stderr.write", "sys.stderr.flush"})
"""What a progress bar made by hand writes with."""

SHOWING_FUNCTIONS = frozenset({"builtins.print", "tqdm.tqdm.write", "pprint.pprint"})
"""Functions that show a line."""

IDLE = frozenset({"torch.cuda.empty_cache", "torch.cuda.synchronize", "gc.collect", "time.sleep"})
"""Functions that change no result."""

SYNCHRONISED_METRICS = ("torchmetrics.",)
"""Libraries whose metrics add up the states of all processes themselves when they are computed."""

ZEROS = frozenset({"torch.zeros", "torch.zeros_like", "numpy.zeros", "numpy.zeros_like"})
"""Functions that make zeros."""

MADE_OF = frozenset(
    {"torch.tensor", "torch.Tensor", "torch.FloatTensor", "numpy.array", "builtins.float", "builtins.int"}
)
"""Functions that make a number of the one that they are given."""

SINGLE = frozenset({"tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.std.tqdm", "tqdm.notebook.tqdm", "tqdm.tqdm_notebook",
                    "tqdm.autonotebook.tqdm", "builtins.enumerate"})  # fmt: skip
"""What a loop puts around a loader and gives its batches one by one, in order."""
