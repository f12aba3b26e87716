#!/usr/bin/env python3
"""Devices of internal ports outlive the daemon: restarts, kills, moved devices, and Open vSwitch's daemon in between."""

import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for
from lab.switch import read_pid


def reference():
    """The real ovs-vswitchd."""
    for name in ("/usr/lib/openvswitch-switch/ovs-vswitchd", "/usr/sbin/ovs-vswitchd"):
        if os.access(name, os.X_OK):
            return name
    raise Skip("no ovs-vswitchd on this machine")


def start(lab, *args):
    """A bridge with an address and a route behind it, an internal port at home (i0), one in a pod that renamed it (p0)."""
    sw = lab.switch(*args)
    lab.bridge(sw)
    lab.net.address(sw.netns, "br0", "10.1.0.1/24")
    lab.net.ip(sw.netns, "route", "add", "10.9.0.0/16", "via", "10.1.0.2")
    sw.vsctl("add-port", "br0", "i0", "--", "set", "interface", "i0", "type=internal")
    lab.net.address(sw.netns, "i0", "10.2.0.1/24")
    pod = lab.net.namespace("pod")
    sw.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=internal")
    lab.net.move("p0", sw.netns, pod)
    lab.net.ip(pod, "link", "set", "p0", "name", "eth0")
    lab.net.address(pod, "eth0", "10.1.0.2/24", mac="02:00:00:00:00:02")
    lab.net.ip(pod, "route", "add", "default", "via", "10.1.0.1")
    lab.net.ping(sw.netns, "10.1.0.2")
    return sw, pod


def indices(lab, sw, pod):
    """Index and address of each device: another device has others."""
    words = lambda ns, dev: lab.net.ip(ns, "-o", "link", "show", dev).split("\\")
    pick = lambda ns, dev: (words(ns, dev)[0].split(":")[0], words(ns, dev)[1].split()[1])
    return [pick(sw.netns, "br0"), pick(sw.netns, "i0"), pick(pod, "eth0")]


def unchanged(lab, sw, pod, before):
    assert indices(lab, sw, pod) == before, (indices(lab, sw, pod), before)
    assert "10.1.0.1/24" in lab.net.ip(sw.netns, "addr", "show", "br0")
    assert "10.2.0.1/24" in lab.net.ip(sw.netns, "addr", "show", "i0")
    assert "10.9.0.0/16 via 10.1.0.2" in lab.net.ip(sw.netns, "route")
    assert "default via 10.1.0.1" in lab.net.ip(pod, "route")
    assert "p0" not in lab.net.ip(sw.netns, "-br", "link")
    for name in ("br0", "i0", "p0"):
        assert sw.get("interface", name, "error") == "[]", sw.get("interface", name, "error")


def gone(lab, ns, device):
    """The kernel takes a device away when its last user has closed it."""
    wait_for(f"{device} to go", lambda: not re.search(rf"^{device}\b", lab.net.ip(ns, "-br", "link"), re.M))


def forwards(lab, sw, pod):
    wait_for("an answer", lambda: lab.net.ping(sw.netns, "10.1.0.2", count=1, lossless=False))
    lab.net.ping(sw.netns, "10.1.0.2")
    tcp(lab, sw, pod)


def tcp(lab, sw, pod, size=3_000_000):
    """Bytes through the switch: segments and checksums are as both ends expect."""
    server = subprocess.Popen(["ip", "netns", "exec", pod, "python3", "-c",
                               "import socket\ns=socket.create_server(('', 5001))\nprint('up', flush=True)\nc=s.accept()[0]\nn=0\n"
                               "while d:=c.recv(65536): n+=len(d)\nc.send(str(n).encode())"],
                              stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "up\n"
        out = lab.net.run(sw.netns, "timeout", "100", "python3", "-c",
                          f"import socket\ns=socket.create_connection(('10.1.0.2', 5001), 60)\ns.sendall(b'x'*{size})\n"
                          "s.shutdown(1)\nprint(s.recv(100).decode())", timeout=110)
        assert out.strip() == str(size), out
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()


def scenario_restart_keeps_devices(lab):
    sw, pod = start(lab)
    before = indices(lab, sw, pod)
    for _ in range(2):
        sw.stop_daemon()
        assert "10.1.0.1/24" in lab.net.ip(sw.netns, "addr", "show", "br0"), "the address stays while no daemon runs"
        sw.start_daemon()
        unchanged(lab, sw, pod, before)
        forwards(lab, sw, pod)


def scenario_kill_keeps_devices(lab):
    sw, pod = start(lab)
    before = indices(lab, sw, pod)
    for _ in range(2):
        sw.stop_daemon(signal.SIGKILL)
        sw.start_daemon()
        unchanged(lab, sw, pod, before)
        forwards(lab, sw, pod)


def scenario_crash_under_a_monitor_keeps_devices(lab):
    sw, pod = start(lab, "--monitor")
    before = indices(lab, sw, pod)
    first = read_pid(sw.pidfile)
    os.kill(first, signal.SIGSEGV)
    sw.pid = wait_for("another process", lambda: read_pid(sw.pidfile) not in (0, first) and read_pid(sw.pidfile))
    wait_for("the bridge again", lambda: "br0" in sw.appctl("ofproto/list", check=False))
    forwards(lab, sw, pod)
    unchanged(lab, sw, pod, before)


def scenario_upgrade_with_long_names_and_several_queues(lab):
    """A device for several queues is found again as well, with all of them."""
    sw = lab.switch()
    sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-cpu-mask=0x3")
    lab.bridge(sw)
    name = "fifteen-letters"
    sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=internal", "options:n_rxq=2")
    lab.net.address(sw.netns, name, "10.1.0.1/24")
    queues = lambda: sum(name in line for line in sw.appctl("dpif-netdev/pmd-rxq-show").splitlines())
    assert queues() == 2, sw.appctl("dpif-netdev/pmd-rxq-show")
    for how in (signal.SIGTERM, signal.SIGKILL):
        sw.stop_daemon(how)
        sw.start_daemon()
        assert sw.get("interface", name, "error") == "[]"
        assert queues() == 2, sw.appctl("dpif-netdev/pmd-rxq-show")
        assert "10.1.0.1/24" in lab.net.ip(sw.netns, "addr", "show", name)
    # A device with one queue keeps one, and the log names the remedy.
    sw.vsctl("add-port", "br0", "one", "--", "set", "interface", "one", "type=internal")
    sw.vsctl("set", "interface", "one", "options:n_rxq=2")
    wait_for("a line in the log", lambda: "one: the device has been made with one queue" in sw.log())


def scenario_moved_while_down(lab):
    """A device that moves and is renamed while no daemon runs is found where it is."""
    sw, pod = start(lab)
    sw.stop_daemon(signal.SIGKILL)
    other = lab.net.namespace("other")
    lab.net.move("i0", sw.netns, other)
    lab.net.ip(other, "link", "set", "i0", "name", "lan")
    lab.net.address(other, "lan", "10.1.0.3/24")
    sw.start_daemon()
    assert "i0" not in lab.net.ip(sw.netns, "-br", "link"), "a second device was made"
    wait_for("an answer", lambda: lab.net.ping(other, "10.1.0.2", count=1, lossless=False))
    lab.net.ping(other, "10.1.0.1")
    sw.vsctl("del-port", "i0", "--", "del-port", "p0")
    # The device is removed with its port, wherever it is.
    gone(lab, other, "lan")
    gone(lab, pod, "eth0")


def scenario_deleted_while_down(lab):
    """Ports that were deleted while no daemon ran lose their devices at the next start; devices of others stay."""
    sw, pod = start(lab)
    sw.stop_daemon()
    lab.net.ip(sw.netns, "tuntap", "add", "mine", "mode", "tap")
    lab.net.ip(sw.netns, "tuntap", "add", "marked", "mode", "tap")
    lab.net.ip(sw.netns, "link", "set", "marked", "alias", "heddle:0123456789abcdef:marked")
    sw.vsctl("--no-wait", "del-port", "p0", "--", "del-port", "i0")
    sw.start_daemon()
    gone(lab, pod, "eth0")
    gone(lab, sw.netns, "i0")
    links = lab.net.ip(sw.netns, "-br", "link")
    assert "br0" in links and "mine" in links and "marked" in links, links
    assert "10.1.0.1/24" in lab.net.ip(sw.netns, "addr", "show", "br0")
    sw.stop_daemon()
    sw.vsctl("--no-wait", "del-br", "br0")
    sw.start_daemon()
    gone(lab, sw.netns, "br0")
    assert "mine" in lab.net.ip(sw.netns, "-br", "link")


def scenario_exit_with_cleanup(lab):
    sw, pod = start(lab)
    pid, sw.pid = sw.pid, None
    sw.appctl("exit", "--cleanup")
    wait_for("the end", lambda: not os.path.exists(f"/proc/{pid}"))
    for ns, name in ((sw.netns, "br0"), (sw.netns, "i0"), (pod, "eth0")):
        gone(lab, ns, name)
    sw.start_daemon()
    assert sw.get("interface", "i0", "error") == "[]"
    assert "i0" in lab.net.ip(sw.netns, "-br", "link")


def scenario_namespace_ends(lab):
    """The pod's namespace takes the device along, with the switch running or not: the port gets a new one at home."""
    sw, pod = start(lab)
    for stop in (False, True):
        if stop:
            lab.net.move("p0", sw.netns, pod)
            sw.stop_daemon()
        lab.trace.run("ip", "netns", "del", pod)
        lab.net.names.remove(pod)
        if stop:
            sw.start_daemon()
        wait_for("a new device", lambda: "p0" in lab.net.ip(sw.netns, "-br", "link"))
        sw.wait_column("interface", "p0", "error", "[]")
        sw.wait_column("interface", "p0", "ofport", lambda text: text.isdigit() and int(text) > 0)
        pod = lab.net.namespace("pod")


def scenario_port_goes_after_its_namespace(lab):
    """The order of container runtimes, after a restart."""
    sw, pod = start(lab)
    sw.stop_daemon()
    sw.start_daemon()
    forwards(lab, sw, pod)
    lab.trace.run("ip", "netns", "del", pod)
    lab.net.names.remove(pod)
    sw.vsctl("del-port", "p0")
    pod = lab.net.namespace("pod")
    sw.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=internal")
    lab.net.move("p0", sw.netns, pod)
    lab.net.address(pod, "p0", "10.1.0.2/24", mac="02:00:00:00:00:02")
    forwards(lab, sw, pod)


def scenario_ovs_vswitchd_in_between(lab):
    """Open vSwitch's daemon takes the devices over, and Heddle takes them back, however each ends; addresses stay."""
    ovs = reference()
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("two different daemons are needed")
    heddle = sw.binary
    lab.bridge(sw)
    lab.net.address(sw.netns, "br0", "10.1.0.1/24")
    lab.net.ip(sw.netns, "route", "add", "10.9.0.0/16", "via", "10.1.0.2")
    a = lab.veth_pod(sw, "a", "10.1.0.2/24", offload=False)
    index = lambda: lab.net.ip(sw.netns, "-o", "link", "show", "br0").split(":")[0]
    before = index()

    def good():
        assert sw.get("interface", "br0", "error") == "[]", sw.get("interface", "br0", "error")
        assert index() == before
        assert "10.9.0.0/16 via 10.1.0.2" in lab.net.ip(sw.netns, "route")
        wait_for("an answer", lambda: lab.net.ping(sw.netns, "10.1.0.2", count=1, lossless=False))
        tcp(lab, sw, a)
    good()
    for how in (signal.SIGTERM, signal.SIGKILL):
        sw.stop_daemon()
        sw.binary = ovs
        sw.start_daemon()
        good()
        sw.stop_daemon(how)
        sw.binary = heddle
        sw.start_daemon()
        good()
    # With offloads Open vSwitch's daemon expects the short header of a new device.
    sw.stop_daemon()
    sw.vsctl("--no-wait", "set", "open_vswitch", ".", "other_config:userspace-tso-enable=true")
    sw.binary = ovs
    sw.start_daemon()
    good()
    sw.stop_daemon()
    sw.vsctl("--no-wait", "clear", "open_vswitch", ".", "other_config")
    sw.binary = heddle
    sw.start_daemon()
    good()
    # A killed Heddle leaves offloads on, which Open vSwitch's daemon does not know; this turns them off.
    sw.stop_daemon(signal.SIGKILL)
    lab.net.run(sw.netns, "ethtool", "-K", "br0", "tx", "off")
    sw.binary = ovs
    sw.start_daemon()
    good()
    sw.stop_daemon()
    sw.binary = heddle
    sw.start_daemon()
    good()


def scenario_devices_of_others(lab):
    """A device of another kind and one that another process holds are left alone; the port's error names the
    cause, and ends with it."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.ip(sw.netns, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
    hold = ("import fcntl,os,struct,sys\nfd=os.open('/dev/net/tun',2)\n"
            "fcntl.ioctl(fd,0x400454ca,struct.pack('16sH22x',b'held0',0x1002|{flags}))\nprint('up',flush=True)\nsys.stdin.read()")
    for flags in ("0", "0x100"):
        child = subprocess.Popen(["ip", "netns", "exec", sw.netns, "python3", "-c", hold.format(flags=flags)],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout.readline() == "up\n"
            sw.vsctl("--no-wait", "--may-exist", "add-port", "br0", "veth0", "--", "set", "interface", "veth0", "type=internal",
                     "--", "--may-exist", "add-port", "br0", "held0", "--", "set", "interface", "held0", "type=internal")
            sw.wait_column("interface", "veth0", "error", "could not open network device veth0 (Invalid argument)")
            sw.wait_column("interface", "held0", "error", "could not open network device held0 (Device or resource busy)")
        finally:
            child.stdin.close()
            child.wait(60)
            child.stdout.close()
        sw.wait_column("interface", "held0", "error", "[]")
        sw.vsctl("del-port", "held0")
    assert "veth0" in lab.net.ip(sw.netns, "-br", "link")
    lab.net.ip(sw.netns, "link", "del", "veth0")
    sw.wait_column("interface", "veth0", "error", "[]")


if __name__ == "__main__":
    main()
