"""Routes with several next hops, BFD, policies, bindings of neighbours, and failover of gateways.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

import re
import time

from checks import check
from cluster import has_column, server
from probes import background, BFD_PEER, captured, until, way_back, with_gateway_router, without_gateway_router, world2


@check
def ecmp_routes(c):
    world2(c)
    servers = [server(c, pod, 7020) for pod in ("world", "world2")]
    c.nbctl("--ecmp", "lr-route-add", "lr0", "172.20.0.0/24", "192.168.50.10", "--", "--ecmp", "lr-route-add", "lr0", "172.20.0.0/24", "192.168.50.11")
    c.sync()
    try:
        answers = lambda: {c.tcp("a1", "172.20.0.1", 7020).split(" ")[0] for _ in range(16)}
        # Some of the first ones are lost while neighbours are found.
        answers()
        got = answers()
        return None if got == {"world", "world2"} else str(got)
    finally:
        c.nbctl("lr-route-del", "lr0", "172.20.0.0/24")
        c.sync()
        [s.kill() for s in servers]


@check
def ecmp_with_symmetric_replies(c):
    """Replies return by the next hop that the request came from, whatever the hash is."""
    with_gateway_router(c)
    for hop in ("192.168.60.10", "192.168.60.11"):
        c.nbctl("--ecmp-symmetric-reply", "lr-route-add", "gr", "172.21.0.0/24", hop)
    c.sync()
    s = server(c, "b2", 7036)
    worlds = (c.world, c.pods["world2"])
    try:
        for ns in worlds:
            c.net.ip(ns, "addr", "replace", "172.21.0.1/32", "dev", "lo")
            c.net.ip(ns, "route", "replace", "10.0.1.12/32", "via", "192.168.60.1")
        code = ("import socket\nok=0\nfor _ in range(8):\n    try:\n        s=socket.socket(); s.settimeout(2); s.bind(('172.21.0.1',0)); s.connect(('10.0.1.12',7036)); s.sendall(b'x')\n"
                "        ok+=s.recv(100)==b'b2 172.21.0.1'; s.close()\n    except OSError: pass\nprint(ok)\n")
        for _ in range(2):  # neighbours are found in the first round
            got = [c.net.run(ns, "python3", "-c", code, timeout=40).strip() for ns in worlds]
        return None if got == ["8", "8"] else f"of 8 connections each: {got}"
    finally:
        s.kill()
        for ns in worlds:
            c.net.ip(ns, "addr", "del", "172.21.0.1/32", "dev", "lo", check=False)
            c.net.ip(ns, "route", "del", "10.0.1.12/32", check=False)
        without_gateway_router(c)


@check
def policy_with_another_next_hop(c):
    world2(c)
    servers = [server(c, pod, 7021) for pod in ("world", "world2")]
    c.nbctl("lr-route-add", "lr0", "172.20.0.0/24", "192.168.50.10", "--", "lr-policy-add", "lr0", "200", "ip4.src == 10.0.0.12 && ip4.dst == 172.20.0.0/24", "reroute", "192.168.50.11")
    c.sync()
    try:
        got = [c.tcp(pod, "172.20.0.1", 7021).split(" ")[0] for pod in ("a1", "a2")]
        return None if got == ["world", "world2"] else str(got)
    finally:
        c.nbctl("lr-policy-del", "lr0", "--", "lr-route-del", "lr0", "172.20.0.0/24")
        c.sync()
        [s.kill() for s in servers]


@check
def policies_with_several_next_hops(c):
    """Each next hop takes a share; a silent one takes none, if this OVN monitors next hops of policies with
    BFD."""
    world2(c)
    servers = [server(c, pod, 7045) for pod in ("world", "world2")]
    watched = has_column("Logical_Router_Policy", "bfd_sessions")
    peers = []
    c.nbctl("lr-route-add", "lr0", "172.20.0.0/24", "192.168.50.10", "--", "lr-policy-add", "lr0", "200", "ip4.src == 10.0.0.0/24 && ip4.dst == 172.20.0.0/24", "reroute",
            "192.168.50.10,192.168.50.11")
    hosts = lambda: {c.tcp("a1", "172.20.0.1", 7045).split(" ")[0] for _ in range(16)}
    try:
        c.sync()
        # Some of the first ones are lost while neighbours are found.
        hosts()
        if (got := hosts()) != {"world", "world2"}:
            return f"with both: {got}"
        if not watched:
            return None
        for pod, hop in (("world", "192.168.50.10"), ("world2", "192.168.50.11")):
            peers.append(background(c, pod, "python3", "-c", BFD_PEER, hop))
            session = c.nbctl("create", "bfd", "logical_port=lr0-ext", f"dst_ip={hop}", "min_tx=200", "min_rx=200", "detect_mult=5").strip()
            policy = c.nbctl("--bare", "--columns=_uuid", "find", "logical_router_policy", "priority=200").strip()
            c.nbctl("add", "logical_router_policy", policy, "bfd_sessions", session)
        status = lambda: sorted(c.nbctl("--bare", "--columns=status", "list", "bfd").split())
        if not until(lambda: status() == ["up", "up"], 20):
            return f"sessions are {status()}"
        peers[0].kill()
        if not until(lambda: status() == ["down", "up"], 20):
            return f"with one silent, sessions are {status()}"
        c.sync()
        return None if (got := hosts()) == {"world2"} else f"with one: {got}"
    finally:
        [p.kill() for p in peers]
        [s.kill() for s in servers]
        c.nbctl("lr-policy-del", "lr0", "--", "lr-route-del", "lr0", "172.20.0.0/24", "--", "--all", "destroy", "bfd")
        c.sync()


@check
def routes_with_bfd(c):
    """BFD monitors the next hop of a route. When the next hop is silent, the route goes, and another one
    takes its traffic."""
    world2(c)
    servers = [server(c, pod, 7035) for pod in ("world", "world2")]
    peer = background(c, "world", "python3", "-c", BFD_PEER, "192.168.50.10")
    other = background(c, "world2", "python3", "-c", BFD_PEER, "192.168.50.11")
    for hop in ("192.168.50.10", "192.168.50.11"):
        session = c.nbctl("create", "bfd", "logical_port=lr0-ext", f"dst_ip={hop}", "min_tx=200", "min_rx=200", "detect_mult=5").strip()
        c.nbctl("--ecmp", f"--bfd={session}", "lr-route-add", "lr0", "172.20.0.0/24", hop)
    c.sync()
    status = lambda: sorted(c.nbctl("--bare", "--columns=status", "list", "bfd").split())
    hosts = lambda: {c.tcp("a1", "172.20.0.1", 7035).split(" ")[0] for _ in range(10)}
    try:
        if not until(lambda: status() == ["up", "up"], 20):
            return f"sessions are {status()}"
        if (got := hosts()) != {"world", "world2"}:
            return f"with both: {got}"
        peer.kill()
        if not until(lambda: status() == ["down", "up"], 20):
            return f"with one silent, sessions are {status()}"
        c.sync()
        return None if (got := hosts()) == {"world2"} else f"with one: {got}"
    finally:
        peer.kill()
        other.kill()
        [s.kill() for s in servers]
        c.nbctl("lr-route-del", "lr0", "172.20.0.0/24", "--", "--all", "destroy", "bfd")
        c.sync()


@check
def groups_follow_bfd(c):
    """A forwarding group with `--liveness` has buckets that watch tunnels: a chassis that BFD finds silent gets no new connections."""
    c.nbctl("lrp-set-gateway-chassis", "lr0-ext", "ch3", "20", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch2", "15", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch1", "10")
    c.pod("g3", 3, "ls0", "02:00:00:00:00:23", "10.0.0.23/24", gateway="10.0.0.1")
    c.nbctl("--liveness", "fwd-group-add", "fg", "ls0", "10.0.0.210", "02:00:00:00:00:d2", "a3", "g3")
    c.sync()
    servers = []
    for pod in ("a3", "g3"):
        c.net.ip(c.pods[pod], "link", "add", "fg0", "link", "eth0", "address", "02:00:00:00:00:d2", "type", "macvlan")
        c.net.ip(c.pods[pod], "addr", "add", "10.0.0.210/32", "dev", "fg0")
        c.net.ip(c.pods[pod], "link", "set", "fg0", "up")
        servers.append(server(c, pod, 7046))
    node = c.chassis[0]
    up = lambda: "state=up" in node.sw.vsctl("--bare", "--columns=bfd_status", "list", "interface", "ovn-ch2-0")
    hosts = lambda n: {c.tcp("a1", "10.0.0.210", 7046, timeout=2).split(" ")[0] for _ in range(n)}
    try:
        if not until(up, 20):
            return "no session of BFD with the chassis"
        if "watch_port" not in (groups := node.sw.ofctl("-O", "OpenFlow15", "dump-groups", "br-int")):
            return f"no bucket watches a port: {groups[-300:]}"
        if not until(lambda: hosts(12) == {"a3", "g3"}, 20):
            return f"with both: {hosts(12)}"
        c.net.ip(c.fabric, "link", "set", "up0-2", "down")
        if not until(lambda: not up(), 15):
            return "BFD does not notice"
        flaps = lambda: re.findall(r"flap_count=\d+", node.sw.vsctl("--bare", "--columns=bfd_status", "list", "interface", "ovn-ch3-0"))
        before = flaps()
        return None if (got := hosts(12)) == {"g3"} else f"with one: {got}, and the session with the other one: {before}, {flaps()}"
    finally:
        c.net.ip(c.fabric, "link", "set", "up0-2", "up")
        [s.kill() for s in servers]
        c.net.ip(c.pods["a3"], "link", "del", "fg0", check=False)
        c.nbctl("fwd-group-del", "fg", "--", "lrp-del-gateway-chassis", "lr0-ext", "ch3", "--", "lsp-del", "g3")
        c.chassis[2].sw.vsctl("del-port", "br-int", "vg3")
        until(up, 20)
        c.sync()


@check
def bindings_of_neighbours_age(c):
    way_back(c)
    c.reaches("a1", "192.168.50.10")
    found = lambda: c.sbctl("--bare", "--columns=ip", "find", "mac_binding", "ip=192.168.50.10").strip()
    if not until(found, 5):
        return "nothing was learned"
    c.nbctl("set", "logical_router", "lr0", "options:mac_binding_age_threshold=2")
    try:
        if not until(lambda: not found(), 15):
            return "it stays"
        return None if c.reaches("a1", "192.168.50.10", tries=5) else "no answer afterwards"
    finally:
        c.nbctl("remove", "logical_router", "lr0", "options", "mac_binding_age_threshold")
        c.sync()


@check
def static_bindings_of_neighbours(c):
    way_back(c)
    c.nbctl("static-mac-binding-add", "lr0-ext", "192.168.50.66", "02:00:00:00:66:66")
    c.sync()
    try:
        seen = captured(c, "world", "icmp and dst 192.168.50.66 or arp and host 192.168.50.66",
                        lambda: c.run("a1", "ping", "-n", "-c", "2", "-W", "1", "192.168.50.66", check=False), seconds=4)
        # The world's bridge does not know the address: it floods.
        return None if "02:00:00:00:66:66" in seen and "echo request" in seen else seen[:300] or "nothing"
    finally:
        c.nbctl("static-mac-binding-del", "lr0-ext", "192.168.50.66")
        c.sync()


@check
def gateway_fails_over_by_bfd(c):
    """The chassis with the gateway is cut off; BFD notices, and the other one takes over."""
    way_back(c)
    c.nbctl("lrp-set-gateway-chassis", "lr0-ext", "ch3", "20", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch1", "10")
    c.sync()
    if not until(lambda: c.reaches("a1", "192.168.50.10", tries=1), 20):
        return "no answer before"
    status = lambda: c.chassis[0].sw.vsctl("--bare", "--columns=bfd_status", "list", "interface")
    if not until(lambda: "state=up" in status(), 15):
        return f"BFD: {status()!r}"
    try:
        for dev in ("up0-3", "ph0-3"):
            c.net.ip(c.fabric, "link", "set", dev, "down")
        began = time.monotonic()
        if not until(lambda: c.reaches("a1", "192.168.50.10", tries=1, count=1), 20):
            return "nobody takes over"
        seconds = time.monotonic() - began
        return None if seconds < 15 else f"after {seconds:.1f} s"
    finally:
        for dev in ("up0-3", "ph0-3"):
            c.net.ip(c.fabric, "link", "set", dev, "up")
        c.nbctl("lrp-del-gateway-chassis", "lr0-ext", "ch3")
        c.sync()
