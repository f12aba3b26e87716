#!/usr/bin/env python3
"""Rates: queues of devices by the kernel's token buckets, chosen by flows; what interfaces may receive. Bounds are loose: other things run beside."""

import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for

SECONDS = 4
SINK = """
import socket,time
s=socket.create_server(('',{port}))
c,_=s.accept()
n=0; first=None
while True:
    d=c.recv(1<<16)
    if not d: break
    if first is None: first=time.time()
    elif time.time()-first>0.7: n+=len(d)
    last=time.time()
print(n*8/(last-first-0.7)/1e6)
"""
SOURCE = """
import socket,time
c=socket.create_connection(('{to}',{port}))
end=time.time()+{seconds}
d=b'x'*16384
c.settimeout(5)
while time.time()<end: c.sendall(d)
"""
COUNT = """
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('',{port})); s.settimeout(2)
n=0; size=0; first=None
while True:
    try: d=s.recv(2000)
    except OSError: break
    if first is None: first=time.time()
    n+=1; size+=len(d)+42; last=time.time()
print(n/(last-first), size*8/(last-first)/1e6)
"""
FLOOD = """
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('{to}',{port}))
end=time.time()+{seconds}
d=b'x'*{size}
n=0; start=time.time()
while time.time()<end:
    while n<(time.time()-start)*{pps}:
        try: s.send(d)
        except OSError: pass
        n+=1
    time.sleep(0.001)
"""


def run(lab, ns, code, **kw):
    return subprocess.Popen(["ip", "netns", "exec", ns, "python3", "-c", code.format(seconds=SECONDS, **kw)], stdout=subprocess.PIPE, text=True)


def tcp_mbps(lab, a, b, port):
    """The rate of a TCP connection from one pod to the other, without its start."""
    sink = run(lab, b, SINK, port=port)
    wait_for("a server", lambda: f":{port} " in lab.net.run(b, "ss", "-Hltn", quiet=True))
    source = run(lab, a, SOURCE, to="10.1.0.2", port=port)
    source.wait(timeout=60)
    mbps = float(sink.communicate(timeout=60)[0])
    lab.trace.note(f"port {port}: {mbps:.2f} Mbit/s")
    return mbps


def udp_rates(lab, a, b, port, size, pps):
    """Packets and Mbit/s that arrive of a flood."""
    sink = run(lab, b, COUNT, port=port)
    wait_for("a server", lambda: f":{port} " in lab.net.run(b, "ss", "-Hlun", quiet=True))
    run(lab, a, FLOOD, to="10.1.0.2", port=port, size=size, pps=pps).wait(timeout=60)
    rates = [float(x) for x in sink.communicate(timeout=60)[0].split()]
    lab.trace.note(f"port {port}: {rates[0]:.0f} packets/s, {rates[1]:.2f} Mbit/s")
    return rates


def two_pods(lab):
    sw = lab.switch()
    lab.bridge(sw)
    return sw, lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.veth_pod(sw, "b", "10.1.0.2/24")


def scenario_queues_of_a_device(lab):
    sw, a, b = two_pods(lab)
    if lab.net.run(sw.netns, "tc", "qdisc", "add", "dev", "va", "root", "htb", check=False).strip():
        raise Skip("this kernel has no HTB")
    assert set(sw.appctl("qos/show-types", "vb").split("\n")) == {"QoS type: linux-htb", "QoS type: linux-noop", ""}
    assert sw.appctl("qos/show", "vb") == "QoS not configured on vb\n"
    sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "other-config:max-rate=24000000", "queues:7=@s", "--",
             "--id=@s", "create", "queue", "other-config:max-rate=4000000", "other-config:priority=2")
    sw.ofctl("add-flow", "br0", "priority=10,tcp,tp_dst=5007,actions=set_queue:7,NORMAL")
    shown = sw.appctl("qos/show", "vb")
    assert shown.startswith("QoS: vb linux-htb\nmax-rate: 24000000\n\nDefault:\n  burst: 12512\n  max-rate: 24000000\n  min-rate: 12000\n"), shown
    assert "Queue 7:\n  burst: 12512\n  max-rate: 4000000\n  min-rate: 12000\n  priority: 2\n  tx_packets: 0\n" in shown, shown
    classes = lab.net.run(sw.netns, "tc", "class", "show", "dev", "vb")
    assert re.search(r"htb 1:8 parent 1:fffe .*prio 2 rate 12Kbit ceil 4Mbit", classes), classes
    fast, slow = tcp_mbps(lab, a, b, 5001), tcp_mbps(lab, a, b, 5007)
    assert 8 < fast < 28 and 1.2 < slow < 5, (fast, slow)
    stats = sw.ofctl("-OOpenFlow13", "queue-stats", "br0", "vb")
    counted = {int(q): int(n) for q, n in re.findall(r"queue (\d+): bytes=(\d+), pkts=[1-9]", stats)}
    assert counted.keys() == {0, 7} and all(n > 500_000 for n in counted.values()), stats
    # A queue that is set after an output does not apply to that output.
    of_queue = lambda: int(re.search(r"queue 7: bytes=(\d+)", sw.ofctl("queue-stats", "br0", "vb"))[1])

    def quiet():
        n = of_queue()
        time.sleep(0.5)
        return n if of_queue() == n else None
    before = wait_for("the end of the connection to have gone by", quiet)
    sw.ofctl("add-flow", "br0", "priority=11,icmp,in_port=va,actions=output:vb,set_queue:7,output:LOCAL")
    lab.net.ping(a, "10.1.0.2", count=5)
    assert of_queue() == before, (before, of_queue())
    sw.ofctl("add-flow", "br0", "priority=11,icmp,in_port=va,actions=set_queue:7,output:vb")
    lab.net.ping(a, "10.1.0.2", count=5)
    assert of_queue() >= before + 5 * 98, (before, of_queue())
    # A type that does not exist changes nothing, and existing queues can still be removed.
    sw.vsctl("set", "qos", sw.vsctl("get", "port", "vb", "qos").strip(), "type=linux-hfsc")
    wait_for("a line in the log", lambda: "linux-hfsc" in sw.log())
    assert sw.appctl("qos/show", "vb").startswith("QoS: vb linux-htb\n")
    sw.vsctl("clear", "port", "vb", "qos")
    wait_for("the hierarchy to go", lambda: "htb" not in lab.net.run(sw.netns, "tc", "qdisc", "show", "dev", "vb"))
    sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "queues:7=@s", "--",
             "--id=@s", "create", "queue", "other-config:max-rate=4000000")
    # A lower rate for all of it; the queue is removed.
    sw.vsctl("set", "qos", sw.vsctl("get", "port", "vb", "qos").strip(), "other-config:max-rate=8000000", "queues={}")
    wait_for("the queue to go", lambda: "Queue 7" not in sw.appctl("qos/show", "vb"))
    assert tcp_mbps(lab, a, b, 5007) < 10
    sw.vsctl("clear", "port", "vb", "qos")
    wait_for("the hierarchy to go", lambda: "htb" not in lab.net.run(sw.netns, "tc", "qdisc", "show", "dev", "vb"))
    assert sw.appctl("qos/show", "vb") == "QoS not configured on vb\n"
    assert tcp_mbps(lab, a, b, 5007) > 40


def scenario_who_else_has_set_up_queues(lab):
    """`linux-noop`: the queues are left alone, and packets find them; a type that does not exist is
    logged."""
    sw, a, b = two_pods(lab)
    tc = lambda *args, **kw: lab.net.run(sw.netns, "tc", *args, **kw)
    sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-noop")
    if tc("qdisc", "replace", "dev", "vb", "root", "handle", "1:", "htb", "default", "1", check=False).strip():
        raise Skip("this kernel has no HTB")
    tc("class", "add", "dev", "vb", "parent", "1:", "classid", "1:1", "htb", "rate", "500mbit", "burst", "100k")
    tc("class", "add", "dev", "vb", "parent", "1:", "classid", "1:4", "htb", "rate", "4mbit")
    sw.ofctl("add-flow", "br0", "priority=10,tcp,tp_dst=5003,actions=set_queue:3,NORMAL")
    sw.vsctl("add-br", "other")
    assert "4Mbit" in tc("class", "show", "dev", "vb")
    assert sw.appctl("qos/show", "vb") == "QoS: vb linux-noop\n"
    # ovn-controller sets it on the tunnels' bridge: there is nothing to do, and nothing to log.
    sw.vsctl("set", "port", "br0", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-noop")
    assert "could not set QoS" not in sw.log()
    assert tcp_mbps(lab, a, b, 5003) < 5
    sw.vsctl("set", "qos", sw.vsctl("get", "port", "vb", "qos").strip(), "type=linux-nonsense")
    wait_for("a line in the log", lambda: "linux-nonsense" in sw.log())
    wait_for("the interface's error", lambda: "linux-nonsense" in sw.get("interface", "vb", "error"))
    sw.vsctl("del-port", "vb", "--", "--if-exists", "del-port", "va")


def scenario_what_interfaces_may_receive(lab):
    sw, a, b = two_pods(lab)
    sw.vsctl("set", "interface", "va", "ingress_policing_rate=8000", "ingress_policing_burst=800")
    _, mbps = udp_rates(lab, a, b, 6001, size=1400, pps=3000)
    assert 4 < mbps < 11, mbps
    wait_for("drops to be counted", lambda: int(sw.vsctl("get", "interface", "va", "statistics:rx_dropped")) > 1000)
    sw.vsctl("set", "interface", "va", "ingress_policing_rate=0", "ingress_policing_kpkts_rate=1", "ingress_policing_kpkts_burst=1")
    pps, _ = udp_rates(lab, a, b, 6002, size=60, pps=4000)
    assert 600 < pps < 1900, pps
    sw.vsctl("set", "interface", "va", "ingress_policing_kpkts_rate=0")

    def policed():
        time.sleep(6)  # Statistics are written every five seconds.
        return int(sw.vsctl("get", "interface", "va", "statistics:ovs_rx_qos_drops"))
    before = policed()
    pps, _ = udp_rates(lab, a, b, 6003, size=60, pps=4000)
    assert before > 1000 and policed() == before and pps > 0, (before, policed(), pps)
    assert int(re.search(r"^datapath_drop_rx_policed .*total: (\d+)", sw.appctl("coverage/show"), re.MULTILINE)[1]) >= before
    lab.net.ping(a, "10.1.0.2")


if __name__ == "__main__":
    main()
