"""Each process says at its start, in one line, what it can reach and what it cannot."""

from pathlib import Path

from harness.processes import Process
from simulator import SimulatedKubelet

PLUGIN = """
version: 1
resources:
  - name: example.com/cola
    discover: [{files: {directory: /etc/colas}}]
"""


async def test_beside_a_kubelet_all_can_be_reached(root: Path) -> None:
    host, configuration = root / "host", root / "plugin.yaml"
    (host / "etc/colas").mkdir(parents=True)
    configuration.write_text(PLUGIN)
    history = root / "history/deep/history.sqlite"
    async with SimulatedKubelet(root):
        common = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0")
        async with (
            Process("exporter", *common, "--history.path", str(history)) as exporter,
            Process("plugin", *common, "--config", str(configuration), "--host-root", str(host)) as plugin,
        ):
            line = await exporter.line(' reach"')
            assert 'msg="can reach"' in line, line
            for words in ("pod_resources=served", "device_plugins=readable", "history=writable"):
                assert words in line, line
            line = await plugin.line(' reach"')
            assert 'msg="can reach"' in line, line
            for words in (
                "device_plugins=writable",
                "registration=served",
                "pod_resources=served",
                "host_root=readable",
            ):
                assert words in line, line
            # It looks into none of these, so that they are not there is nothing to tell.
            assert "sys_" not in line
            assert "lacking=" not in line


async def test_what_is_seen_of_cdi_in_the_runtime(root: Path) -> None:
    host, configuration = root / "host", root / "plugin.yaml"
    for directory in ("etc/colas", "var/run/cdi", "etc/containerd"):
        (host / directory).mkdir(parents=True)
    configuration.write_text(f"{PLUGIN}    cdi: {{kind: example.com/cola, env: {{A: b}}}}\n")
    runtime = host / "etc/containerd/config.toml"
    common = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0")
    flags = ("plugin", *common, "--config", str(configuration), "--host-root", str(host))
    async with SimulatedKubelet(root):
        async with Process(*flags) as plugin:
            line = await plugin.line(' reach"')
            assert 'msg="can reach"' in line, line
            assert 'cdi_runtime="not known: containerd 1.7 with enable_cdi' in line, line
        runtime.write_text('version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n')
        async with Process(*flags) as plugin:
            line = await plugin.line(' reach"')
            assert "lacking=cdi_runtime" in line, line
            assert f"set enable_cdi = true in /{runtime.relative_to(host)}" in line, line


async def test_without_a_kubelet_each_lack_has_its_hint(root: Path) -> None:
    common = ("--kubelet.root", str(root), "--web.listen-address", "127.0.0.1:0")
    async with Process("exporter", *common, "--pods.source", "pods-api") as exporter:
        line = await exporter.line(' reach"')
        assert "lacking=pod_resources,device_plugins,pods_api" in line
        assert f"mount the directory {root}/pod-resources of the node" in line
        assert f"mount the node's {root}/device-plugins" in line
