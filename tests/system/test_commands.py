#!/usr/bin/env python3
"""Each command of `ovs-appctl` that Open vSwitch's daemon lists is there, with its arguments and its words."""

import itertools
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE
from lab.runner import Skip, main
from lab.shell import wait_for

# Commands without anything configured of their kind, and with wrong arguments. One line each: a command, its
# arguments.
SAME = """
autoattach/show-isid br0
autoattach/statistics br0
autoattach/status
bond/list
bond/show
bond/show p1
bond/hash 00:00:00:00:00:01
bond/hash 0a:1b:2c:3d:4e:5f 4095 77
bond/hash 00:00:00:00:00:01 x
bond/hash 00:00:00:00:00:01 5 x
bond/hash zz
bond/migrate p1 1 p1
bond/enable-member p1 p1
bond/disable-member p1 p1
bond/set-active-member p1 p1
cfm/show
cfm/show p1
cfm/set-fault true
cfm/set-fault x
cfm/set-fault p1 true
lacp/show
lacp/show p1
lacp/show-stats
lacp/show-stats p1
stp/show
stp/show br0
stp/tcn
stp/tcn br0
rstp/show
rstp/show br0
rstp/tcn
rstp/tcn br0
qos/show p1
qos/show x
qos/show-types x
dpctl/del-dp netdev@y
dpctl/add-if netdev@y p9
dpctl/set-if netdev@y p9
dpctl/del-if netdev@y p9
dpctl/cache-get-size
dpctl/cache-get-size netdev@y
dpctl/cache-set-size netdev@y cache 100
dpctl/add-flow garbage 2
dpctl/add-flow in_port(1),eth(),eth_type(0x1234) garbage
dpctl/add-flows /no/such/file
dpctl/mod-flows /no/such/file
dpctl/parse-actions drop
dpctl/parse-actions 1,2
dpctl/parse-actions push_vlan(vid=5,pcp=3),2,pop_vlan
dpctl/parse-actions garbage
dpctl/normalize-actions in_port(1),eth() 1
dpctl/normalize-actions garbage 1
dpctl/offload-stats-show
dpif-netdev/bond-show
dpif-netdev/bond-show x
dpif-netdev/miniflow-parser-set scalar
dpif-netdev/miniflow-parser-set foo
dpif-netdev/miniflow-parser-set -pmd x scalar
dpif-netdev/miniflow-parser-set -pmd 77 scalar
dpif-netdev/miniflow-parser-set
dpif-netdev/subtable-lookup-prio-set generic 4
dpif-netdev/subtable-lookup-prio-set foo 4
dpif-netdev/subtable-lookup-prio-set generic 300
odp-execute/action-impl-set scalar
odp-execute/action-impl-set foo
tnl/egress_port_range
mdb/show br0
fdb/show br0
no/such-command
"""


# Commands with the arguments of newer versions of Open vSwitch.
NEWER = {"dpctl/ct-del-limits", "dpctl/flush-conntrack", "fdb/show", "ovs/route/add", "ovs/route/del", "ovs/route/lookup",
         "ovs/route/show"}


def switch(lab, binary=None):
    sw = lab.switch(binary=binary)
    lab.bridge(sw)
    sw.vsctl("add-port", "br0", "p1", "--", "set", "interface", "p1", "type=tap")
    return sw


def answer(sw, line):
    out = sw.appctl(*line.split(), check=False)
    for name in ("heddled", "ovs-vswitchd"):
        out = out.replace(name, "DAEMON")
    return out.replace(sw.dir, "RUNDIR")


def scenario_commands_are_those_of_open_vswitch(lab):
    if not os.access(REFERENCE, os.X_OK):
        raise Skip("no ovs-vswitchd on this machine")
    own, reference = switch(lab), switch(lab, REFERENCE)
    usage = lambda sw: dict(line.split(None, 1) if len(line.split(None, 1)) == 2 else (line.strip(), "")
                            for line in sw.appctl("list-commands").splitlines()[1:])
    have, want = usage(own), usage(reference)
    assert len(want) > 120, want
    missing = sorted(set(want) - set(have))
    assert not missing, missing
    other = {name: (have[name], want[name]) for name in set(want) - NEWER if have[name].strip() != want[name].strip()}
    assert not other, other
    # The list's content and order are Heddle's own.
    lists = [sw.appctl("dpctl/list-commands").splitlines() for sw in (own, reference)]
    assert len(lists[1]) > 30
    other = [pair for pair in itertools.zip_longest(*lists)
             if pair[0] != pair[1] and not any(name in f"{pair}" for name in NEWER)]
    assert not other, other
    wrong = []
    for line in SAME.strip().splitlines():
        got, right = answer(own, line), answer(reference, line)
        if got != right:
            wrong.append(f"{line}:\n  {got!r}\n  {right!r}")
    assert not wrong, "\n".join(wrong)


FRAME = "50540000000a50540000000908004500001c00000000401166cf0a0000010a00000200010002000800000000"
FRAGMENT = FRAME.replace("00000000401166cf", "00002001401146ce")


def scenario_hidden_rules(lab):
    """`bridge/dump-flows` shows the rules that no controller has made, with their counters."""
    if not os.access(REFERENCE, os.X_OK):
        raise Skip("no ovs-vswitchd on this machine")
    both = [lab.switch("--enable-dummy", binary=binary) for binary in (None, REFERENCE)]
    for sw in both:
        sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure",
                 *(word for i in (1, 2) for word in ("--", "add-port", "br0", f"p{i}", "--", "set", "interface", f"p{i}", "type=dummy",
                                                     f"ofport_request={i}")))

    def dumped(sw, *options):
        lines = sw.appctl("bridge/dump-flows", *options, "br0").splitlines()
        return [re.sub(r"duration=\d+s", "duration=Ns", line) for line in lines if "table_id=254" in line]

    def same(*options):
        # The counters of Open vSwitch's flows follow in their own time.
        wait_for("equal lists", lambda: dumped(both[0], *options) == dumped(both[1], *options) or lab.trace.note(
            f"{dumped(both[0], *options)}\n{dumped(both[1], *options)}"), 20, 0.2)
        return dumped(both[0], *options)

    assert len(same()) == 4 and "n_offload_packets=0" in same("--offload-stats")[0]
    # This precedes any connection of OpenFlow 1.0: as long as Open vSwitch has one, it sends misses to it.
    for _ in range(2):
        for sw in both:
            sw.appctl("netdev-dummy/receive", "p1", FRAME)
    assert "n_packets=2" in "\n".join(same())
    for sw in both:
        sw.ofctl("add-flow", "br0", "in_port=2,actions=resubmit(,5),resubmit(,6)")
        sw.appctl("netdev-dummy/receive", "p2", FRAME)
        sw.ofctl("set-frags", "br0", "drop")
        sw.appctl("netdev-dummy/receive", "p2", FRAGMENT)
    text = "\n".join(same())
    assert "n_packets=4" in text and "n_packets=1" in text, text


def scenario_the_kernels_datapath_in_its_own_form(lab):
    """Bridges without a type: `dpctl` shows `system@ovs-system` as programs read it that were written for the kernel's datapath."""
    sw = lab.switch(start=False)
    sw.args.remove("--disable-system")
    sw.start()
    sw.vsctl("add-br", "br0")
    a, b = lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.veth_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    lab.net.ping(b, "10.1.0.1")
    assert sw.appctl("dpctl/dump-dps") == "system@ovs-system\n"
    for name in ("ovs-system", "system@ovs-system"):
        shown = sw.appctl("dpctl/show", name)
        assert re.match(r"system@ovs-system:\n  lookups: hit:\d+ missed:\d+ lost:\d+\n  flows: \d+\n"
                        r"  masks: hit:\d+ total:\d+ hit/pkt:\d+\.\d\d\n  port \d+: ", shown), shown
    flows = sw.appctl("dpctl/dump-flows", "ovs-system").splitlines()
    assert flows and all(f.startswith("recirc_id(0),in_port(") and "packet_type" not in f for f in flows), flows
    keys = [f.split(", packets:")[0] for f in flows]
    assert len(set(keys)) == len(keys) and any("eth_type(0x0800)" in key for key in keys), flows
    # The key of a flow that leaves Ethernet addresses open.
    sw.ofctl("add-flow", "br0", "icmp,actions=drop")
    lab.net.ping(a, "10.1.0.2", count=1, lossless=False)
    flows = sw.appctl("dpctl/dump-flows", "ovs-system")
    assert re.search(r"^recirc_id\(0\),in_port\(\d+\),eth\(\),eth_type\(0x0800\),ipv4\(proto=1,frag=no\),", flows, re.M), flows


if __name__ == "__main__":
    main()
