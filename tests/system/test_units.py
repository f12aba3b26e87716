#!/usr/bin/env python3
"""The units of systemd: a machine in a container boots them, switch, node settings and sweep, in order, and boots again."""

import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import ROOT, daemon_path
from lab.cni import plugin_path
from lab.runner import Skip, limit, main
from test_node import tool

# The machine's card, and one across the wire.
NETWORK = """#!/bin/sh -e
sysctl -qw net.ipv4.conf.all.rp_filter=0 || true
ip netns add peer
ip link add nic0 type veth peer name p0 netns peer
ip link set lo up
ip addr add 10.1.0.1/24 dev nic0
ip link set nic0 up
ip -n peer addr add 10.1.0.2/24 dev p0
ip -n peer link set p0 up
"""
NODE = """check = "10.1.0.2"
check_seconds = 20
[[bridge]]
name = "br-ex"
nic = "nic0"
"""
UNIT = """[Unit]
DefaultDependencies=no
{unit}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={start}
"""
# The machine's report when all units are up, one fact a line.
SAY = """#!/bin/sh
for unit in ovsdb-server heddled heddle-node heddle-cni-sweep; do
    echo "$unit $(systemctl is-active $unit) $(systemctl show --value -p ActiveEnterTimestampMonotonic $unit)"
done
echo "oom $(systemctl show --value -p OOMScoreAdjust heddled) $(cat /proc/$(systemctl show --value -p MainPID heddled)/oom_score_adj)"
echo "addresses $(ip -br -4 addr show br-ex)"
ip netns exec peer ping -n -c 3 -i 0.2 10.1.0.1 | grep received
echo "pods $(ovs-vsctl --bare --columns=name find interface external_ids:heddle-cni/container=c1)"
if [ ! -e /result/second ]; then
    # The objects of a pod whose machine goes down.
    ovs-vsctl add-br br-int -- add-port br-int hpod -- set interface hpod type=internal external_ids:heddle-cni/container=c1 \\
        external_ids:heddle-cni/netns=/run/netns/pod
    echo "added $(ovs-vsctl --bare --columns=name find interface external_ids:heddle-cni/container=c1)"
    systemctl stop heddle-node
    echo "stopped $(ip -br -4 addr show br-ex)"
    systemctl kill -s KILL heddled
    for i in $(seq 100); do
        sleep 0.2
        ip netns exec peer ping -n -c 1 -W 1 10.1.0.1 >/dev/null && [ "$(systemctl is-active heddled)" = active ] && break
    done
    echo "killed $(systemctl is-active heddled) $(systemctl show --value -p NRestarts heddled)"
    ip netns exec peer ping -n -c 3 -i 0.2 10.1.0.1 | grep received
fi
systemctl poweroff
"""


class Container:
    """A machine whose files are this one's, with changes of its own."""

    def __init__(self, lab):
        if not shutil.which("systemd-nspawn"):
            raise Skip("systemd-nspawn is not installed (package systemd-container)")
        self.lab, self.dir = lab, tempfile.mkdtemp(prefix="heddle-units-")
        lab.cleanups.append(self.close)
        run = lab.trace.run
        os.makedirs(f"{self.dir}/memory")
        os.makedirs(f"{self.dir}/root")
        os.makedirs(f"{self.dir}/result")
        run("mount", "-t", "tmpfs", "heddle", f"{self.dir}/memory")
        os.makedirs(f"{self.dir}/memory/upper")
        os.makedirs(f"{self.dir}/memory/work")
        try:
            run("mount", "-t", "overlay", "heddle", "-o", f"lowerdir=/,upperdir={self.dir}/memory/upper,workdir={self.dir}/memory/work", f"{self.dir}/root")
        except AssertionError as why:
            raise Skip(f"no overlay over this machine's root: {str(why).splitlines()[-1]}") from None

    def put(self, path, text, mode=0o644):
        os.makedirs(os.path.dirname(f"{self.dir}/root{path}"), exist_ok=True)
        with open(f"{self.dir}/root{path}", "w") as file:
            file.write(text)
        os.chmod(f"{self.dir}/root{path}", mode)

    def install(self):
        etc = "/etc/systemd/system"
        with open(f"{ROOT}/deploy/systemd/heddled.service") as file:
            self.put(f"{etc}/heddled.service", file.read().replace("@SBINDIR@/heddled", daemon_path()))
        for name in ("heddle-node", "heddle-cni-sweep"):
            shutil.copy(f"{ROOT}/deploy/node/{name}.service", f"{self.dir}/root{etc}/")
        os.makedirs(f"{self.dir}/root/opt/cni/bin", exist_ok=True)
        for path, to in (("/usr/bin/heddle", tool()), ("/opt/cni/bin/heddle-cni", plugin_path())):
            if os.path.lexists(f"{self.dir}/root{path}"):
                os.unlink(f"{self.dir}/root{path}")
            os.symlink(to, f"{self.dir}/root{path}")
        self.put("/etc/heddle/node.toml", NODE)
        self.put("/usr/local/bin/test-network", NETWORK, 0o755)
        self.put("/usr/local/bin/test-say", SAY, 0o755)
        self.put(f"{etc}/test-network.service", UNIT.format(start="/usr/local/bin/test-network", unit="Before=network-pre.target heddled.service"))
        names = "ovsdb-server.service heddled.service heddle-node.service heddle-cni-sweep.service"
        self.put(f"{etc}/test-say.service", UNIT.format(unit=f"After={names}", start="/bin/sh -c '/usr/local/bin/test-say >>/result/said 2>&1'"))
        # A machine that boots for this alone.
        self.put(f"{etc}/test.target", f"[Unit]\nRequires=basic.target\nAfter=basic.target\nWants=test-network.service test-say.service {names} network.target\n")
        # Removes the configuration of the machine below.
        for path in ("/etc/openvswitch/conf.db", "/etc/default/openvswitch-switch"):
            if os.path.exists(f"{self.dir}/root{path}"):
                os.unlink(f"{self.dir}/root{path}")

    def boot(self):
        """Boots, and waits for the end; returns the report, by first word."""
        said = f"{self.dir}/result/said"
        if os.path.exists(said):
            os.unlink(said)
            open(f"{self.dir}/result/second", "w").close()
        done = subprocess.run(["unshare", "-m", "systemd-nspawn", "-q", "-D", f"{self.dir}/root", "--private-network", "--register=no", "--keep-unit",
                               "--capability=all", "--bind=/dev/net/tun", f"--bind={self.dir}/result:/result", f"--machine=heddle{os.getpid()}",
                               "--link-journal=no", "-b", "systemd.unit=test.target"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=220)
        self.lab.trace.note(done.stdout[-6000:] + done.stderr)
        if not os.path.exists(said):
            raise Skip("systemd does not boot in a container here: " + (done.stderr.strip().splitlines() or ["?"])[-1])
        with open(said) as file:
            lines = file.read().splitlines()
        self.lab.trace.note("\n".join(lines))
        return lines

    def close(self):
        for name in ("root", "memory"):
            subprocess.run(["umount", "-l", f"{self.dir}/{name}"], capture_output=True)
        shutil.rmtree(self.dir, ignore_errors=True)


@limit(500)
def may_lower_oom_score():
    """Whether the kernel lets processes of this machine lower it: a container may lack CAP_SYS_RESOURCE."""
    place = "/proc/self/oom_score_adj"
    with open(place) as file:
        before = file.read()
    try:
        for value in (str(int(before) - 1), before):
            with open(place, "w") as file:
                file.write(value)
    except OSError:
        return False
    return True


def scenario_two_boots(lab):
    """All units come up in order; the switch comes back when it is killed; a second boot removes the first
    one's leftovers of a pod."""
    container = Container(lab)
    container.install()
    for boot in (1, 2):
        lines = container.boot()
        units = {line.split()[0]: line.split() for line in lines[:4]}
        assert all(unit[1] == "active" for unit in units.values()), lines
        began = {name: int(unit[2]) for name, unit in units.items()}
        assert began["ovsdb-server"] <= began["heddled"] <= began["heddle-node"] and began["ovsdb-server"] <= began["heddle-cni-sweep"], began
        facts = {line.split()[0]: line for line in lines if line.split()}
        _, asked, given = facts["oom"].split()
        assert asked == "-900" and (given == asked or not may_lower_oom_score()), lines
        assert "10.1.0.1/24" in facts["addresses"], lines
        assert all(" 0% packet loss" in line for line in lines if "received" in line) and any("received" in line for line in lines), lines
        assert facts["pods"].strip() == "pods", lines
        if boot == 1:
            assert facts["added"] == "added hpod" and "10.1.0.1/24" in facts["stopped"] and facts["killed"] == "killed active 1", lines


if __name__ == "__main__":
    main()
