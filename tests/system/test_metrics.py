#!/usr/bin/env python3
"""Metrics over HTTP: their content, form and bounds, their endpoints, and wrong requests."""

import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import ROOT
from lab.runner import Skip, main
from lab.shell import wait_for

UDP = "50540000000a50540000000908004500" + "00" * 40
LINE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[0-9.eE+-]+)$')
# Families and the labels of their lines: a switch with ports has these and no others.
WANTED = {
    "heddle_build_info": {"version", "openvswitch"}, "heddle_ports": set(), "heddle_port_received_packets": {"port", "bridge", "type"},
    "heddle_port_sent_dropped": {"port", "bridge", "type"}, "heddle_port_up": {"port", "bridge", "type"},
    "heddle_queue_worker_percent": {"port", "queue", "core"}, "heddle_worker_cycles": {"core", "state"},
    "heddle_worker_stage_cycles": {"core", "stage"}, "heddle_worker_iterations": {"core", "kind"}, "heddle_lookups": {"level"},
    "heddle_flows": set(), "heddle_masks": set(), "heddle_drops": {"reason"}, "heddle_connections": set(),
    "heddle_memory_resident_bytes": set(), "heddle_bridge_rules": {"bridge"}, "heddle_openflow_connections": {"bridge"}, "heddle_tunnels": {"type"},
}


def connect(place):
    sock = socket.socket(socket.AF_UNIX if isinstance(place, str) else socket.AF_INET)
    sock.settimeout(30)
    sock.connect(place)
    return sock


def ask(place, request=b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
    """Status, headers and body."""
    with connect(place) as sock:
        sock.sendall(request)
        data = b""
        try:
            while piece := sock.recv(1 << 16):
                data += piece
        except ConnectionResetError:
            pass  # the server has not read all bytes
    head, _, body = data.decode().partition("\r\n\r\n")
    return head.split("\r\n")[0], head, body


def parse(text):
    """Families by name: their type and their lines, {labels: value}. Whatever OpenMetrics does not allow is a fault."""
    families, name = {}, None
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""], lines[-3:]
    for line in lines[:-2]:
        if line.startswith("# "):
            kind, name, rest = line[2:].split(" ", 2)
            family = families.setdefault(name, {"type": None, "lines": {}})
            assert kind in ("HELP", "TYPE", "UNIT"), line
            assert not family["lines"], f"{name} comes twice"
            if kind == "TYPE":
                # Types that OpenMetrics and the older text format, which promtool reads, both know.
                assert rest in ("counter", "gauge", "histogram", "summary"), line
                family["type"] = rest
            continue
        found = LINE.match(line)
        assert found, line
        sample, labels, value = found.groups()
        assert sample in (name, f"{name}_total"), (sample, name)
        assert (sample == f"{name}_total") == (families[name]["type"] == "counter"), line
        labels = labels or ""
        assert labels not in families[name]["lines"], f"twice: {line}"
        families[name]["lines"][labels] = float(value)
    return families


def value(families, name, **labels):
    wanted = [f'{key}="{text}"' for key, text in labels.items()]
    found = [n for text, n in families[name]["lines"].items() if all(w in text for w in wanted)]
    assert len(found) == 1, (name, labels, families[name]["lines"])
    return found[0]


def switch(lab, *args):
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", *args, netns=False, start=False)
    if sw.is_reference:
        raise Skip("the reference has no metrics")
    sw.start()
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure")
    return sw


def scenario_what_is_told(lab):
    sw = switch(lab, "--metrics=unix:metrics.sock")
    for name in ("p1", "p2"):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dummy-pmd")
    sw.vsctl("add-port", "br0", "g1", "--", "set", "interface", "g1", "type=geneve", "options:remote_ip=1.2.3.4")
    sw.ofctl("add-flow", "br0", "in_port=p1,actions=p2")
    sw.ofctl("add-flow", "br0", "in_port=p2,actions=drop")
    place = f"{sw.dir}/metrics.sock"
    before = parse(ask(place)[2])
    for _ in range(3):
        sw.appctl("netdev-dummy/receive", "p1", UDP)
    sw.appctl("netdev-dummy/receive", "p2", UDP)

    def told():
        now = parse(ask(place)[2])
        return now if value(now, "heddle_drops", reason="drop_action_of_pipeline") >= 1 else None
    families = wait_for("the drop", told)
    for name, labels in WANTED.items():
        assert families[name]["type"] in ("counter", "gauge", "info"), (name, families[name])
        for text in families[name]["lines"]:
            assert set(re.findall(r'([a-z_]+)="', text)) == labels, (name, text)
    assert value(families, "heddle_port_received_packets", port="p1", bridge="br0", type="dummy-pmd") == 3
    assert value(families, "heddle_port_sent_packets", port="p2") == 3
    assert value(families, "heddle_drops", reason="drop_action_of_pipeline") - value(before, "heddle_drops", reason="drop_action_of_pipeline") == 1
    assert value(families, "heddle_bridge_rules", bridge="br0") == 2
    assert value(families, "heddle_tunnels", type="geneve") == 1
    assert sum(families["heddle_lookups"]["lines"].values()) == value(families, "heddle_packets") == 4
    assert value(families, "heddle_memory_resident_bytes") > 1 << 20
    sw.stop_daemon()
    assert not os.path.exists(place), "the socket goes with the daemon"


def scenario_names_are_no_lines(lab):
    """Whatever names hold, the text stays well-formed."""
    sw = switch(lab, "--metrics=unix:metrics.sock")
    for name in ('q"uote', "back\\\\slash", "端口", "x" * 200):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dummy", check=False)
    families = parse(ask(f"{sw.dir}/metrics.sock")[2])
    assert value(families, "heddle_port_up", port="端口") == 1
    assert max(len(text) for text in families["heddle_port_up"]["lines"]) < 300


def scenario_wrong_callers(lab):
    sw = switch(lab, "--metrics=unix:metrics.sock")
    place = f"{sw.dir}/metrics.sock"
    for request, status in ((b"GET /other HTTP/1.1\r\n\r\n", "404"), (b"POST /metrics HTTP/1.1\r\n\r\n", "405"), (b"rubbish\r\n\r\n", "400"),
                            (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200"), (b"GET / HTTP/1.0\r\n\r\n", "200")):
        assert ask(place, request)[0].split()[1] == status, request
    assert ask(place, b"HEAD /metrics HTTP/1.1\r\n\r\n")[2] == ""
    assert ask(place, b"GET /" + b"x" * 20000)[0] == "", "a head without an end is cut off"
    # A hundred callers send nothing, or half a request, or do not read. They do not delay others: each may
    # take five seconds.
    silent = [connect(place) for _ in range(100)]
    for sock, words in zip(silent, itertools.cycle((b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n"))):
        with contextlib.suppress(OSError):  # the server has closed it in favour of others
            sock.sendall(words)
    assert ask(place)[0].endswith("200 OK")
    for sock in silent:
        sock.close()
    assert sw.alive()


def scenario_configured(lab):
    """Configured in the database: opened, moved, refused, closed; and taken over from a daemon that was
    killed."""
    sw = switch(lab)
    at = lambda text: sw.vsctl("set", "open", ".", f'other_config:heddle-metrics="{text}"')
    one, two = f"{sw.dir}/one", f"{sw.dir}/two"
    at(f"unix:{one}")
    parse(ask(one)[2])
    at(f"unix:{two}")
    parse(ask(two)[2])
    assert not os.path.exists(one)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    at(f"tcp:{port}")
    status, head, body = ask(("127.0.0.1", port))
    assert status == "HTTP/1.1 200 OK" and "application/openmetrics-text; version=1.0.0" in head and parse(body), head
    at("nonsense")
    assert "other_config:heddle-metrics: nonsense: neither unix:PATH nor tcp:ADDRESS:PORT" in sw.log()
    at(f"unix:{two}")
    sw.stop_daemon(9)
    sw.start_daemon()
    wait_for("the end point of the new daemon", lambda: os.path.exists(two) and ask(two)[0].endswith("OK"))
    sw.vsctl("remove", "open", ".", "other_config", "heddle-metrics")
    assert not os.path.exists(two)
    done = subprocess.run([sw.binary, "--metrics=udp:1", "--unixctl=none"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "--metrics=udp:1: neither unix:PATH nor tcp:ADDRESS:PORT" in done.stderr, done


def scenario_what_is_deployed_names_what_there_is(lab):
    """Each metric that the dashboard and the rules use exists, and promtool, if installed, finds no fault in
    either."""
    sw = switch(lab, "--metrics=unix:metrics.sock")
    sw.vsctl("add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy-pmd")
    text = ask(f"{sw.dir}/metrics.sock")[2]
    families = parse(text)
    told = {f"{name}_total" if family["type"] == "counter" else f"{name}_info" if family["type"] == "info" else name
            for name, family in families.items()}
    deploy = os.path.join(ROOT, "deploy", "metrics")
    dashboard = json.load(open(f"{deploy}/dashboard.json"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    rules = open(f"{deploy}/alerts.yml").read()
    assert len(expressions) >= 10
    used = set(re.findall(r"heddle_\w+", " ".join(expressions) + rules))
    assert used and used <= told, used - told
    promtool = shutil.which("promtool")
    if promtool:
        for argv, given in (([promtool, "check", "rules", f"{deploy}/alerts.yml"], None), ([promtool, "test", "rules", f"{deploy}/alerts-test.yml"], None),
                            ([promtool, "check", "config", f"{deploy}/prometheus.yml"], None)):
            done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, (argv, done.stdout, done.stderr)


if __name__ == "__main__":
    main()
