#!/usr/bin/env python3
"""The pages of the documentation, done: their commands run from top to bottom, and print what the pages show."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE, ROOT, daemon_path
from lab import cni
from lab.pages import Machine, blocks, commands, follow, missing
from lab.runner import Skip, limit, main
from lab.shell import CommandError, wait_for
from lab.vhost import heddle_path

# Pages that are not followed here, and the programs that run their commands. None: the page has no commands
# of its own.
ELSEWHERE = {
    "SUMMARY": None, "advice": "tests/system/test_advise.py", "architecture": None, "benchmarks": "Makefile",
    "benchmarks-commands": "Makefile", "benchmarks-loaded": "bench/run", "benchmarks-pods": "Makefile", "benchmarks-state": "Makefile",
    "bonds": "tests/system/test_bonds.py",
    "cni-cost": "bench/cni", "cni-devices": None, "cni-settings": None, "conformance": "tests/conformance/run",
    "conformance-3.1": None, "conformance-4.0": None, "connections-cost": None, "differences-connections": None,
    "differences-flows": None, "features": None, "first-hour": "scripts/smoke",
    "first-quarter-hour": "tests/system/test_first_quarter_hour.py", "memory": None,
    "host-stack": "tests/system/test_host_stack.py", "lab": "tests/lab/run-guests",
    "multicast": "tests/system/test_multicast.py",
    "migration": "tests/system/test_migration.py",
    "measuring": "tests/system/test_measure.py", "measuring-errors": None, "nic": "tests/system/test_nic.py",
    "nic-memory": None, "nic-sharing": "tests/system/test_nic.py", "nic-hardware": "tests/lab/guests/nic.py", "node": "tests/system/test_node.py",
    "kernel-conntrack": "tests/system/test_kernel_conntrack.py", "packet-marks": "tests/system/test_marks.py",
    "offload": "tests/system/test_offload.py", "offload-inside": None, "offload-tunnels": None,
    "offload-tc": "tests/lab/guests/flower.py", "offload-tc-connections": "tests/lab/guests/flower_conns.py",
    "ovn": "tests/ovn/run", "ovn-measured": "bench/ovn", "ovn-suites": "tests/ovn/upstream", "proof-tests": None, "proofs": None,
    "shortcuts": None, "standby": "tests/system/test_standby.py", "support": None, "threads": None, "tried": "scripts/test",
    "tried-guests": "tests/lab/run-guests", "tried-offload": "tests/lab/guests/card.py", "tried-ovn": "tests/ovn/run",
    "tried-parity": "tests/lab/guests/parity.py", "tried-pods": "tests/cri/containerd.py", "tunnels-gso": "bench/tunnels", "tunnels-mtu": "tests/system/test_tunnel_devices.py",
    "underlay": "tests/system/test_underlay.py", "vduse": "tests/lab/guests/vduse.py",
    "vhost-user-guests": "Makefile", "vhost-user-options": None, "watching": "tests/system/test_top.py",
    "workers-load": None,
}
# Lines of a page, at most: two screens. Architecture is read from its beginning to its end.
MAX_LINES = 120
LONGER = {"architecture": 240}

DATABASE = """
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server --remote=punix:/run/openvswitch/db.sock --pidfile --detach --log-file -vconsole:off /etc/openvswitch/conf.db
ovs-vsctl --no-wait init
"""
DAEMON = "heddled --pidfile --detach --log-file -vconsole:warn\n"
# pod NAME ADDRESS BRIDGE PORT [COLUMN...]: a namespace on a system port.
POD = """
pod() {
    ip netns add "$1" && ip link add "$4" type veth peer name eth0 netns "$1" && ip link set "$4" up
    ip -n "$1" link set lo up && ip -n "$1" addr add "$2" dev eth0 && ip -n "$1" link set eth0 up
    ovs-vsctl add-port "$3" "$4" -- set interface "$4" "${@:5}" type=system
}
wire() { ip link add "$1" type veth peer name "$1-far" && ip link set "$1" up && ip link set "$1-far" up; }
"""
BRIDGE = "ovs-vsctl add-br {0} -- set bridge {0} datapath_type=netdev\n"
PING = "ip netns exec {} ping -n -c 1 -W 1 {}"


def machine(lab, *setup):
    """A machine, its commands so far run one by one."""
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    if os.path.realpath(daemon_path()) == os.path.realpath(REFERENCE):
        raise Skip("this is Open vSwitch itself")
    made = Machine(lab)
    lab.cleanups.append(lambda: lab.trace.note("the daemon's log ends:\n" + "\n".join(log(made).splitlines()[-40:])))
    for text in setup:
        for command in commands(text):
            made.run(command)
    return made


def log(made):
    try:
        return made.run("cat /var/log/openvswitch/ovs-vswitchd.log", check=False, timeout=20)
    except (CommandError, OSError):
        return ""


def with_bridge(lab, *setup, bridge="br0"):
    return machine(lab, DATABASE, DAEMON, POD, BRIDGE.format(bridge), *setup)


def done(made):
    """At the end: the daemon lives, and has logged no fault of its own."""
    made.run("kill -0 $(cat /run/openvswitch/ovs-vswitchd.pid)")
    assert " panicked at " not in log(made), log(made)[-3000:]


def two_pods(bridge="br0"):
    return f"pod red 10.0.0.1/24 {bridge} red0 ofport_request=1\npod blue 10.0.0.2/24 {bridge} blue0 ofport_request=2"


TELNET = """cat >/run/page/telnet.py <<'END'
import socket, time
while True:
    for port in (23, 80):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("10.0.0.2", port))
        time.sleep(0.01)
        s.close()
END
ip netns exec red python3 /run/page/telnet.py &"""
NO_TELNET = "ovs-ofctl add-flow {} priority=200,cookie=0x77,tcp,nw_dst=10.0.0.2,tp_dst=23,actions=drop"


def scenario_readme(lab):
    made = machine(lab, POD, "wire eth1")
    follow(made, "README.md", {"ovs-vsctl show": lambda out: made.run("ip netns list")})
    made.run("unset OVS_RUNDIR OVS_LOGDIR OVS_DBDIR OVS_SYSCONFDIR")
    assert "eth1" in made.run("ovs-vsctl list-ports br0")
    made.run("ovs-vsctl set-manager ptcp:6640:127.0.0.1")
    made.wait("ovs-vsctl --timeout=5 --db=tcp:127.0.0.1:6640 list-ports br0")
    done(made)


def scenario_from_openvswitch(lab):
    if not os.access(REFERENCE, os.X_OK):
        raise Skip("no Open vSwitch on this machine")
    # The work of openvswitch-switch's units, for want of systemd. Modules are this machine's.
    service = """cat >/usr/local/sbin/systemctl <<'END'
#!/bin/sh
[ "$*" = "restart openvswitch-switch" ] || exit 1
exec /usr/share/openvswitch/scripts/ovs-ctl --no-monitor --system-id=random --no-record-hostname restart
END
chmod 755 /usr/local/sbin/systemctl
for program in modprobe rmmod; do rm -f /usr/sbin/$program; printf '#!/bin/sh\n' >/usr/sbin/$program; chmod 755 /usr/sbin/$program; done"""
    made = machine(lab, service, POD, "systemctl restart openvswitch-switch")
    made.run(BRIDGE.format("br0"))
    made.run(two_pods())
    who = []

    def look(_):
        who.append("Heddle" in made.run("ovs-appctl version"))
        made.wait(PING.format("red", "10.0.0.2"))

    made.run("ip netns exec red ethtool -K eth0 tx off; ip netns exec blue ethtool -K eth0 tx off")
    look(None)
    follow(made, "docs/from-openvswitch.md", {"systemctl restart openvswitch-switch   ": look, "--remove": look})
    assert who == [False, True, False], who


def scenario_troubleshooting(lab):
    made = with_bridge(lab, two_pods("br-int"), NO_TELNET.format("br-int"), TELNET, bridge="br-int")
    wait_for("an example of the drop", lambda: "cookie 0x77" in made.run("heddle drops --port red0"))

    def captured(out):
        assert "10.0.0.2.23" in out and "10.0.0.2.80" not in out, out

    follow(made, "docs/troubleshooting.md", {
        "--follow": lambda out: check("cookie 0x77" in out, out), "-w red0.pcapng": lambda out: check(" 0 packets captured" not in out, out),
        "tcpdump": captured, "--count 100": lambda out: check("100 packets captured" in out, out)})
    done(made)


def check(true, out):
    assert true, out


def scenario_internal_ports(lab):
    made = with_bridge(lab)
    follow(made, "docs/internal-ports.md")
    done(made)


def scenario_vhost_user(lab):
    made = with_bridge(lab, two_pods())
    follow(made, "docs/vhost-user.md", {"status:num_of_vrings": lambda out: made.wait(PING.format("red", "10.0.0.9"))})
    done(made)


def scenario_cni(lab):
    made = with_bridge(lab, f"mkdir -p /opt/cni/bin /etc/cni/net.d && cp {cni.reference()}/* target/release/heddle-cni /opt/cni/bin/",
                       f"PATH=$PATH:{cni.reference()}")
    texts = [block.text for block in blocks("docs/cni.md") if block.kind == "json"]
    # The first block is whole; some others are a piece of a list.
    for text in texts:
        json.loads(text if text.lstrip().startswith("{") and '"cniVersion"' in text else "{" + text + "}")
    with open(f"{made.dir}/conflist", "w") as file:
        file.write(texts[0])
    made.run("cp conflist /etc/cni/net.d/10-heddle.conflist")
    follow(made, "docs/cni.md", {"cnitool add": lambda out: check(json.loads(out)["ips"][0]["address"].startswith("10.1.0."), out)})
    assert made.run("ovs-vsctl list-ports br0") == ""
    done(made)


def scenario_kubernetes(lab):
    """The commands of deploy/kubernetes, and two pods on the second network with given addresses."""
    def text(name):
        with open(f"{ROOT}/deploy/kubernetes/{name}.yaml") as file:
            return file.read()

    def script(name, container):
        """A container's commands, without those that never end."""
        lines = text(name).split(f"- name: {container}\n")[1].split("            - |\n")[1].splitlines()
        own = [line.strip() for line in itertools.takewhile(lambda line: line.startswith(" " * 14), lines)]
        assert own, (name, container)
        return "\n".join(line for line in own if not line.startswith("exec "))

    made = machine(lab, "ip netns add switch-of-wire && ip link add eth1 type veth peer name far netns switch-of-wire",
                   "ip addr add 10.42.0.100/24 dev eth1 && ip link set eth1 up",
                   "ip -n switch-of-wire addr add 10.42.0.1/24 dev far && ip -n switch-of-wire link set far mtu 9000 up",
                   f"mkdir -p /opt/cni/bin /etc/cni/net.d /run/config && cp {cni.reference()}/* /opt/cni/bin/; cp target/release/heddle-cni /usr/bin/")
    # The DaemonSet's commands, except the two that keep running: the database and the switch.
    made.run(script("switch", "database"))
    words = re.search(r'"ovsdb-server", .*?\]', text("switch"), re.DOTALL)[0].rstrip("]")
    server = " ".join(json.loads(f"[{words}]"))
    assert "manager_options" in server
    made.run(f"{server.replace('-vconsole:info', '-vconsole:off')} --detach")
    made.run(script("switch", "heddled"))
    heddled = re.search(r"exec (heddled .*)", text("switch"))[1]
    made.run(f"{heddled.replace('-vconsole:info', '-vconsole:off')} --detach")
    assert "heddled" in made.run("ovs-appctl version")
    with open(f"{made.dir}/node.toml", "w") as file:
        file.write(textwrap.dedent(text("second-networks").split("  node.toml: |\n")[1].split("---")[0]))
    made.run("cp node.toml /run/config/")
    made.run(f"(set -e; {script('second-networks', 'node').replace('/config/', '/run/config/')})")
    assert made.run("ovs-vsctl list-ports br-storage").split() == ["eth1"] and made.run("ls /etc/cni/net.d") == ""
    # Multus hands the definition and the annotation's words to the plug-in.
    conf = json.loads(text("network-attachment").split("  config: |\n")[1])
    with open(f"{made.dir}/storage.conflist", "w") as file:
        json.dump({"cniVersion": conf["cniVersion"], "name": conf["name"], "plugins": [conf]}, file)
    made.run("mkdir conf && cp storage.conflist conf/; export NETCONFPATH=$PWD/conf CNI_PATH=/opt/cni/bin CNI_IFNAME=net1")
    for pod, given in (("red", "10.42.0.5"), ("blue", "10.42.0.6")):
        made.run(f"ip netns add {pod}")
        out = made.run(f"""CAP_ARGS='{{"ips": ["{given}/24"]}}' {cni.reference()}/cnitool add storage /run/netns/{pod}""")
        assert f"{given}/24" in out, out
    made.wait(PING.format("red", "10.42.0.6"))
    assert "mtu 9000" in made.run("ip -n red link show net1")
    assert made.run("ovs-vsctl --bare --columns=tag list port | grep -c 42").strip() == "2"
    for pod in ("red", "blue"):
        made.run(f"{cni.reference()}/cnitool del storage /run/netns/{pod}")
    assert made.run("ovs-vsctl list-ports br-storage").split() == ["eth1"]


def scenario_qos(lab):
    made = with_bridge(lab, "wire eth1", "ovs-vsctl add-port br0 eth1")
    follow(made, "docs/qos.md", {"qos/show eth1": lambda out: check("min-rate" in out, out),
                                 "ingress_policing_rate": lambda out: made.run("ovs-vsctl get interface eth1 ingress_policing_rate")})
    assert "htb" in made.run("tc qdisc show dev eth1")
    done(made)


def scenario_ipfix(lab):
    made = with_bridge(lab, two_pods())
    follow(made, "docs/ipfix.md")
    made.run(PING.format("red", "10.0.0.2"))
    assert "sample(" in made.run("ovs-ofctl dump-flows br0")
    for table in ("bridge", "flow"):
        assert "cache" not in made.run(f"ovs-ofctl dump-ipfix-{table} br0").split("\n")[0]
    done(made)


def scenario_metrics(lab):
    made = machine(lab, DATABASE)
    follow(made, "docs/metrics.md", {"curl": lambda out: check("# EOF" in out and "heddle_build_info" in out, out[-300:]),
                                     "--metrics=tcp:9310": lambda out: made.run("curl -sf http://127.0.0.1:9310/metrics | grep heddle_ports")})
    done(made)


def scenario_drops(lab):
    made = with_bridge(lab, two_pods(), NO_TELNET.format("br0"), TELNET)
    wait_for("a drop", lambda: made.run("ovs-appctl coverage/read-counter drop_action_of_pipeline").strip() not in ("", "0"))
    follow(made, "docs/drops.md")
    done(made)


def scenario_workers(lab):
    made = with_bridge(lab, two_pods())
    follow(made, "docs/workers.md", {"pmd-rxq-show": lambda out: check("core_id 0" in out and "port: red0" in out, out),
                                     "heddle top": lambda out: check("red0" in out, out)})
    done(made)


def scenario_controllers(lab):
    made = with_bridge(lab)
    after = {"--columns=target": lambda out: check("ptcp:6653:127.0.0.1" in out, out)}
    if shutil.which("ovs-pki"):
        after["ssl:127.0.0.1:6654"] = lambda out: check("OFPT_FEATURES_REPLY" in out, out)
    follow(made, "docs/controllers.md", after)
    done(made)


@limit(120)
def scenario_tunnels(lab):
    """Both nodes, as the page says: the second with its own addresses."""
    nodes = [machine(lab, DATABASE, DAEMON, POD) for _ in range(2)]
    subprocess.run(["nsenter", f"--net=/proc/{nodes[0].pid()}/ns/net", "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "eth1",
                    "netns", str(nodes[1].pid())], check=True, timeout=20)
    swap = {"172.31.0.1": "172.31.0.2", "172.31.0.2": "172.31.0.1"}

    def other(command):
        for mine, its in swap.items():
            if mine in command:
                return command.replace(mine, its)
        return command

    for i, node in enumerate(nodes):
        node.run("ip link set eth1 up")
        follow(node, "docs/tunnels.md", change=other if i else str)
        node.run(f"pod red 10.0.0.{i + 1}/24 br-int red0")
    nodes[0].wait(PING.format("red", "10.0.0.2"))
    assert "tnl_push" in nodes[0].run("ovs-appctl dpctl/dump-flows")
    for node in nodes:
        done(node)


def scenario_connections(lab):
    made = with_bridge(lab, two_pods(), "ovs-ofctl del-flows br0")
    first, second = [block for block in blocks("docs/connections.md") if block.kind == "sh"][:2]
    last, translated = list(commands(first.text))[-1], list(commands(second.text))[-1]

    def only_answers(_):
        made.wait(PING.format("red", "10.0.0.2"))
        made.run(f"! {PING.format('blue', '10.0.0.1')}")

    def both_ways(out):
        assert " 2 received" in out, out
        made.run("ip netns exec blue timeout 60 python3 -m http.server --bind 10.0.0.3 8080 >/dev/null 2>&1 &")
        made.wait("ip netns exec blue ss -Hltn | grep -q 10.0.0.3:8080")
        assert "Directory listing" in made.run("ip netns exec red curl -sf --max-time 10 http://10.0.0.2/")
        made.wait("ovs-appctl dpctl/dump-conntrack | grep 'icmp.*reply=(src=10.0.0.2,dst=10.0.0.2[45][0-9]'")
        made.wait("ovs-appctl dpctl/dump-conntrack | grep 'tcp.*reply=(src=10.0.0.3,dst=10.0.0.1,sport=8080'")

    follow(made, "docs/connections.md", {
        last: only_answers, translated: both_ways, "dump-conntrack": lambda out: check("icmp,orig=(src=10.0.0.1,dst=10.0.0.2" in out, out),
        "ofproto/trace": lambda out: check("ct_state" in out and "Datapath actions: ct(" in out, out)})
    done(made)


def scenario_every_page(_):
    """Each page is followed here, or somewhere that is named."""
    here = {name.removeprefix("scenario_").replace("_", "-") for name in globals() if name.startswith("scenario_")}
    for name in sorted(os.listdir(f"{ROOT}/docs")):
        page = name.removesuffix(".md")
        if not name.endswith(".md"):
            continue
        assert (page in here) != (page in ELSEWHERE), f"docs/{name}: what runs its commands?"
        where = ELSEWHERE.get(page)
        assert where is None or os.path.exists(f"{ROOT}/{where}"), f"docs/{name}: no {where}"


def scenario_summary_has_every_page(_):
    """docs/SUMMARY.md, the contents of the site, has each page once, and no other file of docs/."""
    with open(f"{ROOT}/docs/SUMMARY.md") as file:
        found = sorted(re.findall(r"\]\(([^)/]+)\)", file.read()))
    pages = sorted(name for name in os.listdir(f"{ROOT}/docs") if name.endswith(".md") and name != "SUMMARY.md")
    assert found == pages, f"once more, or not in docs/: {differ(found, pages)}; not in SUMMARY.md: {differ(pages, found)}"


def differ(left, right):
    """The items of a list that another one has not, or has less often."""
    right = list(right)
    return [item for item in left if item not in right or right.remove(item)]


def scenario_pages_are_short(_):
    """A page has at most two screens."""
    for name in sorted(os.listdir(f"{ROOT}/docs")):
        if name.endswith(".md"):
            with open(f"{ROOT}/docs/{name}") as file:
                lines = len(file.readlines())
            assert lines <= LONGER.get(name.removesuffix(".md"), MAX_LINES), f"docs/{name} has {lines} lines"


def scenario_lists_of_tests(_):
    """The pages about what is tried are those that scripts/tried writes."""
    subprocess.run([f"{ROOT}/scripts/tried", "--check"], check=True, timeout=20)


def scenario_what_is_shown(_):
    """A shown output that differs from the real one is found."""
    real = "one: about 12 packets\n  rule    bridge br0, cookie 0x77\n\nlast 0.5 s\n"
    for good in (real, "one: about 3 packets\nlast 9 s", "rule ... cookie 0x77", "...br0...\nlast 1.25 s"):
        assert missing(good, real) is None, good
    for bad in ("one: about packets", "last 9 s\none: about 3 packets", "rule bridge br1, ...", "... cookie 0x78", "cookie 0x77"):
        assert missing(bad, real) is not None, bad
    assert list(commands("a \\\n  b\n# no\nfor i in 1; do\n c\ndone\ncat <<E\nx\nE\n")) == [
        "a \\\n  b", "for i in 1; do\n c\ndone", "cat <<E\nx\nE"]


if __name__ == "__main__":
    main()
