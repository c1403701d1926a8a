"""What names reach of a package, and what is left of its modules."""

from __future__ import annotations

import sys
import textwrap
import types

import pytest
from amp_migrate.vendoring.choosing import files_for, read_source
from amp_migrate.vendoring.uses import Uses

MODULES = {
    "__init__.py": '''
        """The package."""

        from amp_runtime import optim as optim
        from amp_runtime._a import first as first
        from amp_runtime._a import second as second

        __all__ = ["first", "optim", "second"]
    ''',
    "_a.py": '''
        """What it says of itself stays."""

        from __future__ import annotations

        import math
        import os
        from typing import TYPE_CHECKING

        from amp_runtime import _b
        from amp_runtime._b import (
            shared,  # which both need
            single,
        )

        if TYPE_CHECKING:
            from amp_runtime._c import Kind

        # A number of the first.
        LIMIT = 3
        """How much of it."""

        # A number of the second.
        OTHER = math.pi


        def first(kind: Kind) -> int:
            """What it does."""
            return shared(LIMIT)  # and this stays


        # Said of the second.
        @_b.registered
        def second():
            from amp_runtime._c import late

            return os.getpid() + OTHER + single() + late() + _b.read
    ''',
    "_b.py": """
        seen = []


        def registered(function):
            seen.append(function)
            return function


        def shared(x):
            return x


        def single():
            return 1


        read = 4
        unread = 5
    """,
    "_c.py": """
        class Kind:
            pass


        def late():
            return 1
    """,
    "optim/__init__.py": """
        from amp_runtime.optim.sgd import SGD as SGD
        from amp_runtime.optim.lamb import LAMB as LAMB

        __all__ = ["LAMB", "SGD"]


        def __getattr__(name):
            return f"torch's {name}"
    """,
    "optim/sgd.py": "SGD = 1\n",
    "optim/lamb.py": "LAMB = 1\n",
    "_without/__init__.py": """
        WANTED_BY: dict[str, tuple[str, ...]] = {"_b": ("keyword",)}
    """,
    "_without/_b.py": """
        def shared(x):
            return "stands in"
    """,
    "_core/__init__.py": "",
    "_core/left_out.py": """
        LEVELS = "O0 to O3"
        COMMAND = ""


        def told(what):
            return f"{what} {LEVELS} {COMMAND}"
    """,
}


@pytest.fixture
def runtime(tmp_path):
    for name, text in MODULES.items():
        file = tmp_path / "amp_runtime" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
    (tmp_path / "amp_runtime/py.typed").write_text("")
    return tmp_path / "amp_runtime"


def copied(runtime, names, words=(), levels=()):
    uses = Uses(frozenset(names), frozenset(words), frozenset(levels))
    files = files_for(uses, read_source(runtime), "the command")
    return {name: data.decode() for name, data in files.items()}


def test_a_module_keeps_what_is_reached_with_its_comments_and_texts(runtime):
    found = copied(runtime, ["first"], ["keyword"])
    assert found["_a.py"] == textwrap.dedent('''
        """What it says of itself stays."""

        from __future__ import annotations

        from typing import TYPE_CHECKING

        from amp_runtime._b import shared

        if TYPE_CHECKING:
            from amp_runtime._c import Kind

        # A number of the first.
        LIMIT = 3
        """How much of it."""


        def first(kind: Kind) -> int:
            """What it does."""
            return shared(LIMIT)  # and this stays
    ''').lstrip("\n")
    assert found["_b.py"] == "def shared(x):\n    return x\n"
    assert set(found) == {
        "__init__.py",
        "_a.py",
        "_b.py",
        "_c.py",
        "_core/__init__.py",
        "_core/left_out.py",
        "py.typed",
    }


def test_what_functions_import_and_what_decorates_them_is_reached(runtime):
    found = copied(runtime, ["second"], ["keyword"])
    assert "def late" in found["_c.py"] and "class Kind" not in found["_c.py"]
    assert "def registered" in found["_b.py"] and "read = 4" in found["_b.py"]
    assert "unread" not in found["_b.py"] and "def shared" not in found["_b.py"]
    assert "# Said of the second." in found["_a.py"] and "LIMIT" not in found["_a.py"]


def test_a_stand_in_takes_the_place_of_a_module_that_nothing_wants(runtime):
    assert "stands in" in copied(runtime, ["first"])["_b.py"]
    assert "stands in" not in copied(runtime, ["first"], ["keyword"])["_b.py"]


def test_a_module_from_which_something_else_is_needed_is_there_itself(runtime):
    assert "stands in" not in copied(runtime, ["first", "second"])["_b.py"]


def test_one_optimizer_leaves_the_others_out_and_refuses_them(runtime, monkeypatch):
    found = copied(runtime, ["optim.SGD"])
    assert "optim/sgd.py" in found and "optim/lamb.py" not in found
    for name in ("amp_runtime", "amp_runtime.optim", "amp_runtime.optim.sgd", "amp_runtime._core.left_out"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(SGD=1, told="told {}".format))
    names = {"__name__": "amp_runtime.optim"}
    exec(found["optim/__init__.py"], names)
    assert names["__getattr__"]("RMSprop") == "torch's RMSprop"
    with pytest.raises(AttributeError, match=r"told amp\.optim\.LAMB"):
        names["__getattr__"]("LAMB")


def test_all_optimizers_are_there_where_the_folder_is_handed_on(runtime):
    assert "optim/lamb.py" in copied(runtime, ["optim.*"])


def test_everything_is_the_package_without_its_stand_ins(runtime):
    found = copied(runtime, ["*"])
    assert set(found) == {name for name in MODULES if not name.startswith("_without")} | {"py.typed"}
    assert found["_a.py"] == (runtime / "_a.py").read_text()


@pytest.mark.parametrize(("levels", "said"), [(("O1",), "O0 and O1"), (("O3",), "O0 to O3")])
def test_a_copy_knows_its_levels_and_the_command_that_adds_more(runtime, levels, said):
    text = copied(runtime, ["first"], levels=levels)["_core/left_out.py"]
    assert f'LEVELS = "{said}"\nCOMMAND = "the command"\n' in text
