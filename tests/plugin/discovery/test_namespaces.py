"""The source `net` on this kernel: network namespaces, real interfaces, real routes."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.tools import required
from plugin.discovery.host import HostRoot
from plugin.discovery.net import Net
from plugin.discovery.source import Findings

PROJECT = Path(__file__).parents[3]
KINDS = {"kinds": ["pci", "hardware", "virtual"]}

LOOK = """\
import json, sys
from pathlib import Path
import msgspec
from plugin.discovery.host import HostRoot
from plugin.discovery.net import Net
written = msgspec.convert(json.loads(sys.argv[2]), Net)
findings = written.scanner().scan(HostRoot(Path(sys.argv[1])))
print(json.dumps([[f.name for f in findings.found], findings.notes]))
"""


def inside(script: str) -> list[str]:
    """Run a shell script in namespaces of its own; its lines. Skips where that is not allowed here."""
    command = [required("unshare", "util-linux"), "--net", "--pid", "--fork", "--mount", "sh", "-ec", script]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode and "not permitted" in done.stderr:
        pytest.skip(f"namespaces cannot be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def scan(root: str, **written: object) -> str:
    """The shell's command that scans from within namespaces."""
    return f"PYTHONPATH=. {sys.executable} -c '{LOOK}' {root} '{json.dumps(written)}'"


def here(**written: object) -> Findings:
    return msgspec.convert(written, Net).scanner().scan(HostRoot(Path("/")))


def test_a_pod_without_the_host_s_namespaces_sees_the_host_s_interfaces_and_routes(root: Path) -> None:
    """Neither hostNetwork nor hostPID: what is mounted from the host shows the host's own."""
    if not Path("/sys/class/net").exists() or not Path("/proc/1/net/route").exists():
        pytest.skip("this machine has no /sys/class/net, or no /proc/1/net/route")
    mounted = f"""\
mkdir -p {root}/h/sys {root}/h/proc
mount --bind /sys {root}/h/sys
mount --bind /proc {root}/h/proc
mount -t sysfs none /sys
mount -t proc none /proc
"""
    host, own = map(
        json.loads, inside(f"{mounted}{scan(f'{root}/h', **KINDS)}\n{scan('/', kinds=['virtual'])}\n")
    )
    expected = here(**KINDS)
    assert host == [[f.name for f in expected.found], [*expected.notes]]
    assert own == [[], ["no network function or interface is selected"]]


def test_real_interfaces_with_a_default_route_and_those_below_them_are_left_out() -> None:
    required("ip", "iproute2")
    script = f"""\
mount -t sysfs none /sys
mount -t proc none /proc
ip link add dl0 type veth peer name far0
ip link add dl1 type veth peer name far1
ip link add dlbr type bridge
{scan("/", kinds=["virtual"])}
ip address add 192.0.2.1/24 dev dl0
ip link set dl0 up
ip route add default via 192.0.2.2
ip link set dl1 master dlbr
ip link set dlbr up
ip -6 route add default dev dlbr
{scan("/", kinds=["virtual"])}
"""
    try:
        before, after = map(json.loads, inside(script))
    except AssertionError as error:
        if "Unknown device type" in str(error):
            pytest.skip("this kernel has no veth interfaces or no bridges")
        raise
    assert before == [["dl0", "dl1", "dlbr", "far0", "far1"], []]
    left_out = [f"{name} is left out: it has the host's default route" for name in ("dl0", "dl1", "dlbr")]
    assert after == [["far0", "far1"], left_out]
