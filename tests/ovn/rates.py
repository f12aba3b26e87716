"""Bounds of rates: meters and queues of pods, and the meters that protect controllers.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

import time

from checks import check
from probes import background, until

FLOOD = """
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('{to}',7999))
n=0; start=time.time()
while time.time()<start+3:
    while n<(time.time()-start)*1000:
        try: s.send(b'x'*1200)
        except OSError: pass
        n+=1
    time.sleep(0.002)
"""
COUNT = "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('',7999)); s.settimeout(4)\nn=0\ntry:\n    while True: s.recv(2000); n+=1; s.settimeout(2)\nexcept OSError: print(n)\n"


def flood(c, source, to, address):
    """The number of 3,000 datagrams, sent in three seconds (10 Mbit/s), that arrive."""
    counter = background(c, to, "python3", "-c", COUNT)
    time.sleep(0.5)
    c.run(source, "python3", "-c", FLOOD.format(to=address), timeout=30)
    return int(counter.communicate(timeout=30)[0])


@check
def qos_rate_by_a_meter(c):
    c.nbctl("qos-add", "ls0", "from-lport", "100", "inport == \"a1\" && udp", "rate=2000", "burst=500")
    c.sync()
    try:
        n = flood(c, "a1", "a3", "10.0.0.13")
        if not 300 < n < 1200:
            return f"{n} of 3000 arrive"
    finally:
        c.nbctl("qos-del", "ls0")
        c.sync()
    n = flood(c, "a1", "a3", "10.0.0.13")
    return None if n > 2000 else f"without a limit {n} of 3000 arrive"


@check
def qos_rate_by_a_queue(c):
    """A port's rate towards the provider's network, by the kernel's queues that ovn-controller sets up."""
    node = c.chassis[0]
    c.nbctl("ls-add", "q", "--", "lsp-add", "q", "q-phys", "--", "lsp-set-type", "q-phys", "localnet", "--", "lsp-set-addresses", "q-phys", "unknown",
            "--", "lsp-set-options", "q-phys", "network_name=phys")
    c.pod("q1", 1, "q", "02:00:00:00:70:11", "192.168.50.71/24")
    node.sw.vsctl("set", "interface", "ph0", "external_ids:ovn-egress-iface=true")
    c.nbctl("set", "logical_switch_port", "q1", "options:qos_max_rate=2000000", "options:qos_burst=200000")
    c.sync()
    # ovn-controller reads this only in a full recomputation.
    pid = open(node.pidfile).read().strip()
    node.sw.run("ovn-appctl", "-t", f"{node.sw.dir}/ovn-controller.{pid}.ctl", "inc-engine/recompute")
    classes = lambda: c.net.run(node.ns, "tc", "class", "show", "dev", "ph0", quiet=True)
    try:
        if not until(lambda: "ceil 2Mbit" in classes(), 10):
            return f"classes: {classes()[:300]!r}"
        c.reaches("q1", "192.168.50.10")
        n = flood(c, "q1", "world", "192.168.50.10")
        # 2 Mbit/s during the flood, and then the kernel's queue, a thousand.
        return None if 200 < n < 2000 else f"{n} of 3000 arrive"
    finally:
        node.sw.vsctl("remove", "interface", "ph0", "external_ids", "ovn-egress-iface")
        c.nbctl("lsp-del", "q1", "--", "ls-del", "q")
        c.sync()


@check
def qos_rates_by_queues_on_both_ends(c):
    """Two pods of a provider network, on a node each, with an output rate each: the nodes' devices have
    queues."""
    c.nbctl("ls-add", "rates", "--", "lsp-add", "rates", "rates-phys", "--", "lsp-set-type", "rates-phys", "localnet", "--", "lsp-set-addresses", "rates-phys", "unknown",
            "--", "lsp-set-options", "rates-phys", "network_name=phys")
    ends = [(pod, c.chassis[number - 1], rate) for pod, number, rate in (("r1", 1, 1), ("r2", 2, 4))]
    addresses = {"r1": "192.168.50.81", "r2": "192.168.50.82"}
    try:
        for number, (pod, node, rate) in enumerate(ends, 1):
            c.pod(pod, number, "rates", f"02:00:00:00:71:1{number}", f"{addresses[pod]}/24")
            node.sw.vsctl("set", "interface", "ph0", "external_ids:ovn-egress-iface=true")
            c.nbctl("set", "logical_switch_port", pod, f"options:qos_max_rate={rate}000000", "options:qos_burst=100000")
        c.sync()
        for pod, node, rate in ends:
            pid = open(node.pidfile).read().strip()
            node.sw.run("ovn-appctl", "-t", f"{node.sw.dir}/ovn-controller.{pid}.ctl", "inc-engine/recompute")
            if not until(lambda: f"ceil {rate}Mbit" in c.net.run(node.ns, "tc", "class", "show", "dev", "ph0", quiet=True), 10):
                return f"no class of {rate} Mbit/s for {pod}"
        if not c.reaches("r1", addresses["r2"]):
            return "no answer"
        slow, fast = flood(c, "r1", "r2", addresses["r2"]), flood(c, "r2", "r1", addresses["r1"])
        # 1 and 4 of 10 Mbit/s, and then the kernel's queue, a thousand each.
        return None if 100 < slow < 1800 and slow + 400 < fast < 2800 else f"of 3000 each: {slow} at 1 Mbit/s, {fast} at 4"
    finally:
        for pod, node, _ in ends:
            node.sw.vsctl("remove", "interface", "ph0", "external_ids", "ovn-egress-iface")
        c.nbctl("--if-exists", "lsp-del", "r1", "--", "--if-exists", "lsp-del", "r2", "--", "ls-del", "rates")
        c.sync()


@check
def controllers_are_protected(c):
    """A meter limits the packets of one kind to ovn-controller."""
    c.nbctl("meter-add", "few", "drop", "1", "pktps", "1", "--", "copp-add", "copp0", "icmp4-error", "few", "--", "lr-copp-add", "copp0", "lr0")
    c.sync()
    try:
        out = c.run("a1", "ping", "-n", "-q", "-c", "30", "-i", "0.05", "-t", "1", "-W", "1", "10.0.1.12", check=False)
        errors = int(out.split("+")[1].split(" ")[0]) if "+" in out else 0
        return None if 1 <= errors <= 12 else f"{errors} of 30 are told"
    finally:
        c.nbctl("lr-copp-del", "lr0", check=False)
        c.nbctl("copp-del", "copp0", "--", "meter-del", "few", check=False)
        c.sync()
