#!/usr/bin/env python3
"""Hardware offload by tc flower: the checks of tests/lab/offload, in an emulated machine with the test card.

They run with Open vSwitch's kernel datapath first, then with Heddle, both with `hw-offload=true`. A check that passes
with Open vSwitch has to pass with Heddle. Where Open vSwitch does less than Heddle promises, the check demands it of
Heddle alone, and records what Open vSwitch does. `--switch ovs-kernel` or `--switch heddle` runs one of them alone,
and parts of names choose checks.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.beside import main

TOPICS = ("established", "refusals", "truth", "life", "tunnelled", "software", "scale")
MODULES = ("crc32c_generic", "openvswitch", "vport-geneve", "vport-vxlan", "vport-gre", "veth", "tun", "8021q", "bonding", "nf_conntrack_netlink",
           "sch_ingress", "cls_flower", "cls_bpf", "cls_matchall", "act_bpf", "act_mirred", "act_vlan", "act_pedit", "act_csum",
           "act_tunnel_key", "act_ct", "act_gact", "act_police", "act_sample", "act_skbedit", "act_mpls", "psample", "vxlan", "geneve",
           "ip_gre")

if __name__ == "__main__":
    main("card", "offload", TOPICS, MODULES, "mount -t debugfs none /sys/kernel/debug", ("ovs-kernel", "card"))
