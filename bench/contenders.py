"""The contenders: each joins two namespaces, `a` (client) and `b` (server, 10.9.0.2).

The switch process, where there is one, runs on SWITCH_CORE and both clients on
CLIENT_CORE.  The Linux bridge and plain veth have no process: their work is
done in the clients' own context, on the clients' core.
"""

import os
import signal
import time

from lab import REFERENCE, daemon_path
from lab.net import Net
from lab.shell import Trace
from lab.switch import Switch
from vhost_cases import Case

CLIENT_CORE, SWITCH_CORE = 0, 1
SERVER = "10.9.0.2"


class Contender:
    """Set up once, then frozen (SIGSTOP) whenever another contender is being measured."""

    client_cores, target = str(CLIENT_CORE), SERVER
    # Words before the command lines of clients and servers.
    before = ()

    def __init__(self, name):
        self.name = name
        self.trace = Trace()
        self.net = Net(self.trace)
        self.net.stem = f"hb{os.getpid()}-{name}"
        self.switch = None

    def setup(self):
        self.a, self.b = self.net.namespace("a"), self.net.namespace("b")
        self.connect()
        self.net.ping(self.a, SERVER, count=2)

    def connect(self):
        raise NotImplementedError

    def addresses(self, dev_a, dev_b):
        self.net.address(self.a, dev_a, "10.9.0.1/24")
        self.net.address(self.b, dev_b, f"{SERVER}/24")

    def freeze(self):
        if self.switch and self.switch.pid:
            os.kill(self.switch.pid, signal.SIGSTOP)

    def thaw(self):
        if self.switch and self.switch.pid:
            os.kill(self.switch.pid, signal.SIGCONT)
            time.sleep(0.2)

    def resident_mib(self):
        """Resident memory of the switch process, MiB; None without one."""
        if not self.switch:
            return None
        with open(f"/proc/{self.switch.pid}/status") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))

    def cpu_seconds(self):
        """User and system time that the switch process has used."""
        if not self.switch:
            return None
        with open(f"/proc/{self.switch.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        try:
            if self.switch:
                self.thaw()
                self.switch.close()
        finally:
            self.net.close()


class Veth(Contender):
    def connect(self):
        self.net.veth(self.a, "eth0", self.b, "eth0")
        self.addresses("eth0", "eth0")


class Bridge(Contender):
    def connect(self):
        middle = self.net.namespace("sw")
        self.net.ip(middle, "link", "add", "br0", "type", "bridge")
        self.net.ip(middle, "link", "set", "br0", "up")
        for name, ns in (("va", self.a), ("vb", self.b)):
            self.net.veth(middle, name, ns, "eth0")
            self.net.ip(middle, "link", "set", name, "master", "br0")
        self.addresses("eth0", "eth0")


class Userspace(Contender):
    """A bridge of the daemon `binary` with tap or veth ends."""

    def __init__(self, name, binary, ends, tso=False, options=(), cores=str(SWITCH_CORE)):
        super().__init__(name)
        self.binary, self.ends, self.tso, self.options, self.cores = binary, ends, tso, options, cores

    def connect(self):
        middle = self.net.namespace("sw")
        self.switch = Switch(self.trace, self.binary, netns=middle, args=("--disable-system",), prefix="heddle-bench")
        self.switch.start_ovsdb()
        settings = list(self.options) + (["other_config:userspace-tso-enable=true"] if self.tso else [])
        if settings:
            self.switch.vsctl("--no-wait", "set", "open_vswitch", ".", *settings)
        command = self.switch.command
        self.switch.command = lambda *args: ["taskset", "-c", self.cores, *command(*args)]
        self.switch.start_daemon()
        self.switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        devices = []
        for name, ns in (("a", self.a), ("b", self.b)):
            if self.ends == "tap":
                device = f"tap{name}"
                self.switch.vsctl("add-port", "br0", device, "--", "set", "interface", device, "type=internal")
                self.net.move(device, middle, ns)
            else:
                device = "eth0"
                self.net.veth(middle, f"v{name}", ns, device)
                if self.switch.is_reference and not self.tso:
                    # OVS without userspace-tso wants whole checksums and segments of the MTU's size.
                    self.net.run(ns, "ethtool", "-K", device, "tx", "off", check=False)
                self.switch.vsctl("add-port", "br0", f"v{name}")
            devices.append(device)
        self.addresses(*devices)


class Guests:
    """Two virtual machines on vhost-user ports of a daemon (`vhost_switches.Vhost`), which one generator plays. It
    polls, under a real-time priority and on a processor of its own; the programs of the load have the switch's."""

    switch = None

    def __init__(self, vhost):
        self.vhost, self.name = vhost, f"{vhost.name}-guests"
        if not vhost.dpdk:
            # Heddle chooses its workers. Open vSwitch's forwarding thread would be on the generator's processor.
            vhost.options = [option for option in vhost.options if "pmd-cpu-mask" not in option]
        vhost.before = ("chrt", "--fifo", "50")
        self.freeze, self.thaw, self.close = vhost.freeze, vhost.thaw, vhost.close

    def setup(self):
        self.vhost.setup(2)
        # The generator never leaves its processor, so a thread of the switch would wait there.
        for thread in os.listdir(f"/proc/{self.vhost.switch.pid}/task"):
            os.sched_setaffinity(int(thread), {SWITCH_CORE})

    def latency(self, rate, seconds):
        """One-way latency in microseconds, p50 and p99, at a rate of packets per second."""
        found = self.vhost.measure(Case(rules="normal"), seconds, rate)["latency"]
        return {"p50_us": found["p50_us"], "p99_us": found["p99_us"]}


def loaded_contenders(guests):
    """Name -> contender for measurements on a loaded machine: nothing is pinned, and nothing is set but the ports.

    guests: contenders with vhost-user ports.
    """
    anywhere = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    heddled, made = daemon_path(), []
    if os.access(heddled, os.X_OK):
        made += [Userspace(f"heddle-{ends}", heddled, ends, cores=anywhere) for ends in ("tap", "veth")]
    made += [Userspace("ovs-tap-tso", REFERENCE, "tap", tso=True, cores=anywhere),
             Userspace("ovs-veth", REFERENCE, "veth", cores=anywhere), Bridge("bridge"), Veth("veth")]
    for contender in made:
        contender.client_cores = anywhere
    return {contender.name: contender for contender in [*made, *map(Guests, guests)]}


def all_contenders():
    """Name -> contender, not yet set up; in the order of the table."""
    heddled = daemon_path()
    mask = (f"other_config:pmd-cpu-mask={1 << SWITCH_CORE:x}",)
    made = []
    if os.access(heddled, os.X_OK) and os.path.realpath(heddled) != os.path.realpath(REFERENCE):
        made += [Userspace("heddle-tap", heddled, "tap", options=mask),
                 Userspace("heddle-veth", heddled, "veth", options=mask)]
    made += [Userspace("ovs-tap-tso", REFERENCE, "tap", tso=True), Userspace("ovs-veth", REFERENCE, "veth"),
             Userspace("ovs-veth-tso", REFERENCE, "veth", tso=True), Bridge("bridge"), Veth("veth")]
    return {contender.name: contender for contender in made}
