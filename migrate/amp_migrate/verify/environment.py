"""The environment of the processes of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from amp_migrate.verify.copies import CopiedProject

# Left from a launch around this one, or made for another run.
_NOT_HANDED_ON = re.compile(
    r"AMP_|TORCHELASTIC_|PYTHONSTARTUP|"
    r"(?:LOCAL_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE|NAME)$|ROLE_|MASTER_(?:ADDR|PORT)$"
)
_HASH_SEEDS = 2


def clean_environment() -> dict[str, str]:
    """The environment without what would change a run from outside."""
    return {key: value for key, value in os.environ.items() if not _NOT_HANDED_ON.match(key)}


def interpreter_environment(threads: int) -> dict[str, str]:
    """What every interpreter of a verification has in its environment, before it is known which run it makes.

    Nothing is shown in windows, and nothing sent anywhere, by a run that is only made to be compared.
    """
    return {
        "MPLBACKEND": "Agg",
        "WANDB_MODE": "disabled",
        "WANDB_SILENT": "true",
        **clean_environment(),
        "PYTHONHASHSEED": hash_seed(0),
        "PYTHONIOENCODING": "utf-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def hash_seed(rank: int) -> str:
    """The seed of Python's hashes: torchrun leaves it to chance, so two ranks have different ones.

    What a script takes from the order of a set differs between them then, as it will when it is launched.
    """
    return str(rank % _HASH_SEEDS)


def search_path(project: CopiedProject, copy: Path, first: Sequence[Path], imported_from: Sequence[Path]) -> str:
    """Where modules are looked for after the script's own folder: what lies in the project is taken from the copy."""
    named = [Path(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    own = [
        project.within(copy, path) if path.is_relative_to(project.root) else path for path in (*imported_from, *named)
    ]
    return os.pathsep.join(map(str, (*first, *own)))


def launched(environment: Mapping[str, str], processes: int, port: int) -> Iterator[dict[str, str]]:
    """The environment of each rank, as torchrun would make it."""
    for rank in range(processes):
        yield {
            **environment,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(processes),
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PYTHONHASHSEED": hash_seed(rank),
        }
