"""A switch in a namespace that plays the host, with a bridge of type `system`, pods, marks, counters and streams."""

import contextlib
import json
import re
import socket
import threading

from ..shell import wait_for

# Settings of Heddle that the checks need (other_config). Open vSwitch ignores them.
SETTINGS = ("heddle-kernel-conntrack=all",)
SO_MARK = 36


class Node:
    """One switch with bridge br0. `host` is the namespace of the switch and of its bridges' devices."""

    def __init__(self, lab, settings=SETTINGS):
        self.lab, self.net, self.trace = lab, lab.net, lab.trace
        self.switch = lab.switch(start=False, system=True)
        self.host = self.switch.netns
        # With arp_ignore a device replies for its own addresses only, so each address is at one device.
        self.sysctl(self.host, "net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.rp_filter=0",
                    "net.ipv4.conf.default.rp_filter=0", "net.ipv6.conf.all.disable_ipv6=0",
                    "net.ipv6.conf.default.disable_ipv6=0", "net.ipv6.conf.default.accept_dad=0")
        self.switch.start_ovsdb()
        self.switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{setting}" for setting in settings))
        self.switch.start_daemon()
        self.bridge("br0")

    # -- bridges, ports and namespaces -----------------------------------------

    def bridge(self, name, *addresses):
        """A bridge, its device up with these addresses."""
        self.switch.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=system")
        self.up(self.host, name, *addresses)

    def up(self, ns, device, *addresses):
        for address in addresses:
            self.net.ip(ns, "addr", "add", address, "dev", device, *(["nodad"] if ":" in address else []))
        self.net.ip(ns, "link", "set", device, "up")

    def sysctl(self, ns, *settings):
        pairs = (setting.split("=") for setting in settings)
        self.net.run(ns, "sh", "-ec", "; ".join(f"echo {value} >/proc/sys/{name.replace('.', '/')}" for name, value in pairs))

    def wire(self, name, ns, device, *addresses):
        """A veth between the host's device `name`, which is no port, and a device of the namespace."""
        self.net.veth(self.host, name, ns, device)
        self.up(ns, device, *addresses)

    def namespace(self, name):
        ns = self.net.namespace(name, ipv6=True)
        self.sysctl(ns, "net.ipv6.conf.default.accept_dad=0")
        return ns

    def pod(self, name, *addresses, bridge="br0", mtu=1500):
        """A namespace whose eth0 is a veth; the other end is the port `name`."""
        ns = self.namespace(name)
        self.wire(name, ns, "eth0", *addresses)
        for where, device in ((self.host, name), (ns, "eth0")):
            self.net.ip(where, "link", "set", device, "mtu", str(mtu))
        self.switch.vsctl("add-port", bridge, name)
        return ns

    def internal(self, name, *addresses, bridge="br0"):
        """A namespace whose device `name` is an internal port."""
        self.switch.vsctl("add-port", bridge, name, "--", "set", "interface", name, "type=internal")
        ns = self.namespace(name)
        self.net.move(name, self.host, ns)
        self.up(ns, name, *addresses)
        return ns

    # -- flows -----------------------------------------------------------------

    def flows(self, *flows, bridge="br0"):
        """These flows in the place of all others. Ports by name."""
        self.switch.ofctl("-O", "OpenFlow14", "--names", "replace-flows", bridge, "-", stdin="\n".join(flows) + "\n")

    def count(self, cookie, bridge="br0"):
        """Packets of the flows with this cookie."""
        out = self.switch.ofctl("-O", "OpenFlow14", "dump-flows", bridge, f"cookie={cookie}/-1")
        return sum(map(int, re.findall(r"n_packets=(\d+)", out)))

    def wait_count(self, cookie, number, bridge="br0"):
        """Waits until flows with this cookie have had this number of packets, and not more."""
        with contextlib.suppress(AssertionError):
            wait_for("", lambda: self.count(cookie, bridge) >= number, 10, 0.3)
        count = self.count(cookie, bridge)
        assert count == number, f"flows with cookie {cookie} had {count} packets instead of {number}"

    # -- packets ---------------------------------------------------------------

    def neighbour(self, ns, device, address, mac):
        self.net.ip(ns, "neigh", "replace", address, "lladdr", mac, "dev", device)

    def mac(self, ns, device):
        return re.search(r"link/ether (\S+)", self.net.ip(ns, "link", "show", device)).group(1)

    def datagrams(self, ns, address, port, count=5, mark=0, source=0):
        """Sends datagrams from a socket with that mark."""
        def make():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            if mark:
                sock.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            sock.bind(("", source))
            return sock
        with self.net.socket(ns, make) as sock:
            for number in range(count):
                sock.sendto(b"datagram %d" % number, (address, port))

    def stream(self, client, server, address, port, size=1 << 20, mark=0, timeout=60):
        """Sends bytes over TCP from one namespace to the other and requires that they arrive unchanged."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def connect():
            sock = socket.socket(family)
            if mark:
                sock.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            sock.settimeout(timeout)
            sock.connect((address, port))
            return sock
        data = bytes(range(251)) * (size // 251)
        got = bytearray()
        listener = self.net.socket(server, lambda: socket.create_server((address, port), family=family))
        with listener, self.net.socket(client, connect) as sender:
            receiver, _ = listener.accept()
            receiver.settimeout(timeout)

            def send():
                with contextlib.suppress(OSError):  # the receiver's own error is reported
                    sender.sendall(data)
                    sender.shutdown(socket.SHUT_WR)
            thread = threading.Thread(target=send)
            thread.start()
            try:
                with receiver:
                    while piece := receiver.recv(1 << 16):
                        got += piece
            finally:
                thread.join()
        assert got == data, f"{len(got)} of {len(data)} bytes arrived, or they were others"

    # -- nft -------------------------------------------------------------------

    def nft(self, ns, counters, *chains):
        """A table with named counters and these chains."""
        text = "\n".join([*(f"counter {name} {{ }}" for name in counters), *chains])
        self.net.run(ns, "nft", "-f", "-", stdin=f"table inet parity {{\n{text}\n}}\n")

    def counters(self, ns):
        """(packets, bytes) of each named counter."""
        found = json.loads(self.net.run(ns, "nft", "-j", "list", "counters"))["nftables"]
        return {entry["counter"]["name"]: (entry["counter"]["packets"], entry["counter"]["bytes"])
                for entry in found if "counter" in entry}

    def packets(self, ns, name):
        return self.counters(ns)[name][0]
