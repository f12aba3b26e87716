#!/usr/bin/env python3
"""Samples of packets for psample, which OVN-Kubernetes' and Kube-OVN's observability read (Open vSwitch 3.4)."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.parity.netlink import Samples
from lab.parity.node import Node
from lab.runner import main
from lab.shell import wait_for

FROM, TO = "10.7.0.1", "10.7.0.2"
DOMAIN, POINT, GROUP = 0x0200_000A, 0x1234_5678, 10


class Sampled:
    """Two pods on a bridge with a collector set whose samples go to a local group, and a reader."""

    def __init__(self, lab, group=GROUP):
        self.node = n = Node(lab)
        self.a, self.b = n.pod("pa", f"{FROM}/24"), n.pod("pb", f"{TO}/24")
        self.neighbours()
        self.set = n.switch.vsctl("--id=@br", "get", "Bridge", "br0", "--", "create", "Flow_Sample_Collector_Set", "id=1",
                                  "bridge=@br", f"local_group_id={group}")
        self.reader = Samples(n.net, n.host)
        lab.cleanups.append(self.reader.close)

    def neighbours(self):
        n = self.node
        for ns, address, other in ((self.a, TO, self.b), (self.b, FROM, self.a)):
            n.neighbour(ns, "eth0", address, n.mac(other, "eth0"))

    def flow(self, *words, probability=65535, match="in_port=pa,udp"):
        values = {"collector_set_id": 1, "obs_domain_id": DOMAIN, "obs_point_id": POINT, **dict(word.split("=", 1) for word in words)}
        text = ",".join(f"{name}={value}" for name, value in values.items())
        self.node.flows("priority=0,actions=NORMAL",
                        f"priority=10,{match},actions=set_field:0x77->reg3,set_field:0x88->reg4,"
                        f"sample(probability={probability},{text}),pb")

    def samples(self, count=5):
        """Sends datagrams and returns the samples of them."""
        self.node.datagrams(self.a, TO, 9, count=count)
        return self.reader.read()

    def ready(self):
        """Waits until a packet is sampled, since the collector set is taken up after its row was written."""
        wait_for("the first sample", lambda: self.samples(1), 10, 0.2)


def cookie(domain, point):
    return domain.to_bytes(4) + point.to_bytes(4)


def scenario_samples_with_group_and_cookie(lab):
    """Each packet of a sampled flow is a sample with the group, the cookie (domain and point) and the packet's bytes."""
    s = Sampled(lab)
    s.flow()
    s.ready()
    found = s.samples(5)
    assert [(group, mark) for group, mark, _ in found] == [(GROUP, cookie(DOMAIN, POINT))] * 5, found
    for number, (_, _, packet) in enumerate(found):
        assert packet.endswith(b"datagram %d" % number) and packet[12:14] == b"\x08\0", packet


def scenario_domain_and_point_from_fields(lab):
    """The domain and the point of a sample come from registers of the packet, as OVN's ACLs set them."""
    s = Sampled(lab)
    s.flow("obs_domain_id=NXM_NX_REG3[]", "obs_point_id=NXM_NX_REG4[]")
    s.ready()
    assert [mark for _, mark, _ in s.samples(3)] == [cookie(0x77, 0x88)] * 3


def scenario_a_share_of_the_packets(lab):
    """With a probability of a quarter, about a quarter of the packets is sampled, and all of them arrive."""
    s = Sampled(lab)
    s.flow()
    s.ready()
    s.flow(probability=16384)
    number = len(s.samples(400))
    assert 50 <= number <= 160, f"{number} of 400 packets were sampled"


def scenario_sampled_after_ct(lab):
    """Packets are sampled in a later table behind ct(), where OVN's ACLs sample."""
    s = Sampled(lab)
    s.node.flows("priority=0,actions=NORMAL", "priority=10,in_port=pa,udp,actions=ct(table=1,zone=5)",
                 "table=1,ct_state=+new,udp,actions=ct(commit,zone=5),"
                 "sample(probability=65535,collector_set_id=1,obs_domain_id=1,obs_point_id=2),pb",
                 "table=1,ct_state=+est,udp,actions="
                 "sample(probability=65535,collector_set_id=1,obs_domain_id=1,obs_point_id=3),pb")
    s.ready()
    marks = [mark for _, mark, _ in s.samples(4)]
    assert len(marks) == 4 and set(marks) <= {cookie(1, 2), cookie(1, 3)}, marks


def scenario_no_samples_without_the_set(lab):
    """When the collector set is deleted, packets continue and samples end."""
    s = Sampled(lab)
    s.flow()
    s.ready()
    s.node.switch.vsctl("destroy", "Flow_Sample_Collector_Set", s.set)
    wait_for("the end of the samples", lambda: not s.samples(2), 15, 0.2)
    s.node.net.ping(s.a, TO)


if __name__ == "__main__":
    main()
