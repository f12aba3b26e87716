"""Failures of a bond's member, for bench/protocols: what packets through the bond lose, and for how long it is silent.

A switch has a bond of two links to a peer, which is always Debian's ovs-vswitchd. Between the two there is a wire that
can lose its carrier, or everything that it carries. Pod a of the switch sends numbered packets of some flows to pod b of
the peer. Their numbers are read at the wire and by pod b. At the wire, one socket sees both links in the order in which the
switch sends. The peer reads its two links in turns, so it changes the order. Its queues are short, so it loses packets when
it is late. Only the numbers at the wire are the switch's own.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")]
from lab import REFERENCE, daemon_path  # noqa: E402
from lab.net import Net  # noqa: E402
from lab.shell import Trace, wait_for  # noqa: E402
from lab.switch import Switch  # noqa: E402

SWITCHES = ("heddle", "ovs")
PORT, FLOWS, SO_RCVBUFFORCE, ETH_P_ALL = 5005, 16, 33, 3
# Both switches move load to a link that came later, within a second.
TCP = ("bond_mode=balance-tcp", "lacp=active", "other_config:lacp-time=fast", "other_config:bond-rebalance-interval=1000")
BACKUP = ("bond_mode=active-backup", "other_config:bond-primary=m1")
# Case: settings of the bond, and whether BFD watches the links. BFD's time-out is three times this interval, ms.
BFD_MS = 100
CASES = {
    "carrier, active-backup": (BACKUP, False),
    "carrier, balance-tcp": (TCP, False),
    "LACP time-out, balance-tcp": (TCP, False),
    "BFD time-out, active-backup": (BACKUP, True),
    "all buckets move, balance-tcp": ((*TCP, "bond_updelay=500"), False),
}
# Losses are counted in slots of the time at which the packets were sent, seconds.
SLOT_S = 0.1
# A process in Python sends no more than this steadily.
MAX_PER_SECOND = 4000
# Seconds before the failure, in which the load spreads.
BEFORE = 5
# Seconds from the failure to the end of a stream: more than each time-out.
AFTER = {"LACP": 6, "all ": 5}


def send(per_second, seconds):
    """Sends packets of all flows in turn, each with its flow, its number, and the slot of time. Prints their number by slot."""
    socks = []
    for _ in range(FLOWS):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(("10.1.0.2", PORT))
        socks.append(sock)
    began, n, sent = time.monotonic(), 0, Counter()
    while (now := time.monotonic()) < began + seconds:
        slot = int(now / SLOT_S)
        socks[n % FLOWS].send((b"%d %d %d" % (n % FLOWS, n // FLOWS, slot)).ljust(64, b"."))
        sent[slot] += 1
        n += 1
        if (ahead := n / per_second - (now - began)) > 0:
            time.sleep(ahead)
    print(json.dumps(sent))


class Numbers:
    """Packets of the stream as they come: their number, late ones, and the longest time between two of one flow."""

    def __init__(self):
        self.seen, self.last, self.at, self.late, self.silence = set(), {}, {}, 0, 0.0
        self.got = Counter()

    def add(self, data):
        now = time.monotonic()
        flow, number, slot = map(int, data.rstrip(b".").split())
        self.got[slot] += (flow, number) not in self.seen
        self.late += number < self.last.get(flow, -1)
        self.last[flow] = max(number, self.last.get(flow, -1))
        self.silence = max(self.silence, now - self.at.get(flow, now))
        self.at[flow] = now
        self.seen.add((flow, number))

    def report(self):
        print(json.dumps({"got": self.got, "late": self.late, "silence_ms": self.silence * 1000}))


def packets(sock, seconds):
    """Packets and their sources from a socket, until nothing comes for two seconds; the first may take `seconds`."""
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    sock.settimeout(0.2)
    print("ready", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            data, source = sock.recvfrom(2048)
        except TimeoutError:
            continue
        if (yield data, source):
            end = time.monotonic() + 2


def follow(sock, seconds, payload):
    """Reads numbers from a socket, and prints the result. `payload` returns None for packets of others."""
    numbers, stream = Numbers(), packets(sock, seconds)
    found = next(stream, None)
    while found is not None:
        if (data := payload(*found)) is not None:
            numbers.add(data)
        try:
            found = stream.send(data is not None)
        except StopIteration:
            break
    numbers.report()


def receive(seconds):
    """The numbers that pod b receives."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", PORT))
    follow(sock, seconds, lambda data, _: data)


def watch(seconds):
    """The numbers of the packets that the switch sends by both links, in their order."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))

    def payload(data, source):
        is_stream = source[0] in ("a0", "a1") and source[2] != socket.PACKET_OUTGOING and data[12:14] == b"\x08\0" and \
            data[23] == socket.IPPROTO_UDP and data[36:38] == PORT.to_bytes(2, "big")
        return data[42:] if is_stream else None
    follow(sock, seconds, payload)


class Pair:
    """A switch with a bond, its peer, and the wires between them."""

    def __init__(self, directory, which, bond, bfd):
        self.here, self.which = directory, which
        self.net = Net(Trace())
        self.net.stem = f"bf{os.getpid()}"
        self.switches = []
        try:
            self.build(bond, bfd)
        except BaseException:
            self.close()
            raise

    def build(self, bond, bfd):
        self.wire = self.net.namespace("w")
        self.sw, self.peer = (self.switch(name, binary) for name, binary in (
            ("s", daemon_path() if self.which == "heddle" else REFERENCE), ("p", REFERENCE)))
        for n in range(2):
            self.net.veth(self.sw.netns, f"m{n}", self.wire, f"a{n}")
            self.net.veth(self.peer.netns, f"n{n}", self.wire, f"b{n}")
            for dev in (f"a{n}", f"b{n}"):
                self.net.run(self.wire, "tc", "qdisc", "add", "dev", dev, "clsact")
            self.join(n)
        self.pods = [self.pod(self.sw, "a", 1), self.pod(self.peer, "b", 2)]
        lacp = "lacp=active" in bond
        self.sw.vsctl("add-bond", "br0", "bond0", "m0", "m1", *bond)
        if lacp:
            self.peer.vsctl("add-bond", "br0", "bond0", "n0", "n1", *bond)
        else:
            self.peer.vsctl("add-port", "br0", "n0", "--", "add-port", "br0", "n1")
        if bfd:
            for switch, letter in ((self.sw, "m"), (self.peer, "n")):
                for n in range(2):
                    switch.vsctl("set", "interface", f"{letter}{n}", "bfd:enable=true", f"bfd:min_rx={BFD_MS}", f"bfd:min_tx={BFD_MS}")
        self.wait_enabled()
        wait_for("a ping", lambda: self.net.ping(self.pods[0], "10.1.0.2", count=1, lossless=False), 30)

    def switch(self, name, binary):
        switch = Switch(self.net.trace, binary=binary, netns=self.net.namespace(name), args=["--disable-system"], prefix="bf")
        self.switches.append(switch)
        switch.start_ovsdb()
        switch.vsctl("--no-wait", "set", "open_vswitch", ".", "other_config:heddle-ebpf=false")
        switch.start_daemon()
        switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
        return switch

    def pod(self, switch, name, last):
        ns = self.net.namespace(name)
        self.net.veth(switch.netns, f"v{name}", ns, "eth0")
        # Open vSwitch forwards packets without checksum as they are, so the pod computes them.
        self.net.run(ns, "ethtool", "-K", "eth0", "tx", "off")
        self.net.address(ns, "eth0", f"10.1.0.{last}/24")
        switch.vsctl("add-port", "br0", f"v{name}")
        return ns

    def join(self, n):
        """The wire carries everything."""
        for one, other in ((f"a{n}", f"b{n}"), (f"b{n}", f"a{n}")):
            self.net.run(self.wire, "tc", "filter", "add", "dev", one, "ingress", "protocol", "all", "u32", "match", "u32", "0", "0",
                         "action", "mirred", "egress", "redirect", "dev", other)

    def cut(self, n):
        """The wire loses everything, and keeps its carrier."""
        for dev in (f"a{n}", f"b{n}"):
            self.net.run(self.wire, "tc", "filter", "del", "dev", dev, "ingress")

    def busier_link(self):
        """The link by which the bond sends more packets."""
        def sent():
            return [int(self.net.run(self.wire, "cat", f"/sys/class/net/a{n}/statistics/rx_packets", quiet=True)) for n in range(2)]
        before = sent()
        time.sleep(1)
        return max(range(2), key=lambda n: sent()[n] - before[n])

    def unplug(self, n):
        """The wire loses its carrier at both ends."""
        script = f"link set a{n} down\nlink set b{n} down\n"
        subprocess.run(["ip", "-n", self.wire, "-batch", "-"], input=script, text=True, check=True, timeout=20)

    def members(self, switch=None):
        show = (switch or self.sw).appctl("bond/show", "bond0", quiet=True)
        return re.findall(r"\nmember \S+: (\w+)", show)

    def wait_enabled(self):
        for switch in self.switches:
            if "bond0" in switch.appctl("bond/list", quiet=True):
                wait_for("both members", lambda switch=switch: self.members(switch) == ["enabled", "enabled"], 40)

    def move_buckets(self, seconds):
        """Each link is disabled in turn, which moves its buckets; `bond_updelay` keeps it so for a time."""
        end, n = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            self.sw.appctl("bond/disable-member", "bond0", f"m{n % 2}", quiet=True)
            n += 1
            time.sleep(1)

    def measure(self, case, per_second):
        """Packets that a stream loses across a failure."""
        after = next((s for key, s in AFTER.items() if case.startswith(key)), 3)
        running = []

        def begin(ns, *words):
            running.append(subprocess.Popen(
                ["ip", "netns", "exec", ns, sys.executable, os.path.join(self.here, "failures.py"), *map(str, words)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True))
            return running[-1]
        try:
            readers = [begin(self.wire, "watch", 20), begin(self.pods[1], "receive", 20)]
            for reader in readers:
                assert reader.stdout.readline() == "ready\n"
            sender = begin(self.pods[0], "send", per_second, BEFORE + 1 + after)
            time.sleep(BEFORE)
            link = self.busier_link()
            failed = int(time.monotonic() / SLOT_S)
            if case.startswith("carrier"):
                self.unplug(link)
            elif case.startswith("all "):
                self.move_buckets(after - 1.5)
            else:
                self.cut(link)
            sent = json.loads(sender.communicate(timeout=60)[0])
            wire, pod = (json.loads(reader.communicate(timeout=60)[0]) for reader in readers)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        def lost(numbers, is_due):
            return sum(n - numbers["got"].get(slot, 0) for slot, n in sent.items() if is_due(int(slot)))
        # The slot before the failure has packets that were under way.
        return {"sent": sum(sent.values()), "before": lost(pod, lambda slot: slot < failed - 1),
                "unsent": lost(wire, lambda slot: slot >= failed - 1), "late": wire["late"],
                "lost": lost(pod, lambda slot: slot >= failed - 1), "pod_late": pod["late"], "silence_ms": pod["silence_ms"]}

    def close(self):
        for switch in self.switches:
            switch.close(None)
        self.net.close()


def measure(directory, which, case, per_second):
    """One failure of one switch, which is set up for it."""
    bond, bfd = CASES[case]
    pair = Pair(directory, which, bond, bfd)
    try:
        return pair.measure(case, per_second)
    finally:
        pair.close()


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(float(sys.argv[2]), float(sys.argv[3]))
    else:
        {"receive": receive, "watch": watch}[sys.argv[1]](float(sys.argv[2]))
