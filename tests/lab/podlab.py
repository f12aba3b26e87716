"""A machine with pods, emulated: the switch and its pods run inside one guest, under the guest's kernel.

The guest runs this machine's programs (its root is shared read-only) under Linux 6.12, which has the modules vduse,
virtio_vdpa, openvswitch and ipvlan. Nothing of it touches this machine's network.
"""

import base64
import os
import re

from . import daemon_path, runner
from .guest import CACHE, Guest, obtain
from .shell import wait_for

RUN = "/run/ovs"
# Characters of base64 in one command, in whole groups of four.
PIECE = 32768


class Unplugged:
    """A network card of that model, at no wire."""

    def __init__(self, model):
        self.model = model

    def arguments(self, index, qemu):
        return ["-netdev", f"hubport,id=n{index},hubid={index}", "-device", f"{self.model},netdev=n{index},romfile="]


class Wired:
    """A network card of that model; cards of one hub are joined by a cable."""

    def __init__(self, model, hub, mac, **properties):
        self.model, self.hub, self.mac, self.properties = model, hub, mac, properties

    def arguments(self, index, qemu):
        extra = "".join(f",{key}={value}" for key, value in self.properties.items())
        return ["-netdev", f"hubport,id=n{index},hubid={self.hub}", "-device", f"{self.model},netdev=n{index},mac={self.mac},romfile={extra}"]


class PodLab:
    """One scenario's machine: modules, ovsdb-server, heddled, and pods.

    variant: "-next" for the kernel of trixie-backports; iommu: an emulated IOMMU; machine, kernel: further words for QEMU and
    for the kernel; nodes: NUMA nodes.
    """

    MODULES = ("vduse", "virtio_vdpa", "vdpa", "veth", "tun")

    def __init__(self, lab, modules=MODULES, start=True, settings=(), memory=1024, nic=None, cards=(), variant="",
                 iommu=False, machine=(), kernel="", cpus=2, nodes=1):
        reason = obtain(*(["kernel-next"] if variant else []), fetch=os.environ.get("LAB_FETCH") != "0")
        if reason:
            raise runner.Skip(reason)
        self.lab, self.trace = lab, lab.trace
        self.binary = os.path.realpath(daemon_path())
        self.guest = Guest(lab.trace, "pods", [Unplugged(nic)] if nic else cards, cpus=cpus, memory=memory, host=True,
                           variant=variant, iommu=iommu, machine=machine, kernel=kernel, nodes=nodes)
        self.modules = f"{CACHE}/kernel{variant}"
        lab.cleanups.append(self.close)
        self.guest.start(timeout=300 if variant else 120)
        self.run("ip link set lo up; mkdir -p " + RUN)
        for module in (*modules, *([nic] if nic else [])):
            self.load(module)
        if start:
            self.start_ovsdb(*settings)
            self.start_daemon()

    def close(self):
        try:
            if self.guest.agent:
                self.trace.note("the daemon's log\n" + self.run(f"tail -n 60 {RUN}/heddled.log", check=False))
        finally:
            # Also of a guest that stands still.
            self.guest.close()

    def run(self, command, timeout=60, check=True):
        return self.guest.run(command, timeout=timeout, check=check)

    def put(self, path, text):
        """Writes a file of the guest's own, in pieces that its agent takes."""
        encoded = base64.b64encode(text.encode()).decode()
        self.run(f": >{path}")
        for at in range(0, len(encoded), PIECE):
            self.run(f"echo {encoded[at:at + PIECE]} | base64 -d >>{path}")

    def load(self, module):
        """Loads a module of the guest's kernel."""
        with open(f"{self.modules}/.release") as file:
            release = file.read().strip()
        self.run(f"modprobe -d {self.modules} -S {release} {module}")

    # -- the switch ------------------------------------------------------------

    def start_ovsdb(self, *settings):
        env = f"OVS_RUNDIR={RUN} OVS_LOGDIR={RUN} OVS_DBDIR={RUN}"
        self.run(f"{env} ovsdb-tool create {RUN}/conf.db /usr/share/openvswitch/vswitch.ovsschema && "
                 f"{env} ovsdb-server {RUN}/conf.db --remote=punix:{RUN}/db.sock --detach --no-chdir --pidfile={RUN}/ovsdb.pid "
                 f"--unixctl={RUN}/ovsdb.ctl --log-file={RUN}/ovsdb.log -vconsole:off && "
                 f"ovs-vsctl --db=unix:{RUN}/db.sock --no-wait init")
        for setting in settings:
            self.run(f"ovs-vsctl --db=unix:{RUN}/db.sock --no-wait set Open_vSwitch . other_config:{setting}")

    def start_daemon(self, binary=None):
        env = f"OVS_RUNDIR={RUN} OVS_LOGDIR={RUN} OVS_DBDIR={RUN}"
        self.run(f"{env} {binary or self.binary} unix:{RUN}/db.sock --pidfile={RUN}/vswitchd.pid --unixctl={RUN}/vswitchd.ctl "
                 f"--log-file={RUN}/heddled.log --no-chdir --detach -vconsole:off", timeout=90)

    def kill_daemon(self, signal="KILL"):
        self.run(f"kill -{signal} $(cat {RUN}/vswitchd.pid); rm -f {RUN}/vswitchd.pid")

    def vsctl(self, command, check=True):
        # Without warnings about a slow processor, which would be part of the output.
        return self.run(f"ovs-vsctl -vconsole:off --db=unix:{RUN}/db.sock --timeout=50 {command}", check=check).strip()

    def appctl(self, command):
        return self.run(f"ovs-appctl --timeout=30 -t {RUN}/vswitchd.ctl {command}")

    def get(self, name, column):
        return self.vsctl(f"get interface {name} {column}").strip('"')

    def wait(self, what, probe, timeout=60):
        return wait_for(what, probe, timeout, 0.2)

    # -- pods ------------------------------------------------------------------

    def bridge(self, name="br-int"):
        self.vsctl(f"add-br {name} -- set bridge {name} datapath_type=netdev")

    def vduse_port(self, name, options="", bridge="br-int", kind="vduse", columns=""):
        """A port; returns the name of its network device, once the driver has made it."""
        self.vsctl(f"add-port {bridge} {name} -- set interface {name} type={kind} {options} {columns}")
        return self.netdev(name)

    def netdev(self, name):
        def made():
            match = re.search(r'netdev="?([^",}]+)', self.get(name, "status"))
            return match and match.group(1)
        try:
            return self.wait(f"the device of {name}", made)
        except AssertionError:
            error = self.get(name, "error")
            raise AssertionError(f"{name} has no device: {error} {self.get(name, 'status')}") from None

    def pod(self, name, address, device=None, **options):
        """A namespace with the device of a VDUSE port of the same name, as eth0."""
        device = device or self.vduse_port(name, **options)
        self.run(f"ip netns add {name} && ip link set {device} netns {name} && "
                 f"ip -n {name} link set {device} name eth0 && ip -n {name} addr add {address}/24 dev eth0 && "
                 f"ip -n {name} link set lo up && ip -n {name} link set eth0 up")
        return name

    def pings(self, pod, target, count=10, interval=0.2, lost=0):
        """Pings and asserts the maximum number of lost ones; returns that number."""
        out = self.run(f"ip netns exec {pod} ping -n -q -i {interval} -c {count} -W 2 {target}", check=False,
                       timeout=60 + count * interval)
        match = re.search(r"(\d+) packets transmitted, (\d+) received", out)
        assert match, out
        missing = int(match.group(1)) - int(match.group(2))
        assert missing <= lost, f"{missing} of {count} pings lost: {out}"
        return missing

    def meet(self, pod, target, timeout=60):
        self.wait(f"{target} to answer", lambda: " 1 received" in self.run(
            f"ip netns exec {pod} ping -n -q -c 1 -W 1 {target}", check=False), timeout)

    # -- rates -----------------------------------------------------------------

    def serve(self, pod):
        """Starts the servers of measurements."""
        self.run(f"ip netns exec {pod} iperf3 -s -D -I /run/iperf3-{pod}.pid; "
                 f"(ip netns exec {pod} sockperf server --tcp -p 7001 >/dev/null 2>&1 &)")

    def stream(self, pod, target, seconds=5, size=None, options=""):
        """Mbit/s received of a TCP stream whose writes have `size` bytes."""
        length = f"-l {size}" if size else ""
        out = self.run(f"ip netns exec {pod} iperf3 -c {target} -t {seconds} -f m {length} {options}", timeout=seconds + 60)
        rates = re.findall(r"([\d.]+) Mbits/sec.*receiver", out)
        assert rates, out
        return float(rates[-1])

    def datagrams(self, pod, target, seconds=4, size=1400):
        """Mbit/s that arrive of datagrams sent as fast as the sender can."""
        return self.stream(pod, target, seconds, size, "-u -b 0")

    def request_response(self, pod, target, seconds=4):
        """Half the time of one request and its reply, microseconds: median."""
        out = self.run(f"ip netns exec {pod} sockperf ping-pong --tcp -i {target} -p 7001 -t {seconds} -m 64", timeout=seconds + 60)
        match = re.search(r"percentile 50\.000\s*=\s*([\d.]+)", out)
        assert match, out
        return float(match.group(1))

    def tell(self, text):
        self.trace.note(f"== {text}")
        print(f"     {self.lab.name}: {text}", flush=True)
