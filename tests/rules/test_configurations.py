"""Classes that a configuration names, which hydra composes of the files of a folder."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from amp_rules import migrate
from amp_rules.plan.options import Options
from amp_rules.source.project import Project
from amp_rules.source.yaml_subset import NotRead, read_yaml

TRAIN = """
import hydra

class Run:
    def __init__(self, cfg):
        self.cfg = cfg
        self.agent = hydra.utils.instantiate(cfg.agent, lr=cfg.lr)
        self.loader = hydra.utils.instantiate(cfg.loader)

    def train(self):
        for epoch in range(self.cfg.epochs):
            for x, y in self.loader:
                self.agent.update(x, y)

@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg):
    Run(cfg).train()

if __name__ == "__main__":
    main()
"""
NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(4, width)

    def forward(self, x):
        return self.fc(x)
"""
UPDATE = """
    def update(self, x, y):
        loss = F.cross_entropy(self.net(x.to(self.device)), y.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
AGENT = (
    """
import torch
import torch.nn.functional as F
from lib.nets import Net

class Agent:
    def __init__(self, width, lr, device):
        self.device = device
        self.net = Net(width).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)
"""
    + UPDATE
)
GIVEN = (
    """
import torch.nn.functional as F

class Agent:
    def __init__(self, model, optimizer, lr, device):
        self.device = device
        self.net = model.to(device)
        self.optimizer = optimizer(self.net.parameters(), lr=lr)
"""
    + UPDATE
)
FILES = {
    "train.py": TRAIN,
    "lib/__init__.py": "",
    "lib/nets.py": NETS,
    "lib/agent.py": AGENT,
    "lib/data.py": """
        import torch
        from torch.utils.data import TensorDataset

        def samples(size):
            return TensorDataset(torch.randn(size, 4), torch.randint(0, 2, (size,)))
        """,
    "conf/train.yaml": """
        # what is trained
        defaults:
          - agent: plain
          - loader: train
          - override hydra/launcher: basic
        epochs: 3
        lr: 1e-4
        device: cuda  # or cpu
        """,
    "conf/agent/plain.yaml": """
        # @package agent
        _target_: lib.agent.Agent
        width: 8
        device: ${device}
        """,
    "conf/loader/train.yaml": """
        _target_: torch.utils.data.DataLoader
        batch_size: 8
        shuffle: true
        dataset:
          _target_: lib.data.samples
          size: 64
        """,
}


def _migrated(folder, *, target="runtime", **changed):
    """The report for a project, of which some files are others; and the new texts by name."""
    for name, text in {**FILES, **changed}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    report = migrate(folder / "train.py", Options(ddp=True, target=target))
    return report, {str(change.path.relative_to(folder)): change.after for change in report.changes}


def test_agents_and_loaders_that_a_configuration_names_are_migrated(tmp_path):
    report, texts = _migrated(tmp_path)
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert "self.net = amp.prepare_model(Net(width).to(device))" in texts["lib/agent.py"]
    assert "amp.scaler.scale(loss).backward()" in texts["lib/agent.py"]
    assert "self.loader = amp.prepare_loader(hydra.utils.instantiate(cfg.loader))" in texts["train.py"]


@pytest.mark.parametrize(
    "composed",
    [
        'with initialize(version_base=None, config_path="conf"):\n        cfg = compose(config_name="train")',
        'initialize("conf")\n    cfg = compose("train", overrides=["device=cpu"])',
        'with hydra.initialize_config_dir(config_dir=FOLDER):\n        cfg = hydra.compose(config_name="train")',
    ],
)
def test_a_configuration_that_the_script_composes_is_followed(tmp_path, composed):
    head, _ = TRAIN.split("@hydra.main")
    head = head.replace("import hydra", "import os\n\nimport hydra\nfrom hydra import compose, initialize")
    folder = 'FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "conf")\n\n'
    main = f"def main():\n    {composed}\n    Run(cfg).train()\n\nif __name__ == '__main__':\n    main()\n"
    report, texts = _migrated(tmp_path, **{"train.py": head + folder + main})
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert "self.net = amp.prepare_model(Net(width).to(device))" in texts["lib/agent.py"]
    assert "self.loader = amp.prepare_loader(hydra.utils.instantiate(cfg.loader))" in texts["train.py"]


def test_a_folder_that_is_one_of_two_is_not_guessed(tmp_path):
    head, _ = TRAIN.split("@hydra.main")
    main = """
def main():
    hydra.initialize("other")
    hydra.initialize("conf")
    Run(hydra.compose("train")).train()

main()
"""
    report, _ = _migrated(tmp_path, **{"train.py": head + main})
    assert report.precision == "declined", report.refusals


def test_without_the_runtime_a_loader_of_a_configuration_gets_no_sampler(tmp_path):
    report, texts = _migrated(tmp_path, target="torch")
    assert (report.precision, report.distribution) == ("migrated", "declined")
    assert any("does not say all that the loader is given" in item.message for item in report.refusals)
    assert "Sampler" not in "".join(texts.values())


def test_the_result_rests_on_the_files_of_the_configuration(tmp_path):
    report, _ = _migrated(tmp_path)
    assert {path.name for path in report.reach.settings} == {"plain.yaml", "train.yaml"}
    assert (tmp_path / "conf" / "agent", ("plain.yaml",)) in report.reach.folders


def test_every_file_that_the_command_line_may_choose_counts(tmp_path):
    other = AGENT.replace("class Agent", "class Other").replace("loss.backward()", "loss.backward(); print(loss)")
    report, texts = _migrated(
        tmp_path,
        **{"lib/other.py": other, "conf/agent/other.yaml": "_target_: lib.other.Other\nwidth: 4\ndevice: cpu\n"},
    )
    assert report.precision == "migrated", report.refusals
    assert set(texts) == {"train.py", "lib/agent.py", "lib/other.py"}


def test_a_model_and_an_optimizer_within_are_made_first(tmp_path):
    report, texts = _migrated(
        tmp_path,
        **{
            "lib/agent.py": GIVEN,
            "conf/agent/plain.yaml": """
                _target_: lib.agent.Agent
                device: ${device}
                model: {_target_: lib.nets.Net, width: 8}
                optimizer:
                  _target_: torch.optim.AdamW
                  _partial_: true
                  weight_decay: 0.1
                """,
        },
    )
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert "self.net = amp.prepare_model(model.to(device))" in texts["lib/agent.py"]
    assert "self.optimizer = optimizer(self.net.parameters(), lr=lr)" in texts["lib/agent.py"]


def test_a_model_that_is_instantiated_is_prepared_where_the_call_stands(tmp_path):
    script = """
        import hydra
        import torch.nn.functional as F

        @hydra.main("conf/train.yaml")
        def main(cfg):
            loader = hydra.utils.instantiate(cfg.loader)
            model = hydra.utils.instantiate(cfg.model).cuda()
            optimizer = hydra.utils.instantiate(cfg.optimizer, params=model.parameters())
            for x, y in loader:
                loss = F.cross_entropy(model(x.cuda()), y.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        if __name__ == "__main__":
            main()
        """
    settings = """
        loader:
          class: torch.utils.data.DataLoader
          params:
            batch_size: 8
            dataset: {class: lib.data.samples, params: {size: 64}}
        model:
          class: lib.nets.Net
          params:
            width: 8
        optimizer:
          _target_: torch.optim.Adam
          lr: 0.1
        """
    report, texts = _migrated(tmp_path, **{"train.py": script, "conf/train.yaml": settings})
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert "model = amp.prepare_model(hydra.utils.instantiate(cfg.model).cuda())" in texts["train.py"]
    assert "loader = amp.prepare_loader(hydra.utils.instantiate(cfg.loader))" in texts["train.py"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conf/train.yaml", "defaults: [{agent: plain}, {loader: train}]\nbase: &base {a: 1}\nother: *base\n"),
        ("conf/train.yaml", "defaults:\n  - agent: missing\n"),
        ("conf/agent/plain.yaml", "_target_: elsewhere.Agent\n"),
    ],
)
def test_what_is_not_read_declines(tmp_path, name, text):
    report, texts = _migrated(tmp_path, **{name: text})
    assert report.precision != "migrated"
    assert not texts


@pytest.mark.parametrize(
    "arguments",
    [
        'config_path=str(Path(__file__).parent.joinpath("conf")), config_name=Path(__file__).stem',
        'config_path=os.path.join(os.path.dirname(__file__), "conf"), config_name="train.yaml"',
        'config_path="./conf", config_name=NAME',
    ],
)
def test_paths_by_the_place_of_the_script_are_known(tmp_path, arguments):
    script = TRAIN.replace('config_path="conf", config_name="train"', arguments)
    script = script.replace("import hydra", 'import os\nfrom pathlib import Path\nimport hydra\n\nNAME = "train"')
    report, _ = _migrated(tmp_path, **{"train.py": script})
    assert report.precision == "migrated", report.refusals


def test_a_class_that_is_looked_up_by_its_path_is_known(tmp_path):
    script = TRAIN.replace(
        "hydra.utils.instantiate(cfg.agent, lr=cfg.lr)",
        "hydra.utils.get_class(cfg.agent._target_)(cfg.agent.width, cfg.lr, cfg.device)",
    )
    report, texts = _migrated(tmp_path, **{"train.py": script})
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals
    assert "lib/agent.py" in texts


def test_a_script_that_imports_itself_is_followed(tmp_path):
    script = TRAIN.replace("    Run(cfg)", "    from train import Run as R\n    R(cfg)")
    report, _ = _migrated(tmp_path, **{"train.py": script})
    assert (report.precision, report.distribution) == ("migrated", "migrated"), report.refusals


@pytest.mark.parametrize("name", ["train.py", "trackers/wandb.py", "beside.py"])
def test_only_the_script_imports_itself(name, tmp_path):
    (tmp_path / "trackers").mkdir()
    for path in ("train.py", "trackers/wandb.py", "beside.py"):
        (tmp_path / path).write_text("import torch\n")
    found = Project(tmp_path / "train.py").locate(tmp_path / name, Path(name).stem)
    assert (found == tmp_path / name) is (name == "train.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("a: 1 # one\nb: 'x # y'\nc: \"# z\"", {"a": "1", "b": "x # y", "c": "# z"}),
        ("a:\n  b: true\n  c: ~\nd:", {"a": {"b": True, "c": None}, "d": None}),
        ("a:\n- x\n- y: 1\n  z: [p, {q: r}]\nb: s", {"a": ["x", {"y": "1", "z": ["p", {"q": "r"}]}], "b": "s"}),
        ("a: [x,\n  y]\nb: ${now:%Y,%m}", {"a": ["x", "y"], "b": "${now:%Y,%m}"}),
        ("a: |\n  any: [text\n  below\nb: {c: '${d}', e: ${f}}", {"a": "", "b": {"c": "${d}", "e": "${f}"}}),
        ("- - a\n  - b\n- c", [["a", "b"], "c"]),
        ("a: ./exp/${now:%H}_x\nurl: http://a.b/c", {"a": "./exp/${now:%H}_x", "url": "http://a.b/c"}),
    ],
)
def test_yaml_is_read(text, expected):
    assert read_yaml(text) == expected


@pytest.mark.parametrize(
    "text", ["a: &x 1\nb: *x", "a: !!python/name:torch.nn.Linear", "a: 1\n---\nb: 2", "a: [1", "a: 'b"]
)
def test_yaml_that_is_not_understood_is_refused(text):
    with pytest.raises(NotRead):
        read_yaml(text)
