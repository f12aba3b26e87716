#!/usr/bin/env python3
"""Pods of a real container runtime on Heddle: containerd, driven through its Container Runtime Interface as a
kubelet does, with heddle-cni as its network plug-in. Only the kubelet and the parts of Kubernetes above it
are missing.

    make cri [ARGS="rolled"]
"""

import concurrent.futures
import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import ROOT
from lab.cri import Runtime, service, several_networks
from lab.runner import limit, main
from lab.shell import wait_for
from lab.vhost import heddle_path


def start(lab, *conf, plugin=None):
    """A switch whose bridge is the pods' gateway, and a runtime."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.ip(sw.netns, "addr", "add", "10.1.0.1/16", "dev", "br0")
    lab.net.ip(sw.netns, "link", "set", "br0", "up")
    runtime = Runtime(lab, sw)
    node = runtime.node
    own = node.conf(timeoutSeconds=60, ipam={**node.ipam("10.1.0.0/16"), "routes": [{"dst": "0.0.0.0/0"}]})
    node.write("10-heddle", *(plugin(node, own) if plugin else [own]))
    runtime.before = node.rows()
    return sw, runtime.start()


def nothing_left(runtime):
    wait_for("pods to leave nothing", lambda: not runtime.pods() and not runtime.node.leases() and runtime.node.rows() == runtime.before)


def meet(runtime, pod, *addresses):
    for one in addresses:
        wait_for(f"{one} to answer", lambda: runtime.answers(pod[1], one))


@limit(400)
def scenario_pods_run(lab):
    """Pods are Running and reach each other, the host, and a service that OpenFlow rules make; then nothing is left."""
    sw, runtime = start(lab)
    one = runtime.run()
    web = runtime.run(command=("/bin/nc", "-ll", "-p", "8080", "-e", "/bin/echo", "it works"))
    meet(runtime, one, web[2], "10.1.0.1")
    lab.net.ping(sw.netns, one[2])
    assert "default via 10.1.0.1" in runtime.inside(one[1], "ip", "route")
    mac = re.search(r"link/ether (\S+)", runtime.inside(web[1], "ip", "link", "show", "eth0")).group(1)
    service(sw, "br0", "10.96.0.1", 80, web[2], 8080, mac)
    wait_for("the service", lambda: "it works" in runtime.inside(one[1], "nc", "-w", "2", "10.96.0.1", "80", check=False))
    for pod in (one, web):
        runtime.remove(pod[0])
    nothing_left(runtime)


@limit(400)
def scenario_measured(lab):
    """`heddle measure` between two pods by their names, and between their containers by their ids."""
    _, runtime = start(lab)
    pods = [runtime.run(name) for name in ("red", "blue")]
    pairs = ["pod:default/red,pod:blue", f"container:{pods[0][1]},container:{pods[1][1]}"]
    for number, pair in enumerate(pairs):
        out = f"{runtime.dir}/m{number}.jsonl"
        lab.trace.run(heddle_path(), "measure", "--between", pair, "--pattern", "rr", "--connections", "1", "--sizes", "1x1", "--seconds", "0.3",
                      "--rounds", "1", "--most-rounds", "1", "--out", out, timeout=100)
        with open(out) as file:
            series = [record for record in map(json.loads, file) if record["record"] == "series"]
        assert len(series) == 1 and series[0]["transactions_per_s"] > 0, series
    said = lab.trace.run(heddle_path(), "measure", "--between", "pod:red,pod:green", "--out", f"{runtime.dir}/x.jsonl", check=1)
    assert said.strip().endswith("no pod default/green runs on this node"), said
    for pod in pods:
        runtime.remove(pod[0])
    nothing_left(runtime)


@limit(900)
def scenario_thirty_rolled(lab):
    """30 pods come at once; then each is replaced, all at once; then all are removed."""
    _, runtime = start(lab)
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        pods = list(pool.map(lambda _: runtime.run(), range(30)))
        assert len({pod[2] for pod in pods}) == 30
        meet(runtime, pods[0], pods[29][2])

        def replace(pod):
            new = runtime.run()
            runtime.remove(pod[0])
            return new
        new = list(pool.map(replace, pods))
        assert len({pod[2] for pod in new}) == 30 and len(runtime.pods()) == 30
        assert sorted(runtime.node.leases()) == sorted(pod[2] for pod in new)
        for index in (0, 10, 28):
            meet(runtime, new[index], new[index + 1][2])
        list(pool.map(lambda pod: runtime.remove(pod[0]), new))
    nothing_left(runtime)


@limit(600)
def scenario_restarts(lab):
    """containerd, the switch and the database are killed, one after the other: pods reach each other, others come and go."""
    sw, runtime = start(lab)
    pods = [runtime.run(), runtime.run()]
    restarts = (lambda: (runtime.stop(), runtime.start()), lambda: (sw.stop_daemon(signal.SIGKILL), sw.start_daemon()),
                lambda: (sw.stop_ovsdb(), sw.start_ovsdb()))
    for restart in restarts:
        restart()
        meet(runtime, pods[0], pods[1][2], "10.1.0.1")
        third = runtime.run()
        meet(runtime, third, pods[0][2])
        runtime.remove(third[0])
    for pod in pods:
        runtime.remove(pod[0])
    nothing_left(runtime)


@limit(600)
def scenario_reboot(lab):
    """All processes and namespaces are gone, files are not: old pods can be removed, new ones come."""
    sw, runtime = start(lab)
    old = [runtime.run() for _ in range(4)]
    sw.stop_daemon(signal.SIGKILL)
    runtime.reboot()
    sw.start_daemon()
    out = lab.trace.run(f"{runtime.node.dir}/bin/heddle-cni", "sweep", sw.db)
    assert out.count(" h") == 4, out
    lab.net.ip(sw.netns, "addr", "replace", "10.1.0.1/16", "dev", "br0")
    lab.net.ip(sw.netns, "link", "set", "br0", "up")
    runtime.start()
    # A kubelet finds the pods not ready, and removes them.
    assert [pod["state"] for pod in runtime.pods()] == [1] * 4, runtime.pods()
    new = [runtime.run() for _ in range(2)]
    meet(runtime, new[0], new[1][2], "10.1.0.1")
    for pod in (*old, *new):
        runtime.remove(pod[0])
    nothing_left(runtime)


@limit(400)
def scenario_second_network(lab):
    """A second device of a pod, by the network attachment of deploy/kubernetes through a plug-in that delegates."""
    with open(f"{ROOT}/deploy/kubernetes/network-attachment.yaml") as file:
        attached = json.loads(file.read().partition("config: |")[2])

    def several(node, own):
        several_networks(node)
        second = {**attached, "database": node.switch.db, "ipam": {"type": "host-local", "subnet": "10.42.0.0/24", "dataDir": f"{node.dir}/ipam"}}
        return [{"type": "several", "delegates": [own, second]}]
    sw, runtime = start(lab, plugin=several)
    lab.bridge(sw, "br-storage")
    runtime.before = runtime.node.rows()
    pods = [runtime.run(), runtime.run()]
    addresses = [re.search(r"inet (10\.42\.\S+)/", runtime.inside(pod[1], "ip", "addr", "show", "net1")).group(1) for pod in pods]
    assert "mtu 9000" in runtime.inside(pods[0][1], "ip", "link", "show", "net1")
    meet(runtime, pods[0], pods[1][2], addresses[1])
    for pod in pods:
        runtime.remove(pod[0])
    nothing_left(runtime)


if __name__ == "__main__":
    main()
