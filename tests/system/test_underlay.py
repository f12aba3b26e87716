#!/usr/bin/env python3
"""Routes and neighbours for tunnels, as commands show and change them."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import main

HEAD = "IP" + " " * 44 + "MAC" + " " * 17 + "Bridge\n" + "=" * 74 + "\n"


def dummy_switch(lab):
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", netns=False)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    return sw


def scenario_neighbours_by_hand(lab):
    sw = dummy_switch(lab)
    sw.appctl("time/stop")
    assert sw.appctl("tnl/neigh/show") == HEAD
    sw.appctl("tnl/neigh/set", "br0", "1.1.2.92", "f8:bc:12:44:34:b6")
    sw.appctl("tnl/arp/set", "br0", "2001:cafe::92", "f8:bc:12:44:34:b7")
    line = "{:46}{}   br0\n".format
    first, second = line("1.1.2.92", "f8:bc:12:44:34:b6"), line("2001:cafe::92", "f8:bc:12:44:34:b7")
    assert sw.appctl("tnl/arp/show") == HEAD + first + second
    assert sw.appctl("tnl/neigh/aging").strip() == "900"
    sw.appctl("tnl/neigh/aging", "5")
    sw.appctl("time/warp", "7000", "1000")
    assert sw.appctl("tnl/neigh/show") == HEAD
    sw.appctl("tnl/neigh/set", "br0", "1.1.2.92", "f8:bc:12:44:34:b6")
    sw.appctl("tnl/neigh/flush")
    assert sw.appctl("tnl/neigh/show") == HEAD


def scenario_routes_by_hand(lab):
    sw = dummy_switch(lab)
    sw.vsctl("add-port", "br0", "vtep0", "--", "set", "interface", "vtep0", "type=dummy")
    sw.appctl("netdev-dummy/ip4addr", "vtep0", "10.0.0.11/24")
    cached = "Route Table:\nCached: 10.0.0.11/32 dev vtep0 SRC 10.0.0.11 local\nCached: 10.0.0.0/24 dev vtep0 SRC 10.0.0.11\n"
    assert sw.appctl("ovs/route/show") == cached
    sw.appctl("ovs/route/add", "20.0.0.0/8", "vtep0", "10.0.0.1")
    assert sw.appctl("ovs/route/lookup", "20.1.1.1") == "src 10.0.0.11\ngateway 10.0.0.1\ndev vtep0\n"
    sw.appctl("ovs/route/del", "20.0.0.0/8")
    assert sw.appctl("ovs/route/show") == cached
    sw.vsctl("del-port", "br0", "vtep0")
    assert sw.appctl("ovs/route/show") == "Route Table:\n"


if __name__ == "__main__":
    main()
