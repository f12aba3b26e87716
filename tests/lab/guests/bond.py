#!/usr/bin/env python3
"""A bond with LACP towards the kernel's bond driver (mode 802.3ad) under Linux 6.12, in one emulated machine."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import main
from lab.podlab import PodLab
from lab.runner import limit

MODULES = ("veth", "tun", "bonding", "sch_ingress", "cls_matchall", "act_gact")
LINKS = (0, 1)
# Both ends aggregate, are in sync, collect, distribute, and request a message every second.
ALL = 0x3f
FLOWS = """
import socket
for port in range(7000, 7040):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _ in range(5):
        s.sendto(b"x", ("10.9.0.2", port))
"""


class Host:
    """The switch with pod a (10.9.0.1) and members m0, m1; and a host whose bond (10.9.0.2) has n0, n1."""

    def __init__(self, lab):
        p = self.p = PodLab(lab, modules=MODULES)
        p.bridge()
        p.run("ip netns add a && ip link add va type veth peer name eth0 netns a && ip link set va up && ip -n a addr add 10.9.0.1/24 dev eth0 && "
              "ip -n a link set lo up && ip -n a link set eth0 up && ip netns add host && ip -n host link set lo up")
        p.run("; ".join(f"ip link add m{n} type veth peer name n{n} netns host && ip link set m{n} up" for n in LINKS))
        p.vsctl("add-port br-int va")
        # miimon: the driver reads the members' carriers that often.
        p.run("ip -n host link add bond0 type bond mode 802.3ad lacp_rate fast miimon 100 xmit_hash_policy layer3+4 && "
              "for n in 0 1; do ip -n host link set n$n master bond0; done && ip -n host addr add 10.9.0.2/24 dev bond0 && "
              "ip -n host link set bond0 up")
        p.vsctl("add-bond br-int bond0 m0 m1 bond_mode=balance-tcp lacp=active other_config:lacp-time=fast")

    def driver(self):
        """The driver's view: the number of ports that it uses, and each member's values by name."""
        text = self.p.run("ip netns exec host cat /proc/net/bonding/bond0")
        used = re.search(r"Number of ports: (\d+)", text)
        parts = re.split(r"\nSlave Interface: (\S+)\n", text)[1:]
        links = {}
        for name, part in zip(parts[::2], parts[1::2]):
            actor, partner = part.split("details partner lacp pdu:")
            links[name] = {
                "up": "MII Status: up" in part, "failures": int(re.search(r"Link Failure Count: (\d+)", part)[1]),
                "aggregator": int(re.search(r"Aggregator ID: (\d+)", part)[1]), "actor": int(re.search(r"port state: (\d+)", actor)[1]),
                "partner": int(re.search(r"port state: (\d+)", partner)[1]), "system": re.search(r"system mac address: (\S+)", partner)[1]}
        return int(used[1]) if used else 0, links

    def members(self):
        """State of the members with the switch."""
        return dict(re.findall(r"\nmember (\S+): (\w+)", self.p.appctl("bond/show bond0")))

    def negotiated(self):
        """Whether both ends use both links."""
        used, links = self.driver()
        settled = all((link["actor"], link["partner"]) == (ALL, ALL) for link in links.values())
        return used == 2 and settled and set(self.members().values()) == {"enabled"}

    def wait_negotiated(self):
        try:
            self.p.wait("both links at both ends", self.negotiated, 60)
        except AssertionError:
            raise AssertionError(f"{self.driver()} {self.p.appctl('bond/show')} {self.p.appctl('lacp/show')}") from None

    def silence(self, n, quiet):
        """The host sends no LACP messages by a link, or does again."""
        if quiet:
            self.p.run(f"tc -n host qdisc add dev n{n} clsact && tc -n host filter add dev n{n} egress protocol 0x8809 matchall action drop")
        else:
            self.p.run(f"tc -n host qdisc del dev n{n} clsact")

    def share(self):
        """Packets of 40 flows that each member has sent."""
        def sent():
            return [int(self.p.run(f"cat /sys/class/net/m{n}/statistics/tx_packets")) for n in LINKS]
        before = sent()
        self.p.put("/run/flows.py", FLOWS)
        self.p.run("ip netns exec a python3 /run/flows.py")
        self.p.wait("the packets", lambda: sum(sent()) - sum(before) >= 200, 30)
        return [now - old for now, old in zip(sent(), before)]


@limit(600)
def scenario_kernel_bond(lab):
    """Negotiates, spreads, loses a carrier, loses a silent partner, and falls back to one link when the partner is
    no bond."""
    h = Host(lab)
    p = h.p
    h.wait_negotiated()
    p.meet("a", "10.9.0.2")
    p.pings("a", "10.9.0.2", 10)
    _, links = h.driver()
    ours = re.search(r"sys_id: (\S+)", p.appctl("lacp/show bond0"))[1]
    assert {link["system"] for link in links.values()} == {ours} and links["n0"]["aggregator"] == links["n1"]["aggregator"], links
    share = h.share()
    p.tell(f"packets of 40 flows by each link: {share}")
    assert min(share) > 20, share

    # A member loses its carrier.
    p.run("ip -n host link set n1 down")
    p.wait("one member", lambda: h.members() == {"m0": "enabled", "m1": "disabled"}, 20)
    p.pings("a", "10.9.0.2", 10)
    p.run("ip -n host link set n1 up")
    h.wait_negotiated()
    p.pings("a", "10.9.0.2", 10)

    # A member hears nothing. The driver learns it from the switch's messages, and uses the other link alone.
    h.silence(1, True)
    p.wait("the time-out", lambda: h.members() == {"m0": "enabled", "m1": "disabled"}, 20)
    assert re.search(r"member: m1: (expired|defaulted) detached", p.appctl("lacp/show bond0")), p.appctl("lacp/show bond0")
    p.wait("the driver to follow", lambda: h.driver()[0] == 1 or h.driver()[1]["n1"]["actor"] & 0x30 == 0, 20)
    p.pings("a", "10.9.0.2", 10)
    assert p.get("m1", "lacp_current") == "false"
    h.silence(1, False)
    h.wait_negotiated()

    # The host is no bond (as while it boots from the network): with the fallback, one link carries its packets.
    p.run("ip -n host link del bond0; for n in 0 1; do ip -n host link set n$n up; done; ip -n host addr add 10.9.0.2/24 dev n0 && "
          "ip -n a neigh flush all")
    p.vsctl("set port bond0 other_config:lacp-fallback-ab=true other_config:bond-primary=m0")
    p.wait("the fallback", lambda: "lacp_status: configured" in p.appctl("bond/show bond0")
           and "member m0: enabled\n  active member" in p.appctl("bond/show bond0"), 60)
    p.meet("a", "10.9.0.2")
    p.pings("a", "10.9.0.2", 10)


if __name__ == "__main__":
    main()
