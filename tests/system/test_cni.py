#!/usr/bin/env python3
"""The CNI plug-in: alone, as second network, after and around other plug-ins, with bad input, and many at once."""

import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.cni import Failed, Node, address
from lab.runner import main
from lab.shell import wait_for


def start(lab):
    sw = lab.switch()
    lab.bridge(sw)
    return sw, Node(lab, sw)


def refused(code, words, call, *args, **keys):
    """The call fails with this number, and with a sentence that has these words."""
    try:
        call(*args, **keys)
    except Failed as failed:
        assert failed.code == code and words in failed.msg, f"{failed} instead of {code} ... {words} ..."
        assert "\n" not in failed.msg and len(failed.msg) < 300, failed.msg
    else:
        raise AssertionError(f"no failure {code} ... {words} ...")


def devices(lab, ns):
    return set(re.findall(r"^\d+: ([^:@]+)", lab.net.ip(ns, "-o", "link"), re.M)) - {"lo"}


def scenario_alone_by_cnitool(lab):
    """Two pods by cnitool with addresses of host-local: they reach each other, are checked, and go without a trace."""
    sw, node = start(lab)
    before, devices_before = node.rows(), devices(lab, sw.netns)
    node.write("net", node.conf(mtu=1400, vlan=7), version="1.1.0")
    node.tool("status", "net")
    pods, results = [node.pod(), node.pod()], []
    for pod in pods:
        results.append(json.loads(node.tool("add", "net", pod)))
    a, b = (address(result) for result in results)
    lab.net.ping(pods[0], b)
    lab.net.ping(pods[1], a, size=1300)
    inside = results[0]["interfaces"][1]
    assert inside["name"] == "eth0" and inside["sandbox"] == f"/run/netns/{pods[0]}" and inside["mtu"] == 1400, inside
    assert inside["mac"] in lab.net.ip(pods[0], "link", "show", "eth0")
    assert "mtu 1400" in lab.net.ip(pods[0], "link", "show", "eth0")
    assert "10.7.0.0/16 via 10.1.0.1" in lab.net.ip(pods[0], "route")
    assert sw.get("port", results[0]["interfaces"][0]["name"], "tag") == "7"
    for pod in pods:
        node.tool("check", "net", pod)
    lab.net.ip(pods[0], "addr", "flush", "dev", "eth0")
    assert "has lost the address" in node.tool("check", "net", pods[0], check=1)
    for pod in pods:
        node.tool("del", "net", pod)
        wait_for("the device to go", lambda: not devices(lab, pod))
    assert node.rows() == before and not node.leases()
    assert devices(lab, sw.netns) == devices_before
    assert "ADD net" in node.log() and "kind internal" in node.log()


def scenario_vlans_rates_and_kinds(lab):
    """Trunks, MAC addresses by all ways, rates, and the kinds veth and vhost-user; nothing of it stays behind."""
    sw, node = start(lab)
    before = node.rows()
    pod, other = node.pod(), node.pod()
    conf = node.conf(version="1.1.0", kind="veth", options={"n_rxq": "1"}, vlan=5, trunk=[{"id": 9}, {"minID": 20, "maxID": 22}], mac="02:00:00:00:00:01",
                     runtimeConfig={"bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 80_000, "egressRate": 4_000_000}})
    result = node.add(conf, pod, args="IgnoreUnknown=1;MAC=02:00:00:00:00:02;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
    port = result["interfaces"][0]["name"]
    assert result["heddle"]["kind"] == "veth" and result["interfaces"][1]["mac"] == "02:00:00:00:00:02", result
    assert sw.get("port", port, "trunks") == "[9, 20, 21, 22]" and sw.get("port", port, "vlan_mode") == "native-untagged"
    assert sw.get("interface", port, "ingress_policing_rate") == "4000" and sw.get("interface", port, "options:n_rxq") == "1"
    assert "8000000" in sw.vsctl("list", "qos") and "80000" in sw.vsctl("list", "queue")
    assert sw.get("interface", port, "external_ids:heddle-cni/pod") == "a/b"
    untagged = node.add(node.conf(vlan=5), other)
    lab.net.ping(pod, address(untagged))
    node.delete(node.conf(vlan=5), other)
    node.delete(conf, pod)
    assert port not in devices(lab, sw.netns) and not devices(lab, pod) and node.rows() == before

    sockets = f"{node.dir}/sockets"
    conf = node.conf(version="1.1.0", kind="vhost-user", socketDir=sockets, runtimeConfig={"mac": "02:00:00:00:00:03"})
    result = node.add(conf, pod)
    path = result["interfaces"][1]["socketPath"]
    assert path.startswith(sockets) and os.path.isdir(os.path.dirname(path)) and result["interfaces"][1]["mac"] == "02:00:00:00:00:03"
    port = result["interfaces"][0]["name"]
    assert sw.get("interface", port, "options:vhost-server-path") == path and sw.get("interface", port, "type") == "dpdkvhostuserclient"
    assert not devices(lab, pod)
    node.call("CHECK", {**conf, "prevResult": result}, pod)
    node.delete(conf, pod)
    assert not os.listdir(sockets) and node.rows() == before and not node.leases()
    # The state that an ADD leaves if it is killed before its row is there.
    os.mkdir(os.path.dirname(path))
    node.delete(conf, pod)
    assert not os.listdir(sockets)
    # With old versions addresses have their family beside them.
    result = node.add(node.conf(version="0.3.1", kind="auto"), pod)
    assert result["ips"][0]["version"] == "4" and result["heddle"]["kind"] in ("vduse", "internal"), result
    assert f"kind {result['heddle']['kind']}" in node.log()
    node.delete(node.conf(version="0.3.1", kind="auto"), pod)


def scenario_devices_of_the_host(lab):
    """A device of the host goes to a pod, and its representor is the port; it comes back as it was."""
    sw, node = start(lab)
    host = sw.netns
    for number in range(2):
        lab.net.ip(host, "link", "add", f"card{number}", "address", f"02:00:00:00:09:0{number}", "mtu", "1600", "type", "veth", "peer", "name", f"rep{number}")
    rows, leases = node.rows(), node.leases()
    state = lambda: re.findall(r"((?:card|rep)\d)@.* mtu (\d+) .* state (\w+) .*ether (\S+)", lab.net.ip(host, "-o", "link"))  # noqa: E731
    before, names = state(), devices(lab, host)
    assert len(before) == 4, before
    conf = lambda number, **keys: node.conf(version="1.1.0", kind="device", device=f"card{number}", representor=f"rep{number}", **keys)  # noqa: E731
    pods = [node.pod(), node.pod()]
    first = node.add(conf(0, mtu=1400, vlan=7, mac="02:00:00:00:00:01", bandwidth={"egressRate": 400_000_000}), pods[0])
    second = node.add(conf(1, vlan=7), pods[1])
    assert (first["heddle"]["kind"], first["heddle"]["port"]) == ("device", "rep0"), first
    assert first["interfaces"][1]["mac"] == "02:00:00:00:00:01" and sw.get("port", "rep0", "tag") == "7"
    assert sw.get("interface", "rep0", "ingress_policing_rate") == "400000" and "card0" in node.log()
    assert devices(lab, host) == names - {"card0", "card1"}
    lab.net.ping(pods[0], address(second))
    node.call("CHECK", {**conf(0, mtu=1400), "prevResult": first}, pods[0])
    # A repeated ADD begins anew; a device that a pod has is not there for another.
    again = node.add(conf(1, vlan=7), pods[1])
    lab.net.ping(pods[0], address(again))
    other = node.pod()
    refused(102, "there is no device card0", node.add, conf(0), other)
    assert not devices(lab, other)
    fallen = node.add(conf(0, fallback="internal", vlan=7), other)
    assert fallen["heddle"]["kind"] == "internal" and "there is no device card0" in fallen["heddle"]["why"], fallen
    lab.net.ping(pods[0], address(fallen))
    node.delete(conf(0, fallback="internal"), other)
    for number, pod in enumerate(pods):
        node.delete(conf(number), pod)
        node.delete(conf(number), pod)
    assert state() == before and not devices(lab, pods[0]), (state(), before)
    assert node.rows() == rows and node.leases() == leases
    # The address plug-in fails after the port was made.
    refused(106, "", node.add, conf(0, ipam={"type": "missing"}), pods[0])
    assert state() == before and node.rows() == rows
    # Devices that a pod must not have.
    lab.net.ip(host, "link", "add", "mine", "type", "veth", "peer", "name", "rep2")
    lab.net.ip(host, "addr", "add", "10.99.0.1/24", "dev", "card1")
    lab.net.ip(host, "link", "add", "cardbr", "type", "bridge")
    lab.net.ip(host, "link", "set", "card0", "master", "cardbr")
    free = {"kind": "device", "representor": "rep2"}
    for code, words, keys in [
            (7, "HEDDLE_CNI_DEVICES", {**free, "device": "mine"}),
            (7, "HEDDLE_CNI_DEVICES", {"kind": "device", "device": "card0", "representor": "mine"}),
            (7, "representor is missing", {"kind": "device", "device": "card1"}),
            (7, "is not a PCI address", {**free, "deviceID": "../../etc"}),
            (7, "is no virtual function", {**free, "device": "card0", "trust": True}),
            (102, "has the address 10.99.0.1/24", {**free, "device": "card1"}),
            (102, "below another device", {**free, "device": "card0"}),
            (102, "0000:ff:1f.7: there is no such device", {**free, "deviceID": "0000:ff:1f.7"}),
            (102, "the runtime gave no deviceID", free),
            (102, "there is no device rep9", {"kind": "device", "device": "rep2", "representor": "rep9"})]:
        refused(code, words, node.add, node.conf(**keys), pods[0])
    assert node.rows() == rows and node.leases() == leases
    # Another device of the host has the name by now.
    lab.net.ip(host, "addr", "flush", "dev", "card1")
    node.add(conf(1), pods[0])
    lab.net.ip(host, "link", "add", "card1", "type", "bridge")
    node.delete(conf(1), pods[0])
    assert not devices(lab, pods[0]) and "02:00:00:00:09:01" in lab.net.ip(host, "link")
    # Without a device the fallback serves, also if the runtime has none to give.
    result = node.add(node.conf(kind="device", fallback="veth", version="1.1.0"), pods[0])
    assert result["heddle"]["kind"] == "veth" and "fallback" in result["heddle"]["why"], result
    node.delete(node.conf(kind="device", fallback="veth"), pods[0])


def scenario_second_network(lab):
    """Multus's calls: a second device in a pod, of another network, with an address from its annotation."""
    sw, node = start(lab)
    lab.bridge(sw, "br1")
    first, second = node.conf(), node.conf(
        name="second", bridge="br1", mac="02:00:00:00:01:01", ipam={"type": "static"}, runtimeConfig={"mac": "02:00:00:00:01:02", "ips": ["10.2.0.5/24"]},
        capabilities={"mac": True, "ips": True})
    pod, peer = node.pod(), lab.internal_pod(sw, "peer", "10.2.0.6/24", bridge="br1")
    node.add(first, pod)
    result = node.add(second, pod, ifname="net1", args="IgnoreUnknown=1;K8S_POD_NAME=x")
    assert address(result) == "10.2.0.5" and devices(lab, pod) == {"eth0", "net1"}
    assert result["interfaces"][1]["mac"] == "02:00:00:00:01:02"
    lab.net.ping(pod, "10.2.0.6")
    node.delete(second, pod, ifname="net1")
    wait_for("the second device to go", lambda: devices(lab, pod) == {"eth0"})
    lab.net.no_ping(peer, "10.2.0.5")
    node.delete(first, pod)


def scenario_again_and_unknown(lab):
    """ADD twice leaves one port; DEL twice, of the unknown, without a namespace, or of one that is gone succeeds."""
    sw, node = start(lab)
    before, conf, pod = node.rows(), node.conf(), node.pod()
    node.delete(conf, pod)
    first = node.add(conf, pod)
    again = node.add(conf, pod)
    assert first["interfaces"] == again["interfaces"] and len(node.leases()) == 1
    assert sw.vsctl("list-ports", "br0").split() == [again["interfaces"][0]["name"]]
    for _ in range(2):
        node.delete(conf, pod)
        assert node.rows() == before and not node.leases()
    # A new ADD right after: the switch may not have seen the old port go.
    node.add(conf, pod)
    lab.net.ip(pod, "link", "show", "eth0")
    lab.trace.run("ip", "netns", "del", pod)
    lab.net.names.remove(pod)
    node.delete(conf, pod)
    node.delete(conf, pod, netns="")
    assert node.rows() == before and not node.leases()
    sw.stop_daemon(signal.SIGKILL)
    node.delete(conf, pod)


def scenario_bad_input(lab):
    """A number and a sentence for each, and nothing has changed."""
    sw, node = start(lab)
    pod, other = node.pod(), node.pod()
    taken = node.add(node.conf(mac="02:00:00:00:00:07"), other)
    before, leases, at_home = node.rows(), node.leases(), devices(lab, sw.netns)
    conf = node.conf
    for code, words, given, keys in [
            (6, "not JSON", "{", {}), (6, "not a JSON object", "[]", {}), (1, "0.2.0", conf(version="0.2.0"), {}),
            (1, "cniVersion is missing", {"name": "net"}, {}), (7, "name is missing", conf(name=None), {}),
            (7, "name", conf(name="a b"), {}), (7, "VLAN 4095", conf(vlan=4095), {}), (7, "malformed", conf(vlan="x"), {}),
            (7, "trunk", conf(trunk=[{"minID": 5}]), {}), (7, "mtu 20", conf(mtu=20), {}), (7, "kind", conf(kind="fast"), {}),
            (7, "mac", conf(mac="01:00:00:00:00:00"), {}), (7, "bridge is missing", conf(bridge=None), {}),
            (7, "bridge", conf(bridge="no such bridge"), {}), (100, "there is no bridge br9", conf(bridge="br9"), {}),
            (7, "ipam", conf(ipam={"type": "../x"}), {}), (7, "delegate.type", conf(delegate={"type": "../../../bin/sh"}), {}),
            (7, "delegate.type", conf(delegate={"type": "/bin/sh"}), {}), (7, "logFile", conf(logFile="/etc/heddle-log"), {}),
            (7, "logFile", conf(logFile=f"{node.dir}/../../x"), {}), (7, "logFile", conf(logFile="log"), {}),
            (7, "logFile", conf(logFile=f"{sw.dir}/conf.db"), {}), (7, "logFile", conf(logFile=f"{node.dir}/x.pid"), {}),
            (7, "logFile", conf(logFile=f"{sw.dir}/cni.log"), {}), (7, "logFile", conf(logFile=f"{node.dir}/cni.log/"), {}),
            (7, "socketDir", conf(kind="vhost-user", socketDir="/etc"), {}),
            (7, "socketDir", conf(kind="vhost-user", socketDir="sockets"), {}),
            (7, "database", conf(database="tcp:192.0.2.1:6640"), {}), (7, "database", conf(database="unix:/tmp/x/db.sock"), {}), (7, "database", conf(database="file:/x"), {}),
            (11, "database", conf(database=f"unix:{node.dir}/none"), {}), (106, "not in CNI_PATH", conf(ipam={"type": "none"}), {}),
            (101, "02:00:00:00:00:07", conf(mac="02:00:00:00:00:07"), {}), (3, "namespace", conf(), {"netns": "/run/netns/none"}),
            (3, "namespace", conf(), {"netns": "/dev/null"}), (4, "CNI_NETNS", conf(), {"netns": ""}),
            (4, "CNI_IFNAME", conf(), {"ifname": "a-name-that-is-too-long"}), (4, "CNI_CONTAINERID", conf(), {"container": "/"}),
            (4, "CNI_ARGS", conf(), {"args": "nonsense"}), (7, "mac", conf(), {"args": "MAC=x"})]:
        refused(code, words, node.add, given, pod, **keys)
        assert (node.rows(), node.leases(), devices(lab, sw.netns), devices(lab, pod)) == (before, leases, at_home, set()), words
    # A symlink below an allowed directory leads neither ADD nor DEL out of it.
    os.makedirs(f"{node.dir}/outside")
    os.symlink(f"{node.dir}/outside", f"{node.dir}/planted")
    planted = conf(version="1.1.0", kind="vhost-user", socketDir=f"{node.dir}/planted", ipam=None)
    refused(5, "socketDir", node.add, planted, pod)
    assert not os.listdir(f"{node.dir}/outside")
    straight = {**planted, "socketDir": f"{node.dir}/outside"}
    path = node.add(straight, pod)["interfaces"][1]["socketPath"]
    node.delete(planted, pod)
    assert os.path.isdir(os.path.dirname(path))
    node.delete(straight, pod)
    assert not os.listdir(f"{node.dir}/outside") and node.rows() == before
    # The plug-in does not run itself: by its name, by a symlink, by a copy.
    os.symlink(f"{node.dir}/bin/heddle-cni", f"{node.dir}/bin/again")
    shutil.copy(f"{node.dir}/bin/heddle-cni", f"{node.dir}/bin/copy")
    for name in ("heddle-cni", "again", "copy"):
        own = conf(version="1.1.0", ipam={"type": name}, **{"cni.dev/valid-attachments": [{"containerID": f"id-{other}", "ifname": "eth0"}]})
        for command in ("ADD", "DEL", "GC", "STATUS"):
            refused(7, "is this plug-in itself", node.call, command, own, pod)
    for name in ("heddle-cni", "again"):
        refused(7, "is this plug-in itself", node.add, conf(ipam=None, delegate={"type": name}), pod)
    # Two copies that wrap each other end after a few levels, a plug-in that hangs after its time.
    shutil.copy(f"{node.dir}/bin/heddle-cni", f"{node.dir}/bin/copy2")
    deep = {"type": "host-local"}
    for name in ("copy", "copy2", "copy", "copy2"):
        deep = {"type": name, "bridge": "br0", "kind": "internal", "database": sw.db, "delegate": deep}
    refused(7, "levels deep", node.add, conf(ipam=None, delegate=deep), pod)
    with open(f"{node.dir}/bin/hangs", "w") as file:
        file.write("#!/bin/sh\nexec sleep 60\n")
    os.chmod(f"{node.dir}/bin/hangs", 0o755)
    refused(106, "did not end within 2 s", node.add, conf(ipam={"type": "hangs"}, timeoutSeconds=2), pod)
    assert (node.rows(), node.leases(), devices(lab, pod)) == (before, leases, set())
    if not os.path.exists("/dev/vduse/control"):
        refused(102, "no VDUSE", node.add, conf(kind="vduse"), pod)
        refused(50, "no VDUSE", node.call, "STATUS", conf(version="1.1.0", kind="vduse"), pod)
    # Without rights.
    refused(5, "CAP_SYS_ADMIN", node.add, conf(), pod, without_rights=True)
    # Another program's device in the pod.
    lab.net.ip(pod, "link", "add", "eth0", "type", "bridge")
    refused(104, "has a device eth0", node.add, conf(), pod)
    lab.net.ip(pod, "link", "del", "eth0")
    # The pool is empty.
    small = conf(name="small", ipam={**node.ipam("10.3.0.0/30"), "dataDir": f"{node.dir}/small"})
    third = node.pod()
    node.add(small, third)
    rows = node.rows()
    refused(999, "no IP addresses available", node.add, small, pod)
    assert node.rows() == rows and not devices(lab, pod)
    node.delete(small, third)
    # The switch refuses: the port's name is that of another device.
    name = node.add(conf(), pod)["interfaces"][0]["name"]
    node.delete(conf(), pod)
    wait_for("the device to go", lambda: not devices(lab, pod))
    lab.net.ip(sw.netns, "link", "add", name, "type", "bridge")
    refused(103, f"refuses port {name}", node.add, conf(), pod)
    assert (node.rows(), node.leases()) == (before, leases)
    lab.net.ip(sw.netns, "link", "del", name)
    # CHECK and GC.
    refused(105, "no port", node.call, "CHECK", {**conf(), "prevResult": taken}, pod)
    refused(7, "prevResult", node.call, "CHECK", conf(), pod)
    refused(7, "valid-attachments", node.call, "GC", conf(version="1.1.0"), pod)
    refused(4, "CNI_COMMAND", node.call, "TAKE", conf(), pod)
    # No switch follows the database: the row is removed again.
    sw.stop_daemon()
    refused(11, "is heddled running", node.add, conf(timeoutSeconds=2), pod)
    refused(50, "is heddled running", node.call, "STATUS", conf(version="1.1.0", timeoutSeconds=1), pod)
    assert (node.rows(), node.leases()) == (before, leases)
    sw.stop_ovsdb()
    for command in ("ADD", "DEL", "CHECK"):
        refused(11, "database", node.call, command, {**conf(), "prevResult": taken} if command == "CHECK" else conf(), pod)
    refused(50, "database", node.call, "STATUS", conf(version="1.1.0"), pod)
    sw.start_ovsdb()
    assert (node.rows(), node.leases()) == (before, leases)
    sw.start_daemon()


def scenario_where_devices_are_made(lab):
    """The switch makes a pod's device in the pod at once, but not where a path leads later, or for another namespace."""
    sw, node = start(lab)
    conf, pods = node.conf(), [node.pod(), node.pod()]
    seen = sw.run("sh", "-c", f"timeout 60 ip -n {sw.netns} monitor link >{sw.dir}/links.txt 2>&1 & echo $!").strip()
    lab.cleanups.append(lambda: lab.trace.run("kill", seen, check=False))
    results = [node.add(conf, pod) for pod in pods]
    names = [result["interfaces"][0]["name"] for result in results]
    lab.net.ping(pods[0], address(results[1]))
    lab.net.ip(sw.netns, "link", "add", "last", "type", "bridge")
    wait_for("the monitor", lambda: "last" in open(f"{sw.dir}/links.txt").read())
    assert not any(name in open(f"{sw.dir}/links.txt").read() for name in names), "the device was at home first"
    # Deleted while the daemon is away: the next daemon makes none in a pod, since the path may belong to
    # another pod by now.
    sw.stop_daemon(signal.SIGKILL)
    lab.net.ip(pods[0], "link", "del", "eth0")
    sw.start_daemon()
    wait_for("the device at home", lambda: names[0] in devices(lab, sw.netns))
    assert not devices(lab, pods[0]) and devices(lab, pods[1]) == {"eth0"}
    again = node.add(conf, pods[0])
    wait_for("an answer", lambda: lab.net.ping(pods[0], address(results[1]), count=1, lossless=False))
    # A path that is another namespace for the switch, as in a container: it makes the device at home.
    sw.vsctl("add-port", "br0", "far", "--", "set", "interface", "far", "type=internal", f"other_config:netns=/run/netns/{pods[1]}",
             "other_config:netns-device=far0", "other_config:netns-inode=1")
    sw.vsctl("add-port", "br0", "gone", "--", "set", "interface", "gone", "type=internal", "other_config:netns=/run/netns/none",
             "other_config:netns-device=far0", "other_config:netns-inode=1")
    assert {"far", "gone"} <= devices(lab, sw.netns) and devices(lab, pods[1]) == {"eth0"}
    assert again["interfaces"] == results[0]["interfaces"]


def scenario_garbage(lab):
    """GC removes unlisted attachments; sweep removes the ports of namespaces that are gone, as after a
    reboot."""
    sw, node = start(lab)
    conf, pods = node.conf(version="1.1.0"), [node.pod() for _ in range(4)]
    results = [node.add(conf, pod) for pod in pods]
    other = node.add(node.conf(name="other"), pods[0], ifname="net1")
    ports = lambda: set(sw.vsctl("list-ports", "br0").split())
    name = lambda result: result["interfaces"][0]["name"]
    keep = [{"containerID": f"id-{pod}", "ifname": "eth0"} for pod in pods[:3]]
    node.call("GC", {**conf, "cni.dev/valid-attachments": keep}, pods[0])
    assert ports() == {name(r) for r in [*results[:3], other]} and len(node.leases()) == 4, (ports(), node.leases())
    for pod in pods[1:3]:
        lab.trace.run("ip", "netns", "del", pod)
        lab.net.names.remove(pod)
    out = node.lab.trace.run(f"{node.dir}/bin/heddle-cni", "sweep", sw.db)
    assert name(results[1]) in out and name(results[2]) in out and ports() == {name(results[0]), name(other)}
    # Another namespace is at the path of one that went.
    second = node.pod()
    other = node.add(conf, second)
    lab.trace.run("ip", "netns", "del", second)
    lab.trace.run("ip", "netns", "add", second)
    out = node.lab.trace.run(f"{node.dir}/bin/heddle-cni", "sweep", sw.db)
    assert name(other) in out and name(other) not in ports(), out
    version = node.call("VERSION", "", pods[0])
    assert version["supportedVersions"] == ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]


def scenario_an_older_address_plug_in(lab):
    """A plug-in without 1.1.0 and GC, such as Debian 12's host-local: addresses come and go, GC succeeds."""
    sw, node = start(lab)
    with open(f"{node.dir}/bin/older", "w") as file:
        file.write(f"""#!/bin/sh
conf=$(cat)
fail() {{ echo "{{\\"cniVersion\\":\\"1.0.0\\",\\"code\\":$1,\\"msg\\":\\"$2\\"}}"; exit 1; }}
case "$CNI_COMMAND" in GC|STATUS) fail 4 "unknown CNI_COMMAND: $CNI_COMMAND";; esac
case "$conf" in *'"cniVersion":"1.1.0"'*) fail 1 "incompatible CNI versions";; esac
printf '%s' "$conf" | sed 's/"type":"older"/"type":"host-local"/' | exec {node.dir}/bin/host-local
""")
    os.chmod(f"{node.dir}/bin/older", 0o755)
    conf, pods = node.conf(version="1.1.0", ipam={**node.ipam(), "type": "older"}), [node.pod(), node.pod()]
    results = [node.add(conf, pod) for pod in pods]
    lab.net.ping(pods[0], address(results[1]))
    node.call("STATUS", conf, pods[0])
    keep = [{"containerID": f"id-{pods[0]}", "ifname": "eth0"}]
    node.call("GC", {**conf, "cni.dev/valid-attachments": keep}, pods[0])
    assert len(node.leases()) == 1 and len(sw.vsctl("list-ports", "br0").split()) == 1
    node.delete(conf, pods[0])
    assert not node.leases()


def scenario_rates_and_mtu_on_each_kind(lab):
    """`bandwidth` limits the packets that a pod receives on each kind; a veth pair has the bridge's MTU."""
    sw, node = start(lab)
    # A device of the machine decides the bridge's MTU.
    lab.net.ip(sw.netns, "link", "add", "up0", "mtu", "1400", "type", "veth", "peer", "name", "up1", "mtu", "1400")
    lab.net.ip(sw.netns, "link", "set", "up0", "up")
    sw.vsctl("add-port", "br0", "up0")
    wait_for("the bridge's MTU", lambda: sw.get("interface", "br0", "mtu") == "1400")
    sender = node.pod()
    node.add(node.conf(), sender)
    for kind in ("internal", "veth"):
        pod = node.pod()
        conf = node.conf(kind=kind, runtimeConfig={"bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000}})
        try:
            result = node.add(conf, pod)
        except Failed as failed:
            # A kernel without the discipline for queues: refused, not ignored.
            assert kind == "veth" and failed.code == 102, failed
            continue
        port = result["interfaces"][0]["name"]
        assert "mtu 1400" in lab.net.ip(pod, "link", "show", "eth0")
        lab.net.ping(sender, address(result))
        with lab.net.socket(sender, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
            end = time.monotonic() + 2
            sent = 0
            while time.monotonic() < end:
                sent += sock.sendto(bytes(1200), (address(result), 9))
        received = int(re.search(r"RX:.*\n\s+(\d+)", lab.net.ip(pod, "-s", "link", "show", "eth0")).group(1))
        # 8 Mbit/s for two seconds, and the burst: 2.1 MB, and some more for a slow machine.
        assert 500_000 < received < 3_500_000 < sent, (kind, port, received, sent)
        node.delete(conf, pod)


def scenario_hundred_at_once(lab):
    """100 pods at once come, reach each other, and go; the daemon applies their changes together."""
    sw, node = start(lab)
    before, conf = node.rows(), node.conf(ipam=node.ipam("10.1.0.0/16"))
    pods = [node.pod() for _ in range(100)]
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        results = list(pool.map(lambda pod: node.add(conf, pod), pods))
    assert len({address(result) for result in results}) == 100 and len(node.leases()) == 100
    for index in (0, 50, 98):
        lab.net.ping(pods[index], address(results[index + 1]))
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        list(pool.map(lambda pod: node.delete(conf, pod), pods))
    assert node.rows() == before and not node.leases()
    wait_for("the devices to go", lambda: not any(devices(lab, pod) for pod in (pods[0], pods[50], pods[99])))


FIRST = """#!/usr/bin/env python3
# Stands in for a controller's plug-in: a veth of which the host's end is a port of br-int, with the pod's identity.
import json, os, subprocess, sys
conf, env = json.load(sys.stdin), os.environ
run = lambda *words: subprocess.run(words, check=True, capture_output=True)
ns, host = os.path.basename(env["CNI_NETNS"]), "v" + env["CNI_CONTAINERID"][-8:]
vsctl = ["ovs-vsctl", "--timeout=30", "--db=" + conf["database"]]
if env["CNI_COMMAND"] == "DEL":
    run(*vsctl, "--if-exists", "--with-iface", "del-port", host)
    subprocess.run(["ip", "-n", ns, "link", "del", env["CNI_IFNAME"]], capture_output=True)
if env["CNI_COMMAND"] == "ADD":
    run("ip", "link", "add", host, "up", "mtu", "1342", "type", "veth", "peer", "name", env["CNI_IFNAME"], "netns", ns, "address", conf["mac"], "mtu", "1342")
    for words in (["addr", "add", conf["address"], "dev", "eth0"], ["link", "set", "eth0", "up"], ["addr", "add", conf["address6"], "dev", "eth0", "nodad"],
                  ["route", "add", "default", "via", conf["gateway"], "mtu", "1300"], ["route", "add", "10.99.0.0/16", "via", conf["gateway"], "metric", "7"],
                  ["-6", "route", "add", "fd99::/16", "via", "fd01::1"], ["route", "add", "10.98.0.0/16", "dev", "eth0", "table", "77"],
                  ["neigh", "add", conf["gateway"], "lladdr", "0a:58:0a:f4:00:01", "dev", "eth0", "nud", "permanent"]):
        run("ip", "-n", ns, *words)
    run(*vsctl, "add-port", conf["bridge"], host, "other_config:transient=true", "--", "set", "interface", host, "external_ids:iface-id=ns_pod",
        "external_ids:attached_mac=\\"" + conf["mac"] + "\\"", "external_ids:sandbox=" + env["CNI_CONTAINERID"])
    print(json.dumps({"cniVersion": conf["cniVersion"], "interfaces": [{"name": host}, {"name": "eth0", "mac": conf["mac"], "sandbox": env["CNI_NETNS"]}],
                      "ips": [{"address": conf["address"], "gateway": conf["gateway"], "interface": 1}], "dns": {}}))
"""


def controllers_plugin(node, number):
    with open(f"{node.dir}/bin/first", "w") as file:
        file.write(FIRST)
    os.chmod(f"{node.dir}/bin/first", 0o755)
    return {"type": "first", "database": node.switch.db, "bridge": "br0", "mac": f"0a:58:0a:f4:00:1{number}", "address": f"10.244.0.1{number}/24",
            "address6": f"fd01::1{number}/64", "gateway": "10.244.0.1"}


def of_pod(lab, pod):
    """A pod's view of its device, without the device's index and kind."""
    text = [lab.net.ip(pod, "-br", "addr", "show", "dev", "eth0").partition(" ")[2], lab.net.ip(pod, "route"), lab.net.ip(pod, "route", "show", "table", "77"), lab.net.ip(pod, "-6", "route", "show", "table", "main"),
            lab.net.ip(pod, "neigh", "show", "nud", "permanent"), *re.findall(r"mtu \d+|link/ether \S+", lab.net.ip(pod, "link", "show", "eth0"))]
    return sorted(re.sub(r"eth0@\S+|UNKNOWN|UP", "", " ".join(text)).split())


def scenario_chained_after_a_controllers_plugin(lab):
    """The veth is exchanged; pod and controller keep their view: addresses, routes, neighbours, identity,
    port number."""
    sw, node = start(lab)
    before = node.rows()
    own = {"type": "heddle-cni", "kind": "internal", "database": sw.db, "logFile": f"{node.dir}/cni.log"}
    plain, pods = [], [node.pod(), node.pod(), node.pod()]
    for number, pod in enumerate(pods):
        node.write(f"veth{number}", controllers_plugin(node, number))
        node.write(f"net{number}", controllers_plugin(node, number), own)
    node.tool("add", "veth0", pods[0])
    plain = of_pod(lab, pods[0])
    node.tool("del", "veth0", pods[0])
    for number in (0, 1):
        result = json.loads(node.tool("add", f"net{number}", pods[number]))
        node.tool("check", f"net{number}", pods[number])
    assert of_pod(lab, pods[0]) == plain, (of_pod(lab, pods[0]), plain)
    name = result["interfaces"][0]["name"]
    assert sw.get("interface", name, "type") == "internal" and sw.get("interface", name, "external_ids:iface-id") == "ns_pod"
    assert "0a:58:0a:f4:00:11" in sw.get("interface", name, "external_ids:attached_mac").replace("\\", "")
    assert sw.get("port", name, "other_config:transient") == "true"
    assert "tun" in lab.net.ip(pods[0], "-d", "link", "show", "eth0") and devices(lab, sw.netns) == {"br0"}
    lab.net.ping(pods[0], "10.244.0.11", size=1200)
    lab.net.ping(pods[1], "fd01::10")
    # The number stays that of the veth: the controller's rules hold.
    monitor = sw.get("interface", name, "ofport")
    assert monitor == sw.get("interface", name, "ofport_request"), monitor
    # A second ADD of the plug-in alone, as after a lost reply, changes nothing.
    config = {**own, "cniVersion": "1.0.0", "name": "net1", "prevResult": result}
    container = sw.get("interface", name, "external_ids:heddle-cni/container")
    rows = node.rows()
    node.add(config, pods[1], container=container)
    assert node.rows() == rows
    # A failure in between: the veth is there again, and still works.
    node.tool("add", "veth2", pods[2])
    veth = of_pod(lab, pods[2])
    sw.stop_daemon()
    rows = node.rows()
    config = {**own, "cniVersion": "1.0.0", "name": "net2", "timeoutSeconds": 2, "prevResult": {"cniVersion": "1.0.0", "interfaces": []}}
    refused(11, "is heddled running", node.add, config, pods[2])
    assert of_pod(lab, pods[2]) == veth, (of_pod(lab, pods[2]), veth)
    assert re.sub(r"ofport_request.*", "", node.rows()) == re.sub(r"ofport_request.*", "", rows)
    sw.start_daemon()
    wait_for("an answer", lambda: lab.net.ping(pods[2], "10.244.0.11", count=1, lossless=False))
    node.tool("del", "veth2", pods[2])
    for number in (0, 1):
        node.tool("del", f"net{number}", pods[number])
        wait_for("the device to go", lambda: not devices(lab, pods[number]))
    assert node.rows() == before


def scenario_after_and_around_the_bridge_plugin(lab):
    """The reference bridge plug-in's veth, exchanged for a port of the switch: in a list, and wrapped."""
    sw, node = start(lab)
    before = node.rows()
    first = {"type": "bridge", "bridge": "cni0", "isGateway": False, "mtu": 1400, "ipam": node.ipam()}
    own = {"type": "heddle-cni", "kind": "internal", "database": sw.db, "bridge": "br0", "vlan": 3}
    node.write("list", first, own)
    node.write("wrapped", {**own, "delegate": first}, version="1.1.0")
    pods = [node.pod(), node.pod()]
    results = [json.loads(node.tool("add", name, pod)) for name, pod in zip(("list", "wrapped"), pods)]
    # In the list the bridge plug-in's own CHECK would look for its veth.
    node.tool("check", "wrapped", pods[1])
    for pod in pods:
        assert "tun" in lab.net.ip(pod, "-d", "link", "show", "eth0") and "mtu 1400" in lab.net.ip(pod, "link", "show", "eth0")
    ports = set(sw.vsctl("list-ports", "br0").split())
    assert all({i["name"] for i in result["interfaces"]} & ports for result in results) and len(ports) == 2
    lab.net.ping(pods[0], address(results[1]))
    # A bridge that is missing: the objects of the wrapped plug-in are removed, too.
    leases, rows = node.leases(), node.rows()
    third = node.pod()
    refused(100, "no bridge br9", node.add, node.conf(name="wrapped", bridge="br9", ipam=None, delegate=first), third)
    assert (node.leases(), node.rows(), devices(lab, third)) == (leases, rows, set())
    for name, pod in zip(("list", "wrapped"), pods):
        node.tool("del", name, pod)
    assert node.rows() == before and not node.leases()


def scenario_restarts(lab):
    """Daemon and database come back after a violent end: pods still reach each other, with unchanged rows."""
    sw, node = start(lab)
    conf, pods = node.conf(), [node.pod(), node.pod()]
    results = [node.add(conf, pod) for pod in pods]
    sw.stop_daemon(signal.SIGKILL)
    sw.start_daemon()
    wait_for("an answer", lambda: lab.net.ping(pods[0], address(results[1]), count=1, lossless=False))
    lab.net.ping(pods[0], address(results[1]))
    sw.stop_ovsdb()
    sw.start_ovsdb()
    for pod, result in zip(pods, results):
        wait_for("the switch to follow", lambda: sw.get("interface", result["interfaces"][0]["name"], "ofport") != "[]")
        node.call("CHECK", {**conf, "prevResult": result}, pod)
    third = node.pod()
    node.add(conf, third)
    lab.net.ping(third, address(results[0]))
    for pod in (*pods, third):
        node.delete(conf, pod)
    assert not node.leases()


if __name__ == "__main__":
    main()
