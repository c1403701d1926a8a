"""Objects that hold others by index, name or attribute, and settings read from files."""

from __future__ import annotations

NAMESPACES = frozenset(
    {
        "types.SimpleNamespace",
        "argparse.Namespace",
        "easydict.EasyDict",
        "addict.Dict",
        "munch.Munch",
        "munch.DefaultMunch",
        "box.Box",
        "ml_collections.ConfigDict",
        "omegaconf.OmegaConf.create",
    }
)
"""Classes whose objects have what they are given by keyword, or the items of a dictionary, as attributes."""

CONFIGURATION_OBJECTS = frozenset(
    {
        "addict.Dict",
        "box.Box",
        "detectron2.config.CfgNode",
        "easydict.EasyDict",
        "fvcore.common.config.CfgNode",
        "ml_collections.ConfigDict",
        "munch.DefaultMunch",
        "munch.Munch",
        "omegaconf.OmegaConf.create",
        "yacs.config.CfgNode",
    }
)
"""What makes objects of settings whose attributes are the defaults: a file or the command line is merged into them."""

CONTAINERS = frozenset(
    {
        "builtins.dict",
        "builtins.list",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "collections.UserDict",
        "torch.nn.ModuleDict",
        "torch.nn.ModuleList",
    }
)
"""Classes whose objects hold others by index or name."""

CONFIG_LOADERS = frozenset(
    {"json.load", "json.loads", "yaml.load", "yaml.safe_load", "yaml.full_load", "toml.load", "toml.loads"}
)
"""Calls that give settings read from a file: dictionaries of dictionaries."""

LOADED_OBJECTS = frozenset({"omegaconf.OmegaConf.load", "munch.Munch.fromYAML", "munch.Munch.fromJSON"})
"""Calls that read a file of settings themselves, and give an object with its entries as attributes."""

MADE_OF_SETTINGS = NAMESPACES | {"munch.munchify", "munch.Munch.fromDict", "dotmap.DotMap", "attrdict.AttrDict"}
"""Calls that make an object of a dictionary of settings, nested to any depth, whose entries are attributes."""

INSTANTIATES = frozenset({"hydra.utils.instantiate", "hydra.utils.call"})
"""Functions that call what a configuration names, with what it holds besides.

Source: https://hydra.cc/docs/advanced/instantiate_objects/overview/
"""

LOCATES = frozenset({"hydra.utils.get_class", "hydra.utils.get_method", "hydra.utils.get_object", "pydoc.locate"})
"""Functions that give what a dotted path names."""

MADE_BY_SETTINGS = INSTANTIATES | {"pydoc.locate"}
"""Functions that make what a dotted path in the settings names."""

COMPOSES = frozenset({"hydra.compose", "hydra.experimental.compose"})
"""Functions that give the configuration itself, of the folder that one of :data:`SETS_FOLDER` was given.

Source: https://hydra.cc/docs/advanced/compose_api/
"""

SETS_FOLDER = frozenset(
    {"hydra.initialize", "hydra.initialize_config_dir", "hydra.experimental.initialize"}
    | {"hydra.experimental.initialize_config_dir"}
)
"""Functions that choose the folder, before or around it."""

BY_CONFIGURATION = INSTANTIATES | LOCATES | COMPOSES
"""Functions whose result rests on a configuration."""

TAKES_CONFIGURATION = "hydra.main"
"""The decorator that gives a function its configuration, by ``config_path`` and ``config_name``."""

SETS = frozenset({"builtins.set", "builtins.frozenset"})
"""Classes whose objects give their elements in the order of their hashes."""

TALLIES = frozenset({"builtins.set", "collections.Counter"})
"""Classes whose objects are given values one after another to tell them apart or to count them."""

KEEP_EACH_ONCE = SETS | {"builtins.dict.fromkeys"}
"""What gives the elements of its argument, each once."""

SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
"""Methods of a set that give another."""

ORDERED_BY = frozenset(
    {
        "builtins.list",
        "builtins.tuple",
        "builtins.enumerate",
        "builtins.iter",
        "builtins.map",
        "builtins.filter",
        "builtins.zip",
        "builtins.dict.fromkeys",
        "collections.OrderedDict.fromkeys",
        "collections.deque",
        "itertools.chain",
        "itertools.combinations",
        "itertools.permutations",
        "itertools.product",
    }
)
"""Functions whose result has the order in which they take their arguments' elements."""

NUMBERS = frozenset(f"builtins.{name}" for name in ("int", "float", "len", "ord", "round"))
"""Functions whose result is a number, which no process hashes in a way of its own."""

UNORDERED_USES = frozenset(
    {
        *(f"builtins.{name}" for name in ("sorted", "len", "sum", "min", "max", "any", "all", "print")),
        *SETS,
        "collections.Counter",
        "numpy.unique",
    }
)
"""Functions whose result does not depend on the order of what they are given."""
