"""The OVN under test: the installed one, or a later one. To be called before any search for programs and
schemas."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def reference():
    """Open vSwitch's daemon to compare with. With `--ovn sid` on the command line, all programs and schemas are those that
    `setup-sid` has fetched."""
    asked = sys.argv[1:]
    if "--ovn=sid" not in asked and ("--ovn", "sid") not in zip(asked, asked[1:]):
        return "/usr/lib/openvswitch-switch/ovs-vswitchd"
    cache = subprocess.run([f"{HERE}/setup-sid"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    os.environ["PATH"] = f"{cache}/bin:{os.environ['PATH']}"
    os.environ["OVS_PKGDATADIR"] = f"{cache}/root/usr/share/openvswitch"
    os.environ["OVN_PKGDATADIR"] = f"{cache}/root/usr/share/ovn"
    return f"{cache}/bin/ovs-vswitchd"
