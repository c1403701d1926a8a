"""Options of the command line beside what a script for Apex says itself: kept, or named as not used."""

from __future__ import annotations

import pytest
from amp_rules.plan.options import Options
from migrating import migrated_text

SCRIPT = """\
import torch
from apex import amp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net, opt = amp.initialize(net, opt, opt_level="O1"{more})
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        with amp.scale_loss(loss, opt) as scaled_loss:
            scaled_loss.backward()
        opt.step()


if __name__ == "__main__":
    main()
"""


def told(report):
    return " ".join(note.text for note in report.notes)


def test_a_loss_scale_that_the_script_does_not_give_is_kept(tmp_path):
    report, texts = run(tmp_path, Options(loss_scale=128.0))
    assert 'amp.init(opt_level="O1", loss_scale=128.0)' in texts
    assert "not used" not in told(report)


def test_the_loss_scale_of_the_script_stays_and_the_other_is_named(tmp_path):
    report, texts = run(tmp_path, Options(loss_scale=128.0), ', loss_scale="dynamic"')
    assert 'amp.init(opt_level="O1", loss_scale="dynamic")' in texts
    assert "128.0 is not used" in told(report)


@pytest.mark.parametrize("options", [Options(sync_bn=False), Options(sync_bn=False, loss_scale=8.0, apex="compat")])
def test_options_without_an_effect_are_named(tmp_path, options):
    report, _ = run(tmp_path, options)
    said = told(report)
    assert "whether batch norm is synchronised stays the script's own choice" in said
    assert ("8.0 is not used" in said) == (options.apex == "compat")


def test_batch_norm_is_not_synchronised_where_that_is_asked_for(tmp_path):
    report, texts = run(tmp_path, Options(ddp=True, sync_bn=False))
    assert 'amp.init(opt_level="O1", ddp=True, sync_bn=False)' in texts
    assert texts.count("amp.init(") == 1
    assert "batch norm" not in told(report)


def run(folder, options, more=""):
    return migrated_text(folder, SCRIPT.format(more=more), options)
