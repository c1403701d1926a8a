"""What a terminal shows: options in sections, completion, lines that fit, and nothing migrated that was not written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from amp_migrate.commands.lint import main as lint
from amp_migrate.commands.migrate import main as migrate
from amp_migrate.commands.verify import verify
from amp_migrate.out.terminal import wrapped
from cli_standin import TRAIN
from click.testing import CliRunner

MIXED = """\
import torch
from torch.amp import GradScaler, autocast

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = GradScaler("cuda")
for x, y in torch.utils.data.DataLoader([(torch.zeros(4), 1)] * 8, batch_size=4):
    optimizer.zero_grad()
    with autocast("cuda"):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def sections(command):
    text = CliRunner().invoke(command, ["--help"], terminal_width=100).stdout
    parts = re.split(r"^(\w[\w ]+):\n", text, flags=re.MULTILINE)[1:]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {title: re.findall(r"^  (-[-\w, ]*)", body, re.MULTILINE) for title, body in pairs}


def short(command):
    return {option for param in command.params for option in param.opts if re.fullmatch(r"-\w", option)}


def test_the_options_stand_in_sections():
    found = sections(migrate)
    assert list(found)[:5] == ["What is migrated", "How it is written", "Output", "Limits", "Other options"]
    assert any("--ddp" in option for option in found["What is migrated"])
    assert any("--target" in option for option in found["How it is written"])
    assert any("-w, --write" in option for option in found["Output"])
    assert any("--timeout" in option for option in found["Limits"])
    assert any("--help" in option for option in found["Other options"])


@pytest.mark.parametrize("command", [migrate, verify, lint])
def test_every_name_in_a_section_is_a_parameter(command):
    names = {param.name for param in command.params}
    listed = [name for some in command.sections.values() for name in some]
    assert len(listed) == len(set(listed))
    # `verify` migrates in memory, and has no options about what lies beside a script.
    assert set(listed) - names <= ({"vendor", "launch_lines", "install_line"} if command is verify else set())


def test_both_commands_have_the_same_short_options():
    assert short(migrate) == short(lint) == {"-w", "-o", "-q", "-v", "-j"}


def test_levels_stand_in_upper_case_in_errors():
    for command, levels in ((migrate, "O0, O1, O2, O3"), (lint, "O1, O2, O3")):
        done = CliRunner().invoke(command, ["x.py", "--opt-level", "o9"])
        assert (done.exit_code, f"'o9' is not one of {levels}." in done.stderr) == (2, True)
    assert "Did you mean torch?" in CliRunner().invoke(migrate, ["x.py", "--target", "tourch"]).stderr


# ---- completion --------------------------------------------------------------------------------------------


def completed(name, line):
    """What a bash is offered for the last word of a line."""
    module = {"amp-migrate": "migrate", "amp-lint": "lint"}[name]
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    environment = {
        **os.environ,
        variable: "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    code = f"from amp_migrate.commands.{module} import main; main(prog_name={name!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    return [item.partition(",")[2] for item in done.stdout.splitlines()]


@pytest.mark.heavy
def test_options_words_and_other_commands_are_completed():
    assert "--opt-level" in completed("amp-migrate", "amp-migrate --opt")
    assert completed("amp-migrate", "amp-migrate --opt-level o") == ["O0", "O1", "O2", "O3"]
    assert "verify" in completed("amp-migrate", "amp-migrate ver")
    assert completed("amp-migrate", "amp-migrate verify --toler") == ["--tolerance"]
    assert completed("amp-lint", "amp-lint server --std") == ["--stdio"]
    assert completed("amp-lint", "amp-lint completion f") == ["fish"]


@pytest.mark.parametrize(("command", "name"), [(migrate, "amp-migrate"), (lint, "amp-lint")])
def test_each_shell_gets_its_code(command, name):
    for shell in ("bash", "zsh", "fish"):
        done = CliRunner().invoke(command, ["completion", shell])
        assert (done.exit_code, done.stderr) == (0, "")
        assert f"_{name.replace('-', '_').upper()}_COMPLETE={shell}_complete" in done.stdout
    assert CliRunner().invoke(command, ["completion", "tcsh"]).exit_code == 2


@pytest.mark.heavy
def test_the_code_for_bash_is_one_that_bash_reads():
    code = CliRunner().invoke(migrate, ["completion", "bash"]).stdout
    assert subprocess.run(["bash", "-n"], input=code, text=True, capture_output=True).stderr == ""


def in_shell(name, code):
    """What a shell without settings of its own prints for some code, with the commands of this environment."""
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"no {name}: apt-get install {name}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "TERM": "xterm", "HOME": os.devnull}
    options = ["--no-config"] if name == "fish" else ["-f"]
    command = [shell, *options, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.heavy
def test_fish_completes_by_its_code():
    asked = 'complete -C "amp-migrate --opt-level o"; complete -C "amp-lint server --std"'
    code = "amp-migrate completion fish | source; amp-lint completion fish | source; " + asked
    found = [line.partition("\t")[0] for line in in_shell("fish", code).splitlines()]
    assert found == ["O0", "O1", "O2", "O3", "--stdio"]


@pytest.mark.heavy
def test_zsh_completes_by_its_code():
    # A terminal is needed: zsh completes only what is typed. What is read up to the words ends the waiting.
    code = """
    zmodload zsh/zpty
    zpty typed zsh -f -i
    zpty -w typed 'autoload -Uz compinit; compinit -u -D; eval "$(amp-migrate completion zsh)"; print RE""ADY'
    zpty -r typed output '*READY*'
    zpty -w -n typed $'amp-migrate verify --toler\t'
    zpty -r typed output '*ance*' && print completed
    zpty -d typed
    """
    assert in_shell("zsh", code).strip() == "completed"


# ---- the summary -------------------------------------------------------------------------------------------


def test_a_line_is_wrapped_between_words():
    rows = wrapped([("  note: ", ""), ("AMP280 batch", "cyan"), (": with N processes a step averages", "")], 30)
    assert ["".join(text for text, _ in row) for row in rows] == [
        "  note: AMP280 batch: with N",
        "      processes a step",
        "      averages",
    ]
    assert {style for row in rows for text, style in row if "AMP280" in text} == {"cyan"}
    long = [("a" * 50, "")]
    assert wrapped(long, 30) == [long]


def test_nothing_is_migrated_that_could_not_be_written(folder, invoke):
    train = folder / "train.py"
    train.write_text(TRAIN)
    train.chmod(0o444)
    done = invoke("train.py", "-w")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: train.py: is read-only")
    assert done.stderr.count("error: ") == 1
    assert "precision not written" in done.stderr
    assert "nothing was written" in done.stderr
    assert "migrated" not in done.stderr
    assert "1 edit" not in done.stderr


def test_a_script_with_mixed_precision_of_its_own_is_told_why_o0(tmp_path):
    (tmp_path / "train.py").write_text(MIXED)
    told = "train.py:4: AMP101 init: O0 here only joins the processes; the script's own mixed precision stays"
    done = CliRunner().invoke(migrate, [str(tmp_path / "train.py"), "--ddp", "--no-cache"])
    assert 'amp.init(opt_level="O0", ddp=True)' in done.stdout
    assert told in done.stderr
    again = CliRunner().invoke(migrate, [str(tmp_path / "train.py"), "--ddp", "--no-cache", "--target", "torch"])
    assert "O0 here" not in again.stderr


def test_a_word_that_is_nearly_a_command_is_none(folder, invoke):
    train = folder / "train.py"
    train.write_text(TRAIN)
    done = invoke("verfy", "train.py", "-w")
    assert done.exit_code == 2
    assert "Did you mean" in done.stderr and "verify?" in done.stderr
    assert train.read_text() == TRAIN
