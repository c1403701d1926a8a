"""Packages that no project contains."""

from __future__ import annotations

import sys

EXTERNAL = frozenset(
    """
    torch torchvision torchaudio numpy math os sys typing collections functools itertools abc re json time random
    logging warnings dataclasses pathlib enum scipy sklearn pandas matplotlib tqdm argparse pickle shutil datetime
    """.split()
)
"""Packages that no project contains, which saves looking for them."""

SELDOM_THE_PROJECTS = frozenset(
    """
    PIL apex contextlib copy cv2 einops glob inspect multiprocessing np string subprocess threading transformers types
    """.split()
)
"""Packages of whose names a project may have a file of its own. The linter, which only loses a type by it, passes them
over as well; the search for training scripts must not: it would lose a script."""

NEVER_FOLLOWED = frozenset({"torch", "numpy", "torchvision"})
"""The packages that are passed over where a whole program is read: their names are taken in every script, and what else
a script imports decides on what is rewritten."""

LIBRARIES = EXTERNAL | frozenset(
    """
    PIL absl albumentations attr audioread av bitsandbytes boto3 botocore bs4 catboost cffi click cloudpickle colorama
    comet_ml coloredlogs cupy cv2 cython dask datasets deepspeed dgl diffusers docopt dotenv easydict einops evaluate
    faiss fire flask ftfy fsspec fvcore gdown gensim gin git google gradio gym gymnasium h5py huggingface_hub hydra
    imageio imgaug iopath ipdb jax jieba joblib jsonlines jsonschema keras kornia librosa lightgbm lmdb loguru lxml
    matplotlib mlflow mmcv mmengine monai mpi4py msgpack natsort nbformat neptune networkx nibabel nltk numba numpy
    omegaconf onnx onnxruntime opencc openai optuna orjson overrides pandas peft plotly prettytable progress protobuf
    psutil pyarrow pycocotools pydantic pydicom pydub pynvml pytest ray regex requests resampy rich ruamel sacrebleu
    sacred safetensors scipy seaborn sentencepiece setproctitle simplejson six skimage sklearn smart_open soundfile
    spacy statsmodels streamlit sympy tabulate tensorboard tensorboardX tensorboard_logger tensorflow termcolor tiktoken
    tifffile timm tokenizers toml torch torch_geometric torch_scatter torch_sparse torchaudio torchdata torchinfo
    torchmetrics torchnet torchsummary torchtext torchvision tqdm transformers trimesh typeguard typer ujson umap
    unidecode visdom wandb webdataset werkzeug xgboost yacs yaml zarr zmq
    """.split()
)
"""Well-known packages that leave the training step of PyTorch to whoever calls them, or have none."""


def is_known_library(name: str) -> bool:
    """Whether a dotted name belongs to Python or to a well-known package."""
    top = name.partition(".")[0]
    return top in LIBRARIES or top in sys.stdlib_module_names
