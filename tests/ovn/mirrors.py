"""Mirrors of logical ports: to tunnels and to a local port.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

from checks import Absent, check
from cluster import has_column
from probes import captured


@check
def mirror_to_gre(c):
    watcher = c.net.namespace("watcher")
    c.pods["watcher"] = watcher
    c.net.veth(watcher, "eth0", c.fabric, "watcher")
    c.net.ip(c.fabric, "link", "set", "watcher", "master", "fabric")
    c.net.address(watcher, "eth0", "172.31.0.99/24")
    c.nbctl("mirror-add", "m0", "gre", "5", "to-lport", "172.31.0.99", "--", "lsp-attach-mirror", "a2", "m0")
    c.sync()
    try:
        # The first packets find the neighbour.
        seen = captured(c, "watcher", "proto gre", lambda: c.reaches("a1", "10.0.0.12", count=8), seconds=8, count=3)
        return None if "ICMP echo request" in seen or "GREv0" in seen and "10.0.0.12" in seen else seen[:300] or "nothing"
    finally:
        c.nbctl("lsp-detach-mirror", "a2", "m0", "--", "mirror-del", "m0")
        c.sync()


def watched_mirror(c, kind, what, index):
    """The mirrored packets that a host of the underlay receives."""
    watcher = c.pods.get("watcher")
    if not watcher:
        watcher = c.pods["watcher"] = c.net.namespace("watcher")
        c.net.veth(watcher, "eth0", c.fabric, "watcher")
        c.net.ip(c.fabric, "link", "set", "watcher", "master", "fabric")
        c.net.address(watcher, "eth0", "172.31.0.99/24")
    c.nbctl("mirror-add", "m1", kind, index, "from-lport", "172.31.0.99", "--", "lsp-attach-mirror", "a1", "m1")
    c.sync()
    try:
        # The first packets find the neighbour.
        return captured(c, "watcher", what, lambda: c.reaches("a1", "10.0.0.12", count=8), seconds=8, count=3)
    finally:
        c.nbctl("lsp-detach-mirror", "a1", "m1", "--", "mirror-del", "m1")
        c.sync()


@check
def mirror_to_erspan(c):
    seen = watched_mirror(c, "erspan", "proto gre", "7")
    return None if "gre" in seen.lower() and "0x88be" in seen else seen[:300] or "nothing"


@check
def mirror_to_a_local_port(c):
    if not has_column("Mirror", "mirror_rules"):
        raise Absent
    node = c.chassis[0]
    sink = c.pods.get("sink")
    if not sink:
        sink = c.pods["sink"] = c.net.namespace("sink")
        c.net.veth(node.ns, "vsink", sink, "eth0")
        c.net.ip(sink, "link", "set", "eth0", "up")
    node.sw.vsctl("--may-exist", "add-port", "br-int", "vsink", "--", "set", "interface", "vsink", "external_ids:mirror-id=here")
    c.nbctl("mirror-add", "m2", "local", "both", "here", "--", "lsp-attach-mirror", "a1", "m2")
    c.sync()
    try:
        seen = captured(c, "sink", "icmp", lambda: c.reaches("a1", "10.0.0.12", count=4), seconds=6, count=4)
        return None if "echo request" in seen and "echo reply" in seen else seen[:300] or "nothing"
    finally:
        c.nbctl("lsp-detach-mirror", "a1", "m2", "--", "mirror-del", "m2")
        node.sw.vsctl("del-port", "br-int", "vsink")
        c.sync()
