"""Every draft is read as a program before it is shown: wrong ones are caught, right ones are not."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.text import applying
from migrating import ENTRY, migrated, write

CODE = "AMP391"
ALIASED = "\n\nimport amp_runtime as amp\n"

SCRIPT = textwrap.dedent(
    """\
    import argparse

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset


    def evaluate(model, loader):
        return sum(model(x).sum().item() for x, _ in loader)


    def train(model, extra, loader, epochs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        extra_optimizer = torch.optim.SGD(extra.parameters(), lr=0.1) if extra is not None else None
        for epoch in range(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                if extra is not None:
                    loss = loss + extra(x).mean()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if extra_optimizer is not None:
                    extra_optimizer.step()
                    extra_optimizer.zero_grad()
        return model


    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--epochs", type=int, default=2)
        args = parser.parse_args()
        data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
        loader = DataLoader(data, batch_size=8, shuffle=True)
        model = nn.Linear(4, 2)
        model = train(model, None, loader, args.epochs)
        print(evaluate(model, loader))
        torch.save(model.state_dict(), "last.pt")


    if __name__ == "__main__":
        main()
    """
)


@pytest.fixture
def drafted(tmp_path, monkeypatch):
    """Migrates the script with a draft that was spoilt on its way."""

    def call(spoil, text=SCRIPT, options=None):
        apply = applying.apply

        def spoilt(module, actions):
            after = apply(module, actions)
            wrong = spoil(after)
            assert wrong != after, "nothing was spoilt"
            return wrong

        monkeypatch.setattr("amp_rules.plan.units.apply", spoilt)
        entry = write(tmp_path / "project", {ENTRY: text.encode()})
        report = migrate(entry, options or Options())
        monkeypatch.undo()
        return report

    return call


def without(line):
    return lambda text: re.sub(rf"^[ ]*{re.escape(line)}.*\n", "", text, count=1, flags=re.MULTILINE)


def moved(line, before):
    """The first line that begins like this comes before the first that begins like that, as deep as it."""

    def spoil(text):
        whole = re.search(rf"^[ ]*({re.escape(line)}.*)\n", text, flags=re.MULTILINE)
        text = text[: whole.start()] + text[whole.end() :]
        there = re.search(rf"^([ ]*){re.escape(before)}", text, flags=re.MULTILINE)
        return text[: there.start()] + there[1] + whole[1] + "\n" + text[there.start() :]

    return spoil


def replaced(old, new):
    return lambda text: text.replace(old, new, 1)


WRONG = {
    "it does not parse": replaced("amp.scaler.update()", "amp.scaler.update("),
    "a statement is lost": without("optimizer.zero_grad()"),
    "a statement stands elsewhere": moved("optimizer.zero_grad()", "loss = nn."),
    "a branch is lost": replaced("            if extra is not None:\n", "            if True:\n"),
    "a statement left its condition": replaced(
        "                extra_optimizer.zero_grad()", "            extra_optimizer.zero_grad()"
    ),
    "something is new that no edit asked for": replaced("    return model\n", "    print(model)\n    return model\n"),
    "the import is missing": without("import amp_runtime as amp"),
    "the import comes after the first use": lambda text: without("import amp_runtime as amp")(text) + ALIASED,
    "the name of the runtime is taken": replaced("def evaluate(model, loader)", "def evaluate(amp, loader)"),
    "the runtime starts too late": moved("amp.init(", "print(evaluate"),
    "the runtime starts in a loop": moved("amp.init(", "for x, y in loader:"),
    "a name is read that nothing binds": replaced("amp.scaler.unscale_(optimizer)", "amp.scaler.unscale_(optimiser)"),
    "a name is read before it is bound": moved("model = amp.prepare_model", "parser = "),
    "gradients are unscaled without the condition": replaced(
        "            if extra_optimizer is not None:\n                amp.scaler.unscale_(extra_optimizer)",
        "            amp.scaler.unscale_(extra_optimizer)",
    ),
    "gradients are not unscaled before they are clipped": without("amp.scaler.unscale_(optimizer)"),
    "gradients are unscaled after they are clipped": moved(
        "nn.utils.clip_grad_norm_", "amp.scaler.unscale_(optimizer)"
    ),
    "the scale is not updated": without("amp.scaler.update()"),
    "the scale is updated before the step": moved("amp.scaler.update()", "amp.scaler.step(optimizer)"),
    "a line is never reached": moved("amp.scaler.update()", "def main"),
    "the model is prepared after it is trained": moved("model = amp.prepare_model", "print(evaluate"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_draft_is_caught(what, drafted):
    report = drafted(WRONG[what])
    assert report.precision == "declined", what
    assert {item.code for item in report.refusals} == {CODE}
    assert report.changes == () and report.edits == ()


def test_the_draft_itself_is_right(tmp_path):
    report, result = migrated(tmp_path / "project", {ENTRY: SCRIPT.encode()}, Options(ddp=True))
    assert (report.precision, report.distribution, report.refusals) == ("migrated", "migrated", ())
    ast.parse(result[ENTRY])


def test_where_only_the_part_for_several_processes_is_wrong_precision_is_migrated(drafted):
    def spoil(text):
        guard = "    if amp.is_main_process():\n    "
        return text.replace(guard, "") if guard in text else text + "\n"

    report = drafted(spoil, options=Options(ddp=True))
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert [(item.code, item.unit) for item in report.refusals] == [(CODE, "distribution")]
    assert "ddp" not in report.changes[0].after and "amp.scaler.step" in report.changes[0].after


def test_the_reason_says_that_it_is_no_mistake_of_the_script_and_where(drafted):
    refusal = drafted(without("amp.scaler.update()")).refusals[0]
    assert refusal.message.startswith("a bug in amp-migrate, not in the script: ")
    assert "report it" in refusal.recipe
    assert SCRIPT.splitlines()[refusal.span.start.line - 1].strip() == "if extra_optimizer is not None:"
