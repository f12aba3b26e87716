#!/usr/bin/env python3
"""System tests that need devices which this machine's kernel may lack: VLAN devices on top of a port, under Linux 6.12."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab import ROOT
from lab.guestlab import main
from lab.podlab import PodLab
from lab.runner import limit

MODULES = ("veth", "tun", "8021q", "sch_ingress", "cls_bpf")


@limit(600)
def scenario_vlan_devices_on_top_of_a_port(lab):
    """A VLAN with a device on top of the port is that device's, with and without offload."""
    p = PodLab(lab, modules=MODULES, start=False)
    out = p.run(f"cd {ROOT} && CARGO_TARGET_DIR=/tmp/target HEDDLED={p.binary} python3 tests/system/test_host_stack.py vlan_device",
                timeout=500, check=False)
    lab.trace.note(out)
    assert re.search(r"^test_host_stack: 2 passed, 0 failed, 0 skipped$", out, re.M), out


if __name__ == "__main__":
    main()
