"""Libraries that run the training step, or look after processes, themselves."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple


class Framework(NamedTuple):
    """A library by the prefix of its dotted names.

    Attributes:
        steps: whether it runs backward passes, steps and mixed precision: always, or only where its runner is used, so
            that an import alone says nothing (``mmcv`` reads images too).
        processes: whether it joins processes and shares data out among them.
    """

    prefix: str
    steps: Literal["always", "maybe", "no"] = "always"
    processes: bool = True


FRAMEWORKS = (
    Framework("accelerate"),
    Framework("allennlp", steps="no"),
    Framework("catalyst"),
    Framework("colossalai"),
    Framework("composer"),
    Framework("deepspeed"),
    Framework("fairscale"),
    Framework("fastai"),
    Framework("ignite"),
    Framework("lightning"),
    Framework("lightning_fabric"),
    Framework("mmcv", steps="maybe"),
    Framework("mmengine", steps="maybe"),
    Framework("pytorch_lightning"),
    Framework("ray", steps="no"),
    Framework("ray.train"),
    Framework("skorch", processes=False),
    Framework("torchtnt"),
    Framework("transformers.Seq2SeqTrainer"),
    Framework("transformers.Trainer"),
)
"""Every framework that is known, for both commands."""


class OtherFramework(NamedTuple):
    """A library that trains with tensors of its own, in place of torch's.

    Attributes:
        name: what it is called.
        packages: what is imported of it.
        training: dotted names that only a script which trains with it uses.
        advice: what to do for half precision and several processes there.
    """

    name: str
    packages: tuple[str, ...]
    training: tuple[str, ...]
    advice: str


OTHER_FRAMEWORKS = (
    OtherFramework(
        "Paddle",
        ("paddle",),
        ("paddle.optimizer",),
        "use `paddle.amp.auto_cast` with `paddle.amp.GradScaler`, and `paddle.distributed.launch`",
    ),
    OtherFramework(
        "MindSpore",
        ("mindspore",),
        ("mindspore.value_and_grad", "mindspore.ops.value_and_grad", "mindspore.train.Model", "mindspore.Model"),
        "use `mindspore.amp.auto_mixed_precision`, and `msrun`",
    ),
    OtherFramework(
        "TensorFlow",
        ("tensorflow", "tf_keras", "keras"),
        (
            "tensorflow.GradientTape",
            "tensorflow.keras.optimizers",
            "keras.optimizers",
            "tf_keras.optimizers",
            *(
                f"tensorflow.{part}train.{name}Optimizer"
                for part in ("", "compat.v1.")
                for name in ("", "Adagrad", "Adam", "GradientDescent", "Momentum", "RMSProp")
            ),
        ),
        "use `keras.mixed_precision`, and `tf.distribute.MirroredStrategy`",
    ),
    OtherFramework(
        "JAX",
        ("jax", "flax", "optax"),
        ("jax.grad", "jax.value_and_grad", "optax", "flax.nnx.value_and_grad"),
        "compute in `jnp.bfloat16` (`jmp` scales losses), and share arrays out by `jax.sharding`",
    ),
    OtherFramework("MXNet", ("mxnet",), ("mxnet.autograd", "mxnet.gluon.Trainer"), "use `mxnet.contrib.amp`"),
    OtherFramework(
        "MegEngine",
        ("megengine",),
        ("megengine.optimizer", "megengine.autodiff.GradManager"),
        "use `megengine.amp.autocast` with `megengine.amp.GradScaler`, and `megengine.distributed.launcher`",
    ),
    OtherFramework("Chainer", ("chainer",), ("chainer.optimizers",), "use `chainer.mixed16`"),
)
"""Frameworks whose scripts are told apart from those of PyTorch.

Sources: https://www.paddlepaddle.org.cn/documentation/docs/en/guides/performance_improving/amp_en.html;
https://www.mindspore.cn/docs/en/master/api_python/mindspore.amp.html; https://keras.io/api/mixed_precision/;
https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html
"""

OTHER_PACKAGES = frozenset(package for item in OTHER_FRAMEWORKS for package in item.packages)
"""What is imported of frameworks with tensors of their own."""

OTHERS_TENSORS = re.compile(rf"^[ \t]*(?:from|import)[ \t]+(?:cupy|{'|'.join(sorted(OTHER_PACKAGES))})\b", re.MULTILINE)
"""An import of a library with tensors of its own, whose methods are called like torch's."""

OWN_FRAMEWORK = tuple(item.prefix for item in FRAMEWORKS if item.steps == "always")
"""Prefixes of names whose use means that the training step is not the script's own."""

WRAPPING_PACKAGES = tuple(item.prefix for item in FRAMEWORKS if item.steps != "no" and "." not in item.prefix)
"""Packages of which a file that imports them may leave backward passes and steps to an object of theirs."""


JOINS_PROCESSES = (
    *(item.prefix for item in FRAMEWORKS if item.processes and item.steps != "maybe"),
    *(
        f"{package}.{part}"
        for package in ("mmcv", "mmengine")
        for part in ("dist", "engine", "model", "parallel", "runner")
    ),
)
"""Prefixes of names whose use means that a framework joins the processes; other parts of the last two read files."""

STEP_ENGINES = frozenset(
    {"ignite.engine.Engine", "ignite.engine.engine.Engine", "ignite.engine.deterministic.DeterministicEngine"}
)
"""Loops that are made with the script's step function, and call it with the batches of what their ``run`` is given."""

WITHOUT_STEP = (
    "accelerate.DistributedDataParallelKwargs",
    "accelerate.InitProcessGroupKwargs",
    "accelerate.infer_auto_device_map",
    "accelerate.init_empty_weights",
    "accelerate.init_on_device",
    "accelerate.load_checkpoint_in_model",
    "accelerate.logging",
    *(
        f"accelerate.utils.{name}"
        for name in (
            "DistributedDataParallelKwargs", "InitProcessGroupKwargs", "LoggerType", "ProjectConfiguration", "set_seed",
        )
    ),
    "allennlp.common.checks",
    "allennlp.common.params",
    "allennlp.common.util",
    "allennlp.data.Vocabulary",
    "allennlp.data.dataset_readers.dataset_utils",
    "allennlp.data.fields",
    "allennlp.data.token_indexers",
    "allennlp.data.tokenizers",
    "allennlp.data.vocabulary",
    "allennlp.modules",
    "allennlp.nn",
    "allennlp.predictors",
    "allennlp.training.metrics",
    "fairscale.nn.checkpoint",
    "fairscale.nn.misc.checkpoint_activations",
    "fastai.layers",
    "fastai.losses",
    *(f"fastai.vision.{part}create_{name}" for part in ("", "learner.") for name in ("body", "head", "unet_model")),
    "fastai.vision.models",
    "ignite.contrib",
    "ignite.engine.Engine",
    "ignite.engine.Events",
    "ignite.engine.State",
    "ignite.engine.create_supervised_evaluator",
    "ignite.engine.engine.Engine",
    "ignite.engine.engine.Events",
    "ignite.engine.engine.State",
    "ignite.engine.events",
    "ignite.exceptions",
    "ignite.handlers",
    "ignite.metrics",
    "ignite.utils",
    *(
        f"mmcv.runner.{name}"
        for name in (
            "BaseModule", "ModuleDict", "ModuleList", "Sequential", "auto_fp16", "checkpoint.load_checkpoint",
            "checkpoint.load_state_dict", "force_fp32", "fp16_utils.auto_fp16", "fp16_utils.force_fp32",
            "get_dist_info", "load_checkpoint", "load_state_dict",
        )
    ),
    *(
        f"mmengine.model.{name}"
        for name in (
            "BaseModule", "ModuleDict", "ModuleList", "Sequential", "caffe2_xavier_init", "constant_init",
            "kaiming_init", "normal_init", "trunc_normal_init", "uniform_init", "weight_init", "xavier_init",
        )
    ),
    "mmengine.runner.load_checkpoint",
    "mmengine.runner.checkpoint.load_checkpoint",
    *(
        f"{package}.utilities{part}.rank_zero_{name}"
        for package in ("lightning.fabric", "lightning.pytorch", "lightning_fabric", "pytorch_lightning")
        for part in ("", ".distributed", ".rank_zero")
        for name in ("debug", "deprecation", "info", "only", "warn")
    ),
)  # fmt: skip
"""Parts of frameworks that neither step nor look after processes: they load models, compute activations again, are
layers, or settings for what does, read data, count metrics, call a step that the script has written, or print on the
first process, which the environment names. The decorators of mmcv for half precision do nothing until its runner turns
that on.

Source: https://pytorch.org/ignite/engine.html; https://huggingface.co/docs/accelerate/package_reference/big_modeling;
https://fairscale.readthedocs.io/en/latest/api/nn/checkpoint/checkpoint_activations.html;
https://docs.fast.ai/vision.learner.html; https://docs.fast.ai/vision.models.unet.html;
https://lightning.ai/docs/pytorch/stable/api/lightning.pytorch.utilities.rank_zero.html
"""


def runs_no_step(name: str) -> bool:
    """Whether a dotted name is a part of a framework that leaves the training step to the script."""
    return any(name == part or name.startswith(part + ".") for part in WITHOUT_STEP)


def looks_after_processes(name: str) -> bool:
    """Whether a dotted name is part of a framework that joins processes itself."""
    if runs_no_step(name):
        return False
    return any(name == item.prefix or name.startswith(item.prefix + ".") for item in FRAMEWORKS if item.processes)
