"""Commands that start a migrated script are reported with the torchrun command that takes their place."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from amp_migrate.launch.launches import Launch, launches
from amp_rules.plan.report import Edit, FileChange, Note, Report
from amp_rules.source.spans import Position, Span
from cli_standin import TRAIN
from hypothesis import given, settings
from hypothesis import strategies as st
from properties import examples

RUN = "torchrun --nproc-per-node N"
ALONE = "torchrun --standalone --nproc-per-node N"


def report(entry: Path, distribution: str = "migrated", *, codes: tuple[str, ...] = ("AMP101",)) -> Report:
    span = Span(Position(1, 1), Position(1, 2))
    edits = tuple(Edit(entry, span, code, "name", "message") for code in codes)
    return Report(entry, "migrated", distribution, (FileChange(entry, "", "x"),), edits)  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path):
    """A git work tree with two scripts to migrate and one that is not."""
    root = tmp_path / "project"
    for name in ("train.py", "package/train.py", "package/__init__.py", "package/tool/__main__.py", "other.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('if __name__ == "__main__":\n    main()\n')
    (root / ".git").mkdir()
    return root


def found(project: Path, text: str, name: str = "run.sh", *, scripts=("train.py", "package/train.py")) -> list[Launch]:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)
    return launches([report(project / script) for script in scripts]).found


def replacement(project: Path, command: str, name: str = "run.sh") -> str | None:
    listed = found(project, command + "\n", name)
    assert len(listed) <= 1
    return listed[0].replacement if listed else None


# ---- one command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py", f"{RUN} train.py"),
        ("python3 -u train.py --lr 1e-3 --name 'a b'", f"{RUN} train.py --lr 1e-3 --name 'a b'"),
        ("python ./train.py --x", f"{RUN} ./train.py --x"),
        ("./train.py --x", f"{RUN} ./train.py --x"),
        ("python3 -m package.train --x", f"{RUN} -m package.train --x"),
        ("OMP_NUM_THREADS=4 python train.py", f"OMP_NUM_THREADS=4 {RUN} train.py"),
        ("CUDA_VISIBLE_DEVICES=2,3 python train.py", "CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py"),
        ("CUDA_VISIBLE_DEVICES=$G python train.py", f"CUDA_VISIBLE_DEVICES=$G {RUN} train.py"),
        ("nohup python train.py > log.txt 2>&1 &", f"nohup {ALONE} train.py > log.txt 2>&1 &"),
        ("python train.py > a.txt & python train.py", f"{ALONE} train.py > a.txt & {RUN} train.py"),
        ("python train.py 2>&1 | tee log && echo done", f"{RUN} train.py 2>&1 | tee log && echo done"),
        ("time python train.py &> log", f"time {RUN} train.py &> log"),
        ("cd package && python train.py", f"cd package && {RUN} train.py"),
        ("(cd package; python train.py)", f"(cd package; {RUN} train.py)"),
        ("if python train.py; then echo fine; fi", f"if {RUN} train.py; then echo fine; fi"),
        ('for s in 1 2; do python train.py --seed "$s"; done', f'for s in 1 2; do {RUN} train.py --seed "$s"; done'),
        ('python "train.py" "$@"', f'{RUN} "train.py" "$@"'),
        ("python ${ROOT}/package/train.py $*", f"{RUN} ${{ROOT}}/package/train.py $*"),
        ("python $(dirname $0)/train.py", f"{RUN} $(dirname $0)/train.py"),
        ("python train.py --out $(date +%F) `hostname`", f"{RUN} train.py --out $(date +%F) `hostname`"),
        ("$PYTHON train.py", "$PYTHON -m torch.distributed.run --nproc-per-node N train.py"),
        ("${PYTHON_BIN} -u train.py", "${PYTHON_BIN} -m torch.distributed.run --nproc-per-node N train.py"),
        ("venv/bin/python train.py", "venv/bin/python -m torch.distributed.run --nproc-per-node N train.py"),
        ("python3.9 train.py", "python3.9 -m torch.distributed.run --nproc-per-node N train.py"),
        ("python -O -W ignore train.py", f"{RUN} --no-python python -O -W ignore train.py"),
        ("srun --gres=gpu:4 python train.py", f"srun --gres=gpu:4 {RUN} train.py"),
        ("mpirun -np 4 -H localhost:4 python train.py", "torchrun --nproc-per-node 4 train.py"),
        ("docker run --gpus all image python train.py", f"docker run --gpus all image {RUN} train.py"),
        ('bash -c "python train.py --x"', f'bash -c "{RUN} train.py --x"'),
        ('CMD="python train.py $ARGS"', f'CMD="{RUN} train.py $ARGS"'),
        ("python train.py --a; python package/train.py", f"{RUN} train.py --a; {RUN} package/train.py"),
        ("accelerate launch --num_processes 4 --multi_gpu train.py --x", "torchrun --nproc-per-node 4 train.py --x"),
        (
            "python train.py --what '; rm -rf /' # python other.py",
            f"{RUN} train.py --what '; rm -rf /' # python other.py",
        ),
    ],
)
def test_the_start_is_replaced_and_all_else_kept(project, command, expected):
    assert replacement(project, command) == expected


DIST = "python -m torch.distributed.launch"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{DIST} --nproc_per_node=4 train.py --x", "torchrun --nproc-per-node=4 train.py --x"),
        (f"{DIST} --nproc_per_node 4 --use_env train.py", "torchrun --nproc-per-node 4 train.py"),
        (
            f"{DIST} --nproc-per-node $N --master_port 29501 train.py",
            "torchrun --nproc-per-node $N --master-port 29501 train.py",
        ),
        (
            f"{DIST} --nnodes=2 --node_rank=$R train.py",
            "torchrun --nproc-per-node N --nnodes=2 --node-rank=$R train.py",
        ),
        (f"{DIST} --nproc_per_node=2 --module package.train -a", "torchrun --nproc-per-node=2 -m package.train -a"),
        (f"{DIST} $DIST_ARGS train.py", "torchrun $DIST_ARGS train.py"),
        ("python -u -m torch.distributed.launch --nproc_per_node=2 train.py", "torchrun --nproc-per-node=2 train.py"),
        ("python -m apex.parallel.multiproc train.py", "torchrun --nproc-per-node gpu train.py"),
        (
            f"{DIST} --no_python --use_env --nproc_per_node 8 bash -c './bind.sh -- python train.py --x'",
            "torchrun --no-python --nproc-per-node 8 bash -c './bind.sh -- python train.py --x'",
        ),
    ],
)
def test_older_launchers_hand_their_options_on(project, command, expected):
    assert replacement(project, command) == expected


def test_a_variable_that_holds_a_launcher_is_looked_up(project):
    text = 'DIST="-m torch.distributed.launch --nproc_per_node=$GPUS"\npython $DIST train.py "$@"\n'
    (launch,) = found(project, text)
    assert launch.replacement == 'torchrun --nproc-per-node $GPUS train.py "$@"'
    assert found(project, 'python $ARGS train.py "$@"\n') == []


@pytest.mark.parametrize(
    "command",
    [
        "python other.py",
        "python package/other.py",
        "python missing/train.py",
        "cd package/tool && python ../../other.py",
        "python -c 'import train'",
        "python -m package.tool",
        "python -m pytest train.py",
        "python train.py --help",
        "echo python train.py",
        "cat train.py",
        "grep -n x train.py",
        "# python train.py",
        "torchrun --nproc-per-node 2 train.py",
        "python -m torch.distributed.run --nproc-per-node 2 train.py",
        f"{DIST} --unheard-of 3 train.py",
        "python $SCRIPT",
        "python train",
        "pythonic train.py",
        "$PYTHONPATH train.py",
        "python /elsewhere/train.py",
        "train.py",
    ],
)
def test_what_is_no_start_of_a_migrated_script_is_passed_over(project, command):
    assert replacement(project, command) is None


def test_the_notes_say_what_to_look_at(project):
    def notes(command: str) -> str:
        (launch,) = found(project, command + "\n")
        return "; ".join(launch.notes)

    assert notes(f"{DIST} --nproc_per_node=2 train.py") == "torchrun passes no --local_rank: it sets LOCAL_RANK"
    assert notes(f"{DIST} --nproc_per_node=2 --use_env train.py") == ""
    assert notes("python train.py --local_rank=0") == "take --local_rank away: torchrun sets LOCAL_RANK"
    assert "--ntasks-per-node=1" in notes("srun python train.py")
    assert "one device only" in notes("CUDA_VISIBLE_DEVICES=0 python train.py")
    assert "evaluates" in notes("python train.py --mode test") and "evaluates" in notes("python train.py --evaluate")
    assert "mpirun must not" in notes("mpirun -np 2 python train.py")
    assert notes("python train.py --do_eval --test_batch 3") == ""


@pytest.mark.parametrize(
    ("command", "expected", "note"),
    [
        ("CUDA_VISIBLE_DEVICES=0 python train.py", f"{RUN} train.py", "CUDA_VISIBLE_DEVICES=0 is left out"),
        ("A=1 CUDA_VISIBLE_DEVICES=3 B=2 nohup python train.py", f"A=1 B=2 nohup {RUN} train.py", "one device only"),
        ("GPU=0\nCUDA_VISIBLE_DEVICES=$GPU python train.py", f"{RUN} train.py", "$GPU (which is 0) is left out"),
        ("GPU=0,1\nCUDA_VISIBLE_DEVICES=$GPU python train.py", f"CUDA_VISIBLE_DEVICES=$GPU {RUN} train.py", "N is 2"),
        ("GPU=$1\nCUDA_VISIBLE_DEVICES=$GPU python train.py", f"CUDA_VISIBLE_DEVICES=$GPU {RUN} train.py", "show N"),
        ("export CUDA_VISIBLE_DEVICES=0\npython train.py", f"{RUN} train.py", "=0 stands in this file"),
        (
            f"CUDA_VISIBLE_DEVICES=0 {DIST} --nproc_per_node=2 train.py",
            "CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node=2 train.py",
            "one device only",
        ),
    ],
)
def test_devices_that_are_hidden_are_not_counted_on(project, command, expected, note):
    (launch,) = found(project, command + "\n")
    assert launch.replacement == expected
    assert any(note in item for item in launch.notes) and not launch.edits


# ---- where commands stand ----------------------------------------------------------------------------------


def test_continued_lines_are_one_command_at_the_first(project):
    (launch,) = found(project, "#!/bin/sh\nset -e\npython -u train.py \\\n    --lr 1 \\\n    --out runs/1\necho done\n")
    assert (launch.line, launch.command) == (3, "python -u train.py --lr 1 --out runs/1")
    assert launch.replacement == f"{RUN} train.py --lr 1 --out runs/1"
    assert launch.scripts == (project / "train.py",)


def test_a_comment_ends_with_its_line(project):
    (launch,) = found(project, "# CUDA_VISIBLE_DEVICES=0 \\\npython train.py \\\n    --lr 1\n")
    assert (launch.line, launch.command) == (2, "python train.py --lr 1")


def test_a_folder_that_is_entered_holds_for_the_lines_below(project):
    listed = found(project, "python train.py\ncd package\npython train.py\n")
    assert [launch.scripts[0].relative_to(project).as_posix() for launch in listed] == ["train.py", "package/train.py"]


def test_a_script_is_looked_for_beside_the_command_then_above(project):
    (launch,) = found(project, "python train.py\n", "package/run.sh")
    assert launch.scripts == (project / "package/train.py",)
    (launch,) = found(project, "python package/train.py\n", "scripts/deep/run.sh", scripts=("package/train.py",))[-1:]
    assert launch.scripts == (project / "package/train.py",)


def test_a_script_in_a_container_is_known_by_its_folder(project):
    assert replacement(project, "python /workspace/package/train.py") == f"{RUN} /workspace/package/train.py"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("Run\n```bash\npython train.py\n```\nend", [3]),
        ("~~~\n$ python train.py --x\n~~~\n", [2]),
        ("> ```\n> python train.py\n> ```\n", [2]),
        ("Run `python train.py --x` now", [1]),
        ("Run ``python train.py`` now, or ```$ python train.py --y```.", [1, 1]),
        ("Like this::\n\n    python train.py \\\n        --x\n\nend", [3]),
        ("```\n!python train.py\n%cd package\n```", [2]),
        ("```\n(base) $ python train.py\n# python train.py\n```\n`python other.py`", [2]),
        ("python train.py is what you call", []),
        ("    and with python train.py it runs", []),
        ("`train.py`, `package/train.py` and `./train.py`", []),
        ("`./train.py --x`", [1]),
        ("```\nunclosed\npython train.py", [3]),
    ],
)
@pytest.mark.parametrize("name", ["README.md", "docs/usage.rst", "README"])
def test_code_in_documents_counts_and_sentences_do_not(project, name, text, lines):
    assert [launch.line for launch in found(project, text, name)] == lines


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Makefile", "train:\n\t@python train.py --x\n", f"{RUN} train.py --x"),
        (
            "Makefile",
            "train:\n\t$(PYTHON) train.py\n",
            "$(PYTHON) -m torch.distributed.run --nproc-per-node N train.py",
        ),
        (
            "Dockerfile",
            'FROM x\nCMD ["python", "-u", "train.py", "--a b"]\n',
            'CMD ["torchrun", "--nproc-per-node", "N", "train.py", "--a b"]',
        ),
        (
            "docker/Dockerfile.gpu",
            "RUN pip install x\nCMD python /app/package/train.py\n",
            f"CMD {RUN} /app/package/train.py",
        ),
        (
            ".github/workflows/ci.yml",
            "jobs:\n  a:\n    - run: python train.py --epochs 1\n",
            f"{RUN} train.py --epochs 1",
        ),
        (".github/workflows/ci.yml", "    - run: |\n        cd package\n        python train.py\n", f"{RUN} train.py"),
        ("docker-compose.yml", '    command: "python train.py --x"\n', f"{RUN} train.py --x"),
        (
            "docker-compose.yml",
            '    command: ["python", "train.py"]\n',
            '["torchrun", "--nproc-per-node", "N", "train.py"]',
        ),
        ("job.slurm", "#SBATCH -n 1\nsrun python train.py\n", f"srun {RUN} train.py"),
        ("pyproject.toml", '[project.scripts]\nfit = "package.train:main"\n', f"{RUN} -m package.train"),
        ("setup.py", "entry_points={'console_scripts': ['fit=package.train:main']}\n", f"{RUN} -m package.train"),
        (
            ".vscode/launch.json",
            '{"program": "${workspaceFolder}/train.py"}\n',
            '"module": "torch.distributed.run", "args": ["--nproc-per-node", "N", "${workspaceFolder}/train.py", ...]',
        ),
    ],
)
def test_every_kind_of_file_is_read_by_its_own_rules(project, name, text, expected):
    (launch,) = found(project, text, name)
    assert launch.replacement == expected or launch.replacement.endswith(f" {expected}")


def test_ignored_foreign_and_enormous_files_are_passed_over(project):
    (project / ".gitignore").write_text("build/\n*.log.sh\n")
    for name in ("build/run.sh", "a.log.sh", "node_modules/run.sh", ".venv/run.sh", "run.txt", "run.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("python train.py\npython ../train.py\n")
    (project / "large.sh").write_text("python train.py\n" * 100_000)
    (project / "broken.sh").write_bytes(b"\xff\xfe\x00 train.py python train.py\n")
    (project / "loop").symlink_to(project)
    (project / "gone.sh").symlink_to(project / "nowhere")
    (project / "README.md").write_text("`python train.py`")
    listed = launches([report(project / "train.py")]).found
    assert [launch.path.name for launch in listed if launch.path.name != "broken.sh"] == ["README.md"]


def test_outside_of_a_project_only_the_folders_near_the_script_are_searched(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "train.py").write_text("")
    for name in ("run.sh", "a/run.sh", "a/b/run.sh", "a/b/c/run.sh"):
        (tmp_path / name).write_text("python train.py; python a/train.py")
    listed = launches([report(tmp_path / "a" / "train.py")]).found
    assert {launch.path.parent.relative_to(tmp_path).as_posix() for launch in listed} <= {"a", "a/b"}


def test_a_script_with_processes_of_its_own_counts_where_torchrun_can_take_over(project):
    rows = ["python", f"{DIST} --nproc_per_node=2", f"{DIST} --use_env", "python -m multiproc"]
    (project / "run.sh").write_text("".join(f"{row} train.py\n" for row in rows))

    def lines(*codes: str, distribution: str = "already") -> list[int]:
        entry = report(project / "train.py", distribution, codes=codes)
        return [launch.line for launch in launches([entry]).found]

    assert lines(distribution="migrated") == [1, 2, 3, 4]
    assert lines("AMP409") == [2, 3]
    assert lines("AMP101") == [3]
    assert lines("AMP409", distribution="not requested") == []


def test_a_script_that_meets_at_a_port_of_its_own_has_no_line_that_waits_for_it(project):
    (project / "run.sh").write_text(f"{DIST} --nproc_per_node=2 train.py\n")
    entry = report(project / "train.py", "extended", codes=("AMP409",))
    assert len(launches([entry]).found) == 1
    left = Note(entry.entry, entry.edits[0].span, "AMP288", "own-processes-left", "AMP238: `url` names a port")
    assert launches([replace(entry, notes=(left,))]).found == []


# ---- in the summary ----------------------------------------------------------------------------------------


@pytest.fixture
def train(folder):
    (folder / "train.py").write_text(TRAIN)
    (folder / ".git").mkdir()
    return folder


def test_the_summary_lists_them_in_place_of_the_hint(train, invoke):
    (train / "run.sh").write_text(f"{DIST} --nproc_per_node=2 train.py --x\n")
    done = invoke("train.py", "--ddp", "--allow-dirty", "-w")
    assert "launch N processes" not in done.stderr
    assert (
        "launches, not edited; for several processes use these:\n"
        f"  run.sh:1: {DIST} --nproc_per_node=2 train.py --x\n"
        "      -> torchrun --nproc-per-node=2 train.py --x\n"
        "         torchrun passes no --local_rank: it sets LOCAL_RANK\n"
    ) in done.stderr
    assert (train / "run.sh").read_text() == f"{DIST} --nproc_per_node=2 train.py --x\n"


def test_a_file_with_an_error_does_not_hide_them(train, invoke):
    (train / "run.sh").write_text("python train.py\n")
    (train / "broken.py").write_text("x = (\n")
    done = invoke("train.py", "broken.py", "--ddp")
    assert done.exit_code == 2
    assert "      -> torchrun --nproc-per-node N train.py\n" in done.stderr and "next: " not in done.stderr


def test_without_any_the_hint_stays(train, invoke):
    assert "next: launch N processes: torchrun" in invoke("train.py", "--ddp", "--allow-dirty", "-w").stderr


def test_a_script_at_its_own_level_o0_is_not_compared_with_it(train, invoke):
    (train / "train.py").write_text(f"# FULL\n{TRAIN}")
    for arguments in ((), ("-w",)):  # what is remembered says the same
        done = invoke("train.py", "--allow-dirty", *arguments)
    told = "train in mixed precision, which the script's own level O0 does not: AMP_OPT_LEVEL=O1 python train.py"
    assert f"next: {told}\n" in done.stderr and "compare with" not in done.stderr


def test_what_is_half_by_hand_is_not_compared_with_a_level(train, invoke):
    (train / "train.py").write_text(f"# HALVED\n{TRAIN}")
    for arguments in ((), ("-w",)):
        done = invoke("train.py", "--allow-dirty", *arguments)
    assert "compare with" not in done.stderr


def test_a_script_that_imports_from_its_package_is_run_as_a_module(train, invoke):
    (train / "nets").mkdir()
    (train / "nets" / "data.py").write_text("")
    (train / "nets" / "train.py").write_text(f"from . import data\n{TRAIN}")
    done = invoke("nets/train.py", "--ddp", "--allow-dirty", "-w")
    assert "next: launch N processes: torchrun --standalone --nproc-per-node N -m nets.train\n" in done.stderr
    assert "next: compare with full precision: AMP_OPT_LEVEL=O0 python -m nets.train\n" in done.stderr


def test_no_comparison_is_proposed_where_precision_stays_as_it_was(train, invoke):
    done = invoke("train.py", "--ddp", "--allow-dirty", "-w")
    assert "next: compare with full precision: AMP_OPT_LEVEL=O0 python train.py" in done.stderr
    (train / "train.py").write_text(f"# OWN\n{TRAIN}")
    done = invoke("train.py", "--ddp", "--allow-dirty", "-w")
    assert "precision already, distribution migrated" in done.stderr
    assert "AMP_OPT_LEVEL" not in done.stderr and "next: launch N processes" in done.stderr


def test_precision_alone_reports_none(train, invoke):
    (train / "run.sh").write_text("python train.py\n")
    assert "torchrun" not in invoke("train.py").stderr
    assert json.loads(invoke("train.py", "--format", "json").stdout)["launches"] == []


def test_of_many_a_dozen_is_shown_and_all_are_in_json(train, invoke):
    (train / "run.sh").write_text("".join(f"python train.py --seed {seed}\n" for seed in range(20)))
    shown = invoke("train.py", "--ddp").stderr
    assert shown.count(" -> torchrun") == 12 and "and 8 more" in shown
    listed = json.loads(invoke("train.py", "--ddp", "--format", "json").stdout)["launches"]
    assert len(listed) == 20
    assert listed[3] == {
        "path": "run.sh",
        "line": 4,
        "command": "python train.py --seed 3",
        "replacement": f"{RUN} train.py --seed 3",
        "scripts": ["train.py"],
        "notes": [],
        "edited": False,
    }


# ---- properties --------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["--lr", "1e-3", "'a b'", '"$x y"', "$VAR", "${A:-b}", "$(pwd)", "`ls`", "<path>", "a\\ b", "--x=1,2", "[opt]", "é"]
)
ENVIRONMENT = st.sampled_from(["A=1", "B='x y'", "CUDA_VISIBLE_DEVICES=0,1", 'C="$D"'])


@given(
    st.lists(ENVIRONMENT, max_size=3),
    st.lists(WORDS, max_size=6),
    st.sampled_from(["", " > log", " 2>&1 | tee l", " &"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_environment_arguments_and_redirections_survive_letter_for_letter(environment, arguments, tail):
    from amp_migrate.launch.torchrun import Shell, replaced

    script = Path("/p/train.py")
    before = " ".join([*environment, ""])
    after = "".join(f" {word}" for word in arguments) + tail
    command = f"{before}python train.py{after}"
    shell = Shell(lambda word, _: script if word == "train.py" else None, lambda word, _: None, [Path("/p")])
    changed = replaced(command, shell.starts(command))
    count = "2" if "CUDA_VISIBLE_DEVICES=0,1" in environment else "N"
    alone = " --standalone" if tail == " &" else ""
    assert changed == f"{before}torchrun{alone} --nproc-per-node {count} train.py{after}"


@given(st.text(alphabet=list("python train.py'\"$(){}`\\;|&<># \n-m=/"), max_size=80))
@settings(max_examples=examples(300), deadline=None)
def test_any_text_is_read_without_an_error(text):
    from amp_migrate.launch.torchrun import Shell, replaced

    shell = Shell(lambda word, _: Path("/p") / word if "train" in word else None, lambda word, _: None, [Path("/p")])
    starts = shell.starts(text)
    assert all(0 <= start.first < start.last <= len(text) for start in starts)
    if starts:
        assert "torch" in replaced(text, starts)


def test_a_replaced_command_has_the_arguments_of_the_old_one(project):
    command = "python train.py --name 'it is' --list a b \"c d\""
    changed = replacement(project, command)
    assert changed is not None
    assert shlex.split(changed)[4:] == shlex.split(command)[2:]


def test_what_a_launcher_has_to_start_is_compared_by_one(train, invoke):
    (train / "train.py").write_text(f"# LAUNCHED\n{TRAIN}")
    done = invoke("train.py", "--ddp", "--allow-dirty", "-w")
    expected = "next: compare with full precision: AMP_OPT_LEVEL=O0 torchrun --standalone --nproc-per-node 1 train.py\n"
    assert expected in done.stderr


def test_what_needs_arguments_is_not_compared_without(train, invoke):
    (train / "train.py").write_text(f"# ASKS\n{TRAIN}")
    for arguments in ((), ("-w",)):  # what is remembered says the same
        done = invoke("train.py", "--allow-dirty", *arguments)
    told = "AMP_OPT_LEVEL=O0 python train.py, with the arguments that you start it with"
    assert f"next: compare with full precision: {told}\n" in done.stderr


def test_nor_is_it_launched_without(train, invoke):
    (train / "train.py").write_text(f"# ASKS\n{TRAIN}")
    done = invoke("train.py", "--ddp", "--allow-dirty", "-w")
    launch = "torchrun --standalone --nproc-per-node N train.py, with the arguments that you start it with"
    assert f"next: launch N processes: {launch}\n" in done.stderr
