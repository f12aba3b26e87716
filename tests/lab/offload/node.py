"""A switch whose ports are representors of the test card (tests/lab/card), and what the card reports."""

import os
import re
import socket
import struct
import time

from .. import runner
from ..parity.node import Node
from ..runner import Skip
from ..shell import PATIENCE, wait_for

MODULE = f"{os.environ.get('LAB_CACHE', '')}/card/heddle_card.ko"
REPORTS = "/sys/kernel/debug/heddle_card"
PARAMETERS = "/sys/module/heddle_card/parameters"
# Open vSwitch ignores Heddle's settings. Without eBPF, flows outside of the card stay with workers. Flows must not
# expire between two commands in a slow machine.
SETTINGS = ("hw-offload=true", "heddle-ebpf=false", "max-idle=120000")
# An emulated machine on a busy one takes its time.
runner.DEFAULT_LIMIT_S = 900
HONEST, DROPS, MUTE, ABSENT = range(4)  # the parameter `lie`


def figure(name, value, unit):
    """Prints a figure that the summary shows beside that of the other switch."""
    print(f"figure {name} {value if isinstance(value, str) else round(value, 2)} {unit}", flush=True)


class CardNode(Node):
    """One switch with bridge br0 and a fresh card. `pods` maps the numbers of virtual functions to namespaces."""

    def __init__(self, lab, *settings, **parameters):
        if not os.path.exists(MODULE):
            raise Skip("there is no test card: tests/lab/guests/card.py runs this in an emulated machine")
        self.pods = {}
        lab.trace.run("rmmod", "heddle_card", check=False, quiet=True)
        lab.trace.run("insmod", MODULE, *(f"{name}={value}" for name, value in parameters.items()))
        super().__init__(lab, (*SETTINGS, *settings))
        self.is_reference = self.switch.is_reference

    # -- ports -----------------------------------------------------------------

    def vf(self, *numbers):
        """Pods with the devices vfN; their representors repN are ports. Returns the namespaces."""
        words = []
        for number in numbers:
            self.pods[number] = self.namespace(f"pod{number}")
            self.plug(number, self.pods[number])
            words += ["--", "add-port", "br0", f"rep{number}", "--", "set", "interface", f"rep{number}", f"ofport_request={number + 1}"]
        self.switch.vsctl(*words)
        return [self.pods[number] for number in numbers]

    def plug(self, number, ns):
        """Puts vfN into the pod's namespace and repN into the host's. A program's start costs time in the machine."""
        def batch(options, *commands):
            self.trace.run("ip", *options, "-batch", "-", stdin="".join(f"{command}\n" for command in commands))
        batch((), f"link set vf{number} netns {ns}", f"link set rep{number} netns {self.host}")
        batch(("-n", ns), f"link set vf{number} address {self.mac_of(number)} up",
              f"addr add {self.address(number)}/24 dev vf{number}")
        self.net.ip(self.host, "link", "set", f"rep{number}", "up")

    def vfs(self, count=2):
        """Pods with the first functions, which know each other's Ethernet addresses."""
        self.vf(*range(count))
        for number, ns in self.pods.items():
            self.net.ip(ns, "-batch", "-", stdin="".join(f"neigh replace {self.address(other)} lladdr {self.mac_of(other)} dev vf{number}\n"
                                                         for other in self.pods if other != number))
        return [self.pods[number] for number in range(count)]

    @staticmethod
    def address(number):
        return f"10.6.0.{number + 1}"

    @staticmethod
    def mac_of(number):
        return f"02:00:00:00:06:{number + 1:02x}"

    # -- reports of the card ---------------------------------------------------

    def set(self, name, value):
        with open(f"{PARAMETERS}/{name}", "w") as file:
            file.write(f"{value}\n")

    def report(self, name):
        with open(f"{REPORTS}/{name}") as file:
            return file.read()

    def stats(self):
        return {name: int(value) for name, value in map(str.split, self.report("stats").splitlines())}

    def count_of(self, name):
        return self.stats()[name]

    def filters(self, word=""):
        """Lines of the card's table in which the word is."""
        return [line for line in self.report("filters").splitlines() if word in line]

    def events(self, word=""):
        return [line for line in self.report("events").splitlines() if word in line]

    def note_card(self):
        self.trace.note("card:\n" + self.report("stats") + self.report("filters")[:3000] + self.report("events")[-2000:])

    # -- reports of the switch -------------------------------------------------

    def dump(self, kind="offloaded"):
        """Lines of dump-flows of this type, with their details."""
        out = self.switch.appctl("dpctl/dump-flows", "-m", f"type={kind}", check=False)
        return [line for line in out.splitlines() if "actions:" in line]

    def offloaded(self, *words):
        return [line for line in self.dump() if "offloaded:yes" in line and all(word in line for word in words)]

    def established(self, client, target, flows=2, seconds=PATIENCE):
        """Pings until the card has taken this number of pings' packets in a row: none came to the switch."""
        def probe():
            before = self.stats()
            self.net.ping(self.pods[client], target, count=3, lossless=False)
            after = self.stats()
            return after["hits"] - before["hits"] >= 3 * flows
        try:
            wait_for("the card to take the pings", probe, seconds, 0.2)
        except AssertionError:
            self.note_card()
            self.dump("all")
            raise

    # -- packets ---------------------------------------------------------------

    def frames(self, number, count, source=0, size=60, target=1, port=9):
        """Sends UDP frames from vfN, all but the source alike; with source set, its ports and addresses run through
        `count` values from there on. Returns the seconds that this took."""
        head = bytes.fromhex(self.mac_of(target).replace(":", "") + self.mac_of(number).replace(":", "") + "0800")
        length = size - 14
        sock = self.net.raw(self.pods[number], f"vf{number}")
        began = time.monotonic()
        try:
            for index in range(count):
                at = source + index if source else 0
                address = bytes([10, 7, at >> 14 & 0xff, at >> 6 & 0xff]) if source else socket.inet_aton(self.address(number))
                ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 1, 0, 64, 17, 0, address, socket.inet_aton(self.address(target)))
                total = sum(struct.unpack("!10H", ip))
                while total >> 16:
                    total = (total & 0xffff) + (total >> 16)
                ip = ip[:10] + struct.pack("!H", ~total & 0xffff) + ip[12:]
                udp = struct.pack("!HHHH", 1024 + (at & 0x3f) if source else 5000, port, length - 20, 0)
                sock.send((head + ip + udp).ljust(size, b"\0"))
        finally:
            sock.close()
        return time.monotonic() - began

    def received(self, number, make_traffic, seconds=3, port=9):
        """Number of UDP frames to this port that vfN gets while make_traffic() runs, and for some time after."""
        listener = Listener(self, number, port)
        try:
            make_traffic()
            return listener.count(seconds)
        finally:
            listener.close()

    # -- the switch as a process -----------------------------------------------

    def memory_mb(self):
        """Resident memory of the switch, MB."""
        with open(f"/proc/{self.switch.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024

    def busiest_threads(self):
        """Processor time of the switch's busiest threads so far, as text: in user space and in the kernel, in seconds."""
        found = []
        for task in os.listdir(f"/proc/{self.switch.pid}/task"):
            with open(f"/proc/{self.switch.pid}/task/{task}/stat") as file:
                name, words = file.read().split("(", 1)[1].rsplit(")", 1)
            user, kernel = (int(n) / os.sysconf("SC_CLK_TCK") for n in words.split()[11:13])
            found.append((user + kernel, f"{name} {user:.1f}+{kernel:.1f}"))
        return ", ".join(text for _, text in sorted(found, reverse=True)[:6])

    def cpu_s(self):
        """Processor time of the switch so far, in seconds."""
        with open(f"/proc/{self.switch.pid}/stat") as file:
            words = file.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Listener:
    """Keeps the frames that vfN gets from now on until count() is called."""

    RECEIVE_BUFFER_FORCE = 33

    def __init__(self, node, number, port=9):
        self.want = struct.pack("!H", port)
        self.sock = node.net.raw(node.pods[number], f"vf{number}", timeout=0.1)
        self.sock.setsockopt(socket.SOL_SOCKET, self.RECEIVE_BUFFER_FORCE, 1 << 24)

    def count(self, seconds):
        """Number of UDP frames to the port so far and in the next seconds; frames that are there already are all read."""
        got, end = 0, time.monotonic() + seconds
        while True:
            try:
                frame, source = self.sock.recvfrom(2048)
            except TimeoutError:
                if time.monotonic() > end:
                    return got
                continue
            got += source[2] != socket.PACKET_OUTGOING and frame[12:14] == b"\x08\x00" and frame[23] == 17 and frame[36:38] == self.want

    def close(self):
        self.sock.close()
