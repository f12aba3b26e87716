#!/usr/bin/env python3
"""The CNI plug-in when things are killed: itself in the middle, the daemon and the database under many ADDs, a reboot."""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.cni import Failed, Node, address
from lab.runner import main
from lab.shell import wait_for
from lab.switch import read_pid
from test_cni import controllers_plugin, devices, refused

# Moments at which a command is killed, as parts of the time that it takes.
MOMENTS = 12


def start(lab):
    sw = lab.switch()
    lab.bridge(sw)
    return sw, Node(lab, sw)


def started(node, command, conf, pod, **keys):
    """A command of the plug-in that runs."""
    argv = node.command("heddle-cni", node.env(command, pod, **keys))
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    process.stdin.write(json.dumps(conf))
    process.stdin.close()
    return process


def killed(node, command, conf, pod, after, **keys):
    """Kills a command after `after` seconds: whether it had not ended by then."""
    process = started(node, command, conf, pod, **keys)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
    process.stdout.close()
    return process.wait() == -signal.SIGKILL


def nothing_left(lab, node, before, pod):
    """Waits until a pod has left nothing: rows, addresses, devices, directories. `before` has the rows and
    devices at home."""
    def left():
        here = {name for name in devices(lab, node.switch.netns) if name not in before[1]}
        sockets = os.listdir(f"{node.dir}/sockets") if os.path.isdir(f"{node.dir}/sockets") else []
        return [here, devices(lab, pod), node.leases(), sockets, node.rows() != before[0] and node.rows()]
    seen = []

    def gone():
        seen[:] = left()
        return not any(seen)
    try:
        wait_for("", gone)
    except AssertionError:
        raise AssertionError(f"left behind: {seen}") from None


def kills(lab, node, conf, check):
    """Kills ADD and DEL at many moments; then another ADD works, and after DEL nothing is left."""
    pod = node.pod()
    node.add(conf, pod)
    node.delete(conf, pod)
    nothing_left(lab, node, node.before, pod)
    began = time.monotonic()
    node.add(conf, pod)
    took_add = time.monotonic() - began
    began = time.monotonic()
    node.delete(conf, pod)
    took_del = time.monotonic() - began
    cut = 0
    for moment in range(MOMENTS):
        part = (moment + 0.5) / MOMENTS
        # A runtime sends a DEL after an ADD that has not ended well.
        cut += killed(node, "ADD", conf, pod, part * took_add)
        node.delete(conf, pod)
        nothing_left(lab, node, node.before, pod)
        # Some runtimes repeat the ADD at once.
        killed(node, "ADD", conf, pod, part * took_add)
        result = node.add(conf, pod)
        check(pod, result)
        cut += killed(node, "DEL", conf, pod, part * took_del)
        node.delete(conf, pod)
        nothing_left(lab, node, node.before, pod)
    assert cut >= MOMENTS // 2, f"only {cut} commands were cut short"


def scenario_killed_plugin(lab):
    """kill -9 of ADD and DEL at many moments, for each kind: a retry and a DEL succeed, and nothing is left."""
    sw, node = start(lab)
    peer = lab.internal_pod(sw, "peer", "10.1.0.250/24")
    node.before = (node.rows(), devices(lab, sw.netns))
    pings = lambda pod, result: wait_for("an answer", lambda: lab.net.ping(peer, address(result), count=1, lossless=False))
    kills(lab, node, node.conf(), pings)
    kills(lab, node, node.conf(kind="veth"), pings)
    kills(lab, node, node.conf(kind="vhost-user", socketDir=f"{node.dir}/sockets"), lambda pod, result: None)


def scenario_killed_in_a_chain(lab):
    """kill -9 in the middle of an exchange: the DEL of both plug-ins leaves nothing, and the next ADD is whole."""
    sw, node = start(lab)
    peer = lab.internal_pod(sw, "peer", "10.244.0.250/24")
    node.before = (node.rows(), devices(lab, sw.netns))
    first, own, pod = controllers_plugin(node, 3), {"type": "heddle-cni", "kind": "internal", "database": sw.db}, node.pod()
    node.write("net", first, own)
    conf = {**own, "cniVersion": "1.0.0", "name": "net"}
    of_first = {**first, "cniVersion": "1.0.0", "name": "net"}
    result = node.call("ADD", of_first, pod, plugin="first")
    began = time.monotonic()
    node.add({**conf, "prevResult": result}, pod)
    took, cut = time.monotonic() - began, 0

    def delete():
        # In the order of a runtime: the last first.
        node.delete({**conf, "prevResult": result}, pod)
        node.call("DEL", of_first, pod, plugin="first")
        nothing_left(lab, node, node.before, pod)
    delete()
    for moment in range(MOMENTS):
        result = node.call("ADD", of_first, pod, plugin="first")
        cut += killed(node, "ADD", {**conf, "prevResult": result}, pod, (moment + 0.5) / MOMENTS * took)
        delete()
    assert cut >= MOMENTS // 2, f"only {cut} commands were cut short"
    json.loads(node.tool("add", "net", pod))
    wait_for("an answer", lambda: lab.net.ping(peer, "10.244.0.13", count=1, lossless=False))
    node.tool("del", "net", pod)
    nothing_left(lab, node, node.before, pod)


def scenario_daemon_restarted_under_adds(lab):
    """100 ADDs at once, the daemon killed and started again in between: all of them succeed."""
    sw, node = start(lab)
    before, conf = (node.rows(), devices(lab, sw.netns)), node.conf(ipam=node.ipam("10.1.0.0/16"), timeoutSeconds=60)
    pods = [node.pod() for _ in range(100)]
    with concurrent.futures.ThreadPoolExecutor(len(pods)) as pool:
        asked = [pool.submit(node.add, conf, pod) for pod in pods]
        wait_for("some to be done", lambda: sum(future.done() for future in asked) >= 10)
        sw.stop_daemon(signal.SIGKILL)
        not_done = sum(not future.done() for future in asked)
        sw.start_daemon()
        results = [future.result() for future in asked]
    assert not_done > 10, f"the daemon was killed when only {not_done} were left"
    assert len({address(result) for result in results}) == 100
    for index in (0, 30, 60, 98):
        wait_for("an answer", lambda: lab.net.ping(pods[index], address(results[index + 1]), count=1, lossless=False))
    for pod, result in list(zip(pods, results))[::10]:
        node.call("CHECK", {**conf, "prevResult": result}, pod)
    with concurrent.futures.ThreadPoolExecutor(len(pods)) as pool:
        list(pool.map(lambda pod: node.delete(conf, pod), pods))
    for pod in (pods[0], pods[50], pods[99]):
        nothing_left(lab, node, before, pod)


def scenario_database_away_under_adds(lab):
    """The database ends in the middle of 20 ADDs: each has worked or reports an error; when it is back, DELs
    leave nothing."""
    sw, node = start(lab)
    before, conf = (node.rows(), devices(lab, sw.netns)), node.conf(timeoutSeconds=5)
    pods, said = [node.pod() for _ in range(20)], {}

    def add(pod):
        try:
            said[pod] = node.add(conf, pod)
        except Failed as failed:
            said[pod] = failed
    with concurrent.futures.ThreadPoolExecutor(len(pods)) as pool:
        asked = [pool.submit(add, pod) for pod in pods[:10]]
        wait_for("the first", lambda: any(future.done() for future in asked))
        # The database stops replying here, so the others are in the midst of their ADDs when it ends.
        database = read_pid(f"{sw.dir}/ovsdb-server.pid")
        os.kill(database, signal.SIGSTOP)
        asked += [pool.submit(add, pod) for pod in pods[10:]]
        time.sleep(0.3)
        os.kill(database, signal.SIGKILL)
        sw.stop_ovsdb()
        for future in asked:
            future.result()
    failures = [what for what in said.values() if isinstance(what, Failed)]
    assert len(failures) >= 10, f"the database went when {len(failures)} were left"
    assert all(f.code == 11 and "database" in f.msg for f in failures), [str(f) for f in failures]
    for pod in pods[:2]:
        refused(11, "database", node.delete, conf, pod)
    sw.start_ovsdb()
    worked = [(pod, what) for pod, what in said.items() if not isinstance(what, Failed)]
    wait_for("the switch to follow", lambda: sw.get("interface", worked[0][1]["interfaces"][0]["name"], "ofport") != "[]")
    for pod, result in worked:
        node.call("CHECK", {**conf, "prevResult": result}, pod)
    for pod in pods:
        node.delete(conf, pod)
    for pod in pods:
        nothing_left(lab, node, before, pod)


def scenario_reboot(lab):
    """Namespaces and devices are gone, rows and addresses are not: GC takes all of it away, and a new pod works."""
    sw, node = start(lab)
    before, conf = (node.rows(), devices(lab, sw.netns)), node.conf(version="1.1.0")
    pods = [node.pod() for _ in range(5)]
    for pod in pods:
        node.add(conf, pod)
    sw.stop_daemon(signal.SIGKILL)
    for pod in pods:
        lab.trace.run("ip", "netns", "del", pod)
        lab.net.names.remove(pod)
    sw.start_daemon()
    assert len(node.leases()) == 5
    new = node.pod()
    result = node.add(conf, new)
    node.call("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": f"id-{new}", "ifname": "eth0"}]}, new)
    assert node.leases() == [address(result)], node.leases()
    assert sw.vsctl("list-ports", "br0") == result["interfaces"][0]["name"]
    node.call("CHECK", {**conf, "prevResult": result}, new)
    for pod in pods:
        node.delete(conf, new, container=f"id-{pod}", netns=f"/run/netns/{pod}")
    node.delete(conf, new)
    nothing_left(lab, node, before, new)


def scenario_device_deleted(lab):
    """Another program deletes or renames a pod's device: CHECK reports it, and DEL and another ADD work."""
    sw, node = start(lab)
    before, conf, pod = (node.rows(), devices(lab, sw.netns)), node.conf(), node.pod()
    for words in (("link", "del", "eth0"), ("link", "set", "eth0", "name", "other")):
        result = node.add(conf, pod)
        node.call("CHECK", {**conf, "prevResult": result}, pod)
        lab.net.ip(pod, *words)
        refused(105, "no device eth0", node.call, "CHECK", {**conf, "prevResult": result}, pod)
        again = node.add(conf, pod)
        node.call("CHECK", {**conf, "prevResult": again}, pod)
        node.delete(conf, pod)
        nothing_left(lab, node, before, pod)


if __name__ == "__main__":
    main()
