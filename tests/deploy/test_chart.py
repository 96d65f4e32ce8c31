"""The Helm chart: Helm renders it, Kubernetes' schemas accept the manifests, and Larder runs with their settings.

Helm is its Go library (helm-python-sdk). No cluster runs here: a test starts the commands of the containers with their
environment as processes of this machine.
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.settings import join_addresses, load
from dataplane.base import allowed_secrets
from dataplane.client import Space, attach
from dataplane.ping import ping
from dataplane.protocol.keys import chain
from tests import forked
from tests.dataplane.plane import wait_for
from tests.deploy.tools import ROOT, answer, node_in_sync, running
from tests.e2e import larder as one_machine
from tests.free_port import free_port
from tests.require import require

CHART = ROOT / "deploy" / "helm" / "larder"
KUBERNETES = ["1.28.0", "1.32.0", "1.37.0"]
NEEDED = "is not installed: .venv/bin/python -m pip install -r tests/deploy/requirements.txt"
ADMIN = "an-admin-token-of-more-than-32-characters"
EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "manager": {
        "allowedHosts": ["larder.example"],
        "env": {"LARDER_APP__LOG_LEVEL": "debug"},
        "nodeSelector": {"role": "control"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "priorityClassName": "system-cluster-critical",
    },
    "dataplane": {
        "sharedMemory": "hostPath",
        "allowedUids": [0, 1000],
        "env": {"LARDER_DATAPLANE__MLOCK": True},
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"a": "b"},
        "priorityClassName": "system-cluster-critical",
        "tiers": {
            "hostPaths": ["/mnt/nvme0/larder", "/mnt/nvme1/larder"],
            "claims": [{"claimName": "larder-tiers", "mountPath": "/mnt/shared"}],
            "secretFiles": ["larder-redis"],
            "secretEnv": {"TIER_S3_KEY": {"name": "larder-s3", "key": "access_key_id"}},
        },
    },
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "cache.example",
        "annotations": {"a": "b"},
        "tlsSecret": "larder-tls",
    },
    "joinToken": {"enabled": True, "uses": 100, "ttlDays": 30, "labels": {"rack": "7"}},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "metrics": {
        "serviceMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "tokenSecret": {"name": "larder-prometheus"},
        },
        "prometheusRule": {"enabled": True, "runbookBase": "https://git.example/larder/"},
        "dashboards": {"enabled": True},
    },
    "vllm": {
        "enabled": True,
        "huggingFaceSecret": "hugging-face",
        "extraArgs": ["--max-model-len=4096"],
        "env": {"LARDER_SHIM": "1"},
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"operator": "Exists"}],
    },
}
VALUES = [pytest.param({}, id="defaults"), pytest.param(EVERYTHING, id="everything")]


@pytest.fixture(scope="module")
def helm() -> Any:
    require(find_spec("helm_python"), f"helm-python-sdk {NEEDED}")
    return import_module("helm_python")


def manifests(helm: Any, values: dict[str, Any], name: str = "larder") -> dict[str, dict[str, Any]]:
    """The rendered objects by kind and name."""
    with helm.Chart.load(CHART) as chart:
        rendered = chart.render(values=values, name=name, namespace="inference")
    found = {}
    for path, text in rendered.items():
        if path.endswith(".yaml"):
            for each in filter(None, yaml.safe_load_all(text)):
                found[f"{each['kind']}/{each['metadata']['name']}"] = each
    return found


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return found


def environment_of(manifest: dict[str, Any]) -> dict[str, str]:
    """The environment of the only container, with stand-ins for what the cluster fills in."""
    (container,) = pod(manifest)["containers"]
    filled = {"NODE_NAME": "node-1.example", "POD_IP": "127.0.0.1"}
    found = {each["name"]: each.get("value", "") for each in container["env"]} | filled
    return {name: re.sub(r"\$\((\w+)\)", lambda match: filled[match[1]], value) for name, value in found.items()}


def test_helm_finds_no_fault_in_the_chart(helm: Any) -> None:
    found = helm.lint(CHART)
    assert found["errors"] == []
    assert [each for each in found["messages"] if "icon" not in each["error"]] == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VALUES)
def test_kubernetes_accepts_the_manifests(helm: Any, values: dict[str, Any], version: str) -> None:
    require(find_spec("kubernetes_validate"), f"kubernetes-validate {NEEDED}")
    kubernetes = import_module("kubernetes_validate")
    found = manifests(helm, values)
    assert {"Deployment/larder-manager", "DaemonSet/larder-dataplane", "Service/larder"} <= set(found)
    for name, manifest in found.items():
        if not name.startswith(("ServiceMonitor/", "PrometheusRule/")):  # custom resources
            kubernetes.validate(manifest, version, strict=True)


def test_large_numbers_stay_whole(helm: Any) -> None:
    """Such as the uids of OpenShift. Helm reads each number of a values file as a float."""
    large = {
        "poolBytes": 68719476736,
        "uid": 1000650000,
        "gid": 1000650001,
        "allowedUids": [1000660000, 2000000],
        "env": {"LARDER_DATAPLANE__MAX_BLOCKS": 4000000, "LARDER_DATAPLANE__PIN_BUDGET_RATIO": 0.25},
    }
    env = {"LARDER_APP__MAX_KEPT_PUSHES": 5000000}
    values = {"dataplane": large, "manager": {"env": env}}
    found = manifests(helm, values)
    assert not [name for name, each in found.items() if re.search(r"\de\+\d", json.dumps(each))]
    daemons = found["DaemonSet/larder-dataplane"]
    context = pod(daemons)["securityContext"]
    assert [context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [1000650000, *[1000650001] * 2]
    (chown,) = [each for each in pod(daemons)["initContainers"] if "chown" in json.dumps(each)]
    assert "chown 1000650000:1000650001 " in json.dumps(chown)
    environ = environment_of(daemons)
    assert environ["LARDER_POOL_BYTES"] == "68719476736"
    assert environ["LARDER_DATAPLANE__ALLOWED_UIDS"] == "1000660000,2000000"
    assert environ["LARDER_DATAPLANE__MAX_BLOCKS"] == "4000000"
    assert environ["LARDER_DATAPLANE__PIN_BUDGET_RATIO"] == "0.25"
    assert environment_of(found["Deployment/larder-manager"])["LARDER_APP__MAX_KEPT_PUSHES"] == "5000000"


def test_managers_are_spread_and_their_ingress_is_an_allowed_host(helm: Any) -> None:
    found = manifests(helm, EVERYTHING)
    (spread,) = pod(found["Deployment/larder-manager"])["topologySpreadConstraints"]
    labels = found["Deployment/larder-manager"]["spec"]["selector"]["matchLabels"]
    assert spread["labelSelector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget/larder-manager"]["spec"] == {
        "maxUnavailable": 1,
        "selector": {"matchLabels": labels},
    }
    ingress = found["Ingress/larder"]["spec"]
    assert ingress["ingressClassName"] == "nginx"
    assert ingress["tls"] == [{"hosts": ["cache.example"], "secretName": "larder-tls"}]
    (rule,) = ingress["rules"]
    assert rule["host"] == "cache.example"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "larder", "port": {"name": "http"}}
    hosts = environment_of(found["Deployment/larder-manager"])["LARDER_APP__ALLOWED_HOSTS"].split(",")
    assert {"cache.example", "larder.example"} <= set(hosts)
    for name in ("Deployment/larder-manager", "DaemonSet/larder-dataplane", "DaemonSet/larder-holder"):
        assert pod(found[name])["priorityClassName"] == "system-cluster-critical"


def test_optional_fields_are_left_out(helm: Any) -> None:
    assert set(manifests(helm, {})) == {
        "Deployment/larder-manager",
        "PodDisruptionBudget/larder-manager",
        "DaemonSet/larder-dataplane",
        "DaemonSet/larder-holder",
        "Service/larder",
        "Service/larder-gateway",
        "NetworkPolicy/larder-dataplane",
    }
    little = manifests(
        helm, {"dataplane": {"gatewayPort": 0}, "networkPolicy": {"enabled": False}, "manager": {"replicas": 1}}
    )
    assert set(little) == {
        "Deployment/larder-manager",
        "DaemonSet/larder-dataplane",
        "DaemonSet/larder-holder",
        "Service/larder",
    }
    found = manifests(helm, EVERYTHING)
    assert {"Deployment/larder-vllm", "ServiceMonitor/larder"} <= set(found)
    assert pod(found["Deployment/larder-vllm"])["containers"][0]["env"] == [{"name": "LARDER_SHIM", "value": "1"}]


def test_alerts_and_dashboards_are_those_of_the_other_deployments(helm: Any) -> None:
    found = manifests(helm, EVERYTHING, "kv")
    rules = (CHART.parents[1] / "prometheus" / "larder.rules.yml").read_text(encoding="utf-8")
    rules = rules.replace('job="larder"', 'job="kv-larder"').replace(
        "runbook_url: http://127.0.0.1:8470/docs/", "runbook_url: https://git.example/larder/docs/"
    )
    assert found["PrometheusRule/kv-larder"]["spec"] == yaml.safe_load(rules)
    for file in (CHART.parents[1] / "grafana" / "dashboards").glob("*.json"):
        data = found[f"ConfigMap/kv-larder-dashboard-{file.stem}"]["data"]
        assert json.loads(data[file.name]) == json.loads(file.read_bytes())


def test_alerts_link_to_the_runbook_of_the_service_by_default(helm: Any) -> None:
    found = manifests(helm, {"metrics": {"prometheusRule": {"enabled": True}}}, "kv")
    groups = found["PrometheusRule/kv-larder"]["spec"]["groups"]
    links = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule}
    page = "http://kv-larder.inference.svc:8470/docs/operate/runbook.md"
    assert {link.partition("#")[0] for link in links} == {page}


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"dataplane": {"poolByte": "1GiB"}}, "poolByte"),
        ({"dataplane": {"poolBytes": "1 GB"}}, "poolBytes"),
        ({"dataplane": {"uid": 0}}, "uid"),
        ({"manager": {"replicas": 0}}, "replicas"),
        ({"dataplane": {"tiers": {"hostPaths": ["mnt/nvme0"]}}}, "hostPaths"),
        ({"dataplane": {"tiers": {"claims": [{"claimName": "a"}]}}}, "mountPath"),
        ({"dataplane": {"tiers": {"secretEnv": {"TIER_KEY": "literal"}}}}, "TIER_KEY"),
        ({"dataplane": {"tiers": {"secretEnv": {"LARDER_TOKEN": {"name": "a", "key": "b"}}}}}, "LARDER_TOKEN"),
        ({"secrets": {"join": {"name": ""}}}, "name"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "viewer's token"),
        ({"vllm": {"enabled": True}, "dataplane": {"gatewayPort": 0}}, "needs the gateway"),
        ({"ingress": {"enabled": True}}, "ingress: needs a host"),
    ],
)
def test_wrong_values_are_refused(helm: Any, values: dict[str, Any], fault: str) -> None:
    with pytest.raises(helm.HelmError, match=fault):
        manifests(helm, values)


@pytest.mark.parametrize("values", VALUES)
def test_the_settings_of_the_containers_are_settings_that_larder_knows(
    helm: Any, values: dict[str, Any], tmp_path: Path
) -> None:
    found = manifests(helm, values)
    environ = environment_of(found["Deployment/larder-manager"])
    (token := tmp_path / "token").write_text("t" * 64, encoding="ascii")
    token.chmod(0o600)
    settings = load(environ=environ | {"LARDER_APP__ADMIN_TOKEN_FILE": str(token), "LARDER_DATABASE_URL": ""})
    assert not settings.app.embedded_data_plane
    assert join_addresses(settings.app) == ("tcp://larder.inference.svc:8471",)
    assert "larder.inference.svc" in settings.app.allowed_hosts.split(",")
    serving = environment_of(found["DaemonSet/larder-dataplane"])
    environ = {**os.environ, **serving, "LARDER_STATE_DIR": str(tmp_path)}
    printed = forked.run("dataplane", "--print-config", "--join-token-file", str(token), env=environ)
    assert printed.returncode == 0, printed.stderr
    config = json.loads(printed.stdout)
    assert config["pool_bytes"] == 8 << 30
    assert config["dataplane"]["node"] == "node-1.example"


@pytest.mark.parametrize("values", VALUES)
def test_no_pod_gets_variables_or_rights_that_it_does_not_need(helm: Any, values: dict[str, Any]) -> None:
    """The variables of service links begin with the name of the Service: LARDER_PORT would be an unknown setting."""
    for name, manifest in manifests(helm, values).items():
        if "template" not in manifest.get("spec", {}):
            continue
        spec = pod(manifest)
        assert spec["enableServiceLinks"] is False, name
        assert spec["automountServiceAccountToken"] is (manifest["kind"] == "Job"), name
        if not name.endswith("-vllm"):
            for container in spec["containers"]:
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
                assert container["securityContext"]["readOnlyRootFilesystem"]


def test_a_data_plane_is_guaranteed_if_requests_and_limits_are_equal(helm: Any) -> None:
    def is_guaranteed(**resources: Any) -> bool:
        spec = pod(manifests(helm, {"dataplane": {"resources": resources}})["DaemonSet/larder-dataplane"])
        return all(
            {"cpu", "memory"} <= container["resources"]["limits"].keys()
            and container["resources"]["limits"] == container["resources"]["requests"]
            for container in (*spec["initContainers"], *spec["containers"])
        )

    assert not is_guaranteed()
    assert is_guaranteed(requests={"cpu": 4, "memory": "66Gi"}, limits={"cpu": 4, "memory": "66Gi"})


class Cluster(ThreadingHTTPServer):
    """The secrets of a Kubernetes API."""

    def __init__(self) -> None:
        self.secrets: dict[str, dict[str, str]] = {}
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                name = self.path.removeprefix("/api/v1/namespaces/inference/secrets/")
                if name in cluster.secrets:
                    cluster.secrets[name] |= self.body()["data"]
                self.answer(200 if name in cluster.secrets else 404)

            def do_POST(self) -> None:
                assert self.path == "/api/v1/namespaces/inference/secrets"
                body = self.body()
                cluster.secrets[body["metadata"]["name"]] = body["data"]
                self.answer(201)

            def body(self) -> Any:
                assert self.headers["Authorization"] == "Bearer of-the-pod"
                return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

            def answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def test_each_revision_replaces_the_join_token(helm: Any, socket_dir: Path, tmp_path: Path) -> None:
    rendered = manifests(helm, {"joinToken": {"enabled": True, "uses": 7, "ttlDays": 2, "labels": {"rack": "7"}}})
    job = rendered["Job/larder-join-token-1"]
    for name, text in {"token": "of-the-pod", "namespace": "inference", "admin": ADMIN}.items():
        (tmp_path / name).write_text(text)
    port = free_port()
    settings = {"LARDER_APP__ADMIN_TOKEN": ADMIN, "LARDER_APP__JOIN_URL": f"tcp://127.0.0.1:{port}"}
    with one_machine.running(socket_dir, **settings) as larder, Cluster() as cluster:
        threading.Thread(target=cluster.serve_forever, daemon=True).start()
        environ = environment_of(job) | {
            "LARDER_URL": larder.url,
            "LARDER_TOKEN_FILE": str(tmp_path / "admin"),
            "GRACE_S": "0",
            "KUBERNETES_URL": f"http://127.0.0.1:{cluster.server_port}",
            "SERVICE_ACCOUNT": str(tmp_path),
        }
        (container,) = pod(job)["containers"]
        seen = []
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", *container["args"]], env=environ, capture_output=True, text=True, timeout=120
            )
            assert done.returncode == 0, done.stderr
            seen.append(base64.b64decode(cluster.secrets["larder-join"]["token"]).decode())
            larder.api.headers["Authorization"] = f"Bearer {ADMIN}"
            (record,) = larder.get("join-tokens")["items"]
            assert record["name"] == "helm/larder"
            assert (record["uses_left"], record["labels"]) == (7, {"rack": "7"})
            assert record["expires_at"] - record["created_at"] == pytest.approx(2 * 86_400)
            assert f"has the join token {record['id']}" in done.stdout
        cluster.shutdown()
    assert seen[0] != seen[1]


def test_data_planes_get_the_directories_and_secrets_of_tiers(helm: Any) -> None:
    spec = pod(manifests(helm, EVERYTHING)["DaemonSet/larder-dataplane"])
    volumes = {each["name"]: each for each in spec["volumes"]}
    (folders,), (serving,) = spec["initContainers"], spec["containers"]
    mounts = {each["mountPath"]: each for each in serving["volumeMounts"]}
    for path in ("/mnt/nvme0/larder", "/mnt/nvme1/larder"):
        assert volumes[mounts[path]["name"]]["hostPath"] == {"path": path, "type": "DirectoryOrCreate"}
    shared = mounts["/mnt/shared"]
    assert volumes[shared["name"]]["persistentVolumeClaim"] == {"claimName": "larder-tiers"}
    assert shared["subPathExpr"] == "$(NODE_NAME)", "two nodes must not use one directory"
    assert "NODE_NAME" in {each["name"] for each in folders["env"]}
    for path in ("/mnt/nvme0/larder", "/mnt/nvme1/larder", "/mnt/shared"):
        assert mounts[path] in folders["volumeMounts"]
        assert f"chown 10001:10001 '{path}'\n" in folders["command"][-1]
    secret = mounts["/etc/larder/tier-secrets/larder-redis"]
    assert secret["readOnly"]
    assert volumes[secret["name"]]["secret"]["secretName"] == "larder-redis"
    (variable,) = [each for each in serving["env"] if each["name"] == "TIER_S3_KEY"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "larder-s3", "key": "access_key_id"}}
    references = ["file:/etc/larder/tier-secrets/larder-redis/password", "env:TIER_S3_KEY"]
    assert list(allowed_secrets.faults(references, allowed_secrets.DEFAULT)) == []


@pytest.mark.parametrize("mode", ["hostIPC", "hostPath"])
def test_engines_map_the_memory_of_the_data_plane_of_their_node(helm: Any, mode: str) -> None:
    found = manifests(helm, {"dataplane": {"sharedMemory": mode}, "vllm": {"enabled": True}})
    serving, engine = pod(found["DaemonSet/larder-dataplane"]), pod(found["Deployment/larder-vllm"])
    for spec in (serving, engine):
        assert spec["hostIPC"] is (mode == "hostIPC")
        mounts = {each["mountPath"] for each in spec["containers"][0].get("volumeMounts", [])}
        assert ("/dev/shm" in mounts) is (mode == "hostPath")
    gateway = found["Service/larder-gateway"]["spec"]
    assert gateway["internalTrafficPolicy"] == "Local"
    arguments = engine["containers"][0]["args"]
    options = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]
    assert options["lmcache.mp.host"] == "tcp://larder-gateway"
    assert options["lmcache.mp.port"] == gateway["ports"][0]["port"]
    labels = found["Deployment/larder-vllm"]["spec"]["template"]["metadata"]["labels"]
    rules = found["NetworkPolicy/larder-dataplane"]["spec"]["ingress"]
    assert any(labels.items() >= rule["from"][0]["podSelector"]["matchLabels"].items() for rule in rules)


@pytest.mark.parametrize("values", VALUES)
def test_the_holder_of_a_node_shares_the_mounts_of_its_data_plane(helm: Any, values: dict[str, Any]) -> None:
    found = manifests(helm, values)
    holding, serving = (pod(found[f"DaemonSet/larder-{name}"]) for name in ("holder", "dataplane"))
    for name in ("hostIPC", "securityContext", "nodeSelector", "tolerations", "affinity"):
        assert holding.get(name) == serving.get(name), name
    for name in ("volumes", "volumeMounts"):
        mine, others = ((spec if name == "volumes" else spec["containers"][0])[name] for spec in (holding, serving))
        assert all(each in others for each in mine)
    assert found["DaemonSet/larder-holder"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    environ = environment_of(found["DaemonSet/larder-holder"])
    expected = environment_of(found["DaemonSet/larder-dataplane"])
    assert environ["LARDER_STATE_DIR"] == expected["LARDER_STATE_DIR"]
    assert expected["LARDER_DATAPLANE__EXTERNAL_HOLDER"] == "true"


def test_the_chart_has_the_version_of_the_project(version: str) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)


def container(
    manifest: dict[str, Any], environ: dict[str, str], paths: dict[str, str], log: Path
) -> AbstractContextManager[forked.AnyProcess]:
    """Run the only container's arguments and environment here; `paths` maps its folders to folders of this machine."""

    def here(text: str) -> str:
        for folder, ours in paths.items():
            text = text.replace(folder, ours)
        return text

    arguments = map(here, pod(manifest)["containers"][0]["args"])
    given = environment_of(manifest) | environ
    return running(log, "larder", *arguments, environ={name: here(value) for name, value in given.items()})


def test_a_data_plane_joins_the_manager_with_the_settings_of_the_chart(helm: Any, socket_dir: Path) -> None:
    ports = {name: free_port() for name in ("httpPort", "joinPort", "controlPort", "eventsPort")}
    found = manifests(
        helm,
        {
            "manager": {"httpPort": ports["httpPort"], "joinPort": ports["joinPort"]},
            "dataplane": {
                "poolBytes": "16MiB",
                "controlPort": ports["controlPort"],
                "eventsPort": ports["eventsPort"],
                "gatewayPort": 0,
            },
        },
    )
    log, secret = socket_dir / "log", "a" * 64
    folders = {"/run/secrets": "secrets", "/var/lib/larder": "state", "/run/larder": "run"}
    paths = {folder: str(socket_dir / name) for folder, name in folders.items()}
    for name in ("admin", "curve", "join"):
        (socket_dir / "secrets" / f"larder-{name}").mkdir(parents=True, mode=0o700)
    admin, curve, join = (
        socket_dir / "secrets" / name
        for name in ("larder-admin/token", "larder-curve/manager.key", "larder-join/token")
    )
    for file, text in ((admin, secret), (curve, _curve_key())):
        file.write_text(text, encoding="ascii")
        file.chmod(0o600)
    api = f"http://127.0.0.1:{ports['httpPort']}"
    managing = {
        "LARDER_DATABASE_URL": f"sqlite+aiosqlite:///{socket_dir}/larder.db",
        "LARDER_APP__JOIN_ADDRESSES": f"tcp://127.0.0.1:{ports['joinPort']}",
        "LARDER_STATE_DIR": str(socket_dir / "manager"),
        "LARDER_APP__SHUTDOWN_GRACE_S": "20",  # a busy machine takes longer than the default
    }

    with ExitStack() as stack:
        stack.enter_context(container(found["Deployment/larder-manager"], managing, paths, log))
        wait_for(lambda: answer(f"{api}/healthz"), "the manager is ready")
        words = ("nodes", "token", "create", "--name", "larder", "--uses", "100", "--ttl", "1h")
        made = forked.run("app", *words, env={**os.environ, "LARDER_TOKEN": secret, "LARDER_URL": api})
        assert made.returncode == 0, made.stderr
        join.write_text(made.stdout.strip(), encoding="ascii")  # as $(…) and --from-literal do
        join.chmod(0o600)
        holding, plane = (found[f"DaemonSet/larder-{name}"] for name in ("holder", "dataplane"))
        stack.enter_context(container(holding, {}, paths, log))
        process = stack.enter_context(container(plane, {}, paths, log))
        joined = wait_for(lambda: node_in_sync(api, secret), "the node is in sync")
        assert joined["name"] == "node-1.example"
        (spec,) = plane["spec"]["template"]["spec"]["containers"]
        socket = f"{socket_dir}/run/engine.sock"
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            assert spec[probe]["exec"]["command"] == ["python", "-m", "dataplane.ping"]
        assert pinged(socket) == (0, "")
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):  # although a process that hangs accepts connections
                ping(socket, 0.2)
        finally:
            process.send_signal(signal.SIGCONT)
        keys, space = chain(list(range(512))), Space(model="m")
        with attach(socket, [space], timeout_s=60) as client:
            wait_for(lambda: client.connected, "the engine is attached")
            with client.reserve(keys, 4096) as room:
                assert room.commit().blocks == 2
        process.kill()
        process.wait(60)
        stack.enter_context(container(plane, {}, paths, log))
        with attach(socket, [space], timeout_s=60) as client:
            wait_for(lambda: client.lookup(keys) == 2, "the next pod has the blocks")
        (spec,) = pod(holding)["containers"]
        for probe in ("livenessProbe", "startupProbe"):
            assert spec[probe]["exec"]["command"][:3] == ["python", "-m", "dataplane.ping"]
        (path,) = spec["livenessProbe"]["exec"]["command"][3:]
        assert pinged(socket, path.replace("/var/lib/larder", paths["/var/lib/larder"])) == (0, "")


def pinged(socket: str, *arguments: str) -> tuple[int, str]:
    """Run a probe. Return its exit code and its error."""
    probe = forked.run("dataplane.ping", *arguments, env={**os.environ, "LARDER_ENGINE_SOCKET": socket})
    return probe.returncode, probe.stderr


def _curve_key() -> str:
    import zmq

    return zmq.curve_keypair()[1].decode("ascii")
