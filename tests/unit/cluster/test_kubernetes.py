"""The manifests for Kubernetes: schemas, names, shell code, and commands."""

import json
import re
import shlex
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml

from command_line import command_of
from parabench.cli import main
from paths import FIXTURES, ROOT

FOLDER = ROOT / "examples" / "kubernetes"
PYTORCHJOB = json.loads((FIXTURES / "kubernetes_schemas" / "pytorchjob.schema.json").read_text())
# backoffLimitPerIndex needs no feature gate since 1.29.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
KINDS = {
    "pytorchjob.yaml": ["PersistentVolumeClaim", "NetworkPolicy", "PyTorchJob"],
    "indexed-job.yaml": ["Service", "NetworkPolicy", "Job"],
    "copy-results.yaml": ["Pod"],
}


def documents(name):
    # Through JSON, as in kubectl: an alias becomes a copy.
    return json.loads(json.dumps(list(yaml.safe_load_all((FOLDER / name).read_text()))))


def document(name, kind):
    (found,) = (each for each in documents(name) if each["kind"] == kind)
    return found


def replicas():
    return document("pytorchjob.yaml", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]


def check(found, version):
    """Raise an error if a document does not fit the schema of its kind."""
    if found["kind"] != "PyTorchJob":
        kubernetes_validate.validate(found, version, strict=True)
        return
    jsonschema.validate(found, PYTORCHJOB)
    template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": found["metadata"]}
    for spec in found["spec"]["pytorchReplicaSpecs"].values():
        kubernetes_validate.validate(template | {"template": spec["template"]}, version, strict=True)


def commands():
    """Return the command of every container that runs parabench, without its shell."""
    master, worker = (replicas()[each]["template"]["spec"]["containers"][0] for each in ("Master", "Worker"))
    return [master["command"], worker["command"], shlex.split(snippet().removeprefix("exec "))]


def snippet():
    (container,) = document("indexed-job.yaml", "Job")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (text,) = container["args"]
    return text.replace("\\\n", " ").strip()


def readme():
    return re.findall(r"^```sh\n(.*?)^```$", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", KINDS)
def test_manifests_fit_their_schemas(name, version):
    for found in documents(name):
        check(found, version)


def pod(found):
    if found["kind"] == "PyTorchJob":
        return found["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return found["spec"]["template"]["spec"]


def test_manifests_restart_only_other_nodes():
    """Node 0 is not restarted, because it would start a new session."""
    assert {name: each["restartPolicy"] for name, each in replicas().items()} == {
        "Master": "Never", "Worker": "ExitCode",
    }  # fmt: skip
    # Every index alike, so node 0 too, with an empty volume.
    assert document("indexed-job.yaml", "Job")["spec"]["backoffLimitPerIndex"] == 0


def test_manifests_agree_on_gpus_and_nodes():
    job = document("indexed-job.yaml", "Job")["spec"]
    options = dict(zip(commands()[2][3::2], commands()[2][4::2], strict=True))
    assert job["completionMode"] == "Indexed"
    assert int(options["--nnodes"]) == job["completions"] == job["parallelism"] == 2
    gpus = job["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert int(options["--nproc-per-node"]) == gpus
    assert options["--node-rank"] == "$JOB_COMPLETION_INDEX"

    kubeflow = document("pytorchjob.yaml", "PyTorchJob")
    limits = pod(kubeflow)["containers"][0]["resources"]["limits"]
    assert int(kubeflow["spec"]["nprocPerNode"]) == limits["nvidia.com/gpu"]
    assert sum(each["replicas"] for each in replicas().values()) == 2
    # Flags that the operator sets as PET_ variables are not in the command.
    of_operator = {"--nnodes", "--nproc-per-node", "--node-rank", "--rdzv-endpoint", "--master-addr", "--master-port"}
    assert not of_operator & {word.partition("=")[0] for word in commands()[0]}


def test_manifests_agree_on_names():
    service = document("indexed-job.yaml", "Service")
    job = document("indexed-job.yaml", "Job")
    name = job["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert f"--rdzv-endpoint {name}-0.{service['metadata']['name']}:29400 " in snippet()
    for file, kind, label in (
        ("indexed-job.yaml", "Job", "batch.kubernetes.io/job-name"),
        ("pytorchjob.yaml", "PyTorchJob", "training.kubeflow.org/job-name"),
    ):
        pods = {"matchLabels": {label: document(file, kind)["metadata"]["name"]}}
        assert document(file, "NetworkPolicy")["spec"] == {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}], "ports": [{"protocol": "TCP"}]}],
        }
        ((apart,),) = pod(document(file, kind))["affinity"]["podAntiAffinity"].values()
        assert apart == {"labelSelector": pods, "topologyKey": "kubernetes.io/hostname"}


@pytest.mark.parametrize("words", commands(), ids=["Master", "Worker", "Job"])
def test_manifests_run_with_valid_options(words):
    assert words[:2] == ["parabench", "run"]
    options = ["0" if word == "$JOB_COMPLETION_INDEX" else word for word in words[2:]]
    command_of("run").make_context("run", options, **main.context_settings)


def test_shell_of_manifests_is_valid():
    assert len(readme()) == 4
    for text in (snippet(), *readme()):
        done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), text
