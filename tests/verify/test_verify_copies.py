"""Each run gets a copy of the project: what is in it, what is not, and that it goes away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amp_migrate.problems import UserError
from amp_migrate.verify.copies import copy_project, parse_size, project_of, size_in_words, workplace

BIG = 2**30


def make(root: Path, *names: str) -> Path:
    """Files with their own names in them."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def listed(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_the_whole_project_is_copied_and_the_same_place_in_it_is_worked_in(tmp_path: Path) -> None:
    root = make(tmp_path / "repo", ".git/HEAD", "pkg/train.py", "pkg/model.py", "data/x.csv", "run/note")
    project = project_of(root / "pkg" / "train.py", root / "run")
    assert (project.root, project.cwd) == (root, root / "run")
    copy_project(project, tmp_path / "copy", BIG)
    assert listed(tmp_path / "copy") == {"pkg/train.py", "pkg/model.py", "data/x.csv", "run/note"}
    assert project.within(tmp_path / "copy", project.script).read_text() == "pkg/train.py"
    assert project.original(tmp_path / "copy", tmp_path / "copy" / "data" / "x.csv") == root / "data" / "x.csv"
    assert project.original(tmp_path / "copy", Path("/usr/lib/x.py")) is None


@pytest.mark.parametrize(("imports", "root"), [("from nets.task import data", "downloaded"), ("import data", "task")])
def test_a_package_that_is_imported_by_its_name_is_copied_whole(tmp_path: Path, imports: str, root: str) -> None:
    folder = make(tmp_path / "downloaded", "nets/__init__.py", "nets/task/__init__.py", "nets/task/data.py")
    script, data = folder / "nets" / "task" / "train.py", folder / "nets" / "task" / "data.py"
    script.write_text(imports)
    modules = [data, folder / "nets" / "__init__.py"] if root == "downloaded" else [data]
    assert project_of(script, script.parent, modules=modules).root.name == root


def test_a_project_without_git_is_known_by_its_marks_and_a_script_alone_by_its_folder(tmp_path: Path) -> None:
    marked = make(tmp_path / "marked", "setup.py", "src/train.py")
    assert project_of(marked / "src" / "train.py", tmp_path).root == marked
    alone = make(tmp_path / "alone", "train.py")
    project = project_of(alone / "train.py", tmp_path)
    # Started from elsewhere, it runs beside itself.
    assert (project.root, project.cwd) == (alone, alone)


def test_a_module_is_named_from_the_working_directory(tmp_path: Path) -> None:
    root = make(tmp_path / "loose", "package/tools/train.py", "config.json")
    project = project_of(root / "package/tools/train.py", root, as_module=True)
    assert (project.root, project.cwd) == (root, root)
    inside = project_of(root / "package/tools/train.py", root / "package" / "tools", as_module=True)
    assert inside.root == root / "package" / "tools"


def test_modules_of_the_script_elsewhere_are_copied_with_it(tmp_path: Path) -> None:
    root = make(tmp_path / "loose", "tools/train.py", "lib/model.py", "notes.txt")
    project = project_of(root / "tools" / "train.py", root, modules=[root / "lib" / "model.py"])
    assert (project.root, project.cwd) == (root, root)


def test_a_home_that_is_kept_in_git_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path, ".git/HEAD", "work/train.py")
    assert project_of(tmp_path / "work" / "train.py", tmp_path).root == tmp_path / "work"


def test_environments_and_caches_stay_behind(tmp_path: Path) -> None:
    root = make(
        tmp_path / "repo",
        ".git/HEAD",
        "train.py",
        "__pycache__/train.pyc",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "conda/conda-meta/history",
        "node_modules/x/index.js",
        ".hidden/kept",
    )
    copy_project(project_of(root / "train.py", root), tmp_path / "copy", BIG)
    assert listed(tmp_path / "copy") == {"train.py", ".hidden/kept"}


def test_links_stay_links(tmp_path: Path) -> None:
    root = make(tmp_path / "repo", ".git/HEAD", "train.py", "real/x")
    make(tmp_path / "elsewhere", "large")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    (root / "near").symlink_to("real")
    (root / "gone").symlink_to("nothing")
    copy = tmp_path / "copy"
    copy_project(project_of(root / "train.py", root), copy, BIG)
    assert os.readlink(copy / "data") == str(tmp_path / "elsewhere")
    assert (copy / "near" / "x").resolve() == copy / "real" / "x"
    assert (copy / "gone").is_symlink()


def test_what_is_linked_is_not_copied(tmp_path: Path) -> None:
    root = make(tmp_path / "repo", ".git/HEAD", "train.py", "data/train/x", "data/names")
    project = project_of(root / "train.py", root, [root / "data" / "train"])
    copy_project(project, tmp_path / "copy", 40)
    assert (tmp_path / "copy" / "data" / "train").is_symlink()
    assert (tmp_path / "copy" / "data" / "train" / "x").read_text() == "data/train/x"
    assert not (tmp_path / "copy" / "data").is_symlink()


def test_a_workplace_in_the_project_is_not_copied_into_itself(tmp_path: Path) -> None:
    root = make(tmp_path / "repo", ".git/HEAD", "train.py", "kept/O0/project/train.py")
    copy_project(project_of(root / "train.py", root), root / "kept" / "O1" / "project", 100, besides=root / "kept")
    assert [path.name for path in (root / "kept" / "O1" / "project").iterdir()] == ["train.py"]


@pytest.mark.parametrize("link", ["nowhere", "..", ".", "src"])
def test_a_link_has_to_be_a_part_beside_the_script(link: str, tmp_path: Path) -> None:
    root = make(tmp_path / "repo", ".git/HEAD", "src/train.py")
    with pytest.raises(UserError, match="--link"):
        project_of(root / "src" / "train.py", root, [root / link])


def test_a_project_that_is_too_large_is_refused_with_its_largest_parts(tmp_path: Path) -> None:
    root = make(tmp_path / "repo", ".git/HEAD", "train.py", "data/a", "data/b", "weights/c", "notes.txt")
    for name, size in (("data/a", 3000), ("data/b", 3000), ("weights/c", 4000)):
        (root / name).write_bytes(bytes(size))
    with pytest.raises(UserError) as caught:
        copy_project(project_of(root / "train.py", root), tmp_path / "copy", 5000)
    message = str(caught.value)
    assert message.index("data (6 KiB)") < message.index("weights (4 KiB)") < message.index("notes.txt")
    assert "more than 5 KiB" in message and "--link" in message and "--copy-limit" in message
    assert not (tmp_path / "copy").exists()


def test_the_workplace_goes_whatever_happens() -> None:
    with pytest.raises(KeyboardInterrupt), workplace(None) as folder:
        make(folder, "a/b/c")
        raise KeyboardInterrupt
    assert not folder.exists()


def test_a_workplace_to_keep_stays_and_has_to_be_empty(tmp_path: Path) -> None:
    with workplace(tmp_path / "kept") as folder:
        make(folder, "record")
    assert (tmp_path / "kept" / "record").exists()
    with pytest.raises(UserError, match="not empty"), workplace(tmp_path / "kept"):
        pass


@pytest.mark.parametrize(
    ("text", "size"), [("2G", 2**31), ("500m", 500 * 2**20), ("1.5GiB", 3 * 2**29), ("64KB", 2**16), ("123", 123)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "0", "-1M", "much", "nan", "inf", "1X"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_sizes_are_said_in_words() -> None:
    assert [size_in_words(size) for size in (10, 2048, 5 * 2**20, 3 * 2**31)] == [
        "10 bytes",
        "2 KiB",
        "5 MiB",
        "6.0 GiB",
    ]
