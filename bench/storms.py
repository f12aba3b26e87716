"""Storms of control messages on one port, for bench/protocols: what a message costs the switch's threads.

A storm takes from other ports the time of their worker that it uses. The kernel counts the time in which a thread runs; that
has far less noise than a throughput beside a storm. Each storm is compared with data of the same port at the same rate, which
a rule drops. Only frames that the switch has received count: on a busy machine the port's socket loses some.
"""

import os
import random
import re
import socket
import struct
import subprocess
import sys
import time

sys.path[:0] = [os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")]
from lab import frames  # noqa: E402
from lab.net import Net  # noqa: E402
from lab.shell import Trace, wait_for  # noqa: E402
from lab.switch import Switch  # noqa: E402

# Each kind of storm, in the order of a round. `records` is IGMP 3 with the number of records that a frame has room for.
KINDS = ("data", "lacp", "igmp", "mld", "records")
SOURCE = "02:00:00:00:00:03"
RECORDS = 180
# Number of prepared frames of a storm, which are sent again and again.
VARIANTS = 4096


def _summed(body):
    """A message whose checksum is its third and fourth byte."""
    return body[:2] + struct.pack("!H", frames.checksum(body)) + body[4:]


def _lacpdu(n):
    """A message of one of some partners: the system's number changes from message to message."""
    end = struct.pack("!H6sHHHB3x", 32768, bytes([2, 0, 0, 0, 9, n % 7]), 1, 255, 1 + n % 5, 0x3d)
    pdu = b"\1\1" + b"\1\x14" + end + b"\2\x14" + end + b"\3\x10" + bytes(14) + bytes(52)
    return frames.ethernet("01:80:c2:00:00:02", SOURCE, 0x8809, pdu)


def _igmp(n):
    group = f"238.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"
    message = _summed(struct.pack("!BBH4s", 0x16, 0, 0, socket.inet_aton(group)))
    packet = frames.ipv4("10.1.0.3", group, 2, message, ttl=1, options=b"\x94\x04\0\0")
    return frames.ethernet(f"01:00:5e:{n >> 16 & 127:02x}:{n >> 8 & 255:02x}:{n & 255:02x}", SOURCE, 0x0800, packet)


def _records(n):
    groups = [struct.pack("!BBHI", 4, 0, 0, 0xea000000 + (n * RECORDS + k) % (1 << 20)) for k in range(RECORDS)]
    message = _summed(struct.pack("!BBHHH", 0x22, 0, 0, 0, RECORDS) + b"".join(groups))
    packet = frames.ipv4("10.1.0.3", "224.0.0.22", 2, message, ttl=1, options=b"\x94\x04\0\0")
    return frames.ethernet("01:00:5e:00:00:16", SOURCE, 0x0800, packet)


def _mld(n):
    src, group = "fe80::3", f"ff15::{n >> 16:x}:{n & 0xffff:x}"
    body = struct.pack("!BBHHH", 131, 0, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, group)
    csum = frames.checksum(frames.pseudo(src, group, 58, len(body)) + body)
    body = body[:2] + struct.pack("!H", csum) + body[4:]
    packet = frames.ipv6(src, group, 0, b"\x3a\0\x05\x02\0\0\x01\0" + body, hlim=1)
    return frames.ethernet(f"33:33:00:{n >> 16 & 255:02x}:{n >> 8 & 255:02x}:{n & 255:02x}", SOURCE, 0x86dd, packet)


def _data(_n):
    packet = frames.ipv4("10.1.0.3", "10.1.0.9", 17, frames.udp("10.1.0.3", "10.1.0.9", 9, 9, bytes(40)))
    return frames.ethernet("02:00:00:00:00:09", SOURCE, 0x0800, packet)


MAKERS = {"data": _data, "lacp": _lacpdu, "igmp": _igmp, "mld": _mld, "records": _records}


def send(kind, per_second, seconds):
    """Sends a storm by eth0 of this namespace, and prints the number of its frames."""
    dice = random.Random(1)
    prepared = [MAKERS[kind](dice.randrange(1 << 20)) for _ in range(VARIANTS)]
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.bind(("eth0", 0))
    began, n = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        for _ in range(32):
            sock.send(prepared[n % VARIANTS])
            n += 1
        if (ahead := n / per_second - now) > 0:
            time.sleep(ahead)
    print(n)


class Node:
    """A bridge with pods a (10.1.0.1), b (10.1.0.2) and c, which storms."""

    def __init__(self, directory):
        # Time that the daemon's threads run without a storm, nanoseconds a second.
        self.idle = None
        self.net = Net(Trace())
        self.net.stem = f"bs{os.getpid()}"
        self.here = directory
        node = self.net.namespace("n")
        self.pods = {}
        for last, pod in enumerate("abc", 1):
            self.pods[pod] = self.net.namespace(pod)
            self.net.veth(node, f"v{pod}", self.pods[pod], "eth0")
            self.net.address(self.pods[pod], "eth0", f"10.1.0.{last}/24", mac=f"02:00:00:00:00:{last:02x}")
        self.switch = Switch(self.net.trace, netns=node, args=["--disable-system"], prefix="bs")
        self.switch.start_ovsdb()
        self.switch.vsctl("--no-wait", "set", "open_vswitch", ".", "other_config:pmd-cpu-mask=2", "other_config:heddle-ebpf=false")
        self.switch.start_daemon()
        self.switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "mcast_snooping_enable=true")
        for pod in "abc":
            self.switch.vsctl("add-port", "br0", f"v{pod}")
        self.switch.vsctl("set", "port", "vc", "lacp=passive", "other_config:lacp-time=fast")
        self.switch.ofctl("add-flow", "br0", "priority=10,in_port=vc,udp,actions=drop")
        wait_for("a ping", lambda: self.net.ping(self.pods["a"], "10.1.0.2", count=1, lossless=False))

    def inside(self, pod, *argv):
        return ["ip", "netns", "exec", self.pods[pod], "taskset", "-c", "0", *map(str, argv)]

    def ran(self):
        """Nanoseconds that the worker has run, and all other threads of the daemon."""
        total, tasks = [0, 0], f"/proc/{self.switch.pid}/task"
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/comm") as name, open(f"{tasks}/{task}/schedstat") as ran:
                total[not name.read().startswith("pmd")] += int(ran.read().split()[0])
        return total

    def received(self):
        """Frames that the switch has received from the storm's port."""
        return int(re.search(r"rx pkts=(\d+)", self.switch.ofctl("dump-ports", "br0", "vc"))[1])

    def counted(self):
        """Frames received, in the end."""
        last = [-1]

        def settled():
            last.append(self.received())
            return last[-1] == last[-2]
        wait_for("the counters", settled, 30, 0.8)
        return last[-1]

    def measure(self, kind, per_second, seconds):
        """Nanoseconds that the worker and all other threads run for a frame of a storm, without what they run when there is
        none. Also the number of frames."""
        if self.idle is None:
            before, at = self.ran(), time.monotonic()
            time.sleep(3)
            self.idle = [(b - a) / (time.monotonic() - at) for a, b in zip(before, self.ran())]
        frames, before, at = self.counted(), self.ran(), time.monotonic()
        program = os.path.join(self.here, "storms.py")
        subprocess.run(self.inside("c", sys.executable, program, kind, per_second, seconds), stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, check=True, timeout=seconds + 60)
        frames = self.counted() - frames
        wall, after = time.monotonic() - at, self.ran()
        worker, others = ((b - a - idle * wall) / max(frames, 1) for a, b, idle in zip(before, after, self.idle))
        return {"worker_ns": worker, "others_ns": others, "frames": frames}

    def close(self):
        self.switch.close(None)
        self.net.close()


if __name__ == "__main__":
    send(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
