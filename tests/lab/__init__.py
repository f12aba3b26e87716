"""Building blocks of the system, differential, demo and benchmark scripts.

Everything here is Python's standard library and drives the daemon under test
from outside only: ovs-vsctl, ovs-ofctl, ovs-appctl, sockets and frames.  The
daemon is whatever `HEDDLED` names (default: target/release/heddled), so that
every script also runs against Debian's own /usr/sbin/ovs-vswitchd, which is
the reference for behaviour.

Each lab has its own run directory and its own network namespaces. The daemon runs in a namespace too, so
neither its bridge devices nor its sockets can meet a switch that already runs on the machine.
"""

import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Debian keeps OVS's daemon here, whichever variant the alternatives system points /usr/sbin at.
REFERENCE = next((path for path in ("/usr/lib/openvswitch-switch/ovs-vswitchd", "/usr/sbin/ovs-vswitchd")
                  if os.access(path, os.X_OK)), "/usr/sbin/ovs-vswitchd")


def daemon_path() -> str:
    """The daemon under test: $HEDDLED, or the release build."""
    path = os.environ.get("HEDDLED") or os.path.join(
        os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "heddled")
    return os.path.abspath(path)
