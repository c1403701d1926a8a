"""Packages that no project contains."""

from __future__ import annotations

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
