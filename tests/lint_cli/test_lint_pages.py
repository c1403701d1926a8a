"""What the command says about its rules."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest
from amp_migrate.lint.catalogue import UNUSED_SUPPRESSION, RuleInfo, load_rules
from lint_standin import STANDIN_PATH


def test_explain_prints_pages_as_they_are(invoke):
    done = invoke("--explain", "AMP601")
    assert done.exit_code == 0
    assert done.stdout == (
        "# AMP601 const-overflow-fill\n"
        "\n"
        "Page of AMP601.\n"
        "\n"
        "## What it does\n"
        "`const-overflow-fill`\n"
        "\n"
        "- severity: error\n"
        "- modes: all\n"
        "- fix (safe): use finfo\n"
    )


def test_explain_takes_several_rules_by_code_and_name(invoke):
    done = invoke("--explain", "amp602,slow-reduce", "--explain", "AMP650")
    assert [line for line in done.stdout.splitlines() if line.startswith("# ")] == [
        "# AMP602 log-of-zero",
        "# AMP901 slow-reduce",
        "# AMP650 in-preview",
    ]
    assert "modes: ddp" in done.stdout
    assert "in preview" in done.stdout


def test_explain_knows_the_rewrites(invoke):
    done = invoke("--explain", "AMP101")
    assert done.exit_code == 0
    assert done.stdout.startswith("# AMP101 init\n\nStart the runtime.\n")


def test_explain_knows_the_reasons_for_declining(invoke):
    done = invoke("--explain", "AMP195,shared-module")
    assert done.exit_code == 0
    assert done.stdout.startswith("# AMP195 gradient-access\n") and "\n# AMP390 shared-module\n" in done.stdout
    assert done.stdout.count("## What to do by hand\n") == 2


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("AMP611", "did you mean AMP"),
        ("const-overflow", "const-overflow-fill?"),
        ("qqq", "--list-rules shows all rules"),
    ],
)
def test_an_unknown_rule_is_an_error_with_a_hint(invoke, word, hint):
    done = invoke("--explain", word)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"error: unknown rule '{word}'; " in done.stderr
    assert hint in done.stderr


def test_a_terminal_gets_a_rendered_page(folder):
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, str(STANDIN_PATH), "--explain", "AMP601"]
    done = subprocess.run(command, cwd=folder, stdout=secondary, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(secondary)
    shown = os.read(primary, 100_000)
    os.close(primary)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b[" in shown
    assert b"## What" not in shown


def test_the_rules_are_listed(invoke):
    lines = invoke("--list-rules").stdout.splitlines()
    assert lines[0].split() == ["code", "name", "severity", "fix", "preview", "modes"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["AMP601"] == ["const-overflow-fill", "error", "safe", "-", "all"]
    assert rows["AMP650"] == ["in-preview", "warning", "-", "preview", "all"]
    assert rows["AMP901"] == ["slow-reduce", "performance", "-", "-", "ddp"]
    assert rows["AMP902"] == ["unfused", "performance", "-", "-", "O3"]
    assert rows["AMP980"] == ["unused-suppression", "info", "safe", "-", "all"]


def test_the_rules_are_listed_as_data(invoke):
    rules = {rule["code"]: rule for rule in json.loads(invoke("--list-rules", "--format", "json").stdout)}
    assert rules["AMP601"]["fix_safety"] == "safe"
    assert rules["AMP902"]["modes"] == ["O3 fp16 cuda", "O3 fp16 cpu", "O3 bf16 cuda", "O3 bf16 cpu"]


@pytest.mark.parametrize(
    ("modes", "text"),
    [
        ((), "none"),
        (UNUSED_SUPPRESSION.modes, "all"),
        (("O2 fp16 cuda", "O3 fp16 cuda"), "O2 O3 fp16 cuda"),
        (("O1 fp16 cuda", "O2 bf16 cuda"), "O1 fp16 cuda; O2 bf16 cuda"),
        (("O1 fp16 cuda ddp",), "O1 fp16 cuda ddp"),
    ],
)
def test_modes_are_told_in_few_words(modes, text):
    assert RuleInfo("AMP601", "n", "error", "m", modes=modes).modes_text == text


def test_the_real_rules_have_codes_names_and_pages_of_their_own():
    rules = load_rules()
    assert len({rule.code for rule in rules}) == len({rule.name for rule in rules}) == len(rules)
    assert all(rule.page and rule.message.endswith(".") for rule in rules)
