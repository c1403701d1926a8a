"""Loaders and downloads of data."""

from __future__ import annotations

LOADER_CLASSES = frozenset({"DataLoader"})

LOADERS_OF_TORCH = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
"""The names of torch's own loader."""

LOADER_PREFIXES = ("torch.utils.data", "torch_geometric", "dgl.dataloading", "monai.data")

MODULES_OF_LOADERS = frozenset({"torch_geometric.loader"})
"""Modules in which whatever a training loop can iterate is a loader, so that the name need not be known."""

DATASETS = frozenset(
    {"torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset", "torchvision.datasets.VisionDataset"}
)
"""Classes whose objects load a sample by its index."""

LISTING = frozenset({"os.listdir", "glob.glob"})
"""Functions that list files, of which a dataset has a sample each."""

RUN_FOR_SAMPLES = frozenset({"__getitem__", "__getitems__", "collate_fn"})
"""Methods that a loader runs for each sample or batch, in its workers; nothing calls them by name."""

FETCHERS = frozenset(
    {
        "urllib.request.urlopen",
        "urllib.request.urlretrieve",
        "requests.get",
        "wget.download",
        "gdown.download",
        "torch.hub.load",
        "torch.hub.load_state_dict_from_url",
        "torch.hub.download_url_to_file",
        "torch.utils.model_zoo.load_url",
        "torchvision.datasets.utils.download_url",
    }
)
"""Calls that download."""

LOADER_PARTS = frozenset({"dataset", "sampler"})
"""Attributes of a loader that are as long as its data."""

DATA_PARTS: dict[str, int | None] = {
    "TensorDataset": None, "Subset": 1, "SubsetRandomSampler": 0, "RandomSampler": 0, "SequentialSampler": 0,
    "WeightedRandomSampler": 0,
}  # fmt: skip
"""Datasets and samplers that are as long as one of their arguments, with its place; None for any of them."""

SPLITS = frozenset({"torch.utils.data.random_split"})
"""Functions that split a dataset into parts of the lengths in their second argument."""

DISTRIBUTED_SAMPLERS = frozenset(
    {"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"}
)
"""Samplers that shuffle all of the data in each process, by a seed that all have, and give each a share."""

TABLE_WRITES = frozenset({"index_copy_", "index_fill_"})
"""Methods that write rows of a tensor; their second argument says which."""

TABLE_CLEARS = frozenset({"zero_", "fill_", "copy_", "resize_", "clear"})
"""Methods that leave nothing of what a tensor or dictionary held."""

NUMBERS_IN_ORDER = frozenset({"torch.arange", "numpy.arange"})
"""What numbers the rows of a batch."""

JOINS_ROWS = frozenset({"torch.cat", "torch.concat", "torch.concatenate", "torch.vstack", "torch.hstack"})
"""What puts tensors together along an axis that they have."""
