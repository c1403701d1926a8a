"""Loaders and downloads of data."""

from __future__ import annotations

LOADER_CLASSES = frozenset({"DataLoader"})

LOADERS_OF_TORCH = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
"""The names of torch's own loader."""

LOADER_PREFIXES = ("torch.utils.data", "torch_geometric", "dgl.dataloading", "monai.data")

MODULES_OF_LOADERS = frozenset({"torch_geometric.loader"})
"""Modules in which whatever a training loop can iterate is a loader, so that the name need not be known."""

PIPELINES = "nvidia.dali."
"""Where iterators over pipelines are, each of which decodes on the GPU that it is given, and shuffles by itself."""

DATASETS = frozenset(
    {"torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset", "torchvision.datasets.VisionDataset"}
)
"""Classes whose objects load a sample by its index."""

LISTS_TO_TENSORS = frozenset(
    {"torch.tensor", "torch.as_tensor", "torch.LongTensor", "torch.FloatTensor", "numpy.array"}
)
"""What makes a tensor of a list, with an item for each of it."""

TABLES = "pandas."
"""What the names of what gives a table begin with."""

OF_COLUMNS = frozenset({"values", "array", "to_numpy", "tolist", "to_list", "astype", "copy", "reset_index"})
"""Attributes and methods that give all of a table's column again."""

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
        "gdown.download_folder",
        "gdown.cached_download",
        "keras.utils.get_file",
        "keras.utils.data_utils.get_file",
        "torch.hub.load",
        "torch.hub.load_state_dict_from_url",
        "torch.hub.download_url_to_file",
        "torch.utils.model_zoo.load_url",
        "torchvision.datasets.utils.download_url",
        "torchvision.datasets.utils.download_and_extract_archive",
        "torchvision.datasets.utils.download_file_from_google_drive",
        "torchtext.utils.download_from_url",
        "speechbrain.utils.data_utils.download_file",
    }
)
"""Calls that download."""

WITHOUT_LOCKS = ("pytorch_pretrained_bert.", "pytorch_transformers.")
"""Packages whose ``from_pretrained`` copies what it downloads into one folder, with no lock and under its last name."""

FETCHES_FILES = frozenset(
    {
        "urllib.request.urlretrieve",
        "wget.download",
        "gdown.download",
        "gdown.download_folder",
        "speechbrain.utils.data_utils.download_file",
    }
)
"""Those of them that write the file while it comes; torch's own put it in its place when it is there."""

DOWNLOADED = ("torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets.")
"""How the names of data sets begin that download where they are told ``download=True``."""

KERAS_DATASETS = ("keras.datasets.", "tensorflow.keras.datasets.", "tf_keras.datasets.")
"""How the names of Keras' functions begin that give a data set and write what they download under its last name."""

FETCHING_FAMILIES = (
    "sklearn.datasets.fetch_", "nltk.download", "gensim.downloader.load", "torchtext.vocab.", *KERAS_DATASETS,
    "clip.load", "clip.clip.load", "whisper.load_model", "spacy.cli.download", "stanza.download",
)  # fmt: skip
"""How the names of further calls begin that download where a file is missing, without a word that says so."""

CACHED_DATASETS = (
    "torch_geometric.datasets.", "ogb.nodeproppred.", "ogb.graphproppred.", "ogb.linkproppred.", "ogb.lsc.",
    "dgl.data.", "torchtext.datasets.",
)  # fmt: skip
"""Packages whose data sets download and work up their files where they are not there."""

CACHED_BASES = frozenset(
    {
        "torch_geometric.data.Dataset", "torch_geometric.data.InMemoryDataset", "torch_geometric.data.OnDiskDataset",
        "torch_geometric.data.dataset.Dataset", "torch_geometric.data.in_memory_dataset.InMemoryDataset",
        "dgl.data.DGLDataset", "dgl.data.DGLBuiltinDataset",
    }
)  # fmt: skip
"""Classes whose objects do so by methods of the script's own class."""

CACHED_BASES_RUN = ("download", "process", "save")
"""Those methods."""

CACHE_KEYWORDS = frozenset({"io_path", "split_path", "cache_dir", "cache_path", "cache_root", "processed_dir"})
"""Arguments of libraries' functions that name a folder in which they keep what they have made of data."""

LAZY_SPLITTERS = ("torcheeg.model_selection.",)
"""Packages of classes that write a split of data when its folds are first asked for, one after the other."""

TAKES_TURNS_ITSELF = frozenset(
    {
        "transformers", "datasets", "huggingface_hub", "diffusers", "tokenizers", "evaluate", "peft", "accelerate",
        "joblib", "functools", "torch", "jax", "torch_xla",
    }
)  # fmt: skip
"""Packages that lock what they keep, or keep something else than data under such a name."""

LOADER_PARTS = frozenset({"dataset", "sampler"})
"""Attributes of a loader that are as long as its data."""

LOADER_SAMPLERS = frozenset({"sampler", "batch_sampler"})
"""Attributes of a loader that a prepared one has for its rank's share."""

DATA_PARTS: dict[str, int | None] = {
    "TensorDataset": None, "Subset": 1, "SubsetRandomSampler": 0, "RandomSampler": 0, "SequentialSampler": 0,
    "WeightedRandomSampler": 0,
}  # fmt: skip
"""Datasets and samplers that are as long as one of their arguments, with its place; None for any of them."""

SPLITS = frozenset({"torch.utils.data.random_split"})
"""Functions that split a dataset into parts of the lengths in their second argument."""

ARRAY_SPLITS = frozenset(
    {"sklearn.model_selection.train_test_split", "sklearn.model_selection._split.train_test_split"}
)
"""Functions that split arrays and lists at random, by the seed ``random_state``."""

MAKES_SAMPLES = "sklearn.datasets.make_"
"""The beginning of the names of functions that draw samples, by the seed ``random_state``."""

ALIKE_WITHOUT_NOISE = frozenset({"make_circles", "make_moons"})
"""Of these, those that give the same points each time unless they are told to add noise."""

SHUFFLES_IN_PLACE = frozenset({"random.shuffle", "numpy.random.shuffle"})
"""Functions that put what they are given into an order that they draw, in its own place."""

PLACES_OF_SAMPLES = frozenset({"torch.arange", "torch.randperm"})
"""Functions that put the places of samples into a tensor."""

CUTS = frozenset({"chunk", "split", "tensor_split"})
"""Methods that cut a tensor into parts."""

JOINS_DATASETS = frozenset({"torch.utils.data.ConcatDataset", "torch.utils.data.dataset.ConcatDataset"})
"""Data sets that are others, one after the other."""

SHUFFLES = SHUFFLES_IN_PLACE | {"numpy.random.permutation", "torch.randperm", "random.sample"}
"""Functions that draw an order, or put what they are given into one."""

RANDOM_SAMPLERS = frozenset(
    f"torch.utils.data.{module}{name}"
    for module in ("", "sampler.")
    for name in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler")
)
"""Samplers of torch that draw the order of the samples."""

BATCH_SAMPLERS = frozenset(f"torch.utils.data.{module}BatchSampler" for module in ("", "sampler."))
"""What joins the places that a sampler gives to batches of places."""

SEQUENTIAL_SAMPLERS = frozenset(f"torch.utils.data.{module}SequentialSampler" for module in ("", "sampler."))
"""Samplers of torch that give the places of the samples in their order."""

DISTRIBUTED_SAMPLERS = frozenset(
    {"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"}
)
"""Samplers that shuffle all of the data in each process, by a seed that all have, and give each a share."""

TABLE_WRITES = frozenset({"index_copy_", "index_fill_"})
"""Methods that write rows of a tensor; their second argument says which."""

COUNTERS = frozenset(
    {"builtins.range", "itertools.count", "tqdm.trange", "tqdm.auto.trange", "tqdm.notebook.trange", "tqdm.std.trange"}
)
"""What gives a loop the numbers of its rounds."""

TABLE_CLEARS = frozenset({"zero_", "fill_", "copy_", "resize_", "clear"})
"""Methods that leave nothing of what a tensor or dictionary held."""

NUMBERS_IN_ORDER = frozenset({"torch.arange", "numpy.arange"})
"""What numbers the rows of a batch."""

JOINS_ROWS = frozenset({"torch.cat", "torch.concat", "torch.concatenate", "torch.vstack", "torch.hstack"})
"""What puts tensors together along an axis that they have."""

FAILS_WITHOUT_ITEMS = JOINS_ROWS | {
    "torch.stack", "numpy.vstack", "numpy.hstack", "numpy.stack", "numpy.concatenate", "builtins.max", "builtins.min",
    "statistics.mean",
}  # fmt: skip
"""Functions that raise an error where they are given an empty list."""

ARRAY_PACKAGES = frozenset(
    "numpy scipy pandas sklearn skimage cv2 PIL imageio h5py pickle joblib json math trimesh open3d cupy".split()
)
"""Packages whose functions give arrays, tables and numbers, or whatever a file holds, and no tensors for certain."""

QUEUES = frozenset({"torchio.Queue", "torchio.data.Queue"})
"""Datasets that give the next sample of an order of their own."""
