"""What a project's requirements say of the packages whose kernels its models call."""

from pathlib import Path

import pytest
from amp_rules.plan.options import Options
from migrating import migrated

SCRIPT = """\
import dgl
import dgl.function as fn
import torch
from dgl.nn.pytorch import GraphConv, edge_softmax
from torch import nn
from torch.utils.data import DataLoader
from data import Graphs, collate


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, graph, x):
        graph = graph.local_var()
        graph.ndata["h"] = self.linear(x)
        graph.edata["a"] = self.attention(graph, self.score(x))
        graph.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "h"))
        return graph.ndata["h"]

    def attention(self, graph, scores):
        return edge_softmax(graph, scores)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GraphConv(8, 32)
        self.second = Layer(32)
        self.last = nn.Linear(32, 2)

    def forward(self, graph, x):
        graph.ndata["h"] = self.second(graph, torch.relu(self.first(graph, x)))
        return self.last(dgl.mean_nodes(graph, "h"))


loader = DataLoader(Graphs(), batch_size=16, shuffle=True, collate_fn=collate)
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for graph, labels in loader:
    loss = nn.functional.cross_entropy(model(graph, graph.ndata["x"].cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

IN_FLOAT32 = (
    "    @amp.float_function\n    def forward(self, graph, x):\n        graph = graph.local_var()",
    "    @amp.float_function\n    def attention(self, graph, scores):",
    "self.first = amp.float_function(GraphConv(8, 32))",
)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("requirements.txt", "torch==1.5.0\ndgl==0.4.3.post2\n"),
        ("requirements-gpu.txt", "dgl-cu101 == 0.7.0"),
        ("environment.yml", "dependencies:\n  - python=3.7\n  - dgl=0.6.1\n"),
    ],
)
def test_message_passing_of_a_pinned_dgl_without_half_runs_in_fp32(tmp_path: Path, name: str, line: str) -> None:
    files = {"train.py": SCRIPT.encode(), name: line.encode()}
    text = migrated(tmp_path, files, Options())[1]["train.py"].decode()
    assert all(part in text for part in IN_FLOAT32)
    assert text.count("float_function") == len(IN_FLOAT32)


@pytest.mark.parametrize("line", ["dgl==1.1.2\n", "dgl>=0.4\n", "dgllife==0.2.8\n", "# dgl==0.4.3\n", ""])
def test_other_versions_of_dgl_compute_in_half(tmp_path: Path, line: str) -> None:
    files = {"train.py": SCRIPT.encode(), "requirements.txt": line.encode()}
    assert "float_function" not in migrated(tmp_path, files, Options())[1]["train.py"].decode()
