#!/usr/bin/env python3
"""Rates: disciplines and queues of the kernel, the switch's own shaper and policers, policing of received packets.
Most bounds are loose: other programs run beside the test."""

import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.vhost import Guest

SECONDS = 4
SINK = """
import socket,time
s=socket.create_server(('',{port}))
c,_=s.accept()
n=0; first=None; last=0
while True:
    d=c.recv(1<<16)
    if not d: break
    if first is None: first=time.time()
    elif time.time()-first>0.7: n+=len(d)
    last=time.time()
print(n*8/(last-first-0.7)/1e6 if first else 0)
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
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('',{port})); s.settimeout(20)
n=0; size=0; first=None
while True:
    try: d=s.recv(2000)
    except OSError: break
    if first is None: first=time.time(); s.settimeout(2)
    n+=1; size+=len(d)+42; last=time.time()
print(n/(last-first) if n>1 else 0, size*8/(last-first)/1e6 if n>1 else 0)
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
    types = {f"QoS type: linux-{t}" for t in ("htb", "hfsc", "sfq", "codel", "fq_codel", "netem", "noop")}
    assert set(sw.appctl("qos/show-types", "vb").split("\n")) == types | {""}
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
    sw.vsctl("set", "qos", sw.vsctl("get", "port", "vb", "qos").strip(), "type=egress-policer")
    wait_for("a line in the log", lambda: "this port has only linux-htb" in sw.log())
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


DISCIPLINES = {
    "sfq": ("quantum=3000", "quantum 3000b", "perturb: 10\nquantum: 3000\n"),
    "codel": ("target=2000", "target 2ms", "interval: 100000\nlimit: 10240\ntarget: 2000\n"),
    "fq_codel": ("quantum=900", "quantum 900", "flows: 1024\ninterval: 1000000\nlimit: 10240\nquantum: 900\ntarget: 5000\n"),
    "netem": ("latency=20000", "delay 20ms", "jitter: 0\nlatency: 20000\nlimit: 1000\nloss: 0\n"),
    "hfsc": ("max-rate=8000000", "default (0x)?1", "max-rate: 8000000\n\nDefault:\n  max-rate: 8000000\n  min-rate: 8\n"),
}


@limit(500)
def scenario_other_disciplines_of_the_kernel(lab):
    """Each discipline of the kernel has the row's settings, and goes with the row, also after a restart without it. If
    this kernel lacks one, the interface's error names that."""
    sw, a, b = two_pods(lab)
    tc = lambda *args, **kw: lab.net.run(sw.netns, "tc", *args, **kw)
    qdisc = lambda: tc("qdisc", "show", "dev", "vb", "root")
    # An emulated machine is slow: it may need more than one second.
    reach = lambda n=1: lab.net.run(a, "ping", "-c", str(n), "-w", "60", "10.1.0.2")
    have = []
    for kind, (setting, in_kernel, shown) in DISCIPLINES.items():
        lacks = tc("qdisc", "add", "dev", "va", "root", "handle", "7:", *kind.split(), check=False, quiet=True).strip()
        if not lacks:
            tc("qdisc", "del", "dev", "va", "root")
        sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", f"type=linux-{kind}", f"other-config:{setting}")
        if lacks:
            wait_for(f"the error for {kind}", lambda: "kernel lacks this discipline" in sw.get("interface", "vb", "error"))
            assert f'linux-{kind}' in sw.get("interface", "vb", "error"), kind
            continue
        have.append(kind)
        wait_for(f"{kind} 1: with {setting}", lambda: re.search(rf"qdisc {kind} 1: .*{in_kernel}", qdisc()))
        out = sw.appctl("qos/show", "vb")
        assert out.startswith(f"QoS: vb linux-{kind}\n{shown}"), out
        assert sw.get("interface", "vb", "error") in ("[]", "{}", '""'), sw.get("interface", "vb", "error")
        reach()
    lab.trace.note(f"this kernel has {have}")
    if "netem" in have:
        sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-netem", "other-config:latency=20000")
        out = reach(3)
        assert float(re.search(r"= ([\d.]+)/", out)[1]) > 19, out
    if "hfsc" in have:
        sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-hfsc", "other-config:max-rate=24000000",
                 "queues:7=@s", "--", "--id=@s", "create", "queue", "other-config:max-rate=4000000")
        sw.ofctl("add-flow", "br0", "priority=10,icmp,actions=set_queue:7,NORMAL")
        reach(3)
        counted = re.search(r"queue 7: bytes=(\d+)", sw.ofctl("queue-stats", "br0", "vb", "7"))
        assert int(counted[1]) >= 3 * 98, counted
    # The discipline of an earlier process goes, too.
    if have:
        sw.vsctl("set", "port", "vb", "qos=@q", "--", "--id=@q", "create", "qos", f"type=linux-{have[0]}")
        wait_for("the discipline", lambda: f"qdisc {have[0]} 1:" in qdisc())
        sw.stop_daemon(signal.SIGKILL)
        sw.vsctl("--no-wait", "clear", "port", "vb", "qos")
        sw.start_daemon()
        wait_for("the discipline to go", lambda: " 1:" not in qdisc())
    sw.vsctl("clear", "port", "vb", "qos")
    reach()


def scenario_values_that_are_no_numbers(lab):
    """They are named in the interface's error, and the default applies."""
    sw, a, _ = two_pods(lab)
    lab.internal_pod(sw, "c", "10.1.0.3/24", dev="c0")
    error = lambda name, want: wait_for(f"{name}: {want}", lambda: want in sw.get("interface", name, "error"))
    create = lambda name, *settings: sw.vsctl("set", "port", name, "qos=@q", "--", "--id=@q", "create", "qos", *settings)
    create("c0", "type=linux-htb", "other-config:max-rate=10M")
    error("c0", "max-rate=10M is no number")
    create("c0", "type=linux-sfq")
    error("c0", "this port has only egress-policer, trtcm-policer, linux-htb, linux-hfsc, linux-noop")
    for kind in ("linux-codel", "linux-fq_codel", "linux-netem"):
        create("c0", f"type={kind}")
        wait_for(f"{kind} to be named", lambda kind=kind: f"{kind}" in sw.get("interface", "c0", "error"))
        error("c0", "this port has only egress-policer, trtcm-policer, linux-htb, linux-hfsc, linux-noop")
    for kind in ("egress-policer", "trtcm-policer"):
        create("vb", f"type={kind}", "other-config:cir=1000000", "other-config:cbs=20000")
        wait_for(f"{kind} to be named", lambda kind=kind: kind in sw.get("interface", "vb", "error"))
        error("vb", "this port has only linux-htb, linux-hfsc, linux-sfq, linux-codel, linux-fq_codel, linux-netem, linux-noop")
        assert kind in sw.log()
    create("c0", "type=egress-policer", "other-config:cir=1000")
    error("c0", "cir and cbs have to be numbers above 0")
    create("c0", "type=linux-htb", "other-config:max-rate=10000000")
    wait_for("no error", lambda: "QoS" not in sw.get("interface", "c0", "error"))
    create("vb", "type=linux-netem", "other-config:loss=101")
    error("vb", "loss is more than 100 percent")
    lab.net.ping(a, "10.1.0.3")


def shaped(lab, sw, port, source, sink):
    """The shaper's rates on `port`, which leads to the pod `sink` with the address 10.1.0.2."""
    within = lambda mbps, want: abs(mbps / want - 1) < 0.06
    sw.vsctl("set", "port", port, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "other-config:max-rate=20000000",
             "queues:7=@s", "queues:8=@p", "--", "--id=@s", "create", "queue", "other-config:max-rate=4000000", "--",
             "--id=@p", "create", "queue", "other-config:min-rate=15000000", "other-config:priority=3")
    for queue in (7, 8):
        sw.ofctl("add-flow", "br0", f"priority=10,udp,tp_dst=620{queue},actions=set_queue:{queue},NORMAL")
    shown = sw.appctl("qos/show", port)
    assert shown.startswith(f"QoS: {port} linux-htb\nmax-rate: 20000000\n\nDefault:\n  burst: 12144\n  max-rate: 20000000\n"), shown
    assert "Queue 7:\n  burst: 12144\n  max-rate: 4000000\n  min-rate: 12144\n  tx_packets: 0\n" in shown, shown
    _, mbps = udp_rates(lab, source, sink, 6200, size=1400, pps=4000)
    assert within(mbps, 20), mbps
    _, mbps = udp_rates(lab, source, sink, 6207, size=1400, pps=1500)
    assert within(mbps, 4), mbps
    # Small packets, and GSO packets beside them that are longer than any burst.
    pps, mbps = udp_rates(lab, source, sink, 6207, size=100, pps=8000)
    assert within(mbps, 4), (pps, mbps)
    assert 8 < tcp_mbps(lab, source, sink, 5001) < 21
    # The minimum of a queue whose priority is the lowest.
    flood = run(lab, source, FLOOD, to="10.1.0.2", port=6300, size=1400, pps=4000)
    _, mbps = udp_rates(lab, source, sink, 6208, size=1400, pps=4000)
    flood.wait(timeout=60)
    assert 14 < mbps < 19, mbps
    stats = sw.ofctl("-OOpenFlow13", "queue-stats", "br0", port)
    counted = {int(q): (int(n), int(lost)) for q, n, lost in re.findall(r"queue (\d+): bytes=(\d+), pkts=\d+, errors=(\d+)", stats)}
    assert counted.keys() == {0, 7, 8} and all(n > 1_000_000 and lost > 100 for n, lost in counted.values()), stats
    # Packets that wait when the row changes, when it goes.
    flood = run(lab, source, FLOOD, to="10.1.0.2", port=6300, size=1400, pps=4000)
    qos = sw.vsctl("get", "port", port, "qos").strip()
    for rate in ("1000000", "5000000", "0", "2000000"):
        sw.vsctl("set", "qos", qos, f"other-config:max-rate={rate}")
        time.sleep(0.3)
    sw.vsctl("set", "qos", qos, "queues={}")
    sw.vsctl("clear", "port", port, "qos")
    flood.wait(timeout=60)
    assert sw.appctl("qos/show", port) == f"QoS not configured on {port}\n"
    lab.net.ping(source, "10.1.0.2")


def policed(lab, sw, port, source, sink):
    """The policers of Open vSwitch's DPDK ports."""
    sw.vsctl("set", "port", port, "qos=@q", "--", "--id=@q", "create", "qos", "type=egress-policer", "other-config:cir=1000000",
             "other-config:cbs=20000")
    assert sw.appctl("qos/show", port) == f"QoS: {port} egress-policer\ncbs: 20000\ncir: 1000000\n"
    _, mbps = udp_rates(lab, source, sink, 6400, size=1400, pps=2500)
    assert abs(mbps / 8.08 - 1) < 0.06, mbps
    # A guest's GSO packets are longer than `cbs`.
    assert tcp_mbps(lab, source, sink, 5002) > 0.5
    sw.vsctl("set", "port", port, "qos=@q", "--", "--id=@q", "create", "qos", "type=trtcm-policer", "other-config:cir=250000",
             "other-config:cbs=20000", "other-config:eir=250000", "other-config:ebs=20000", "queues:7=@s", "--",
             "--id=@s", "create", "queue", "other-config:cir=125000", "other-config:cbs=20000")
    sw.ofctl("add-flow", "br0", "priority=10,udp,tp_dst=6407,actions=set_queue:7,NORMAL")
    _, mbps = udp_rates(lab, source, sink, 6400, size=1400, pps=1500)
    assert abs(mbps / 4.04 - 1) < 0.08, mbps
    _, mbps = udp_rates(lab, source, sink, 6407, size=1400, pps=800)
    assert abs(mbps / 1.01 - 1) < 0.12, mbps
    stats = sw.ofctl("-OOpenFlow13", "queue-stats", "br0", port, "7")
    assert re.search(r"queue 7: bytes=[1-9]\d{5,}, pkts=\d+, errors=[1-9]\d+", stats), stats
    lost = int(re.search(r"^datapath_drop_tx_full .*total: (\d+)", sw.appctl("coverage/show"), re.MULTILINE)[1])
    assert lost > 1000, lost
    sw.vsctl("clear", "port", port, "qos")


def scenario_rates_of_internal_ports(lab):
    """The shaper keeps the rates of the port and its queues, also for GSO packets longer than a burst. The policers of
    Open vSwitch's DPDK ports."""
    sw = lab.switch()
    lab.bridge(sw)
    a, b = lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.internal_pod(sw, "b", "10.1.0.2/24", dev="ib")
    shaped(lab, sw, "ib", a, b)
    policed(lab, sw, "ib", a, b)


def scenario_rates_of_vhost_user_ports(lab):
    """The same on a vhost-user port, whose guest and port go while packets wait."""
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("the reference has no DPDK")
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24")
    guest = Guest(lab, "b", f"{sw.dir}/b.sock", "10.1.0.2/24")
    sw.vsctl("add-port", "br0", "vh", "--", "set", "interface", "vh", "type=dpdkvhostuserclient", f"options:vhost-server-path={guest.path}")
    guest.connected()
    shaped(lab, sw, "vh", a, guest.ns)
    policed(lab, sw, "vh", a, guest.ns)
    # The guest goes while packets wait for it, and the port after it.
    sw.vsctl("set", "port", "vh", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "other-config:max-rate=1000000")
    flood = run(lab, a, FLOOD, to="10.1.0.2", port=6300, size=1400, pps=2000)
    time.sleep(1)
    guest.stop()
    time.sleep(1)
    sw.vsctl("del-port", "vh")
    flood.wait(timeout=60)
    assert sw.alive()


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
