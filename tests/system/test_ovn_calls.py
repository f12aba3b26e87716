#!/usr/bin/env python3
"""The calls of OVN-Kubernetes, Kube-OVN and Neutron beside ovn-controller, on Heddle and on Open vSwitch:
replies are compared."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE
from lab.runner import Skip, main

# Gateway rules of OVN-Kubernetes, as it replaces them as a whole.
FLOWS = """
cookie=0xdeff105, table=0, priority=500, ip, in_port=patch, actions=ct(commit,zone=64000,exec(load:0x1->NXM_NX_CT_MARK[])),output:up
cookie=0xdeff105, table=0, priority=50, ip, in_port=up, actions=ct(zone=64000,nat,table=1)
cookie=0xdeff105, table=0, priority=10, in_port=up, dl_dst=02:00:00:00:00:01, actions=output:patch,output:LOCAL
cookie=0xdeff105, table=0, priority=0, actions=NORMAL
cookie=0xdeff105, table=1, priority=100, ct_state=+trk+est, ct_mark=0x1, ip, actions=output:patch
cookie=0xdeff105, table=1, priority=0, actions=NORMAL
"""

# (program, command). `CTL` is ovs-appctl, `OF` ovs-ofctl, `VS` ovs-vsctl.
CALLS = [
    ("VS", ["--may-exist", "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=DATAPATH", "fail-mode=standalone", "other-config:hwaddr=02:00:00:00:00:77"]),
    ("VS", ["--may-exist", "add-port", "br-ex", "up", "--", "set", "interface", "up", "type=internal", "ofport_request=1", "--", "add-port", "br-ex", "patch", "--", "set", "interface",
            "patch", "type=patch", "options:peer=patch-int", "ofport_request=2", "--", "add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=DATAPATH", "fail-mode=secure",
            "--", "add-port", "br-int", "patch-int", "--", "set", "interface", "patch-int", "type=patch", "options:peer=patch"]),
    ("OF", ["-O", "OpenFlow13", "--bundle", "replace-flows", "br-ex", "-"]),
    ("OF", ["-O", "OpenFlow13", "--no-stats", "dump-flows", "br-ex"]),
    ("OF", ["--no-stats", "dump-flows", "br-ex", "table=1"]),
    ("OF", ["dump-aggregate", "br-ex"]),
    ("OF", ["dump-ports-desc", "br-ex", "up"]),
    ("OF", ["-O", "OpenFlow13", "show", "br-ex"]),
    ("OF", ["mod-port", "br-ex", "up", "no-flood"]),
    ("OF", ["dump-ports-desc", "br-ex", "up"]),
    ("OF", ["mod-port", "br-ex", "up", "flood"]),
    ("OF", ["-O", "OpenFlow13", "--may-create", "mod-group", "br-ex", "group_id=7,type=select,selection_method=dp_hash,bucket=weight:100,output:up"]),
    ("OF", ["-O", "OpenFlow13", "dump-groups", "br-ex"]),
    ("OF", ["-O", "OpenFlow13", "del-groups", "br-ex", "group_id=7"]),
    ("OF", ["-O", "OpenFlow13", "dump-groups", "br-ex"]),
    ("OF", ["-O", "OpenFlow13", "dump-meters", "br-int"]),
    ("OF", ["-O", "OpenFlow15", "dump-tlv-map", "br-int"]),
    ("CTL", ["fdb/add", "br-ex", "up", "0", "02:00:00:00:00:99"]),
    ("CTL", ["fdb/show", "br-ex"]),
    ("CTL", ["fdb/del", "br-ex", "0", "02:00:00:00:00:99"]),
    ("CTL", ["fdb/flush", "br-ex"]),
    ("CTL", ["dpif/show-dp-features", "br-int"]),
    ("CTL", ["ofproto/list"]),
    ("CTL", ["ofproto/list-tunnels"]),
    ("CTL", ["dpctl/dump-dps"]),
    ("CTL", ["ofproto/trace", "br-ex", "in_port=up,ip,dl_dst=02:00:00:00:00:01,nw_dst=10.0.0.1"]),
    ("CTL", ["ofproto/trace", "br-ex", "in_port=up,arp,dl_dst=02:00:00:00:00:01"]),
    ("CTL", ["upcall/show"]),
    ("CTL", ["memory/show"]),
    ("CTL", ["coverage/show"]),
    ("CTL", ["version"]),
    ("CTL", ["vlog/list"]),
    ("CTL", ["dpctl/dump-conntrack", "zone=64000"]),
    ("CTL", ["dpctl/flush-conntrack", "zone=64000"]),
    ("CTL", ["dpctl/flush-conntrack", "zone=64000", "ct_nw_proto=17,ct_nw_dst=10.0.0.1,ct_tp_dst=53"]),
    ("CTL", ["dpctl/ct-get-nconns"]),
    ("CTL", ["dpctl/ct-get-maxconns"]),
    ("CTL", ["dpctl/ct-stats-show"]),
    ("CTL", ["dpctl/show"]),
    ("CTL", ["dpctl/dump-flows"]),
    ("CTL", ["dpctl/dump-flows", "type=all"]),
    ("CTL", ["dpif/show"]),
    ("CTL", ["dpif/dump-flows", "br-ex"]),
    ("CTL", ["fdb/stats-show", "br-ex"]),
    ("CTL", ["bond/show"]),
    ("CTL", ["lacp/show"]),
    ("CTL", ["qos/show", "up"]),
    ("CTL", ["ovs/route/show"]),
    ("CTL", ["tnl/ports/show"]),
    ("CTL", ["vlog/set", "dpif:file:info"]),
    ("CTL", ["vlog/reopen"]),
    ("CTL", ["list-commands"]),
    ("CTL", ["bfd/show"]),
    ("VS", ["set", "interface", "up", "ingress_policing_rate=1000", "ingress_policing_burst=100", "mtu_request=1400", "external_ids:iface-id=x", "external_ids:attached-mac=y"]),
    ("VS", ["--columns=ingress_policing_rate,ingress_policing_burst,mtu,mtu_request,external_ids,ofport,link_state,admin_state", "list", "interface", "up"]),
    ("VS", ["--timeout=15", "--if-exists", "get", "interface", "up", "ofport"]),
    ("VS", ["get", "interface", "up", "mac_in_use"]),
    ("VS", ["--columns=name,external_ids", "--format=json", "find", "interface", "external_ids:iface-id=x"]),
    ("VS", ["get", "open_vswitch", ".", "datapath_types"]),
    ("VS", ["--columns=capabilities", "list", "datapath"]),
    ("VS", ["iface-to-br", "up"]),
    ("VS", ["list-ports", "br-ex"]),
    ("OF", ["dump-ports", "br-ex", "up"]),
    # Neutron's agents, by cookie.
    ("VS", ["br-exists", "br-ex"]),
    ("VS", ["br-get-external-id", "br-ex"]),
    ("VS", ["get-fail-mode", "br-int"]),
    ("VS", ["--columns=name,datapath_type,fail_mode,protocols", "list", "bridge", "br-int"]),
    ("VS", ["get", "open_vswitch", ".", "iface_types"]),
    ("VS", ["set", "bridge", "br-int", "protocols=OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15"]),
    ("OF", ["-O", "OpenFlow13", "--bundle", "add-flow", "br-int", "cookie=0x77/0x0,table=60,priority=3,actions=drop"]),
    ("OF", ["-O", "OpenFlow13", "add-flow", "br-int", "cookie=0x77,table=60,priority=3,in_port=1,actions=NORMAL"]),
    ("OF", ["-O", "OpenFlow13", "--no-stats", "dump-flows", "br-int", "cookie=0x77/-1"]),
    ("OF", ["-O", "OpenFlow13", "dump-aggregate", "br-int", "cookie=0x77/-1"]),
    ("OF", ["-O", "OpenFlow13", "del-flows", "br-int", "cookie=0x77/-1"]),
    ("OF", ["-O", "OpenFlow13", "--no-stats", "dump-flows", "br-int", "table=60"]),
    ("OF", ["-O", "OpenFlow13", "dump-tables", "br-int"]),
    ("VS", ["set", "interface", "up", "ingress_policing_rate=0", "ingress_policing_burst=0", "ingress_policing_kpkts_rate=10", "ingress_policing_kpkts_burst=1", "mtu_request=[]",
            "external_ids:vm-uuid=z"]),
    ("VS", ["--columns=ingress_policing_rate,ingress_policing_burst,ingress_policing_kpkts_rate,ingress_policing_kpkts_burst,mtu_request,external_ids", "list", "interface", "up"]),
    ("VS", ["remove", "interface", "up", "external_ids", "iface-id"]),
    ("VS", ["get", "interface", "up", "external_ids"]),
    ("VS", ["--if-exists", "del-port", "br-ex", "up", "--", "--if-exists", "del-br", "br-ex"]),
    ("VS", ["list-br"]),
]
# Only the answer's shape is the same: numbers are each one's own.
SHAPES = {"upcall/show", "memory/show", "coverage/show", "version", "vlog/list", "dump-ports", "list-commands", "dpctl/dump-flows", "dpif/dump-flows", "ovs/route/show", "dpctl/show", "iface_types"}


def plain(text, sw):
    text = text.replace(sw.dir, "RUNDIR").replace(os.path.basename(sw.binary), "DAEMON")
    text = re.sub(r"duration=[0-9.]+s", "duration=Ns", text)
    text = re.sub(r"\(xid=0x[0-9a-f]+\)", "(xid=N)", text)
    text = re.sub(r"dpid:[0-9a-f]{16}", "dpid:N", text)
    # The rule in the place of a miss, which Open vSwitch shows as itself behind a patch.
    text = text.replace(" 0. reg0=0x2, priority 0", " 0. No match.")
    # A feature that none of their rules uses, and that Heddle reports as missing.
    text = re.sub("(Optimized Balance TCP mode): [A-Z][a-z]+", r"\1: ?", text)
    # Random addresses, of devices and of objects that depend on them.
    text = re.sub(r"addr:([0-9a-f]{2}:){5}[0-9a-f]{2}", "addr:MAC", text)
    text = re.sub(r'^"([0-9a-f]{2}:){5}[0-9a-f]{2}"$', "MAC", text.strip(), flags=re.M)
    return "\n".join(sorted(line.rstrip() for line in text.splitlines()))


def run(lab, binary=None):
    sw = lab.switch(binary=binary)
    answers = []
    for who, args in CALLS:
        args = [a.replace("DATAPATH", "netdev") for a in args]
        call = {"VS": sw.vsctl, "OF": sw.ofctl, "CTL": sw.appctl}[who]
        more = {"stdin": FLOWS} if "-" in args and "replace-flows" in args else {}
        out = call(*args, check=False, **more)
        failed = re.search(r"(?m)^ovs-[a-z]+: |OFPT_ERROR", out)
        shape = next((s for s in SHAPES if s in args), None)
        answers.append("fails" if failed and shape else "answers" if shape else plain(out, sw))
    return sw, answers


def scenario_what_others_call(lab):
    if not os.access(REFERENCE, os.X_OK):
        raise Skip("no ovs-vswitchd on this machine")
    own, got = run(lab)
    _, right = run(lab, REFERENCE)
    wrong = [f"{who} {' '.join(args)}:\n--- heddled\n{g}\n--- Open vSwitch\n{r}" for (who, args), g, r in zip(CALLS, got, right) if g != r]
    assert not wrong, f"{len(wrong)} of {len(CALLS)} differ\n" + "\n".join(wrong)
    assert "Check pkt length action: Yes" in own.appctl("dpif/show-dp-features", "br-int")


if __name__ == "__main__":
    main()
