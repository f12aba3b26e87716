#!/usr/bin/env python3
"""Frames by filters of tc flower beside frames by workers, under Linux 6.12, in one emulated machine, without eBPF."""

import os
import random
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from flower import MACS, counts, datagram, in_tc, pod, sent, started, stats
from lab import frames
from lab.guestlab import main
from lab.podlab import RUN
from lab.runner import limit

# A slow machine needs more than ten seconds between two rounds of the same frames.
MAX_IDLE = "max-idle=600000"


@limit(400)
def scenario_frames_are_those_of_workers(lab):
    """Each frame is the same whether a worker or a filter forwards it: tags, rewrites, several outputs."""
    p = started(lab, MAX_IDLE)
    for name in ("a", "b", "c"):
        pod(p, name)
    mac = "02:00:00:00:00:99"
    kinds = {
        "output:2": [],
        "mod_vlan_vid:10,mod_vlan_pcp:3,output:2": [],
        "strip_vlan,output:2": [(0x8100, 0x600a)],
        "mod_vlan_vid:20,output:2": [(0x8100, 0x600a)],
        f"mod_dl_dst:{mac},mod_dl_src:{mac},output:2": [],
        "mod_nw_ttl:9,mod_nw_tos:32,output:2": [],
        "dec_ttl,output:2": [],
        "mod_tp_src:77,mod_tp_dst:5999,output:2": [],
        "mod_nw_src:10.9.0.77,mod_nw_dst:10.9.0.78,mod_tp_dst:5998,output:3,mod_nw_dst:10.9.0.79,output:2": [],
        f"output:3,mod_dl_dst:{mac},mod_nw_ttl:3,output:2": [],
        "output:3,strip_vlan,mod_nw_tos:64,output:2": [(0x8100, 0x200a)],
        "mod_vlan_vid:30,output:3,strip_vlan,output:2": [],
    }
    for ipv6 in (False, True):
        kind = "udp6" if ipv6 else "udp"
        rules, all_frames = ["priority=0,actions=NORMAL"], []
        for n, (actions, tags) in enumerate(kinds.items()):
            if ipv6:
                actions = re.sub(r"mod_nw_(src|dst):[\d.]+,", "", actions)
                actions = re.sub(r"mod_nw_ttl:(\d+)", r"set_field:\1->nw_ttl", actions).replace("mod_nw_tos:", "set_tos:")
                actions = re.sub(r"set_tos:(\d+)", lambda m: f"set_field:{int(m.group(1)) >> 2}->ip_dscp", actions)
            vlan = f"dl_vlan={tags[0][1] & 0xfff}" if tags else "vlan_tci=0"
            rules.append(f"priority=100,{kind},in_port=1,{vlan},tp_dst={5100 + n},actions={actions}")
            all_frames.append(datagram(2000, 5100 + n, vlans=tags, tos=5, ipv6=ipv6))
        p.put(f"{RUN}/rules", "\n".join(rules) + "\n")
        p.run(f"ovs-ofctl -O OpenFlow13 --bundle replace-flows {RUN}/br-int.mgmt {RUN}/rules 2>&1 || "
              f"ovs-ofctl --bundle replace-flows {RUN}/br-int.mgmt {RUN}/rules")
        slow = sorted(sent(p, "a", all_frames, seconds=1.5))
        assert len(slow) == len(all_frames), (len(slow), len(all_frames))
        p.wait("all of them to be filters", lambda: [sent(p, "a", all_frames, seconds=0.5), all(
            in_tc(p, f"dst={5100 + n}") for n in range(len(kinds)))][1], timeout=90)
        before = stats(p)["forwarded-packets"]
        many = [f for f in all_frames for _ in range(5)]
        fast = sorted(sent(p, "a", many))
        assert fast == sorted(f for f in slow for _ in range(5)), (len(fast), [
            (x.hex(), y.hex()) for x, y in zip(fast, sorted(f for f in slow for _ in range(5))) if x != y][:3])
        p.wait("their count", lambda: stats(p)["forwarded-packets"] - before >= len(many), timeout=60)
        p.tell(f"{kind}: {len(kinds)} kinds of actions, {len(many)} frames by filters as by workers")


@limit(900)
def scenario_rare_frames_are_those_of_workers(lab):
    """ARP, fragments, other protocols than TCP and UDP, TCP by its flags, and frames with two tags, by filters."""
    p = started(lab, "vlan-limit=2")
    for name in ("a", "b"):
        pod(p, name)
    p.run("ip -n b link set eth0 arp off; ip -n b link set eth0 promisc on")
    source, ends, ends6 = "02:00:00:00:00:5e", ("10.9.0.1", "10.9.0.2"), ("fd00::1", "fd00::2")

    def frame(kind, packet, vlans=()):
        return frames.ethernet(MACS["b"], source, kind, packet, vlans)
    whole = frames.udp(*ends, 2000, 5001, b"0123456789" * 40)
    tcp = {name: frame(0x0800, frames.ipv4(*ends, 6, frames.tcp(*ends, 2000, 80, flags=bits))) for name, bits in (("syn", 2), ("ack", 0x10))}
    two_tags = ((0x88a8, 0x0ffe), (0x8100, 0xa064))
    cases = {
        "arp,arp_op=2,arp_tpa=10.9.0.2,actions=output:2": frame(0x0806, frames.arp(2, source, "10.9.0.1", MACS["b"], "10.9.0.2")),
        "arp,arp_op=1,arp_sha=02:00:00:00:00:5e,actions=mod_dl_dst:02:00:00:00:00:77,output:2":
            frame(0x0806, frames.arp(1, source, "10.9.0.1", "00:00:00:00:00:00", "10.9.0.2")),
        "ip,nw_proto=2,nw_dst=10.9.0.2,actions=mod_nw_tos:12,output:2": frame(0x0800, frames.ipv4(*ends, 2, b"\x16\0\xe9\xf5\xe0\x0a\x0a\x0a")),
        "ip,nw_proto=4,actions=dec_ttl,output:2": frame(0x0800, frames.ipv4(*ends, 4, frames.ipv4(*ends, 17, whole[:60]))),
        "ip,nw_proto=47,actions=mod_nw_dst:10.9.0.9,mod_nw_src:10.9.0.8,output:2":
            frame(0x0800, frames.ipv4(*ends, 47, b"\0\0\x08\0" + frames.ipv4(*ends, 17, whole[:60]))),
        "ip,nw_proto=50,actions=output:2": frame(0x0800, frames.ipv4(*ends, 50, b"01234567" * 9)),
        "icmp,icmp_type=8,actions=mod_nw_dst:10.9.0.9,output:2": frame(0x0800, frames.ipv4(*ends, 1, frames.icmp(8, 0))),
        "icmp,icmp_type=3,actions=mod_nw_src:10.9.0.9,output:2":
            frame(0x0800, frames.ipv4(*ends, 1, frames.icmp(3, 3, b"\0\0\0\0" + frames.ipv4(*ends, 17, whole[:8])))),
        "icmp6,icmp_type=128,actions=set_field:fd00::9->ipv6_dst,output:2": frame(0x86dd, frames.ipv6(*ends6, 58, frames.icmp6(*ends6, 128, 0))),
        "udp,ip_frag=first,actions=mod_nw_tos:16,output:2": frame(0x0800, frames.ipv4(*ends, 17, whole[:200], frag=0x2000)),
        "udp,ip_frag=later,actions=dec_ttl,output:2": frame(0x0800, frames.ipv4(*ends, 17, whole[200:], frag=25)),
        "tcp,tcp_flags=+syn-ack,actions=mod_nw_tos:16,output:2": tcp["syn"],
        "tcp,tcp_flags=+ack,actions=mod_nw_tos:32,output:2": tcp["ack"],
        "ip,dl_vlan=4094,nw_proto=51,actions=mod_dl_dst:02:00:00:00:00:77,output:2": frame(0x0800, frames.ipv4(*ends, 51, b"0123" * 9), two_tags),
    }
    p.put(f"{RUN}/rules", "".join(f"priority=100,in_port=1,{rule}\n" for rule in cases) + "priority=0,actions=NORMAL\n")
    p.run(f"ovs-ofctl -O OpenFlow14 --bundle replace-flows {RUN}/br-int.mgmt {RUN}/rules")
    all_frames = list(cases.values())
    slow = sorted(sent(p, "a", all_frames, seconds=1.5, of=source))
    assert len(slow) == len(all_frames), (len(slow), len(all_frames))

    def by_filters():
        before = stats(p)["forwarded-packets"]
        arrived = sorted(sent(p, "a", all_frames, of=source))
        assert arrived == slow, [(x.hex(), y.hex()) for x, y in zip(arrived, slow) if x != y][:3]
        return stats(p)["forwarded-packets"] - before
    try:
        p.wait("filters to forward all of them", lambda: by_filters() >= len(all_frames), timeout=180)
    except AssertionError:
        p.tell(p.appctl("dpctl/dump-flows -m") + p.appctl("heddle/offload"))
        raise
    for rule in cases:
        match = rule.split(",actions")[0]
        packets, octets = counts(p, f"in_port=1,{match}")
        assert packets and octets, (rule, packets, octets)
    p.tell(f"{len(cases)} kinds of frames by filters as by workers")


def random_case(r, number):
    """A rule and a frame of it: the source address has the number."""
    source = f"02:00:00:00:5e:{number:02x}"
    ipv6, tag = r.random() < 0.4, r.random() < 0.4
    ends = ("fd00::1", "fd00::2") if ipv6 else ("10.9.0.1", "10.9.0.2")
    family = "6" if ipv6 else ""
    kind = r.choice(["udp", "tcp", "icmp", "gre", "fragment", "arp"])
    tos, ttl, text = r.randrange(256), r.randrange(2, 256), r.randbytes(r.randrange(400))
    match, rewrites = [], [f"set_field:02:00:00:00:00:{r.randrange(256):02x}->eth_dst"]
    if kind == "arp":
        ipv6, match = False, ["arp", *r.sample(["arp_op=1", "arp_spa=10.9.0.1", f"arp_sha={source}"], r.randrange(3))]
        packet, ethertype = frames.arp(1, source, "10.9.0.1", "00:00:00:00:00:00", "10.9.0.2"), 0x0806
    else:
        proto, part = {"udp": (17, 0), "tcp": (6, 0), "icmp": (58 if ipv6 else 1, 0), "gre": (47, 0), "fragment": (17, r.choice([0x2000, 0x20]))}[kind]
        match = [{"gre": f"{'ipv6' if ipv6 else 'ip'},nw_proto=47", "fragment": "udp,ip_frag=" + ("first" if part == 0x2000 else "later")}.get(
            kind, kind + family)]
        if kind == "fragment":
            ipv6, ends = False, ("10.9.0.1", "10.9.0.2")
        body = {"udp": lambda: frames.udp(*ends, 2000, 5001, text), "tcp": lambda: frames.tcp(*ends, 2000, 80, r.choice([2, 0x10, 0x11, 4]), text),
                "icmp": lambda: frames.icmp6(*ends, 128, 0, b"0123" + text) if ipv6 else frames.icmp(8, 0, b"0123" + text),
                "gre": lambda: b"\0\0\x08\0" + text, "fragment": lambda: frames.udp(*ends, 2000, 5001, text + b"0" * (-len(text) % 8))}[kind]()
        packet = frames.ipv6(*ends, proto, body, tclass=tos, hlim=ttl) if ipv6 else frames.ipv4(*ends, proto, body, tos=tos, ttl=ttl, frag=part)
        ethertype = 0x86dd if ipv6 else 0x0800
        name, new = ("ipv6", ("fd00::77", "fd00::78")) if ipv6 else ("ip", ("10.9.0.77", "10.9.0.78"))
        rewrites += [f"set_field:{new[0]}->{name}_src", f"set_field:{new[1]}->{name}_dst", f"set_field:{r.randrange(64)}->ip_dscp",
                     f"set_field:{r.randrange(1, 256)}->nw_ttl", "dec_ttl"]
        match += r.sample([f"{name}_src={ends[0]}", f"{name}_dst={ends[1]}", f"nw_tos={tos & 0xfc}", f"nw_ttl={ttl}"], r.randrange(4))
        if kind in ("udp", "tcp"):
            rewrites += [f"set_field:77->{kind}_src", f"set_field:5999->{kind}_dst"]
            match += r.sample([f"{kind}_src=2000", f"{kind}_dst={5001 if kind == 'udp' else 80}"], r.randrange(3))
    actions, tagged = [], tag
    for _ in range(r.randrange(5)):
        what = r.choice(["output:3", "tag", *rewrites, *rewrites])
        if what != "tag":
            actions.append(what)
        elif tagged:
            actions.append("pop_vlan")
        else:
            actions.append(f"push_vlan:0x8100,set_field:{4096 + r.randrange(1, 4095)}->vlan_vid")
        tagged ^= what == "tag"
    match.append("dl_vlan=10" if tag else "vlan_tci=0")
    rule = f"cookie={number + 1},priority=100,in_port=1,dl_src={source},{','.join(match)},actions={','.join([*actions, 'output:2'])}"
    return rule, frames.ethernet(MACS["b"], source, ethertype, packet, [(0x8100, 0x600a)] if tag else [])


@limit(900)
def scenario_random_flows_as_by_workers(lab):
    """Random rules: each flow is refused by name, or filters forward its frames as workers do, and count them."""
    p = started(lab, MAX_IDLE)
    for name in ("a", "b", "c"):
        pod(p, name)
    for name in ("b", "c"):
        p.run(f"ip -n {name} link set eth0 arp off; ip -n {name} link set eth0 promisc on")
    seed = int(os.environ.get("LAB_SEED", "0")) or random.randrange(1, 1 << 32)
    p.tell(f"LAB_SEED={seed}")
    r, of = random.Random(seed), "02:00:00:00:5e"
    heddle = os.environ.get("HEDDLE") or f"{os.path.dirname(p.binary)}/heddle"
    refused, forwarded = {}, 0
    for first in (0, 40, 80):
        cases = [random_case(r, first + number) for number in range(40)]
        p.put(f"{RUN}/rules", "".join(rule + "\n" for rule, _ in cases) + "priority=0,actions=drop\n")
        p.run(f"ovs-ofctl -O OpenFlow14 del-flows {RUN}/br-int.mgmt && ovs-ofctl -O OpenFlow14 --bundle add-flows {RUN}/br-int.mgmt {RUN}/rules")
        all_frames = [frame for _, frame in cases]
        slow = {target: sorted(sent(p, "a", all_frames, target, of=of)) for target in ("b", "c")}
        assert len(slow["b"]) == len(cases), (len(slow["b"]), len(cases))

        def filters():
            dump = p.appctl("dpctl/dump-flows -m type=tc")
            return {n for n in range(len(cases)) if f"src={of}:{first + n:02x}" in dump}

        def settled():
            sent(p, "a", all_frames, "b", seconds=0.5, of=of)
            return refresh(filters())
        seen = [set()]

        def refresh(now):
            same, seen[0] = now == seen[0], now
            return same and now
        p.wait("the number of filters to stay", settled, timeout=180)
        before = stats(p)["forwarded-packets"], [counts(p, f"cookie={first + n + 1}/-1") for n in range(len(cases))]
        for target in ("b", "c"):
            fast = sorted(sent(p, "a", all_frames, target, of=of))
            assert fast == slow[target], [(x.hex(), y.hex()) for x, y in zip(fast, slow[target]) if x != y][:3]
        p.wait("their count", lambda: stats(p)["forwarded-packets"] - before[0] >= 2 * len(seen[0]), timeout=60)
        for n, ((rule, frame), (packets, octets)) in enumerate(zip(cases, before[1])):
            now = counts(p, f"cookie={first + n + 1}/-1")
            assert (now[0] - packets, now[1] - octets) == (2, 2 * len(frame)), (rule, now, packets, octets)
        forwarded += len(seen[0])
        for n, (rule, frame) in enumerate(cases):
            if n not in seen[0]:
                said = p.run(f"{heddle} offload --target {RUN}/vswitchd.ctl --explain dl_src={of}:{first + n:02x}", check=False)
                reason = re.search(r"(?:its|it) .*", said)
                assert reason, (rule, said)
                refused.setdefault(reason.group(), []).append(rule)
    p.tell(f"{forwarded} flows by filters; refused: " + "; ".join(f"{len(rules)} {reason}" for reason, rules in refused.items()))
    assert forwarded > 40, refused


if __name__ == "__main__":
    main()
