"""Translated addresses: gateway routers, ranges of ports, floating addresses, and IPv6 outside.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

import re

from checks import check
from cluster import server
from probes import background, until, way_back, with_gateway_router, without_gateway_router


@check
def gateway_router(c):
    """The gateway router translates, and balances with its own address as the source."""
    with_gateway_router(c)
    c.nbctl("lr-nat-add", "gr", "snat", "192.168.60.2", "10.0.0.0/16", "--", "lb-add", "lb0", "192.168.60.20:80", "10.0.0.13:8080,10.0.1.12:8080", "tcp",
            "--", "lr-lb-add", "gr", "lb0")
    c.sync()
    servers = [server(c, "a3", 8080), server(c, "b2", 8080), server(c, "world", 7032)]
    try:
        if (got := c.tcp("a1", "192.168.60.10", 7032)) != "world 192.168.60.2":
            return f"from inside: {got}"
        balanced = lambda: {c.tcp("world", "192.168.60.20", 80) for _ in range(16)}
        # Some of the first ones are lost while neighbours are found.
        balanced()
        got = balanced()
        return None if got == {"a3 100.64.0.2", "b2 100.64.0.2"} else f"balanced: {got}"
    finally:
        [s.kill() for s in servers]
        c.nbctl("lb-del", "lb0")
        without_gateway_router(c)


@check
def snat_with_a_range_of_ports(c):
    way_back(c)
    c.nbctl("--may-exist", "--portrange", "lr-nat-add", "lr0", "snat", "192.168.50.7", "10.0.1.11/32", "40000-40099")
    c.sync()
    code = ("import socket\ns=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('',7033)); s.listen(9); s.settimeout(9)\n"
            "a=s.accept()[1]; print(*a)\n")
    listener = background(c, "world", "python3", "-c", code)
    try:
        until(lambda: ":7033 " in c.run("world", "ss", "-Hltn", quiet=True), 5)
        c.tcp("b1", "192.168.50.10", 7033)
        got = listener.communicate(timeout=20)[0].split()
        return None if len(got) == 2 and got[0] == "192.168.50.7" and 40000 <= int(got[1]) <= 40099 else str(got)
    finally:
        listener.kill()
        c.nbctl("lr-nat-del", "lr0", "snat", "10.0.1.11/32", check=False)
        c.sync()


@check
def stateless_floating_address(c):
    way_back(c)
    c.nbctl("--stateless", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.8", "10.0.0.13")
    c.sync()
    s = server(c, "a3", 7034)
    try:
        got = c.tcp("world", "192.168.50.8", 7034)
        return None if got == "a3 192.168.50.10" else got
    finally:
        s.kill()
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.8")
        c.sync()


@check
def dnat_alone(c):
    way_back(c)
    c.nbctl("lr-nat-add", "lr0", "dnat", "192.168.50.9", "10.0.1.12")
    c.sync()
    s = server(c, "b2", 7040)
    try:
        got = c.tcp("world", "192.168.50.9", 7040)
        return None if got == "b2 192.168.50.10" else got
    finally:
        s.kill()
        c.nbctl("lr-nat-del", "lr0", "dnat", "192.168.50.9")
        c.sync()


@check
def floating_addresses_from_inside(c):
    """Packets of a pod with a floating address have that source; pods reach each other by theirs."""
    way_back(c)
    c.nbctl("--may-exist", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.5", "10.0.1.12", "--", "--may-exist", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.15", "10.0.0.11")
    c.sync()
    servers = [server(c, "world", 7041), server(c, "b2", 7042)]
    try:
        if (got := c.tcp("b2", "192.168.50.10", 7041)) != "world 192.168.50.5":
            return f"to outside: {got}"
        got = c.tcp("a1", "192.168.50.5", 7042)
        return None if got == "b2 192.168.50.15" else f"between pods: {got}"
    finally:
        [s.kill() for s in servers]
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.5", "--", "lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.15")
        c.sync()


def with_ipv6_outside(c):
    way_back(c)
    c.nbctl("set", "logical_router_port", "lr0-ext", 'networks="192.168.50.1/24","fd50::1/64"')
    c.net.ip(c.world, "addr", "replace", "fd50::10/64", "dev", "eth0", "nodad")
    c.net.ip(c.world, "-6", "route", "replace", "fd00::/32", "via", "fd50::1", check=False)
    for net in (0, 1):
        c.net.ip(c.world, "-6", "route", "replace", f"fd00:{net}::/64", "via", "fd50::1")


def without_ipv6_outside(c):
    c.nbctl("set", "logical_router_port", "lr0-ext", "networks=192.168.50.1/24")
    for net in (0, 1):
        c.net.ip(c.world, "-6", "route", "del", f"fd00:{net}::/64", check=False)
    c.net.ip(c.world, "addr", "del", "fd50::10/64", "dev", "eth0", check=False)
    c.sync()


@check
def floating_address_of_ipv6(c):
    with_ipv6_outside(c)
    c.nbctl("lr-nat-add", "lr0", "dnat_and_snat", "fd50::5", "fd00:1::12")
    c.sync()
    servers = [server(c, "b2", 7043, v6=True), server(c, "world", 7044, v6=True)]
    try:
        if (got := c.tcp("world", "fd50::5", 7043)) != "b2 fd50::10":
            return f"from outside: {got}"
        got = c.tcp("b2", "fd50::10", 7044)
        return None if got == "world fd50::5" else f"to outside: {got}"
    finally:
        [s.kill() for s in servers]
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "fd50::5")
        without_ipv6_outside(c)


@check
def gateway_mtu(c):
    way_back(c)
    c.nbctl("set", "logical_router_port", "lr0-ext", "options:gateway_mtu=1000")
    c.sync()
    try:
        out = ""
        for _ in range(3):
            out += c.run("a1", "ping", "-n", "-c", "2", "-M", "do", "-s", "1200", "-W", "1", "192.168.50.10", check=False)
            if "mtu" in out:
                break
        return None if re.search(r"mtu ?= ?(1000|982|986)", out) else out[-300:]
    finally:
        c.nbctl("remove", "logical_router_port", "lr0-ext", "options", "gateway_mtu")
        c.run("a1", "ip", "route", "flush", "cache", check=False)
        c.sync()


@check
def gateway_mtu_of_ipv6(c):
    with_ipv6_outside(c)
    c.nbctl("set", "logical_router_port", "lr0-ext", "options:gateway_mtu=1300")
    c.sync()
    try:
        out = ""
        for _ in range(3):
            out += c.run("a1", "ping", "-n", "-c", "2", "-M", "do", "-s", "1350", "-W", "1", "fd50::10", check=False)
            if "mtu" in out:
                break
        return None if re.search(r"mtu ?= ?(1300|1282|1286)", out) else out[-300:]
    finally:
        c.nbctl("remove", "logical_router_port", "lr0-ext", "options", "gateway_mtu")
        c.run("a1", "ip", "-6", "route", "flush", "cache", check=False)
        without_ipv6_outside(c)
