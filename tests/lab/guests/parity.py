#!/usr/bin/env python3
"""Parity with Open vSwitch's kernel datapath: the checks of tests/lab/parity, in an emulated machine.

They run with Open vSwitch's datapath of Linux 6.12 first, then with Heddle: a check that passes there has to pass
with Heddle. `--switch ovs-kernel` or `--switch heddle` runs one of them alone, and parts of names choose checks.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.beside import main

TOPICS = ("marks", "fragments", "tunnels", "connections", "sampling")
MODULES = ("crc32c_generic", "openvswitch", "vport-geneve", "vport-vxlan", "vport-gre", "veth", "tun", "nf_conntrack_netlink",
           "nf_tables", "nft_ct", "sch_ingress", "cls_bpf", "act_sample", "psample", "cls_fw")

if __name__ == "__main__":
    main("parity", "parity", TOPICS, MODULES)
