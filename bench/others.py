"""The longest waits of other clients while rules are loaded as one bundle.

Each client sends requests all the time, and its longest wait is reported: first without the load, then while
the rules are loaded. Two of them share the bridge with the rules; a third one has its packets forwarded by
it.
"""

import re
import socket
import struct
import subprocess
import threading
import time

from churn import BARRIER, ECHO, ECHO_REPLY, ERROR, FLOW_MOD, HELLO, message
from lab.runner import Lab
from lab.unixctl import Unixctl

QUIET = 3  # seconds without rules
PAUSE = 0.002
RTT = re.compile(r"(\d+) packets transmitted, (\d+) received.*?= [\d.]+/[\d.]+/([\d.]+)/", re.DOTALL)
# One rule that matches everything, below all others; it is added again and again.
RULE = message(FLOW_MOD, 3, struct.pack("!I36x", (1 << 22) - 1) + struct.pack("!QHHHHIHH", 0, 0, 0, 0, 1, 0xffffffff, 0xffff, 0)
               + struct.pack("!HHHH", 0, 8, 0xfffa, 0))


class Connection:
    """An OpenFlow 1.0 connection that sends one request after the other."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(path)
        self.buffer = b""
        self.sock.sendall(message(HELLO, 1))
        self.wait(HELLO)

    def wait(self, wanted):
        while True:
            while len(self.buffer) < 8 or len(self.buffer) < struct.unpack("!H", self.buffer[2:4])[0]:
                data = self.sock.recv(1 << 16)
                if not data:
                    raise AssertionError("the switch hung up")
                self.buffer += data
            kind, length = struct.unpack("!xBH", self.buffer[:4])
            body, self.buffer = self.buffer[8:length], self.buffer[length:]
            if kind == ERROR:
                raise AssertionError(f"the switch refuses a message: {body[:4].hex()}")
            if kind == ECHO:
                self.sock.sendall(message(ECHO_REPLY, 0, body))
            if kind == wanted:
                return

    def echo(self):
        self.sock.sendall(message(ECHO, 2))
        self.wait(ECHO_REPLY)

    def change(self):
        self.sock.sendall(RULE + message(BARRIER, 4))
        self.wait(BARRIER + 1)


class Asker(threading.Thread):
    """Sends one request again and again, and keeps the longest time of one."""

    def __init__(self, what, ask):
        super().__init__(daemon=True)
        self.what, self.ask, self.over, self.error = what, ask, threading.Event(), None
        self.longest, self.times = 0.0, 0

    def run(self):
        try:
            while not self.over.wait(PAUSE):
                began = time.monotonic()
                self.ask()
                self.longest = max(self.longest, time.monotonic() - began)
                self.times += 1
        except Exception as error:  # noqa: BLE001 - reported at the end
            self.error = error


class Others:
    """A switch with two bridges, and pods that talk through the first."""

    def __init__(self):
        self.lab = Lab("others")

    def setup(self):
        self.switch = self.lab.switch()
        for bridge in ("br0", "br1"):
            self.lab.bridge(self.switch, bridge)
        self.pods = [self.lab.veth_pod(self.switch, f"p{n}", f"10.9.0.{n}/24") for n in (1, 2)]
        self.switch.ofctl("add-flow", "br0", "priority=65000,arp,actions=normal")
        self.switch.ofctl("add-flow", "br0", "priority=65000,icmp,actions=normal")

    def askers(self):
        mgmt = {bridge: f"{self.switch.dir}/{bridge}.mgmt" for bridge in ("br0", "br1")}
        numbers = iter(range(1 << 30))

        def configure():
            self.switch.run("ovs-vsctl", "set", "bridge", "br1", f"external_ids:n={next(numbers)}", timeout=60, quiet=True)

        def connect():
            Connection(mgmt["br0"]).sock.close()
        return [
            Asker("echo, another connection to the same bridge", Connection(mgmt["br0"]).echo),
            Asker("echo, another bridge", Connection(mgmt["br1"]).echo),
            Asker("flow mod and barrier, another bridge", Connection(mgmt["br1"]).change),
            Asker("a command: version", lambda ctl=Unixctl(self.switch.ctl, 60): ctl.call("version")),
            Asker("a command: fdb/show br0", lambda ctl=Unixctl(self.switch.ctl, 60): ctl.call("fdb/show", "br0")),
            Asker("ovs-vsctl set, waited for", configure),
            Asker("a new connection to the same bridge", connect),
            Asker("flow mod and barrier, same bridge", Connection(mgmt["br0"]).change),
        ]

    def phase(self, work):
        """The longest wait of each client while `work` was done, in milliseconds, by its request."""
        askers = self.askers()
        ping = subprocess.Popen(["ip", "netns", "exec", self.pods[0], "ping", "-n", "-i", "0.005", "-s", "56", "10.9.0.2"], stdout=subprocess.PIPE, text=True)
        for asker in askers:
            asker.start()
        try:
            work()
        finally:
            for asker in askers:
                asker.over.set()
            ping.send_signal(2)
            text, _ = ping.communicate(timeout=30)
        for asker in askers:
            asker.join(60)
            if asker.error or not asker.times:
                raise AssertionError(f"{asker.what}: {asker.error or 'no answer'}")
        sent, received, longest = RTT.search(text).groups()
        lost = int(sent) - int(received)
        pings = f"ping from pod to pod through the same bridge{f', {lost} of {sent} lost' if lost > 1 else ''}"
        return {pings: float(longest)} | {asker.what: asker.longest * 1e3 for asker in askers}

    def run(self, count, file):
        try:
            self.setup()
            alone = self.phase(lambda: time.sleep(QUIET))
            began = time.monotonic()
            loaded = self.phase(lambda: self.switch.run("ovs-ofctl", "--bundle", "add-flows", "br0", file, timeout=100, quiet=True))
            print(f"{count} rules as a bundle, {time.monotonic() - began:.1f} s; longest waits, ms: without rules, while they are loaded", flush=True)
            for (what, before), (_, now) in zip(alone.items(), loaded.items()):
                print(f"  {what:60} {before:8.1f} {now:8.1f}", flush=True)
        finally:
            self.lab.close(False)
