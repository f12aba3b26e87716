#!/usr/bin/env python3
"""Packet marks at internal ports under Linux 6.12, with VLAN devices on top of the ports, which this machine's kernel may
lack."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab import ROOT
from lab.guestlab import main
from lab.podlab import PodLab
from lab.runner import limit

MODULES = ("veth", "tun", "8021q", "sch_ingress", "cls_bpf", "nf_tables")


@limit(900)
def scenario_marks_cross_internal_ports(lab):
    """Marks of tagged packets, of GSO packets and of others cross in both directions."""
    p = PodLab(lab, modules=MODULES, start=False)
    out = p.run(f"cd {ROOT} && CARGO_TARGET_DIR=/tmp/target HEDDLED={p.binary} python3 tests/system/test_marks.py tagged gso both",
                timeout=800, check=False)
    lab.trace.note(out)
    assert re.search(r"^test_marks: 3 passed, 0 failed, 0 skipped$", out, re.M), out


if __name__ == "__main__":
    main()
