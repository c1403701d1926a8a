#!/usr/bin/env python
"""Writes what is known about releases of torch: the kernels that the CPU and CUDA lack, and private names.

    pip download --no-deps --only-binary :all: -d wheels torch===2.4.0   # and so on: PyPI's wheels, for Linux and CUDA
    python scripts/torch_tables.py wheels/*.whl
    python scripts/torch_tables.py --names wheels/*.whl   # the table of names alone: wheels for any system will do

``tests/shared/cuda_kernels.json`` says in which types an operation has a kernel for the CPU and none for CUDA, and
where that was seen in the wheel of a release:

- ``dtypes`` and ``dtypesIfCUDA`` of torch's own tests of its operations, for a GPU of compute capability 8.0;
- ``native_functions.yaml``: whether an operation that the runtime calls by its private name has a kernel for CUDA;
- ``libtorch_cuda.so``, for the kernels that torch's tests do not list: the name of a compiled kernel holds its type,
  and the name of the file that it comes from.

``rules/amp_rules/torch/half_kernels.py`` says the same of the half types for both devices, for the rules: what has no
kernel in any of the releases. One reading of ``dtypes`` and ``dtypesIfCUDA`` makes both.

``tests/shared/torch_private_names.json`` says where each release defines each private name of torch that the runtime
and the recorder of ``amp-migrate verify`` use.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "shared"))

from torch_names import USERS, Sources, private_names

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / "tests/shared"
HALF_KERNELS = ROOT / "rules/amp_rules/torch/half_kernels.py"
HALF_KERNELS_HEAD = '''"""Operations without a half kernel: written by ``scripts/torch_tables.py``, not by hand.

Torch's own tests of its operations list the types that each takes, on the CPU and on CUDA. An operation stands here
where it takes float32 and none of the releases %s takes the half type. That an operation
takes float16 need not mean every size: Fourier transforms on CUDA take powers of two.
"""

from __future__ import annotations
'''

DTYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool,
]  # fmt: skip
FLOATING = {"d": "float64", "f": "float32", "N3c104HalfE": "float16", "N3c108BFloat16E": "bfloat16"}
_TYPE = "(" + "|".join(FLOATING) + ")"
_KERNEL = r"_GLOBAL__N__[0-9a-f]+_\d+_(\w+?)_cu_[0-9a-f]{8}L?\d+multi_tensor_apply_kernelI\w+?"

COMPILED = {
    "_amp_foreach_non_finite_check_and_unscale_": (
        _KERNEL + "14UnaryOpFunctorI" + _TYPE + r"L\w*?47_amp_foreach_non_finite_check_and_unscale_cuda_",
        "_amp_foreach_non_finite_check_and_unscale_cuda",
    ),
    "_fused_adam_": (_KERNEL + "20FusedAdamMathFunctorI" + _TYPE + r"L\w*?ADAM_MODEE0", "fused_adam_kernel_cuda"),
    "_fused_adamw_": (_KERNEL + "20FusedAdamMathFunctorI" + _TYPE + r"L\w*?ADAM_MODEE1", "fused_adamw_kernel_cuda"),
    "_fused_sgd_": (_KERNEL + "19FusedSgdMathFunctorI" + _TYPE, "fused_sgd_kernel_cuda"),
    "_fused_adagrad_": (_KERNEL + "23FusedAdagradMathFunctorI" + _TYPE, "fused_adagrad_kernel_cuda"),
}
"""Operations that OpInfo leaves out: how their compiled kernels are named, and what an error calls them."""

NO_OPERATIONS = {"broadcast_shapes"}
"""What OpInfo lists with types that say nothing."""

LEAVES = {
    **{f"conv{kind}{size}d": "convolution" for kind in ("", "_transpose") for size in (1, 2, 3)},
    "max_pool2d": "max_pool2d_with_indices",
    "max_pool3d": "max_pool3d_with_indices",
}
"""What reaches the kernels in the place of some functions."""


class _Torch:
    """The installed torch, with a name for each type that only a newer one has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name, name)


class Tested(NamedTuple):
    """What torch's own tests say of an operation.

    Attributes:
        name: the operation, as torch's tests call it.
        leaf: the name of its kernel.
        variant: whether its types hold for some arguments alone.
        cpu: the types that the CPU takes.
        cuda: the types that CUDA takes.
        place: where that stands.
    """

    name: str
    leaf: str
    variant: bool
    cpu: list[Any]
    cuda: list[Any]
    place: str


def tested(wheel: Sources) -> Iterator[Tested]:
    """What OpInfo says of each operation, for a GPU of compute capability 8.0."""
    folder = "torch/testing/_internal/"
    known: dict[str, Any] = {"torch": _Torch(), "SM53OrLater": True, "SM80OrLater": True, "SM90OrLater": False}
    known["TEST_WITH_ROCM"] = False
    exec(re.sub(r"(?m)^import torch$", "", wheel.text(folder + "common_dtype.py")), known)
    known["_validate_dtypes"] = lambda *dtypes: dtypes  # it refuses the names that stand for types of newer releases
    for file in [folder + "common_methods_invocations.py", *wheel.below(folder + "opinfo/definitions/")]:
        for call in ast.walk(ast.parse(wheel.text(file))):
            given = {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}
            if not isinstance(call, ast.Call) or "dtypes" not in given or not call.args:
                continue
            if not isinstance(call.func, ast.Name) or not call.func.id.endswith("Info"):
                continue  # what a test is skipped for has types as well
            name = getattr(call.args[0], "value", None)
            if not isinstance(name, str):
                continue
            there = given.get("dtypesIfCUDA", given["dtypes"])
            leaf = (ast.literal_eval(given["aten_name"]) if "aten_name" in given else "") or name
            leaf = leaf.removeprefix("nn.functional.")
            try:
                cpu, cuda = (eval(ast.unparse(types), dict(known)) for types in (given["dtypes"], there))
            except NameError:
                continue  # a set of types of that file's own, for integers
            leaf = LEAVES.get(leaf, leaf).replace(".", "_")
            yield Tested(name, leaf, "variant_test_name" in given, cpu, cuda, f"{file}:{there.lineno}")


def listed(wheel: Sources) -> Iterator[tuple[str, list[str], str]]:
    """From OpInfo: operation, the types that the CPU takes and CUDA refuses, and where that stands."""
    for item in tested(wheel):
        refused = [_dtype_name(dtype) for dtype in DTYPES if dtype in item.cpu and dtype not in item.cuda]
        if refused and not item.variant:
            yield item.leaf, refused, item.place


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def without_half(wheel: Sources) -> dict[str, tuple[set[tuple[str, str]], str]]:
    """From OpInfo: operation, device and half type for which float32 has a kernel and it has none, and where."""
    found: dict[str, tuple[set[tuple[str, str]], str]] = {}
    for item in tested(wheel):
        if item.variant or item.name.startswith(("_", "torch.ops.")) or item.name in NO_OPERATIONS:
            continue
        lacks = {
            (device, _dtype_name(dtype))
            for device, taken in (("cpu", item.cpu), ("cuda", item.cuda))
            for dtype in (torch.float16, torch.bfloat16)
            if torch.float32 in taken and dtype not in taken
        }
        name = item.name.rpartition(".")[2]
        # Several functions of one name: only what all of them lack.
        found[name] = (found[name][0] & lacks if name in found else lacks, item.place)
    return found


def native(wheel: Sources) -> dict[str, set[str]]:
    """The dispatch keys of each operation with kernels of its own, from ``native_functions.yaml``."""
    found: dict[str, set[str]] = {}
    for block in re.split(r"(?m)^- func: ", wheel.text("torchgen/packaged/ATen/native/native_functions.yaml"))[1:]:
        keys = re.findall(r"(?m)^    ([A-Z]\w+(?:, ?[A-Z]\w+)*):", block)
        if keys or "structured_delegate" in block:
            name = re.split(r"[.(]", block, maxsplit=1)[0]
            found.setdefault(name, set()).update(key.strip() for group in keys for key in group.split(","))
    return found


def library(wheel: Path) -> tuple[set[str], set[str]]:
    """Of ``libtorch_cuda.so``: the names of compiled kernels for many tensors, and short words, which errors use."""
    names: set[bytes] = set()
    words: set[bytes] = set()
    with zipfile.ZipFile(wheel).open("torch/lib/libtorch_cuda.so") as stream:
        rest = b""
        while chunk := stream.read(1 << 24):
            data = rest + chunk
            names.update(re.findall(rb"_ZN[\w.$]*multi_tensor_apply_kernel[\w.$]+", data))
            words.update(re.findall(rb"\0([a-z_][a-z0-9_]{2,60})(?=\0)", data))
            rest = data[-8192:]
    return {name.decode() for name in names}, {word.decode() for word in words}


def kernels(path: Path, wheel: Sources, private: set[str]) -> dict[str, dict[str, Any]]:
    """What CUDA refuses in the release: operation, then types, the name in the error, and where that was seen."""
    compiled, words = library(path)
    dispatched = native(wheel)
    found: dict[str, dict[str, Any]] = {}
    for name, refused, place in listed(wheel):
        for variant in (name, f"{name}_"):
            if variant in dispatched:
                says = next((word for word in (f"{name}_cuda", f"{name}_kernel_cuda") if word in words), name)
                entry = found.setdefault(variant, {"refuses": [], "says": says, "seen": place})
                entry["refuses"] = sorted({*entry["refuses"], *refused})
    for name, (pattern, says) in COMPILED.items():
        if says not in words:
            continue  # there is no such kernel; see below
        hits = [hit for kernel in compiled if (hit := re.search(pattern, kernel))]
        taken = {FLOATING[hit[2]] for hit in hits}
        if not taken:
            raise SystemExit(f"{path.name}: no kernel of {name} was found, but it names {says!r}")
        files = ", ".join(sorted({f"{hit[1]}.cu" for hit in hits}))
        seen = f"libtorch_cuda.so, kernels of {files}: {', '.join(sorted(taken))}"
        found[name] = {"refuses": sorted({*FLOATING.values()} - taken), "says": says, "seen": seen}
    for name in private & dispatched.keys():
        if not dispatched[name] & {"CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd"}:
            found[name] = {"seen": "native_functions.yaml: " + ", ".join(sorted(dispatched[name]))}
    return found


def main(paths: list[Path], names_alone: bool) -> None:
    """Read the wheels and write both tables, or the one of private names."""
    used = sorted(private_names([ROOT / folder for folder in USERS]))
    releases: dict[str, Any] = {}
    operations: dict[str, dict[str, Any]] = {}
    names: dict[str, dict[str, str | None]] = {name: {} for name in used}
    lacking: list[dict[str, tuple[set[tuple[str, str]], str]]] = []
    for path in sorted(paths, key=lambda path: [int(part) for part in path.name.split("-")[1].split(".")]):
        version = path.name.split("-")[1]
        release, wheel = ".".join(version.split(".")[:2]), Sources(path)
        commit = re.search(r"git_version = '(\w+)'", wheel.text("torch/version.py"))
        releases[release] = {"version": version, "commit": commit and commit[1]}
        for name in used:
            names[name][release] = wheel.defined_at(name)
        if not names_alone:
            lacking.append(without_half(wheel))
            of_torch = {name.removeprefix("torch.") for name in used}
            for name, entry in sorted(kernels(path, wheel, of_torch).items()):
                operations.setdefault(name, {})[release] = entry
        print(path.name, flush=True)
    if not names_alone:
        write(SHARED / "cuda_kernels.json", {"releases": releases, "operations": dict(sorted(operations.items()))})
        write_half_kernels([release["version"] for release in releases.values()], lacking)
    write(SHARED / "torch_private_names.json", {"releases": releases, "names": names})


def write_half_kernels(versions: list[str], lacking: list[dict[str, tuple[set[tuple[str, str]], str]]]) -> None:
    """Write what no release has a half kernel for, with its place in the newest."""
    rows = []
    for name in sorted(lacking[-1]):
        held = [found[name] for found in lacking if name in found]
        always = set.intersection(*(lacks for lacks, _ in held))
        if always:
            place = held[-1][1].removeprefix("torch/testing/_internal/")
            rows.append((name, always, place))
    lines = [HALF_KERNELS_HEAD % ", ".join(versions)]
    for device in ("cpu", "cuda"):
        for dtype in ("float16", "bfloat16"):
            taken = " ".join(name for name, lacks, _ in rows if (device, dtype) in lacks)
            text = textwrap.fill(taken, 112, initial_indent="    ", subsequent_indent="    ")
            lines.append(f'{device.upper()}_{dtype.upper()} = frozenset(\n    """\n{text}\n    """.split()\n)')
    lines += ["", "SEEN = {", *(f'    "{name}": "{place}",' for name, _, place in rows), "}"]
    of = f"of {versions[-1]}, below ``torch/testing/_internal/``"
    lines.append(f'"""Where the tests {of}, list the types of each of them."""')
    HALF_KERNELS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write(path: Path, table: dict[str, Any]) -> None:
    """Write a table that ``git diff`` can compare."""
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main([Path(argument) for argument in arguments if argument != "--names"], "--names" in arguments)
