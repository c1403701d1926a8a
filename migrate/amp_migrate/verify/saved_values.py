"""What checkpoints hold: those of torch, numpy, safetensors and pickle, read with the standard library alone."""

from __future__ import annotations

import ast
import collections
import hashlib
import io
import json
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from amp_migrate.verify.traces import Entry

_MOST_ENTRIES = 20_000
_DEEPEST = 30
_LARGEST = 2**30
"""The numbers of larger files are not read, only their keys, types and shapes."""
_MAGIC = 0x1950A86A20F9469CFC6C
_TORCH_TYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "bool": 1}
_SIZES |= {"int8": 1, "uint8": 1, "complex64": 8, "complex128": 16}
_TENSORS = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3"}
_AROUND_TENSORS = {"_rebuild_parameter", "_rebuild_parameter_with_state"}
_HARMLESS = {"set": set, "frozenset": frozenset, "complex": complex, "bytearray": bytearray, "slice": slice}


class Unreadable(Exception):
    """It has the beginning of a checkpoint, and cannot be read to its end."""


@dataclass(frozen=True)
class Values:
    """What a file holds: see :class:`amp_migrate.verify.traces.WrittenFile`."""

    entries: tuple[Entry, ...]
    classes: tuple[str, ...] = ()


def read_values(path: Path) -> Values | None:
    """Read a checkpoint; None for a file that is none.

    Raises:
        Unreadable: it is cut off or damaged.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(16)
    try:
        if head.startswith(b"PK\x03\x04"):
            return _of_zip(path)
        if head.startswith(b"\x93NUMPY"):
            with path.open("rb") as file:
                return Values((_array(file, ""),))
        if path.suffix == ".safetensors":
            return _of_safetensors(path)
        if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
            return _of_pickle(path)
    except OSError:
        raise
    except Exception as error:  # a damaged pickle raises whatever its operations do
        raise Unreadable(str(error)) from error
    if head and path.suffix in (".pt", ".pth", ".npy", ".npz", ".ckpt"):
        raise Unreadable("it does not begin as its name says")
    return None


# ---- torch and pickle ----------------------------------------------------------------------------------------


class _Named(type):
    """The class of stand-ins, so that they can be told from what they stand in for."""

    path: str


class _Stub(metaclass=_Named):
    """Stands in for an object of a class that is not loaded: keeps what it was made of."""

    path = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.state: Any = None
        self.items: dict[Any, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.setdefault("args", ())
        self.__dict__.setdefault("items", {})
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__.setdefault("items", {})[_hashable(key)] = value

    def append(self, value: Any) -> None:
        """Called for a list's elements."""
        self[len(self.__dict__.setdefault("items", {}))] = value

    def extend(self, values: Any) -> None:
        """Called for several of them."""
        for value in values:
            self.append(value)

    add = append


@dataclass(frozen=True)
class _Storage:
    kind: str
    key: str


class _Unpickler(pickle.Unpickler):
    """Reads a pickle without importing what it names."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin1")
        self.classes: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, but for the harmless."""
        path = f"{module}.{name}"
        if path == "collections.OrderedDict":
            return collections.OrderedDict
        if path == "_codecs.encode":
            return _encoded
        if module in ("builtins", "__builtin__") and name in _HARMLESS:
            return _HARMLESS[name]
        if not (module in ("torch", "torch._utils", "torch.storage") or module.split(".")[0] == "numpy"):
            self.classes.add(path)
        return _Named(name.rpartition(".")[2], (_Stub,), {"path": path})

    def persistent_load(self, pid: Any) -> Any:
        """The storage of a tensor."""
        _, kind, key, *_ = pid
        name = getattr(kind, "path", str(kind)).rpartition(".")[2].removesuffix("Storage")
        return _Storage(_TORCH_TYPES.get(name, name), str(key))


def _encoded(text: str, encoding: str = "latin1", *_: Any) -> bytes:
    return text.encode(encoding if encoding in ("latin1", "utf-8", "ascii") else "latin1")


def _of_zip(path: Path) -> Values | None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = next((name for name in names if name.endswith("data.pkl") and name.count("/") <= 1), None)
        if pickled is None:
            if names and all(name.endswith(".npy") for name in names):
                return Values(tuple(_array(archive.open(name), name.removesuffix(".npy")) for name in sorted(names)))
            return None
        folder = pickled.removesuffix("data.pkl")
        is_small = sum(item.file_size for item in archive.infolist()) <= _LARGEST

        def read(key: str) -> bytes | None:
            return archive.read(f"{folder}data/{key}") if is_small else None

        unpickler = _Unpickler(io.BytesIO(archive.read(pickled)))
        return _values(unpickler.load(), unpickler.classes, read)


def _of_pickle(path: Path) -> Values:
    with path.open("rb") as file:
        unpickler = _Unpickler(file)
        value = unpickler.load()
        if value == _MAGIC:
            # How torch wrote before 1.6: four pickles, then the storages.
            for _ in range(2):
                _Unpickler(file).load()
            unpickler = _Unpickler(file)
            value = unpickler.load()
            _Unpickler(file).load()
        return _values(value, unpickler.classes, lambda key: None)


Read = Callable[[str], "bytes | None"]


def _values(value: Any, classes: set[str], read: Read) -> Values:
    entries: list[Entry] = []
    for entry in _entries(value, "", read, 0):
        entries.append(entry)
        if len(entries) >= _MOST_ENTRIES:
            break
    return Values(tuple(entries), tuple(sorted(classes)))


def _entries(value: Any, key: str, read: Read, depth: int) -> Iterator[Entry]:
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        if not value:
            yield Entry(key, "empty dict")
        for name, item in value.items():
            yield from _entries(item, _below(key, name), read, depth + 1)
    elif isinstance(value, (list, tuple)):
        if not value:
            yield Entry(key, "empty list")
        for number, item in enumerate(value):
            yield from _entries(item, _below(key, number), read, depth + 1)
    elif isinstance(type(value), _Named):
        yield from _of_stub(value, key, read, depth)
    elif isinstance(value, _Named):
        yield Entry(key, "class", value.path)
    elif isinstance(value, _Storage):
        yield Entry(key, f"storage of {value.kind}")
    elif isinstance(value, (set, frozenset)):
        yield Entry(key, type(value).__name__, repr(sorted(map(repr, value))))
    else:
        yield Entry(key, type(value).__name__, repr(value)[:1000])


def _of_stub(value: Any, key: str, read: Read, depth: int) -> Iterator[Entry]:
    path = type(value).path
    name = path.rpartition(".")[2]
    args = value.__dict__.get("args", ())
    if path.startswith("torch._utils.") and name in _TENSORS and len(args) >= 4:
        yield _tensor(key, args, read)
    elif path.startswith("torch._utils.") and name in _AROUND_TENSORS and args:
        yield from _entries(args[0], key, read, depth + 1)
    elif path == "torch._tensor._rebuild_from_type_v2" and len(args) >= 3:
        yield from _entries(args[0](*args[2]) if isinstance(args[0], _Named) else args[2], key, read, depth + 1)
    elif name == "_reconstruct" and path.startswith("numpy"):
        yield _numpy_array(key, value.__dict__.get("state"))
    elif name == "scalar" and path.startswith("numpy") and args:
        yield Entry(key, f"{_numpy_type(args[0])} ()", _digest(args[1]) if len(args) > 1 else "")
    elif path in ("torch.Size", "torch.device", "torch.dtype") or not (value.__dict__.get("state") or args):
        yield Entry(key, path, repr(args))
    else:
        state, items = value.__dict__.get("state"), value.__dict__.get("items") or {}
        yield Entry(key, path)
        yield from _entries(state if state is not None else args, key, read, depth + 1)
        if items:
            yield from _entries(items, key, read, depth + 1)


def _tensor(key: str, args: Sequence[Any], read: Read) -> Entry:
    storage, offset, size, stride = args[:4]
    shape = tuple(getattr(size, "args", (size,))[0] if isinstance(type(size), _Named) else size)
    kind = storage.kind if isinstance(storage, _Storage) else "tensor"
    value = ""
    if isinstance(storage, _Storage) and kind in _SIZES and _is_contiguous(shape, tuple(stride)):
        data = read(storage.key)
        if data is not None:
            start = offset * _SIZES[kind]
            value = _digest(data[start : start + math.prod(shape) * _SIZES[kind]])
    return Entry(key, f"{kind} {shape}", value)


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


def _below(key: str, name: Any) -> str:
    # An optimizer's state has the numbers of parameters as keys; some scripts have objects.
    word = str(name) if isinstance(name, (str, int, float, bool, type(None), tuple)) else type(name).__name__
    return f"{key}/{word}" if key else word


def _hashable(key: Any) -> Any:
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _digest(data: Any) -> str:
    raw = data if isinstance(data, bytes) else repr(data).encode()
    return hashlib.sha256(raw).hexdigest()[:16]


# ---- numpy and safetensors -----------------------------------------------------------------------------------


def _array(file: IO[bytes], key: str) -> Entry:
    magic = file.read(8)
    length = struct.unpack("<H", file.read(2))[0] if magic[6] == 1 else struct.unpack("<I", file.read(4))[0]
    header = ast.literal_eval(file.read(length).decode("latin1"))
    kind = f"{_type_of_code(header['descr'])} {tuple(header['shape'])}"
    data = file.read(_LARGEST)
    count = math.prod(header["shape"])
    width = "".join(letter for letter in str(header["descr"])[2:] if letter.isdigit())
    if isinstance(header["descr"], str) and width and header["descr"][1] in "fiubc" and len(data) < count * int(width):
        raise Unreadable("it is cut off")
    # Objects are pickled, and their bytes may name addresses.
    return Entry(key, kind, "" if "O" in str(header["descr"]) else _digest(data))


def _type_of_code(code: Any) -> str:
    if not isinstance(code, str):
        return "record"
    kinds = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
    letter, width = code.lstrip("<>|=")[:1], code.lstrip("<>|=")[1:]
    if letter in ("b", "?"):
        return "bool" if letter == "?" or width == "1" else code
    return f"{kinds[letter]}{8 * int(width)}" if letter in kinds and width.isdigit() else code.lstrip("<>|=")


def _numpy_type(dtype: Any) -> str:
    args = getattr(dtype, "args", ())
    return _type_of_code(args[0]) if args and isinstance(args[0], str) else "array"


def _numpy_array(key: str, state: Any) -> Entry:
    if not isinstance(state, tuple) or len(state) != 5:
        return Entry(key, "array")
    _, shape, dtype, _, data = state
    return Entry(key, f"{_numpy_type(dtype)} {tuple(shape)}", _digest(data) if isinstance(data, (bytes, str)) else "")


def _of_safetensors(path: Path) -> Values:
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        if length > path.stat().st_size:
            raise Unreadable("it is cut off")
        header = json.loads(file.read(length))
        rest = file.read(_LARGEST)
    entries = []
    for key, facts in sorted(header.items()):
        if key == "__metadata__":
            entries += [Entry(f"{key}/{name}", "str", repr(value)) for name, value in sorted(facts.items())]
            continue
        start, end = facts["data_offsets"]
        kind = facts["dtype"].lower().replace("bf", "bfloat") if facts["dtype"].startswith("BF") else facts["dtype"]
        kind = {"F32": "float32", "F64": "float64", "F16": "float16", "I64": "int64", "I32": "int32"}.get(kind, kind)
        entries.append(Entry(key, f"{kind} {tuple(facts['shape'])}", _digest(rest[start:end])))
    return Values(tuple(entries))
