"""The manifests of docs/kubernetes.md: their fields, and their commands with the variables that the operators set.

kubernetes_fields.json was written for them: of the operators' definitions it has what the manifests use, and no more.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from launching import Launcher, free_port
from restarting import SCRIPT, all_of, weights

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs/kubernetes.md").read_text(encoding="utf-8")
FIELDS = json.loads((FOLDER / "kubernetes_fields.json").read_text(encoding="utf-8"))
MANIFESTS: dict[str, Any] = {
    manifest["kind"]: manifest
    for manifest in map(yaml.safe_load, re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
}
KINDS = ("PyTorchJob", "TrainJob")


def faults(manifest: Any) -> list[str]:
    schema = FIELDS[manifest["kind"]] | {"$defs": FIELDS["$defs"]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_has_the_fields_of_its_kind(kind: str) -> None:
    assert set(MANIFESTS) == set(KINDS)
    assert faults(MANIFESTS[kind]) == []


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("PyTorchJob", "spec.nprocPerNode", 8),
        ("PyTorchJob", "spec.elasticPolicy.max_restarts", 3),
        ("PyTorchJob", "spec.pytorchReplicaSpecs.Workers", {}),
        ("PyTorchJob", "spec.pytorchReplicaSpecs.Worker.template.spec.containers", [{"name": "trainer"}]),
        ("TrainJob", "spec.runtimeRef", {}),
        ("TrainJob", "spec.trainer.numProcPerNode", "8"),
        ("TrainJob", "apiVersion", "kubeflow.org/v1"),
    ],
)
def test_another_field_or_type_is_noticed(kind: str, path: str, value: object) -> None:
    part = manifest = copy.deepcopy(MANIFESTS[kind])
    *folders, last = path.split(".")
    for name in folders:
        part = part[name]
    part[last] = value
    assert len(faults(manifest)) == 1


def pods(kind: str) -> list[tuple[list[str], dict[str, str]]]:
    """The command and the variables of each pod, as the operator of the kind sets them, with one process in each.

    The pods' names are those of this machine.
    """
    spec, port = MANIFESTS[kind]["spec"], str(free_port())
    if kind == "PyTorchJob":
        worker, policy = spec["pytorchReplicaSpecs"]["Worker"], spec["elasticPolicy"]
        count, (container,) = worker["replicas"], worker["template"]["spec"]["containers"]
        variables = {
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
            "PET_RDZV_BACKEND": policy["rdzvBackend"],
            "PET_RDZV_ID": policy["rdzvId"],
            "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
        }
    else:
        count, container = spec["trainer"]["numNodes"], spec["trainer"]
        variables = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    variables |= {"PET_NNODES": str(count), "PET_NPROC_PER_NODE": "1", "PET_LOCAL_ADDR": "127.0.0.1"}
    known = re.compile(r"\$\((\w+)\)")
    command = [known.sub(lambda name: variables[name[1]], word) for word in container["command"]]
    own = [{"PET_NODE_RANK": str(number)} if kind == "TrainJob" else {} for number in range(count)]
    return [(command, variables | more) for more in own]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_of_a_manifest_train_together_also_when_a_process_is_killed(
    kind: str, tmp_path: Path, launcher: Launcher
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "quiet").mkdir()
    assert launcher.together(script, tmp_path / "quiet").returncode == 0
    generator = random.Random(str(tmp_path))
    killed = json.dumps([generator.randrange(2), generator.randrange(1, 15)])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where torchrun is
    all_of([(command, variables | {"KILL": killed, "PATH": path}) for command, variables in pods(kind)], tmp_path)
    assert (tmp_path / "killed").exists(), killed
    assert weights(tmp_path) == weights(tmp_path / "quiet"), killed
