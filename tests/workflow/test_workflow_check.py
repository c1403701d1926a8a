"""A migrated repository stays migrated: what `--check` passes and what not, by hand and as a pre-commit hook."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from amp_migrate.commands.lint import main as lint
from click.testing import CliRunner

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
PLAIN = (ROOT / "fixtures/runnable/flat_convnet/train.py").read_text(encoding="utf-8")
DECLINED = (ROOT / "fixtures/runnable/lbfgs_closure/train.py").read_text(encoding="utf-8")
HOOKS = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}


@pytest.fixture
def migrated(fixture, invoke, git):
    """A git repository in which two scripts and their modules were migrated to several processes."""
    folder = fixture("projects/shared_entries")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "before")
    assert invoke(".", "--ddp", "--check").exit_code == 1
    assert invoke(".", "--ddp", "-w").exit_code == 0
    git("commit", "-qam", "after")
    return folder


def test_a_migrated_repository_passes(migrated, invoke):
    for options in ((), ("--ddp",), ("--opt-level", "O2"), ("--no-fused",)):
        done = invoke(".", "--check", *options)
        assert done.exit_code == 0, (options, done.stderr)
        assert done.stdout == "" and "note: " not in done.stderr


def test_a_new_script_in_full_precision_fails(migrated, invoke):
    (migrated / "new.py").write_text(PLAIN, encoding="utf-8")
    done = invoke(".", "--check")
    assert done.exit_code == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("would change")] == ["would change new.py"]


def test_a_step_in_full_precision_that_came_after_the_migration_is_told(migrated, invoke):
    loop = migrated / "common/loop.py"
    added = """

def finetune(net, loader, optimizer, limit):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return 1
"""
    loop.write_text(loop.read_text(encoding="utf-8") + added, encoding="utf-8")
    script = migrated / "train.py"
    script.write_text(script.read_text(encoding="utf-8").replace("train_one_epoch", "finetune"), encoding="utf-8")
    done = invoke(".", "--check")
    line = loop.read_text(encoding="utf-8").splitlines().index("        loss.backward()") + 1
    # Nothing is due that the command could change, and still the repository is not as it was.
    assert done.exit_code == 1
    assert invoke(".").exit_code == 0
    assert invoke(".", "--write-baseline", "amp-declines.json").exit_code == 0
    assert invoke(".", "--check", "--baseline", "amp-declines.json").exit_code == 0
    assert done.stderr.count("is not scaled") == 1
    note = f"loop.py:{line}: AMP180 step-after-migration: `loss.backward()` is not scaled: this step came after"
    assert note in done.stderr


STEP = """    for x, y in loader:
        optimizer.zero_grad()
        {region}loss = nn.functional.cross_entropy(model(x), y)
        {scale}.backward()
        {step}
"""
ADDED = {
    "a backward pass": ("with {autocast}: ", "loss", "{scaler}.step(optimizer); {scaler}.update()"),
    "an optimizer's step": ("with {autocast}: ", "{scaler}.scale(loss)", "optimizer.step()"),
    "both": ("with {autocast}: ", "loss", "optimizer.step()"),
    "a forward pass": ("", "{scaler}.scale(loss)", "{scaler}.step(optimizer); {scaler}.update()"),
    "a whole step": ("", "loss", "optimizer.step()"),
    "nothing": ("with {autocast}: ", "{scaler}.scale(loss)", "{scaler}.step(optimizer); {scaler}.update()"),
    "what is meant": ("with {off}: ", "{scaler}.scale(loss)", "{scaler}.step(optimizer); {scaler}.update()"),
}
WORDS = {
    "runtime": {"scaler": "amp.scaler", "autocast": "amp.autocast()", "off": "amp.autocast(enabled=False)"},
    "torch": {
        "scaler": "scaler",
        "autocast": "torch.autocast(DEVICE_TYPE, dtype=AMP_DTYPE, enabled=USE_AMP)",
        "off": "torch.autocast(DEVICE_TYPE, enabled=False)",
    },
}
SHORT = """import torch
from torch import nn


def main():
    loader = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(4)]
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
# more


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("target", WORDS)
@pytest.mark.parametrize("kind", ADDED)
def test_what_is_added_beside_scaler_and_autocast_fails(folder, invoke, kind, target):
    script = folder / "train.py"
    script.write_text(SHORT, encoding="utf-8")
    assert invoke("train.py", "-w", "--target", target).exit_code == 0
    region, scale, step = (part.format(**WORDS[target]) for part in ADDED[kind])
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("# more\n", STEP.format(region=region, scale=scale, step=step)), encoding="utf-8")
    done = invoke("train.py", "--check", "--target", target)
    is_fine = kind in ("nothing", "what is meant")
    assert (done.exit_code, done.stderr.count("AMP180 step-after-migration")) == ((0, 0) if is_fine else (1, 1)), (
        done.stderr
    )
    # It fails whatever is asked for, and until the line says that it is meant.
    assert invoke("train.py", "--check").exit_code == (0 if is_fine else 1)
    if not is_fine:
        line = int(re.findall(r"train\.py:(\d+): AMP180", done.stderr)[0])
        rows = script.read_text(encoding="utf-8").splitlines()
        rows[line - 1] += "  # amp: skip"
        script.write_text("\n".join(rows) + "\n", encoding="utf-8")
        kept = invoke("train.py", "--check", "--strict", "--target", target)
        assert (kept.exit_code, "AMP180" in kept.stderr) == (0, False), kept.stderr


def test_the_last_line_says_what_failed_and_what_to_do_next(migrated, invoke):
    def last(*arguments):
        done = invoke(*arguments)
        assert done.exit_code == 1 and "nothing to change" not in done.stderr
        return done.stderr.splitlines()[-1]

    (migrated / "new.py").write_text(PLAIN, encoding="utf-8")
    line = last("new.py", "--check")
    assert line.startswith("failed: 1 file is due to change. Next: ") and "-w" in line
    (migrated / "closure.py").write_text(DECLINED, encoding="utf-8")
    line = last("closure.py", "--strict")
    assert line.startswith("failed: 1 step is declined (--strict). Next: ")
    assert "# amp: skip" in line and "--write-baseline FILE" in line
    loop = migrated / "common/loop.py"
    text = loop.read_text(encoding="utf-8")
    loop.write_text(text.replace("amp.scaler.scale(loss).backward()", "loss.backward()"), encoding="utf-8")
    line = last("train.py", "--check")
    assert "came into a migrated script (AMP180). Next: write each step as it says above" in line
    assert "note: common/loop.py" not in invoke("train.py", "--check").stderr


def test_stale_entries_of_the_baseline_are_told(migrated, invoke):
    script = migrated / "closure.py"
    script.write_text(DECLINED, encoding="utf-8")
    assert invoke("closure.py", "--write-baseline", "known.json").exit_code == 0
    assert "renews" not in invoke("closure.py", "--baseline", "known.json").stderr
    script.write_text(PLAIN, encoding="utf-8")
    told = "note: known.json: 1 entry has no such step any more; --write-baseline known.json renews the list"
    assert told in invoke("closure.py", "--baseline", "known.json").stderr
    # Another run declines other steps, and others' steps are not looked at.
    assert "renews" not in invoke("closure.py", "--ddp", "--baseline", "known.json").stderr
    assert "renews" not in invoke("train.py", "--baseline", "known.json").stderr


@pytest.mark.parametrize("place", ["head", "line", "function"])
def test_what_the_user_skips_is_no_decline(folder, invoke, place):
    text = {
        "head": "# amp: skip\n" + SHORT,
        "line": SHORT.replace("loss.backward()", "loss.backward()  # amp: skip"),
        "function": SHORT.replace("def main():", "def main():  # amp: skip"),
    }[place]
    (folder / "train.py").write_text(text.replace("# more\n", ""), encoding="utf-8")
    done = invoke("train.py", "--check", "--strict", "--ddp")
    assert done.exit_code == 0
    assert "declined" not in done.stderr and "precision skipped, distribution skipped" in done.stderr
    assert "skipped by `# amp: skip`" in done.stderr and "take the comment away" not in done.stderr


def test_what_is_declined_does_not_fail_but_is_told(migrated, invoke):
    (migrated / "closure.py").write_text(DECLINED, encoding="utf-8")
    done = invoke(".", "--check", "--ddp")
    assert done.exit_code == 0
    assert "closure.py: precision declined" in done.stderr and "AMP191" in done.stderr


def test_with_strict_what_is_declined_fails_until_it_is_known(migrated, invoke):
    script = migrated / "closure.py"
    script.write_text(DECLINED, encoding="utf-8")
    assert invoke(".", "--ddp", "--check", "--strict").exit_code == 1
    assert invoke(".", "--ddp", "--strict").exit_code == 1
    wrote = invoke(".", "--ddp", "--write-baseline", "amp-declines.json")
    # For the precision and for the processes it is one step.
    assert wrote.exit_code == 0 and "wrote 1 declined step to amp-declines.json" in wrote.stderr
    (migrated / "pyproject.toml").write_text(
        '[tool.amp-migrate]\nstrict = true\nddp = true\nbaseline = "amp-declines.json"\n', encoding="utf-8"
    )
    done = invoke(".", "--check")
    assert done.exit_code == 0
    assert "AMP191" not in done.stderr and "closure.py" not in done.stderr
    assert "in the baseline" in done.stderr
    # The same lines elsewhere in the file are the same; another step is new.
    script.write_text("# moved\n\n" + DECLINED, encoding="utf-8")
    assert invoke(".", "--check").exit_code == 0
    (migrated / "second.py").write_text(DECLINED, encoding="utf-8")
    again = invoke(".", "--check")
    assert again.exit_code == 1
    assert "second.py: precision declined" in again.stderr and "closure.py" not in again.stderr
    assert invoke(".", "--check", "--no-strict").exit_code == 0


def test_a_comment_that_keeps_a_step_on_purpose_is_no_decline(migrated, invoke):
    (migrated / "closure.py").write_text("# amp: skip\n" + DECLINED, encoding="utf-8")
    assert invoke(".", "--ddp", "--check", "--strict").exit_code == 0


@pytest.mark.parametrize("arguments", [["-w"], ["-o", "out"], ["--check"]])
def test_a_baseline_is_written_by_itself(migrated, invoke, arguments):
    done = invoke(".", "--write-baseline", "amp-declines.json", *arguments)
    assert (done.exit_code, "--write-baseline only lists" in done.stderr) == (2, True)


def test_what_is_no_baseline_is_an_error(migrated, invoke):
    (migrated / "x.json").write_text("[]", encoding="utf-8")
    done = invoke(".", "--baseline", "x.json")
    assert (done.exit_code, "x.json: is not a baseline" in done.stderr) == (2, True)


@pytest.mark.parametrize("way", ["comment", "exclude", "entry", "not named"])
def test_a_script_may_stay_as_it_is(migrated, invoke, way):
    (migrated / "old.py").write_text(("# amp: skip\n" if way == "comment" else "") + PLAIN, encoding="utf-8")
    if way == "exclude":
        (migrated / "pyproject.toml").write_text('[tool.amp-migrate]\nexclude = ["old.py"]\n', encoding="utf-8")
    arguments = {
        "entry": [".", "--entry", "train.py", "--entry", "finetune.py"],
        "not named": ["train.py", "finetune.py"],
    }
    done = invoke(*arguments.get(way, ["."]), "--check")
    assert done.exit_code == 0, done.stderr


# ---- pre-commit ----------------------------------------------------------------------------------------------


def run_hook(name, filenames, invoke, args=None):
    """Run a hook as pre-commit does: entry, then arguments, then the files, unless it wants none."""
    hook = HOOKS[name]
    words = [*shlex.split(hook["entry"]), *(hook.get("args", []) if args is None else args)]
    words += filenames if hook.get("pass_filenames", True) else []
    command, *arguments = words
    if command == "amp-lint":
        return CliRunner().invoke(lint, [*arguments, "--no-cache"])
    assert command == "amp-migrate"
    return invoke(*arguments)


def test_the_hooks_name_commands_that_the_package_installs():
    scripts = {item.name for item in distribution("amp-migrate").entry_points if item.group == "console_scripts"}
    assert {shlex.split(hook["entry"])[0] for hook in HOOKS.values()} == scripts
    for hook in HOOKS.values():
        assert hook["language"] == "python" and hook["types_or"] == ["python", "jupyter"] and hook["name"]


def test_commits_to_this_repository_are_judged_as_its_scripts_judge_them():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "scripts").glob("*.sh"))
    called = {hook["id"]: hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]}
    assert local["repo"] == "local" and {hook["language"] for hook in local["hooks"]} == {"system"}
    assert called["mypy"] in scripts
    for name in ("ruff check", "ruff format"):
        assert called[name.replace(" ", "-")] == f"{name} --force-exclude" and f"{name} " in scripts


def test_the_migration_hook_looks_at_the_project_whatever_was_staged(migrated, invoke):
    assert run_hook("amp-migrate", ["common/net.py"], invoke).exit_code == 0
    assert run_hook("amp-migrate", ["train.py"], invoke, args=["--ddp", "."]).exit_code == 0
    (migrated / "new.py").write_text(PLAIN, encoding="utf-8")
    done = run_hook("amp-migrate", ["new.py"], invoke)
    assert done.exit_code == 1 and "would change new.py" in done.stderr


def test_the_lint_hook_judges_the_staged_files(folder, invoke):
    (folder / "good.py").write_text("x = 1\n")
    (folder / "bad.py").write_text(
        "import torch\n\n\nclass M(torch.nn.Module):\n    def forward(self, q, k, mask):\n"
        "        return (q @ k).masked_fill(mask, -1e9).softmax(-1)\n"
    )
    assert run_hook("amp-lint", ["good.py"], invoke).exit_code == 0
    done = run_hook("amp-lint", ["good.py", "bad.py"], invoke)
    assert done.exit_code == 1 and "AMP601" in done.stdout


def test_files_may_also_be_named_one_by_one(migrated, invoke, git):
    files = git("ls-files", "*.py").split()
    assert len(files) > 6
    assert invoke(*files, "--check").exit_code == 0
    for name in files:
        assert invoke(name, "--check").exit_code == 0, name
    (migrated / "data.py").write_text("x = 1\n")
    (migrated / "new.py").write_text(PLAIN, encoding="utf-8")
    assert invoke("data.py", "common/net.py", "--check").exit_code == 0
    assert invoke("new.py", "data.py", *files, "--check").exit_code == 1


def test_scripts_that_share_modules_are_due_together(fixture, invoke):
    fixture("projects/shared_entries")
    done = invoke("train.py", "finetune.py", "eval.py", "common/net.py", "--check")
    assert done.exit_code == 1
    due = [line.split()[-1] for line in done.stderr.splitlines() if line.startswith("would change")]
    assert due == ["common/loop.py", "finetune.py", "train.py"]
