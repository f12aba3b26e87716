#!/usr/bin/env python3
"""Every field of ovs-fields(7), in matches and actions, beside Open vSwitch's own daemon: replies and dumps
must be the same."""

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, limit, main
from lab.shell import PATIENCE
from lab.switch import CLIENT
from test_devices import reference

MANUAL = "/usr/share/man/man7/ovs-fields.7.gz"
# The match that each prerequisite of the manual requires.
PREREQUISITES = {
    "none": "", "Ethernet": "", "VLAN VID": "dl_vlan=7", "ARP": "arp", "IPv4": "ip", "IPv6": "ipv6", "IPv4/IPv6": "ip",
    "MPLS": "mpls", "TCP": "tcp", "UDP": "udp", "SCTP": "sctp", "ICMPv4": "icmp", "ICMPv6": "icmp6",
    "ND": "icmp6,icmp_type=135,icmp_code=0", "ND solicit": "icmp6,icmp_type=135,icmp_code=0",
    "ND advert": "icmp6,icmp_type=136,icmp_code=0", "CT": "ct_state=+trk+est,ip",
    "NSH": "dl_type=0x894f",
}
VALUES = {
    "Ethernet": ["0a:0b:0c:0d:0e:0f", "01:00:00:00:00:00/01:00:00:00:00:00"],
    "IPv4": ["10.1.2.3", "10.0.0.3/255.0.0.255"],
    "IPv6": ["fe80::1", "fe80::/10"],
    "OpenFlow 1.0 port": ["3", "LOCAL"],
    "OpenFlow 1.1+ port": ["3", "LOCAL"],
    "TCP flags": ["+syn-ack", "0x12", "syn|ack"],
    "ct state": ["+trk+new", "0x21/0x23"],
    "frag": ["no", "yes", "first", "later", "not_later"],
    "tunnel flags": ["+oam", "oam", "0"],
    "packet type": ["(0,0)", "(1,0x800)", "(1,0x86dd)"],
}


def fields():
    """(name, bits, format, maskable, prerequisites, writable) of each field of the manual, the numbered ones too."""
    if not os.path.exists(MANUAL):
        raise Skip("no manual of ovs-fields on this machine")
    with gzip.open(MANUAL, "rt", encoding="utf-8") as f:
        text = f.read()
    found = []
    for block in text.split("\nName:;")[1:]:
        name = re.match(r"\\fB(\w+)\\fR", block).group(1)
        tell = lambda what: re.search(rf"^{what}:;(.*)$", block, re.M).group(1)
        width = tell("Width")
        bits = int(re.search(r"least-significant (\d+) bits", width).group(1)) if "least" in width else int(width.split()[0])
        found.append((name, bits, tell("Format"), tell("Masking") != "not maskable", tell("Prerequisites"),
                      tell("Access") == "read/write"))
    # The manual names only the first of the numbered fields.
    more = {"reg0": (15,), "xreg0": (7,), "xxreg0": (3,), "tun_metadata0": (1, 2, 3)}
    for name, *rest in list(found):
        found += [(name[:-1] + str(n), *rest) for n in more.get(name, ())]
    return found


def values(bits, form, maskable):
    if form in VALUES:
        return [v for v in VALUES[form] if maskable or "/" not in v]
    top, low = 1 << (bits - 1), (1 << bits) - 1
    if form == "decimal" and not maskable:
        return [str(top), str(low)]
    return [hex(top), hex(low)] + (["0x1/0x1"] if maskable else [])


def cases():
    for name, bits, form, maskable, prerequisites, writable in fields():
        if name.startswith("tun_metadata"):
            # 4, 8, 16 and 20 bytes, see MAP.
            bits = (32, 64, 128, 160)[int(name[-1])]
        before = PREREQUISITES[prerequisites]
        comma = "," if before else ""
        for value in values(bits, form, maskable):
            yield name, f"{before}{comma}{name}={value},actions=drop"
            if writable:
                yield name, f"{before}{comma}actions=set_field:{value}->{name},2"
        if maskable:
            yield name, f"{before}{comma}{name},actions=2"
        if writable and form not in ("IPv6", "tunnel flags") or name == "ipv6_src":
            last = min(bits, 32) - 1
            yield name, (f"{before}{comma}actions=load:1->{name}[0],move:{name}[0..{last}]->reg3[0..{last}],"
                         f"move:reg1[0..{last}]->{name}[0..{last}],push:{name}[0..{last}],pop:reg0[0..{last}]")
            yield name, f"{before}{comma}actions=learn(table=9,{name}[0..{last}]=reg1[0..{last}],load:{name}[0]->reg2[0])"


MAP = ("{class=0x102,type=0x80,len=4}->tun_metadata0,{class=0x102,type=0x81,len=8}->tun_metadata1,"
       "{class=0xffff,type=2,len=16}->tun_metadata2,{class=0xffff,type=3,len=20}->tun_metadata3")
# Fields that tests/differential compares, with packets that have them.
LATER = re.compile(r"nsh_|packet_type")
# Known differences: a mask of all of a field's bits that are fewer than its bytes have. And matches of
# OpenFlow 1.0 on an absent VLAN tag with an id, which Open vSwitch turns into matches on no tag.
KNOWN = ("set_field:0x1/0x1->tun_erspan_dir,2", "load:1->tun_erspan_dir[0],", "set_field:+oam->tun_flags,2",
         "vlan_vid=0x800,actions", "vlan_vid=0xfff,actions", "vlan_tci=0x8000,actions")


def ofctl(sw, *args):
    end = time.monotonic() + PATIENCE
    while True:
        done = subprocess.run(["ovs-ofctl", *CLIENT, *args], capture_output=True, text=True, env=dict(os.environ, **sw.env))
        # Open vSwitch closes connections whose HELLO is late.
        if "failed to open socket" not in done.stderr or time.monotonic() > end:
            break
    # An error quotes the message, of which only the first lines are about the error itself.
    return re.sub(r"\(xid=0x[0-9a-f]+\)", "", done.stdout), done.returncode, re.sub(r" \(xid=.*", "", done.stderr.split("\n")[0])


def told(sw, version, number, flow):
    """The switch's reply to a flow, whose priority identifies it."""
    _, code, error = ofctl(sw, "-O", version, "add-flow", "br0", f"priority={number},{flow}")
    return code, re.sub(r"^OFPT_ERROR.*?: |^.*Z\|\d+\|", "", error)


def by_priority(text):
    """The lines of a dump, by the priority that they name."""
    lines = [re.sub(r"duration=\d+s, n_packets=0, n_bytes=0, |cookie=0x0, ", "", l.strip()) for l in text.splitlines()]
    return {int(m.group(1)): l for l in lines if "table_id" not in l and (m := re.search(r"priority=(\d+)", l))}


def pair(lab):
    both = [lab.switch("--enable-dummy"), lab.switch("--enable-dummy", binary=reference())]
    for sw in both:
        sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure",
                 "protocols=OpenFlow10,OpenFlow12,OpenFlow13,OpenFlow14,OpenFlow15")
        assert ofctl(sw, "add-tlv-map", "br0", MAP)[1:] == (0, "")
    return both


def compare(lab, version):
    both = pair(lab)
    every = list(cases())
    assert len({name for name, _ in every}) > 85, every
    flows = [flow for name, flow in every if not LATER.match(name) and not any(known in flow for known in KNOWN)]
    ours, theirs = both
    everyone = lambda pool, sw, some: dict(zip(some, pool.map(lambda at: told(sw, version, 1 + at, flows[at]), some)))
    with ThreadPoolExecutor(4) as pool:
        want = everyone(pool, theirs, range(len(flows)))
        # All flows that Open vSwitch takes go to heddled together, as long as it takes all of them.
        taken = [at for at in want if want[at] == (0, "")]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(f"priority={1 + at},{flows[at]}\n" for at in taken)
            file.flush()
            whole = ofctl(ours, "-O", version, "add-flows", "br0", file.name)[1:] == (0, "")
        got = dict.fromkeys(taken, (0, "")) if whole else {}
        got |= everyone(pool, ours, [at for at in want if at not in got])
        answers = [(got[at], want[at]) for at in sorted(want)]
    dumps = [by_priority(ofctl(sw, "-O", version, "dump-flows", "--no-stats", "br0")[0]) for sw in both]
    texts = [by_priority(sw.appctl("bridge/dump-flows", "br0")) for sw in both]
    assert len(dumps[1]) > len(flows) / 2, "most of these are right"
    wrong = []
    for at, flow in enumerate(flows):
        said, due = ((answer, dump.get(1 + at), text.get(1 + at)) for answer, dump, text in zip(answers[at], dumps, texts))
        if said != due:
            wrong.append(f"{flow}\n  heddled {said}\n  ovs     {due}")
    assert not wrong, f"{len(wrong)} of {len(flows)} differ:\n" + "\n".join(wrong)


@limit(450)
def scenario_openflow_10(lab):
    compare(lab, "OpenFlow10")


@limit(450)
def scenario_openflow_13(lab):
    compare(lab, "OpenFlow13")


@limit(450)
def scenario_openflow_15(lab):
    compare(lab, "OpenFlow15")


def scenario_the_map_of_tunnel_options(lab):
    """Every reply to a change of the map is Open vSwitch's; a rule that uses a field keeps it mapped."""
    both = pair(lab)
    add, delete = "add-tlv-map", "del-tlv-map"
    one = lambda ty, n, length=4, cls=0xffff: f"{{class={cls:#x},type={ty:#x},len={length}}}->tun_metadata{n}"
    steps = [
        (add, one(9, 0)), (add, one(0x80, 9, cls=0x102)), (add, one(9, 64)), (add, one(9, 9, 3)), (add, one(9, 9, 128)),
        (add, one(9, 9, 124)), (add, one(10, 10, 84)), (add, one(10, 10, 80)), (add, one(11, 11, 4)), (add, one(11, 11, 0)),
        (add, f"{one(20, 20, 0)},{one(20, 21, 0)}"), (delete, one(0, 50)), (delete, f"{one(3, 3)},{one(2, 2)}"),
        ("add-flow", "tun_metadata0=1,actions=drop"), ("add-flow", "in_port=1,actions=set_field:5->tun_metadata9"),
        ("add-flow", "in_port=2,actions=learn(tun_metadata1[0..31]=reg1,output:in_port)"),
        ("add-flow", "in_port=3,actions=clone(push:tun_metadata10[0..31])"),
        ("add-flow", "in_port=4,actions=multipath(eth_src,50,modulo_n,1,0,tun_metadata11[0..1])"),
        ("add-flow", "tun_metadata2,actions=drop"), ("add-flow", "in_port=5,actions=delete_field:tun_metadata1"),
        ("add-flow", "in_port=5,actions=delete_field:reg1"), (delete,), (delete, one(0, 0)), (delete, one(0, 9)),
        (delete, one(0, 1)), (delete, one(0, 10)), (delete, one(0, 11)), ("del-flows", "in_port=3"), (delete, one(0, 10)),
        ("mod-flows", "in_port=1,actions=drop"), (delete, one(0, 9)), ("del-flows", "tun_metadata0"), (delete, one(0, 0)),
        (delete,), ("del-flows",), (delete,), ("add-flow", "tun_metadata0=1,actions=drop"),
        ("add-flow", "actions=set_field:1->tun_metadata0"), (add, one(1, 0, 20)), ("add-flow", "tun_metadata0=1/1,actions=2"),
        ("dump-flows", "tun_metadata0"),
    ]
    for step in steps:
        said = [ofctl(sw, step[0], "br0", *step[1:]) for sw in both]
        flat = [tuple(re.sub(r"duration=[\d.]+s|^[\d-]+T[\d:]+Z", "", f"{part}", flags=re.M) for part in parts) for parts in said]
        assert flat[0] == flat[1], f"{step}:\n heddled {flat[0]}\n ovs     {flat[1]}"
        table, flows = ([ofctl(sw, what, "br0", *rest)[0] for sw in both]
                        for what, *rest in (("dump-tlv-map",), ("dump-flows", "--no-stats")))
        assert table[0] == table[1], f"{step}: {table[0]}\n{table[1]}"
        assert sorted(flows[0].splitlines()) == sorted(flows[1].splitlines()), f"{step}: {flows[0]}\n{flows[1]}"


def scenario_the_fields_that_tables_know(lab):
    """The features of a table are the same as Open vSwitch's."""
    ours, theirs = pair(lab)
    for version in ("OpenFlow13", "OpenFlow15"):
        lists = []
        for sw in (ours, theirs):
            text = ofctl(sw, "-O", version, "dump-table-features", "br0")[0]
            first = text.split("table 1")[0]
            told = [l.strip() for l in first.splitlines()]
            lists.append([l for l in told if l.startswith(("supported on Set-Field", "arbitrary mask", "exact match"))])
        assert len(lists[0]) >= 3 and lists[0] == lists[1], "\n".join(sorted(set(lists[0]) ^ set(lists[1])))


TCP = "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64,tcp_src=1,tcp_dst=80"
TAGGED = "in_port=1,dl_vlan=5,dl_vlan_pcp=2,tcp,nw_src=10.0.0.1,nw_ttl=64"
MPLS = "in_port=1,mpls,mpls_label=7,mpls_tc=1,mpls_bos=1,mpls_ttl=64"
NSH = "in_port=1,dl_type=0x894f,nsh_mdtype=1,nsh_np=3,nsh_ttl=63,nsh_spi=1,nsh_si=2"
# Packet, actions of the rule that it matches, and the datapath's actions.
ACTIONS = [
    (TCP, "output:2", "2"),
    (TCP, "output(port=2,max_len=64)", "trunc(64),2"),
    (TCP, "load:2->NXM_NX_REG0[],output:NXM_NX_REG0[]", "2"),
    (TCP, "enqueue:2:7", "set(skb_priority(0x7)),2"),
    (TCP, "set_queue:7,output:2", "set(skb_priority(0x7)),2"),
    (TCP, "set_queue:7,pop_queue,output:2", "2"),
    (TCP, "mod_vlan_vid:7,output:2", "push_vlan(vid=7,pcp=0),2"),
    (TCP, "mod_vlan_pcp:3,output:2", "push_vlan(vid=0,pcp=3),2"),
    (TAGGED, "pop_vlan,output:2", "pop_vlan,2"),
    (TAGGED, "strip_vlan,output:2", "pop_vlan,2"),
    (TCP, "push_vlan:0x88a8,output:2", "push_vlan(tpid=0x88a8,vid=0,pcp=0),2"),
    (TCP, "mod_dl_src:02:00:00:00:00:09,output:2", "set(eth(src=02:00:00:00:00:09)),2"),
    (TCP, "mod_dl_dst:02:00:00:00:00:09,output:2", "set(eth(dst=02:00:00:00:00:09)),2"),
    (TCP, "mod_nw_src:10.0.0.9,output:2", "set(ipv4(src=10.0.0.9)),2"),
    (TCP, "mod_nw_dst:10.0.0.9,output:2", "set(ipv4(dst=10.0.0.9)),2"),
    (TCP, "mod_nw_tos:32,output:2", "set(ipv4(tos=0x20/0xfc)),2"),
    (TCP, "mod_nw_ecn:2,output:2", "set(ipv4(tos=0x2/0x3)),2"),
    (TCP, "mod_nw_ttl:9,output:2", "set(ipv4(ttl=9)),2"),
    (TCP, "mod_tp_src:9,output:2", "set(tcp(src=9)),2"),
    (TCP, "mod_tp_dst:9,output:2", "set(tcp(dst=9)),2"),
    (TCP, "set_field:10.0.0.9->ip_src,output:2", "set(ipv4(src=10.0.0.9)),2"),
    (TCP, "load:0x0a000009->NXM_OF_IP_SRC[],output:2", "set(ipv4(src=10.0.0.9)),2"),
    (TCP, "move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[],output:2", "set(ipv4(dst=10.0.0.1)),2"),
    (TCP, "push:NXM_OF_IP_SRC[],pop:NXM_OF_IP_DST[],output:2", "set(ipv4(dst=10.0.0.1)),2"),
    (TCP, "dec_ttl,output:2", "set(ipv4(ttl=63)),2"),
    (MPLS, "set_mpls_label:9,output:2", "set(mpls(label=9,tc=1,ttl=64,bos=1)),2"),
    (MPLS, "set_mpls_tc:3,output:2", "set(mpls(label=7,tc=3,ttl=64,bos=1)),2"),
    (MPLS, "set_mpls_ttl:9,output:2", "set(mpls(label=7,tc=1,ttl=9,bos=1)),2"),
    (MPLS, "dec_mpls_ttl,output:2", "set(mpls(label=7,tc=1,ttl=63,bos=1)),2"),
    (TCP, "push_mpls:0x8847,output:2", "push_mpls(label=0,tc=0,ttl=64,bos=1,eth_type=0x8847),2"),
    (MPLS, "pop_mpls:0x0800,output:2", "pop_mpls(eth_type=0x800),2"),
    (TCP, "set_tunnel:5,resubmit(,1)", "2"),
    (TCP, "resubmit(,2)", "3"),
    (TCP, "group:1", "3"),
    (TCP, "meter:1,output:2", "meter(0),2"),
    (TCP, "clone(mod_nw_ttl:9,output:3),output:2", "set(ipv4(ttl=9)),3,set(ipv4(ttl=64)),2"),
    (TCP, "drop", "drop"),
    (TCP, "exit,output:2", "drop"),
    (TCP, "multipath(symmetric_l4,1024,modulo_n,1,0,NXM_NX_REG0[]),load:2->NXM_NX_REG0[],output:NXM_NX_REG0[]", "2"),
    (TCP, "bundle(symmetric_l4,60,hrw,ofport,members:3)", "3"),
    (TCP, "check_pkt_larger(100)->NXM_NX_REG0[0],output:2", "check_pkt_len(size=100,gt(2),le(2))"),
    (NSH, "dec_nsh_ttl,output:2", "set(nsh(ttl=62)),2"),
    (TCP, "ct(commit,zone=5,nat(src=10.0.0.9)),output:2", "ct(commit,zone=5,nat(src=10.0.0.9)),2"),
]


def scenario_every_action_has_an_effect(lab):
    """Each action that a traced packet can show changes the datapath's actions."""
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", netns=False)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure")
    for n in (1, 2, 3):
        sw.vsctl("add-port", "br0", f"p{n}", "--", "set", "interface", f"p{n}", "type=dummy", f"ofport_request={n}")
    sw.ofctl("-OOpenFlow15", "add-meter", "br0", "meter=1,pktps,band=type=drop,rate=100")
    sw.ofctl("-OOpenFlow15", "add-group", "br0", "group_id=1,type=all,bucket=actions=output:3")
    sw.ofctl("add-flow", "br0", "table=1,tun_id=5,actions=output:2")
    sw.ofctl("add-flow", "br0", "table=2,actions=output:3")
    prefix = {TCP: "tcp", TAGGED: "dl_vlan=5,tcp", MPLS: "mpls", NSH: "dl_type=0x894f"}
    wrong = []
    for packet, actions, wanted in ACTIONS:
        sw.ofctl("del-flows", "br0", "table=0")
        sw.ofctl("-OOpenFlow15", "add-flow", "br0", f"table=0,{prefix[packet]},actions={actions}")
        trace = sw.appctl("ofproto/trace", "br0", packet)
        if f"Datapath actions: {wanted}" not in trace.splitlines():
            wrong.append((actions, wanted, trace.splitlines()[-1]))
    assert not wrong, wrong


if __name__ == "__main__":
    main()
