"""The GitHub Action: its description holds together, and its script does on real projects what the description says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sarif_subset import check_sarif

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/action.sh"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


# ---- the description -----------------------------------------------------------------------------------------


def test_every_step_is_one_that_composite_actions_may_have():
    assert ACTION["runs"]["using"] == "composite"
    assert ACTION["name"] and len(ACTION["description"]) < 200
    ids = [step["id"] for step in STEPS if "id" in step]
    assert len(ids) == len(set(ids))
    for step in STEPS:
        assert set(step) <= {"id", "name", "if", "shell", "env", "run", "uses", "with"}
        assert ("run" in step) != ("uses" in step)
        if "run" in step:
            assert step["shell"] == "bash"
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])


def test_no_expression_stands_in_a_command():
    for step in STEPS:
        assert not EXPRESSION.search(step.get("run", ""))
    for workflow in WORKFLOWS:
        for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values():
            assert not any(EXPRESSION.search(step.get("run", "")) for step in job["steps"])


def test_every_input_is_used_and_described():
    text = yaml.safe_dump(STEPS)
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == set(ACTION["inputs"])
    for name, given in ACTION["inputs"].items():
        assert given["description"] and isinstance(given["default"], str), name


def test_the_script_reads_the_variables_that_the_step_sets_and_no_others():
    (run,) = (step for step in STEPS if step.get("id") == "run")
    passed = {name for name in run["env"] if name.startswith("INPUT_")}
    for name in passed:
        assert EXPRESSION.fullmatch(run["env"][name])[1] == "inputs." + name[6:].lower().replace("_", "-")
    assert set(re.findall(r"\bINPUT_[A-Z_]+\b", SCRIPT.read_text(encoding="utf-8"))) == passed
    assert {f'scripts/action.sh" {word}' for word in ("install", "run")} == {
        re.search(r'scripts/action\.sh" \w+', step["run"])[0] for step in STEPS if "run" in step
    }


def test_the_outputs_are_those_that_the_script_writes():
    written = set(re.findall(r'"([a-z][a-z-]+)=\$', SCRIPT.read_text(encoding="utf-8")))
    assert set(ACTION["outputs"]) == written
    for name, output in ACTION["outputs"].items():
        assert EXPRESSION.fullmatch(output["value"])[1] == f"steps.run.outputs.{name}"


def test_the_guide_has_the_inputs_and_outputs_with_their_defaults():
    page = (ROOT / "docs/workflow.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`([^`]+)`", row.split("|")[1]) for row in page.splitlines() if row.startswith("| `")]
    listed = {name for row in rows for name in row}
    assert set(ACTION["inputs"]) | set(ACTION["outputs"]) <= listed
    for name in ("command", "paths", "fail-on"):
        assert f"| `{name}` | `{ACTION['inputs'][name]['default']}` |" in page


def test_the_examples_of_the_guide_use_what_there_is():
    page = (ROOT / "docs/workflow.md").read_text(encoding="utf-8")
    hooks = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    documents = [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    jobs = [job for document in documents for job in document.get("jobs", {}).values()]
    steps = [step for job in jobs for step in job["steps"]]
    used = [step for step in steps if "OWNER/amp-migrate" in step.get("uses", "")]
    assert len(used) > 2 and all(set(step["with"]) <= set(ACTION["inputs"]) for step in used)
    assert not any(EXPRESSION.search(step.get("run", "")) for step in steps)
    named = {hook["id"] for document in documents for repo in document.get("repos", ()) for hook in repo["hooks"]}
    assert named == hooks


def test_the_workflow_of_the_project_uses_what_there_is():
    ci = next(path for path in WORKFLOWS if path.name == "ci.yml")
    jobs = yaml.safe_load(ci.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    scripts = [step["run"] for step in steps if step.get("run", "").startswith("scripts/")]
    assert "scripts/test.sh full" in scripts
    assert all(os.access(ROOT / line.split()[0], os.X_OK) for line in scripts)
    for step in steps:
        if step.get("uses") == "./":
            assert set(step["with"]) <= set(ACTION["inputs"])


def test_shellcheck_has_nothing_to_say():
    command = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert command, "shellcheck comes with the extra dev"
    scripts = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci/run"]
    assert SCRIPT in scripts
    done = subprocess.run([command, "--external-sources", *scripts], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


# ---- the script ----------------------------------------------------------------------------------------------


PARROT = """#!/bin/sh
printf '%s\\n' "$0" "$@" >>"$PARROT_LOG"
exit "$PARROT_STATUS"
"""


class Ran:
    """What a run of the script left behind."""

    def __init__(self, done, runner):
        self.status, self.log = done.returncode, done.stdout
        self.summary = (runner / "summary").read_text(encoding="utf-8")
        lines = (runner / "output").read_text(encoding="utf-8").splitlines()
        self.outputs = dict(line.split("=", 1) for line in lines)
        # What stands between the two marks is not read by GitHub.
        self.heard = re.sub(r"::stop-commands::(\w+)\n.*?\n::\1::\n", "", self.log, flags=re.DOTALL)


@pytest.fixture
def action(folder, tmp_path_factory):
    """Run the script as a step of a job does, with this environment in the place of the one that it installs."""
    runner = tmp_path_factory.mktemp("runner")
    programs = runner / "amp-migrate-venv/bin"
    programs.mkdir(parents=True)
    for name in ("python", "amp-migrate", "amp-lint"):
        (programs / name).write_text(f'#!/bin/sh\nexec "{Path(sys.executable).parent / name}" "$@"\n')
        (programs / name).chmod(0o755)

    def call(**inputs):
        for name in ("summary", "output"):
            (runner / name).write_text("")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("INPUT_", "GITHUB_"))}
        given = {name: given["default"] for name, given in ACTION["inputs"].items() if name != "python-version"}
        given |= {name.replace("_", "-"): value for name, value in inputs.items()}
        environment |= {f"INPUT_{name.upper().replace('-', '_')}": value for name, value in given.items()}
        environment |= {
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(runner / "output"),
            "GITHUB_STEP_SUMMARY": str(runner / "summary"),
            "RUNNER_TEMP": str(runner),
        }
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(["bash", SCRIPT, "run"], cwd=folder, env=environment, timeout=120, **output)
        assert sorted(path.name for path in runner.iterdir()) == ["amp-migrate-venv", "output", "summary"]
        return Ran(done, runner)

    call.programs = programs
    return call


@pytest.fixture
def parrot(action, tmp_path_factory, monkeypatch):
    """Run the script with commands that end with ``status`` and tell what they were given."""
    log = tmp_path_factory.mktemp("parrot") / "log"
    monkeypatch.setenv("PARROT_LOG", str(log))
    for name in ("amp-migrate", "amp-lint"):
        (action.programs / name).write_text(PARROT)

    def call(status=0, **inputs):
        monkeypatch.setenv("PARROT_STATUS", str(status))
        log.write_text("")
        ran = action(**inputs)
        ran.given = log.read_text().splitlines()
        return ran

    return call


def test_changes_that_are_due_fail_and_are_shown(folder, fixture, action):
    fixture("runnable/flat_convnet")
    ran = action(ddp="true", sarif_file="out.sarif")
    assert ran.status == 1
    assert ran.outputs == {"exit-code": "1", "changes-due": "1", "sarif-file": "out.sarif"}
    assert ran.heard.count("::notice file=train.py,line=") > 3
    assert not re.search(r"^(?!::)", ran.heard.rstrip("\n"), re.MULTILINE), ran.heard
    assert "would change train.py" in ran.log and "AMP202" in ran.log
    assert ran.summary.startswith("## ") and "AMP102" in ran.summary and "train.py" in ran.summary
    assert check_sarif((folder / "out.sarif").read_text())["runs"][0]["results"]


def test_a_migrated_project_passes_and_says_little(fixture, invoke, action):
    fixture("projects/shared_entries", "my project")
    assert invoke("my project", "--ddp", "-w").exit_code == 0
    ran = action(paths="'my project'", ddp="true", annotations="true")
    assert (ran.status, ran.heard) == (0, "")
    assert ran.outputs == {"exit-code": "0", "changes-due": "0", "sarif-file": ""}


def test_findings_of_the_linter(folder, action):
    (folder / "model.py").write_text(
        "import torch\n\n\nclass M(torch.nn.Module):\n    def forward(self, q, k, mask):\n"
        "        return (q @ k).masked_fill(mask, -1e9).softmax(-1)\n"
    )
    ran = action(command="lint", paths="model.py", args="--no-cache", sarif_file="lint.sarif")
    assert ran.outputs == {"exit-code": "1", "changes-due": "1", "sarif-file": "lint.sarif"} and ran.status == 1
    assert "::error file=model.py,line=6" in ran.heard
    assert "amp-lint: 1 findings" in ran.summary and "AMP601" in ran.summary
    assert check_sarif((folder / "lint.sarif").read_text())["runs"][0]["tool"]["driver"]["name"] == "amp-lint"


@pytest.mark.parametrize("command", ["migrate", "lint", "verify"])
@pytest.mark.parametrize(
    ("fail_on", "findings", "errors"),
    [("findings errors", 1, 2), ("findings", 1, 0), ("errors", 0, 2), ("nothing", 0, 0), ("", 1, 2)],
)
def test_what_fails_is_chosen(parrot, command, fail_on, findings, errors):
    # Nothing shown (3) fails with the errors, as themselves.
    for status, expected in ((1, findings), (2, errors), (3, 3 if errors else 0)):
        ran = parrot(status, command=command, fail_on=fail_on)
        assert (ran.status, ran.outputs["exit-code"]) == (expected, str(status))
    assert parrot(0, command=command, fail_on=fail_on).status == 0


def test_a_check_that_shows_nothing_is_told_apart_from_an_error(parrot):
    assert "not proved; the log says why" in parrot(3, command="verify").heard
    assert "verify could not be completed; the log says why" in parrot(2, command="verify").heard
    assert "the log says why" not in parrot(1, command="verify").heard


def test_nothing_is_annotated_or_summarised_unless_wanted(parrot):
    ran = parrot(2, annotations="false", summary="false")
    assert (ran.heard, ran.summary) == ("", "")
    assert "github" not in ran.given and "sarif" not in ran.given


def test_the_options_reach_the_commands(parrot):
    ran = parrot(paths="a 'b c'", args="--modernize\n--select AMP5", ddp="true", opt_level="O2")
    first = ran.given[1 : ran.given.index(next(word for word in ran.given[1:] if word.startswith("/")))]
    assert first[0] == "--check"
    given = ["--opt-level=O2", "--ddp", "a", "b c", "--modernize", "--select", "AMP5"]
    assert [word for word in ran.given if word in given][: len(given)] == given
    assert "--no-ddp" in parrot(command="lint", ddp="false").given
    ran = parrot(command="verify", paths="train.py", args="--steps 5 -- --epochs 1")
    assert ran.given[1:3] == ["verify", "--python"]
    assert ran.given[-6:] == ["train.py", "--steps", "5", "--", "--epochs", "1"]
    # The scripts run with the Python of the job, which has their requirements.
    assert not ran.given[3].startswith(str(Path(ran.given[0]).parent))


def test_a_file_that_cannot_be_read_is_an_error_at_its_line(folder, action):
    (folder / "bad.py").write_text("x = (\n")
    ran = action(paths="bad.py")
    assert ran.status == 2
    assert "::error file=bad.py,line=1,col=5," in ran.heard


@pytest.mark.parametrize(
    "text", ["; touch pwned", "$(touch pwned)", "`touch pwned`", "a\ntouch pwned", "| tee pwned", "*"]
)
def test_no_input_is_run_or_expanded(folder, parrot, text):
    (folder / "secret").write_text("")
    ran = parrot(paths=text, args=f"'{text}'", opt_level=text)
    assert f"--opt-level={text}" in "\n".join(ran.given) and text in "\n".join(ran.given).replace(f"={text}", "")
    assert "secret" not in ran.given
    for name in ("command", "ddp", "annotations", "fail_on"):
        assert parrot(**{name: text}).status == 2
    parrot(sarif_file=text)
    assert not (folder / "pwned").exists()


def test_no_module_of_the_checked_out_folder_is_imported(folder, fixture, action):
    for name in ("json", "shlex", "secrets", "click", "amp_migrate", "sitecustomize"):
        (folder / f"{name}.py").write_text("open('pwned', 'w')\n")
    ran = action(paths="json.py")
    assert ran.status == 0 and not (folder / "pwned").exists()


def test_lines_of_the_source_are_no_commands(folder, action):
    (folder / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(net.parameters(), lr=1)\n"
        "for x in torch.rand(4, 2, 1):\n    optimizer.zero_grad()\n    loss = net(x).sum()\n    loss.backward()\n"
        "    optimizer.step(lambda: '''\n::set-output name=x::y\n::error::made up\n''')\n"
    )
    ran = action(paths="train.py")
    for line in ran.heard.splitlines():
        assert line.startswith(("::warning file=train.py,", "::notice file=train.py,"))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"command": "format"}, "command is migrate, lint or verify, not 'format'"),
        ({"ddp": "maybe"}, "ddp is true or false, not 'maybe'"),
        ({"annotations": "1"}, "annotations is true or false, not '1'"),
        ({"paths": "'open"}, "paths cannot be read: No closing quotation: 'open"),
        ({"fail_on": "warnings"}, "fail-on is findings, errors, both, or nothing, not 'warnings'"),
        ({"command": "verify", "sarif_file": "x"}, "sarif-file goes with migrate and lint"),
        ({"ddp": "a\n::error::b%"}, "ddp is true or false, not 'a%0A::error::b%25'"),
    ],
)
def test_a_wrong_input_is_one_annotation(action, inputs, message):
    ran = action(**inputs)
    assert (ran.status, ran.log) == (2, f"::error title=amp-migrate::{message}\n")


def test_the_installation_is_an_environment_of_its_own(folder):
    """The script asks for a virtual environment beside the job's files, and for this repository in it."""
    log = folder / "log"
    python = folder / "bin/python3"
    python.parent.mkdir()
    python.write_text(
        '#!/bin/sh\necho "$*" >>"$LOG"\n[ "$3" = venv ] && mkdir -p "$4/bin" && cp "$0" "$4/bin/python"\nexit 0\n'
    )
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "LOG": str(log), "RUNNER_TEMP": str(folder / "temp dir")}
    subprocess.run(["bash", SCRIPT, "install"], env=environment, check=True, timeout=60)
    asked = log.read_text().splitlines()
    assert asked[1] == f"-I -m venv {folder}/temp dir/amp-migrate-venv"
    assert asked[2].startswith("-I -m pip install ") and asked[2].endswith(f" {ROOT}")
