"""Classes of models, by their bases."""

from __future__ import annotations

import re
import sys

TORCH_MODULE_BASES = frozenset(
    {
        "torch.nn.Module",
        "torch.nn.modules.Module",
        "torch.nn.modules.module.Module",
        "torch.nn.Sequential",
        "torch.nn.ModuleList",
        "torch.nn.ModuleDict",
        "torch.jit.ScriptModule",
    }
)
"""Classes whose subclasses are models."""

CHAINS = frozenset({"torch.nn.Sequential", "torch.nn.modules.Sequential", "torch.nn.modules.container.Sequential"})
"""Classes of models that run their parts one after the other."""

MODULE_BASE_SUFFIXES = (
    "PreTrainedModel",
    "Module",
    "MessagePassing",
    "ModelMixin",
    "LightningModule",
    "MinkowskiNetwork",
)
"""Last parts of library classes whose subclasses are models (transformers, torch_geometric, ...)."""

MAKES_OWN_CLASS = frozenset({"from_pretrained", "from_config", "_from_config", "load_from_checkpoint"})
"""Methods that a class has from its base in a library (transformers, diffusers, Lightning); they give its objects."""

RETURNS_RECEIVER = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "npu",
        "train",
        "eval",
        "float",
        "double",
        "half",
        "bfloat16",
        "apply",
        "requires_grad_",
        "share_memory",
        "type",
        "to_empty",
        "contiguous",
        "clone",
        "detach",
    ]
)
"""Methods of modules that give the module itself."""

OF_TENSORS_ALONE = frozenset({"contiguous", "detach", "detach_", "numpy", "permute", "unsqueeze", "view"})
"""Methods of tensors that a module has only where its class writes them."""

PUTS_PART = frozenset({"add_module", "register_module", "append", "insert", "extend"})
"""Methods of modules that make what they are given a part of the module."""

PUTS_PART_BY_NAME = frozenset({"add_module", "register_module"})
"""Those of them that make it the attribute of that name."""

PUTS_AT_END = frozenset({"add_module", "register_module", "append"})
"""Those of them that put it behind all others."""

OF_MODULES_ALONE = frozenset(
    [
        "add_module", "children", "modules", "named_buffers", "named_children", "named_modules", "named_parameters",
        "register_buffer", "register_module", "register_parameter",
    ]
)  # fmt: skip
"""Methods that nothing but a module has: what is asked for one is no optimizer."""

OF_WRAPPED_WEIGHTS: dict[str, tuple[str, ...]] = {
    "hypll": (
        "hypll.nn.HLinear", "hypll.nn.HConvolution2d", "hypll.nn.HEmbedding", "hypll.nn.HBatchNorm",
        "hypll.nn.HBatchNorm2d", "hypll.tensors.ManifoldParameter",
    ),
}  # fmt: skip
"""By library, what has weights that are no tensors with values, but hold one: ``ManifoldParameter``, which raises for
functions of torch (``hypll/tensors/manifold_parameter.py``)."""

EMBEDDINGS = frozenset(
    f"torch.nn.{module}{name}"
    for module in ("", "modules.", "modules.sparse.")
    for name in ("Embedding", "EmbeddingBag")
)
"""Layers whose weight is a table, of which each pass takes some rows."""

LENGTH_OF_ROWS = {name: 2 if name.endswith("Bag") else 3 for name in EMBEDDINGS}
"""Where ``max_norm`` stands among what each is made of."""

DRAWING_THEIR_WEIGHTS = frozenset(
    f"torch.nn.{name}"
    for name in (
        *(f"{kind}{size}d" for kind in ("Conv", "ConvTranspose") for size in (1, 2, 3)),
        *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "MultiheadAttention", "RNN", "LSTM", "GRU"),
        *("RNNCell", "LSTMCell", "GRUCell", "Transformer", "TransformerEncoderLayer", "TransformerDecoderLayer"),
    )
)
"""Layers whose weights are drawn at random when they are made; those of norms begin as ones and zeros."""

NOT_MODULES = (
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.utils",
    "torch.nn.parameter",
    "torch.nn.Parameter",
)
"""Parts of ``torch.nn`` that hold no models."""

MODEL_FACTORIES = (
    "torchvision.models.",
    "timm.create_model",
    "torch.hub.load",
    "segmentation_models_pytorch.",
)
"""Functions of libraries that make models."""

WITH_BATCH_NORM = (
    "resnet", "resnext", "wide_resnet", "densenet", "mobilenet", "mnasnet", "shufflenet", "googlenet", "inception",
    "efficientnet", "regnet", "deeplab", "fcn_", "lraspp", "fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet",
)  # fmt: skip
"""Beginnings of the names of torchvision's models that have batch norm; of others "bn" in the name tells."""

PACKAGES_WITH_BATCH_NORM = ("timm.", "segmentation_models_pytorch.", "efficientnet_pytorch.", "pretrainedmodels.")
"""Packages most of whose networks have batch norm."""

BATCH_NORM_FUNCTIONS = frozenset({"torch.nn.functional.batch_norm", "torch.batch_norm"})
"""Functions that normalise by the batch."""

PARTS_OF_NETWORKS: dict[tuple[str, ...], frozenset[str]] = {
    ("resnet", "resnext", "wide_resnet"): frozenset({"conv1", "bn1", "layer1", "layer2", "layer3", "layer4", "fc"}),
    ("shufflenet",): frozenset({"conv1", "stage2", "stage3", "stage4", "conv5", "fc"}),
    ("mnasnet",): frozenset({"layers", "classifier"}),
    ("alexnet", "vgg", "densenet", "mobilenet", "squeezenet", "efficientnet", "convnext"): frozenset(
        {"features", "classifier"}
    ),
}
"""The parts with parameters of torchvision's networks, by the beginnings of the networks' names."""

WITH_POOLER = frozenset(
    ["Albert", "Auto", "Beit", "Bert", "Camembert", "Data2VecText", "DeiT", "Ernie", "Roberta", "ViT", "XLMRoberta"]
)
"""Models of transformers that compute a second output of all, which has weights of its own: ``BertModel``."""


TRANSFORMERS = frozenset({"transformers", "pytorch_transformers", "pytorch_pretrained_bert"})
"""The names that the package has had."""

_NETWORK_OF_TRANSFORMERS = re.compile(r"(?!TF|Flax|DataCollator)\w*(Model|For[A-Z]\w*)")
"""``BertModel``, ``GPT2LMHeadModel``, ``T5ForConditionalGeneration``; networks of other frameworks have other names."""

_NETWORK_OF_DIFFUSERS = re.compile(r"diffusers\.(?!Flax|EMA)(\w*Model|\w*Autoencoder\w*|\w*Transformer)")
"""``diffusers.UNet2DModel``, ``diffusers.AutoencoderKL``: what the package gives out by itself."""

_NOT_OF_A_NETWORK = ("Config", "Mixin", "Cfg", "Info", "Hooks")
"""Last parts of the names of classes that stand beside networks in the files of libraries and are none."""

_NETWORKS_OF_LIBRARIES = (
    "timm.models.", "timm.layers.", "torchvision.models.", "torch_geometric.nn.", "dgl.nn.", "monai.networks.",
    "efficientnet_pytorch.EfficientNet", "segmentation_models_pytorch.", "diffusers.models.", "mmcv.cnn.",
    "compressai.models.", "compressai.layers.", "compressai.entropy_models.", "fairseq.models.", "fairseq.modules.",
)  # fmt: skip
"""Where libraries keep networks and their parts, and no other classes but those with such last parts."""

_UTILITIES_OF_NETWORKS = ("segmentation_models_pytorch.utils.", "torch_geometric.nn.data_parallel.")


OF_NO_NETWORK = frozenset({"torch", *sys.stdlib_module_names, "gym", "gymnasium", "numpy", "tensorflow", "jax", "flax"})
"""Packages whose classes are no networks, or are known one by one."""


def is_module_base(name: str) -> bool:
    """Whether subclasses of the class with this dotted name are models."""
    last = name.rpartition(".")[2]
    return (
        name in TORCH_MODULE_BASES
        or last.endswith(MODULE_BASE_SUFFIXES)
        or (name.startswith("torch.nn.") and last[:1].isupper() and not name.startswith(NOT_MODULES))
        or name.startswith("torchvision.models.")
        or is_network_of_library(name)
    )


def is_network_of_library(name: str) -> bool:
    """Whether a dotted name is that of a network of a library, or of a layer of one, with parts that no project shows.

    ``transformers.BertPreTrainedModel`` is none: what derives from it makes all parts itself.
    """
    package, _, rest = name.partition(".")
    last = name.rpartition(".")[2]
    if last.endswith(MODULE_BASE_SUFFIXES) or last.endswith(_NOT_OF_A_NETWORK) or not last[:1].isupper():
        return False
    if package in TRANSFORMERS:
        is_part = any(item.startswith("modeling") for item in rest.split(".")[:-1]) and "Output" not in last
        return is_part or _NETWORK_OF_TRANSFORMERS.fullmatch(last) is not None
    if _NETWORK_OF_DIFFUSERS.fullmatch(name) is not None:
        return True
    return name.startswith(_NETWORKS_OF_LIBRARIES) and not name.startswith(_UTILITIES_OF_NETWORKS)


OF_PRETRAINED = frozenset({"config", "push_to_hub", "save_pretrained"})
"""Attributes and methods of the networks of transformers that only tell of a model or save it."""

FORWARD_HOOKS = frozenset({"register_forward_hook", "register_forward_pre_hook"})
"""Methods that let a layer run a function of the script's in its forward pass."""

TELLS_OF_MODEL = frozenset(
    [
        "buffers", "children", "eval", "modules", "named_buffers", "named_children", "named_modules",
        "named_parameters", "parameters", "state_dict", "train", "training", "zero_grad",
    ]
)  # fmt: skip
"""Attributes and methods of a module that run no forward pass: what only logs or saves a model uses these alone."""

CALLED_BY_MODULE = (
    TELLS_OF_MODEL
    | RETURNS_RECEIVER
    | OF_MODULES_ALONE
    | frozenset(
        [
            "_apply", "_call_impl", "_get_backward_hooks", "_get_backward_pre_hooks", "_get_name",
            "_load_from_state_dict", "_maybe_warn_non_full_backward_hook", "_named_members",
            "_register_load_state_dict_pre_hook", "_register_state_dict_hook", "_replicate_for_data_parallel",
            "_save_to_state_dict", "_slow_forward", "_wrapped_call_impl", "compile", "extra_repr", "forward",
            "get_buffer", "get_extra_state", "get_parameter", "get_submodule", "ipu", "load_state_dict", "mtia",
            "register_backward_hook", "register_forward_hook", "register_forward_pre_hook",
            "register_full_backward_hook", "register_full_backward_pre_hook", "register_load_state_dict_post_hook",
            "register_load_state_dict_pre_hook", "register_state_dict_post_hook", "register_state_dict_pre_hook",
            "reset_parameters", "set_extra_state", "set_submodule", "to_empty", "type", "xpu",
        ]
    )
)  # fmt: skip
"""Methods that a module, or what torch does with one, may call without the script's doing."""

GIVE_NO_MODEL = ("argparse.", "json.", "logging.", "torch.nn.functional.", "torch.utils.data.")
"""Packages whose functions give no model, though a function looked up by its name may seem to be one's factory."""

NO_FORWARD = (
    TELLS_OF_MODEL
    | RETURNS_RECEIVER
    | OF_MODULES_ALONE
    | OF_PRETRAINED
    | PUTS_PART
    | frozenset(
        [
            "freeze", "load", "load_state_dict", "preprocess", "print_trainable_parameters",
            "register_forward_hook", "register_full_backward_hook", "resize_token_embeddings", "save", "tokenize",
            "tokenizer", "unfreeze",
        ]
    )
)  # fmt: skip
"""Methods of models of any library that run no forward pass: they tell of a model, change it, or prepare its input."""

_LAYERS_WITHOUT_PRODUCTS = re.compile(
    r"torch\.nn\.(\w*Loss|\w*Pad[123]d|\w*Pool[123]d|\w*Norm\w*|\w*Dropout\w*|Embedding\w*|Flatten|Unflatten|Identity"
    r"|Upsample|Upsampling\w*|Pixel(Uns|S)huffle|ChannelShuffle|Log[Ss]\w+|Soft\w+|Hard\w+|Tanh\w*|Sigmoid|\w*ELU|ReLU6?"
    r"|RReLU|LeakyReLU|SiLU|Mish|Threshold|GLU|CosineSimilarity|PairwiseDistance)"
)
"""Layers of torch that have no matrix product and no convolution, so that autocast runs nothing of them in half.

Source: https://pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float16
"""


def is_layer_without_products(name: str) -> bool:
    """Whether a class, by its qualified name, is such a layer."""
    return _LAYERS_WITHOUT_PRODUCTS.fullmatch(name) is not None


_LAYERS_OF_FLOATS = (
    "Linear", "Bilinear", "Conv", "LazyLinear", "LazyConv", "BatchNorm", "LazyBatchNorm", "SyncBatchNorm", "LayerNorm",
    "GroupNorm", "InstanceNorm", "RMSNorm", "ReLU", "LeakyReLU", "PReLU", "ELU", "GELU", "SiLU", "Mish", "Sigmoid",
    "Tanh", "Softmax", "LogSoftmax", "AvgPool", "AdaptiveAvgPool", "Upsample", "PixelShuffle", "Embedding",
)  # fmt: skip


def is_layer_of_floats(name: str) -> bool:
    """Whether a layer of torch gives one tensor of floats, whatever it is given."""
    head, _, last = name.rpartition(".")
    return head.startswith("torch.nn") and last.startswith(_LAYERS_OF_FLOATS)


COPIES = frozenset({"copy.deepcopy", "copy.copy"})
"""Functions that give another object like the one that they are given: a copy of a prepared model is prepared."""


_LIBRARIES_WITH_DROPOUT = ("pytorch_pretrained_bert.", "pytorch_transformers.", "transformers.")
_WITH_DROPOUT = (
    "Bart", "Bert", "BigBird", "Camembert", "Deberta", "DistilBert", "Electra", "GPT2", "LayoutLM", "Longformer",
    "MBart", "MPNet", "OpenAIGPT", "Pegasus", "Roberta", "T5", "XLM", "XLNet",
)  # fmt: skip


def drops_out(loader: str) -> bool:
    """Whether a library function loads a model whose settings have a share of dropout of 0.1, unless they are changed.

    Source: https://huggingface.co/docs/transformers/model_doc/bert#transformers.BertConfig and those of the others
    """
    if not loader.startswith(_LIBRARIES_WITH_DROPOUT):
        return False
    owner, _, method = loader.rpartition(".")
    return method == "from_pretrained" and owner.rpartition(".")[2].startswith(_WITH_DROPOUT)
