"""The checks of the cluster, in this order: later checks find the pods of earlier ones.

A check fails by an exception, and returns a remark or nothing.
"""

import json
import os
import re
import signal
import time

import enclosure
from cluster import DEPLOY, GATEWAY, NODE, NODE_IP, PATIENCE, STORAGE_LEASES, TOKEN, Pinging, address
from lab.cri import service, several_networks
from lab.shell import wait_for
from lab.switch import read_pid

WEB = ("/bin/nc", "-ll", "-p", "8080", "-e", "/bin/echo", "it works")
# Allowed losses of a hundred pings if no forwarding part was touched: a busy machine may be late with some.
FEW_LOST = 5
ROLLED = 30


def node_ready(cluster):
    """The kubelet registers the node, and finds containerd and the network ready."""
    cluster.before = cluster.node.rows()
    info = cluster.get("node", NODE)["status"]["nodeInfo"]
    versions = f"kubelet {info['kubeletVersion']}, {info['containerRuntimeVersion']}"
    return f"{cluster.ready_seconds:.0f} s after the kubelet's start; {versions}"


def manifests(cluster):
    """The API server takes the files of deploy/kubernetes, word for word, and gives them back."""
    attachments(cluster)
    for name in sorted(os.listdir(DEPLOY)):
        cluster.kubectl("apply", "--validate=strict", "-f", f"{DEPLOY}/{name}")
    for name, containers in (("heddle", ["ovsdb-server", "heddled"]), ("heddle-cni", ["node"])):
        spec = cluster.get("daemonset", name, "-n", "kube-system")["spec"]["template"]["spec"]
        assert [one["name"] for one in spec["containers"]] == containers, spec
        mounts = {mount["name"] for one in spec["containers"] for mount in one["volumeMounts"]}
        assert mounts == {volume["name"] for volume in spec["volumes"]}, (mounts, spec["volumes"])
    assert "[[bridge]]" in cluster.get("configmap", "heddle", "-n", "kube-system")["data"]["node.toml"]
    assert json.loads(cluster.get("network-attachment-definition", "storage")["spec"]["config"])["type"] == "heddle-cni"
    cluster.kubectl("delete", "-f", f"{DEPLOY}/network-attachment.yaml")


def pods_running(cluster):
    """Pods are Running on heddle-cni alone: each has a port that knows it, and the port's address and MAC."""
    cluster.pair = cluster.run("pair", 2)
    cluster.web = cluster.run("web", 1, WEB, probe=8080)[0]
    pods = [*cluster.pair, cluster.web]
    wait_for("ports and leases to be the pods'", lambda: cluster.as_pods(pods))
    kinds = set()
    for pod in pods:
        port = cluster.port(pod)
        kinds.add(port["heddle-cni/kind"])
        shown = cluster.inside(pod, "ip", "addr", "show", "eth0")
        assert f"inet {address(pod)}/24" in shown and port["attached-mac"].lower() in shown, shown
        assert f"default via {GATEWAY}" in cluster.inside(pod, "ip", "route")
    return f"{len(pods)} pods, kind {' '.join(kinds)}; a kubelet's probe over the bridge"


def pod_to_pod(cluster):
    """Pings between two pods, both ways."""
    one, two = cluster.pair
    for a, b in ((one, two), (two, one), (one, cluster.web)):
        cluster.reach(a, address(b))


def pod_to_host(cluster):
    """To the gateway, which is the bridge, and to the node's address; and from the node."""
    one = cluster.pair[0]
    cluster.reach(one, GATEWAY, NODE_IP)
    cluster.lab.net.ping(cluster.sw.netns, address(one))


def service_address(cluster):
    """A Service's address leads to its pod, by OpenFlow rules that are made by hand from the API's
    objects."""
    ports = {"port": 80, "targetPort": 8080}
    cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                   "spec": {"selector": {"app": "web"}, "ports": [ports]}})
    virtual, pod = cluster.get("service", "web")["spec"]["clusterIP"], address(cluster.web)
    mac = re.search(r"link/ether (\S+)", cluster.inside(cluster.web, "ip", "link", "show", "eth0")).group(1)

    def answered():
        return "it works" in cluster.inside(cluster.pair[0], "nc", "-w", "2", virtual, "80", check=False)
    assert not answered(), "the service answers without rules"
    service(cluster.sw, "br-int", virtual, 80, pod, 8080, mac)
    wait_for("the service", answered, PATIENCE, 1)
    cluster.sw.ofctl("del-flows", "br-int")
    cluster.sw.ofctl("add-flow", "br-int", "actions=NORMAL")
    return f"{virtual}:80 to {pod}:8080"


def thirty_rolled(cluster):
    """30 pods come at once; each is replaced, all at once; all are removed. No port, row or address stays."""
    began = time.monotonic()
    old = cluster.run("old", ROLLED)
    come = time.monotonic() - began
    assert len(set(map(address, old))) == ROLLED
    cluster.reach(cluster.pair[0], address(old[0]), address(old[-1]))
    began = time.monotonic()
    new = cluster.run("new", ROLLED)
    cluster.delete("old")
    rolled = time.monotonic() - began
    wait_for("ports and leases to be the pods'", lambda: cluster.as_pods(cluster.pods()), PATIENCE, 1)
    for one in (0, 10, 28):
        cluster.reach(new[one], address(new[one + 1]))
    cluster.delete("new")
    wait_for("the others' ports alone", lambda: cluster.as_pods(cluster.pods()), PATIENCE, 1)
    return f"came in {come:.0f} s, replaced in {rolled:.0f} s"


def restarted(cluster, restart, few=True):
    """A program is killed and started under a ping from pod to pod: they talk, new ones come and go."""
    one, two = cluster.pair
    pinging = Pinging(cluster, one, address(two))
    began = time.monotonic()
    restart()
    took = time.monotonic() - began
    cluster.reach(one, address(two), GATEWAY)
    late = cluster.run("late")[0]
    cluster.reach(late, address(one))
    cluster.delete("late")
    sent, lost = pinging.end()
    assert not few or lost * 100 <= sent * FEW_LOST, f"{lost} of {sent} pings lost"
    wait_for("the others' ports alone", lambda: cluster.as_pods(cluster.pods()), PATIENCE, 1)
    return f"{lost} of {sent} pings lost, back after {took:.1f} s"


def kubelet_restarted(cluster):
    """The kubelet is killed under a ping from pod to pod: few pings are lost, and pods come and go afterwards."""
    def restart():
        cluster.kill("kubelet")
        cluster.start_kubelet()
    return restarted(cluster, restart)


def containerd_restarted(cluster):
    """containerd is killed under a ping from pod to pod: few pings are lost, and pods come and go afterwards."""
    def restart():
        cluster.runtime.stop()
        cluster.runtime.start()
    return restarted(cluster, restart)


def heddled_restarted(cluster):
    """Killed (SIGKILL): only packets sent meanwhile are lost."""
    def restart():
        cluster.sw.stop_daemon(signal.SIGKILL)
        cluster.sw.start_daemon()
    return restarted(cluster, restart, few=False)


def ovsdb_server_restarted(cluster):
    """The database server is killed under a ping from pod to pod: few pings are lost, and pods come and go afterwards."""
    def restart():
        cluster.sw.stop_ovsdb()
        cluster.sw.start_ovsdb()
    return restarted(cluster, restart)


def attachments(cluster):
    """The API server knows NetworkAttachmentDefinitions, as Multus brings them."""
    name = "network-attachment-definition"
    names = {"plural": f"{name}s", "singular": name, "kind": "NetworkAttachmentDefinition"}
    spec = {"type": "object", "properties": {"config": {"type": "string"}}}
    version = {"name": "v1", "served": True, "storage": True,
               "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}
    cluster.apply({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{name}s.k8s.cni.cncf.io"},
        "spec": {"group": "k8s.cni.cncf.io", "scope": "Namespaced", "names": names, "versions": [version]}})
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}s.k8s.cni.cncf.io", "--timeout=60s")


def second_network(cluster):
    """net1 on another bridge, by a pod's annotation and deploy/kubernetes' unchanged network attachment.

    A second attachment gives another pod an address of a range: later checks look at its lease."""
    attachments(cluster)
    cluster.kubectl("apply", "--validate=strict", "-f", f"{DEPLOY}/network-attachment.yaml")
    conf = json.loads(cluster.get("network-attachment-definition", "storage")["spec"]["config"])
    assert conf["ipam"] == {"type": "static"}, conf
    leased = {**conf, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.42.0.0/24", "rangeStart": "10.42.0.100"}]]}}
    cluster.apply({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "leased"},
                   "spec": {"config": json.dumps(leased)}})
    several_networks(cluster.node)
    first = cluster.network["plugins"][0]
    meta = {"type": "several", "state": "/var/lib/cni/several", "api": {"server": "127.0.0.1:6443", "token": TOKEN},
            "delegates": [{"name": cluster.network["name"], **first}]}
    cluster.node.write("05-several", meta, version=cluster.network["cniVersion"])
    runtime = cluster.runtime
    wait_for("the runtime to know it", lambda: "05-several" in str(runtime.call("Status", verbose=True)), PATIENCE, 1)
    key = "k8s.v1.cni.cncf.io/networks"
    asked = {"name": "storage", "ips": ["10.42.0.5/24"], "mac": "02:00:00:00:00:05"}
    one = cluster.run("two-a", annotations={key: json.dumps([asked])})[0]
    two = cluster.run("two-b", annotations={key: "leased"})[0]
    plain = cluster.run("plain")[0]
    shown = cluster.inside(one, "ip", "addr", "show", "net1")
    assert "02:00:00:00:00:05" in shown and "mtu 9000" in shown and "inet 10.42.0.5/24 " in shown, shown
    assert "net1" not in cluster.inside(plain, "ip", "link")
    assert f"default via {GATEWAY} dev eth0" in cluster.inside(one, "ip", "route")
    port = cluster.port(one, "net1")
    assert cluster.sw.vsctl("port-to-br", port["name"]) == "br-storage"
    assert cluster.sw.get("port", port["name"], "tag") == "42"
    second = storage(cluster, two)
    assert cluster.leases(STORAGE_LEASES) == [second], second
    cluster.reach(one, second, address(two), address(plain))
    cluster.reach(two, "10.42.0.5")
    cluster.delete("plain")
    return f"net1 of two pods, {second} on br-storage; a third without"


def storage(cluster, pod):
    return re.search(r"inet (10\.42\.\S+)/", cluster.inside(pod, "ip", "addr", "show", "net1")).group(1)


def left_over_collected(cluster):
    """GC removes a port whose pod no runtime knows, and its address; the others stay."""
    conf = {"cniVersion": "1.1.0", "name": cluster.network["name"], **cluster.network["plugins"][0]}
    ghost = cluster.lab.net.namespace("ghost")
    cluster.node.add(conf, ghost)
    ports, leases = cluster.ports(), cluster.leases()
    known = [p for p in ports if "heddle-cni/pod" in p]
    assert len(ports) == len(known) + 1
    listed = [{"containerID": p["heddle-cni/container"], "ifname": p["heddle-cni/ifname"]} for p in known]
    cluster.node.call("GC", {**conf, "cni.dev/valid-attachments": listed}, ghost)
    assert {p["name"] for p in cluster.ports()} == {p["name"] for p in known}
    assert len(cluster.leases()) == len(leases) - 1
    cluster.lab.net.run(ghost, "ip", "link", "show", "eth0", check=1)
    cluster.trace.run("ip", "netns", "del", ghost)
    return f"1 of {len(ports)} ports"


def rebooted(cluster):
    """The plug is pulled, then everything starts again: all pods come back, and no old port is left."""
    def restarts(pod):
        return pod["status"]["containerStatuses"][0]["restartCount"]
    before = {p["metadata"]["name"]: restarts(p) for p in cluster.pods()}
    old = {p["name"] for p in cluster.ports()}
    cluster.power_off()
    assert not cluster.sw.pid and not read_pid(cluster.sw.pidfile)
    began = time.monotonic()
    swept = set(cluster.boot())
    assert swept == old, f"swept: {sorted(swept)} of {sorted(old)}"

    def back():
        pods = cluster.pods()
        again = [restarts(p) > before[p["metadata"]["name"]] and p["status"]["containerStatuses"][0]["ready"] for p in pods]
        return all(again) and pods
    pods = wait_for("all pods to be started again", back, PATIENCE, 1)
    took = time.monotonic() - began
    assert {p["metadata"]["name"] for p in pods} == set(before)
    cluster.pair, (cluster.web,) = cluster.pods("pair"), cluster.pods("web")
    one, two = cluster.pair
    cluster.reach(one, address(two), address(cluster.web), GATEWAY, NODE_IP)
    for first, second in zip(cluster.pods("two-a"), cluster.pods("two-b")):
        cluster.reach(first, storage(cluster, second), address(one))

    def ports_are_right():
        ports = cluster.ports()
        given, leased = len(cluster.pods("two-a")), len(cluster.pods("two-b"))
        return (len(ports) == len(old) == len(pods) + given + leased and not {p["name"] for p in ports} & old and
                len(cluster.leases(STORAGE_LEASES)) == leased and cluster.leases() == sorted(map(address, pods)))
    wait_for("ports and leases to be the pods'", ports_are_right, PATIENCE, 1)
    return f"{len(pods)} pods back {took:.0f} s after; {len(old)} old ports swept"


def nothing_left(cluster):
    """After the last pod: no port, row or address, and the runtime's namespaces and mounts are gone."""
    cluster.delete("pair", "web", "two-a", "two-b")
    wait_for("ports to go", lambda: not cluster.ports() and cluster.node.rows() == cluster.before, PATIENCE, 1)
    wait_for("addresses to go", lambda: not cluster.leases() and not cluster.leases(STORAGE_LEASES), PATIENCE, 1)

    def mounted():
        return [path for path in enclosure.mounts().values() if "/sandboxes/" in path or "/cni-" in path]
    wait_for("mounts to go", lambda: not mounted(), PATIENCE, 1)
    # Until its next check, the kubelet keeps ended containers.
    wait_for("containers to go", lambda: not cluster.runtime.shims(), PATIENCE, 1)


CHECKS = (node_ready, manifests, pods_running, pod_to_pod, pod_to_host, service_address, thirty_rolled, kubelet_restarted,
          containerd_restarted, heddled_restarted, ovsdb_server_restarted, second_network, left_over_collected, rebooted,
          nothing_left)
