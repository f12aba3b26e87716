#!/usr/bin/env python3
"""`heddle measure` between namespaces: results, interruption, resumption, endpoints that go away, bad
input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for
from lab.vhost import heddle_path

SHORT = ("--seconds", "0.3", "--warmup", "0.1", "--rounds", "2", "--most-rounds", "2")


def ends(lab):
    """Two namespaces joined by a veth pair."""
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    a, b = lab.net.namespace("a", ipv6=True), lab.net.namespace("b", ipv6=True)
    lab.net.veth(a, "eth0", b, "eth0")
    for i, ns in ((1, a), (2, b)):
        lab.net.address(ns, "eth0", f"10.1.0.{i}/24")
        lab.net.ip(ns, "addr", "add", f"fd01::{i}/64", "dev", "eth0", "nodad")
    return a, b


def directory(lab):
    where = tempfile.TemporaryDirectory(prefix="heddle-measure-")
    lab.cleanups.append(where.cleanup)
    return where.name


def measure(lab, *args, **kw):
    return lab.trace.run(heddle_path(), "measure", *args, timeout=90, **kw)


def records(path, kind):
    with open(path) as file:
        return [r for r in map(json.loads, file) if r["record"] == kind]


def scenario_results(lab):
    a, b = ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    measure(lab, "--between", f"{a},{b}", "--transport", "tcp,udp", "--family", "4,6", "--connections", "1,9", "--sizes", "1x1000",
            "--stream-sizes", "1400", "--out", out, "--seconds", "0.2", "--warmup", "0.05", "--rounds", "1", "--most-rounds", "1")
    series = records(out, "series")
    assert len(series) == 24, len(series)
    assert [m["facts"]["kernel"] for m in records(out, "machine")] == [os.uname().release]
    for s in series:
        assert s["mib_per_s"] > 0 and s["transactions_per_cpu_s"] > 0 and s["processor"]["system_s"] >= 0, s
        assert ("latency" in s) == (s["case"]["pattern"] == "rr"), s
        if "latency" in s:
            quantiles = [s["latency"][q] for q in ("p50_us", "p90_us", "p99_us", "p999_us", "max_us")]
            assert quantiles == sorted(quantiles) and quantiles[0] > 1, s


def scenario_turns(lab):
    a, b = ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    measure(lab, "--between", f"there={a},{b}", "--between", f"back={b},{a}", "--pattern", "rr,read", "--connections", "1",
            "--sizes", "1x1", "--out", out, *SHORT)
    # The order is reversed from round to round.
    turns = [(s["contender"], s["round"]) for s in records(out, "series")]
    assert turns == [("there", 1), ("back", 1)] * 2 + [("back", 2), ("there", 2)] * 2, turns


def scenario_report(lab):
    a, b = ends(lab)
    where = directory(lab)
    out = f"{where}/r.jsonl"
    measure(lab, "--between", f"there={a},{b}", "--between", f"back={b},{a}", "--pattern", "rr,write", "--connections", "1,3",
            "--sizes", "1x1", "--out", out, *SHORT)
    text = lab.trace.run(heddle_path(), "report", out, "--html", f"{where}/r.html", "--svg", f"{where}/plots")
    assert "rr 1x1 c3 tcp4" in text and " in " in text, text
    # Whether the two differ depends on the machine.
    assert re.search(r"(of 4 cases by|none of 1 pairs differs surely by) >= 10 %", text), text
    with open(f"{where}/r.html") as file:
        page = file.read()
    assert page.count("<svg") >= 6 and "http" not in page.replace("http://www.w3.org/2000/svg", ""), page[:400]
    assert any(name.startswith("ecdf") for name in os.listdir(f"{where}/plots"))
    # A file beside itself has not changed, and one that was made slower has.
    assert "worse in 0" in lab.trace.run(heddle_path(), "report", out, "--against", out, "--judge", "--metric", "speed")
    with open(out) as file:
        slower = [json.loads(line) for line in file]
    for record in slower:
        if record["record"] == "series":
            record["transactions_per_s"] = 10 + record["round"]
            record["mib_per_s"] = 1 + record["round"] / 100
    # Without a comparison the judgement fails.
    with open(f"{where}/none.jsonl", "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in slower if record["record"] != "series")
    run = subprocess.run([heddle_path(), "report", out, "--against", f"{where}/none.jsonl", "--judge"], capture_output=True, text=True, timeout=30)
    assert run.returncode == 1 and "nothing was compared" in run.stderr, run
    with open(f"{where}/slower.jsonl", "w") as file:
        file.writelines(json.dumps(record) + "\n" for record in slower)
    run = subprocess.run([heddle_path(), "report", f"{where}/slower.jsonl", "--against", out, "--judge", "--metric", "speed"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "WORSE" in run.stdout, run
    for path, want in (("/no/such", "No such file"), (heddle_path(), ""), ("/dev/null", "no results")):
        run = subprocess.run([heddle_path(), "report", path], capture_output=True, text=True, timeout=60)
        assert run.returncode == 1 and len(run.stderr.strip().splitlines()) == 1 and want in run.stderr, run.stderr


def scenario_broken_files(lab):
    """`report` and `advise` print one line about broken result files; a full disk, too."""
    a, b = ends(lab)
    where = directory(lab)
    good = f"{where}/good.jsonl"
    measure(lab, "--between", f"{a},{b}", "--pattern", "rr,write", "--connections", "1", "--sizes", "1x1", "--out", good, *SHORT)
    with open(good) as file:
        lines = file.read().splitlines(keepends=True)
    series = next(i for i, line in enumerate(lines) if json.loads(line)["record"] == "series")

    def changed(**values):
        return [*lines[:series], json.dumps({**json.loads(lines[series]), **values}) + "\n", *lines[series + 1:]]

    wrong = {"rubbish": ["\0\1\2\n"], "no JSON": [lines[0], "{\n"], "another record": [lines[0], '{"record":"x"}\n'], "text": ["hello\n"],
             "cut": [lines[0][:40]], "nested": ["[" * 100000 + "\n"], "a series alone": lines[series:series + 1],
             "another format": [lines[0].replace('"format":', '"format":9')], "wrong type": changed(seconds="long")}
    odd = {"nothing": changed(seconds=0, transactions_per_s=0, mib_per_s=0), "less": changed(transactions_per_s=-5, mib_per_s=-1),
           "huge": changed(transactions_per_s=1e308, mib_per_s=1e308), "a name": changed(contender="<script>" * 500)}
    commands = (("report", "FILE"), ("report", good, "--against", "FILE"), ("advise", "--results", "FILE", "--pattern", "rr"))
    for name, text in {**wrong, **odd}.items():
        path = f"{where}/x.jsonl"
        with open(path, "w") as file:
            file.writelines(text)
        for command in commands:
            run = subprocess.run([heddle_path(), *(path if word == "FILE" else word for word in command)], capture_output=True, text=True,
                                 timeout=60)
            said = run.stderr.strip().splitlines()
            if name in odd:
                assert run.returncode == 0 and not said, (name, command, run)
            else:
                assert run.returncode == 1 and len(said) == 1 and path in said[0] and len(said[0]) < 400, (name, command, run)
    page = f"{where}/page.html"
    lab.trace.run(heddle_path(), "report", path, "--html", page)
    with open(page) as file:
        assert "<script>" * 2 not in file.read(), "names are no markup"
    for args, want in ((("--html", "/dev/full"), "/dev/full: No space left"), (("--html", where), where), (("--svg", good), good)):
        run = subprocess.run([heddle_path(), "report", good, *args], capture_output=True, text=True, timeout=60)
        said = run.stderr.strip().splitlines()
        assert run.returncode == 1 and len(said) == 1 and want in said[0], (args, run)
    for command in (("report", good), ("advise", "--results", good, "--pattern", "rr"), ("measure", "--help")):
        with open("/dev/full", "w") as full:
            run = subprocess.run([heddle_path(), *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert run.returncode != 101 and "panicked" not in run.stderr, run


def scenario_two_at_once(lab):
    """Two runs between the same endpoints: both end well, or one reports the obstacle; a file belongs to
    one."""
    a, b = ends(lab)
    where = directory(lab)
    args = [heddle_path(), "measure", "--between", f"{a},{b}", "--pattern", "rr", "--connections", "2", "--sizes", "1x1", *SHORT]
    runs = [subprocess.Popen([*args, "--out", f"{where}/r{i}.jsonl"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for i in range(2)]
    for i, run in enumerate(runs):
        said = run.communicate(timeout=90)[1]
        assert run.returncode == 0 and len(records(f"{where}/r{i}.jsonl", "series")) == 2 or \
            run.returncode == 1 and len(said.strip().splitlines()) == 1, (run.returncode, said)
    runs = [subprocess.Popen([*args, "--out", f"{where}/same.jsonl"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for _ in range(2)]
    ended = [(run.communicate(timeout=90)[1], run.returncode) for run in runs]
    assert sorted(status for _, status in ended) == [0, 1], ended
    assert len(records(f"{where}/same.jsonl", "series")) == 2
    # A second Ctrl-C is no reason to leave anything behind.
    run = subprocess.Popen([*args[:8], "--vary", "mtu=1400", "--seconds", "30", "--out", f"{where}/c.jsonl"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    mtu = lambda: lab.net.run(a, "cat", "/sys/class/net/eth0/mtu", quiet=True).strip()
    wait_for("the MTU to be set", lambda: mtu() == "1400", 60)
    run.send_signal(signal.SIGINT)
    time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    wait_for("the MTU as before", lambda: mtu() == "1500", 20)


def scenario_without_root(lab):
    a, b = ends(lab)
    # A copy, for a checkout that only root may enter.
    tool = shutil.copy(heddle_path(), directory(lab))
    os.chmod(os.path.dirname(tool), 0o755)
    for args in (("--between", f"{a},{b}"), ("--between", "new")):
        run = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", tool, "measure", *args,
                              "--out", "/tmp/heddle-nobody.jsonl"], capture_output=True, text=True, timeout=60)
        assert not os.path.exists("/tmp/heddle-nobody.jsonl"), run
        assert run.returncode == 1 and len(run.stderr.strip().splitlines()) == 1 and "root" in run.stderr, run


def scenario_fixed_rate(lab):
    a, b = ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    # A busy machine may stop the generator for some tenths of a second, and it catches up then: two seconds even that out.
    measure(lab, "--between", f"{a},{b}", "--pattern", "rr", "--sizes", "100x100", "--connections", "1,7", "--rate", "500",
            "--out", out, "--seconds", "2", "--warmup", "0.1", "--rounds", "2", "--most-rounds", "2")
    for s in records(out, "series"):
        assert 350 < s["transactions_per_s"] < 650 and s["lag_p99_us"] > 0, s


def scenario_profile_of_uperf(lab):
    a, b = ends(lab)
    where = directory(lab)
    with open(f"{where}/p.xml", "w") as file:
        file.write("""<?xml version="1.0"?><profile name="p"><group nthreads="$nthr">
            <transaction iterations="1"><flowop type="connect" options="remotehost=$h protocol=tcp"/></transaction>
            <transaction duration="300ms"><flowop type="write" options="size=90"/><flowop type="read" options="size=2k"/></transaction>
            <transaction iterations="1"><flowop type="disconnect"/></transaction></group></profile>""")
    argv = [heddle_path(), "measure", "--between", f"{a},{b}", "--profile", f"{where}/p.xml", "--rounds", "1", "--most-rounds", "1",
            "--out", f"{where}/r.jsonl"]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "$nthr" in run.stderr, run.stderr
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, "nthr": "3", "h": "10.1.0.2"})
    assert run.returncode == 0, run.stderr
    (s,) = records(f"{where}/r.jsonl", "series")
    case = s["case"]
    assert (case["connections"], case["request"], case["response"]) == (3, 90, 2048) and 0.2 < s["seconds"] < 0.9, s


def scenario_interrupted_and_resumed(lab):
    a, b = ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    args = ("--between", f"{a},{b}", "--pattern", "rr,write", "--connections", "1,4", "--sizes", "1x1", "--out", out, *SHORT)
    run = subprocess.Popen([heddle_path(), "measure", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for("a series", lambda: os.path.exists(out) and len(records(out, "series")) > 0, 60)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=30)[1]
    assert run.returncode == 0 and "interrupted; --resume continues" in said, said
    kept = len(records(out, "series"))
    assert 1 <= kept < 8, kept
    # Without the word nothing is overwritten, and other cases are not mixed in.
    assert "--resume" in measure(lab, *args, check=False)
    assert "other cases" in measure(lab, *args, "--resume", "--transport", "udp", check=False)
    with open(out, "a") as file:
        file.write('{"record":"seri')
    measure(lab, *args, "--resume")
    series = [(s["case"]["pattern"], s["case"]["connections"], s["round"]) for s in records(out, "series")]
    assert len(series) == len(set(series)) == 8, series


def scenario_end_point_goes_away(lab):
    a, b = ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    run = subprocess.Popen([heddle_path(), "measure", "--between", f"{a},{b}", "--pattern", "rr", "--seconds", "30", "--out", out],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def agents():
        with open(f"/proc/{run.pid}/task/{run.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    # The process in the second namespace, by its command line.
    def server():
        for pid in agents():
            with open(f"/proc/{pid}/cmdline") as file:
                if f"/run/netns/{b}" in file.read():
                    return pid
        return None

    wait_for("the server's agent", lambda: server() and os.path.exists(out), 30)
    time.sleep(0.5)
    os.kill(server(), signal.SIGKILL)
    said = run.communicate(timeout=20)[1].strip().splitlines()
    assert run.returncode == 1 and len(said) == 1 and b in said[0] and "gone away" in said[0], said


def left_behind(pid):
    """Leftovers of a run: namespaces, and processes in them."""
    with os.scandir("/run/netns") as found:
        left = [e.name for e in found if e.name.startswith(f"hm{pid}")]
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline") as file:
                if f"hm{pid}" in file.read():
                    left.append(process)
        except OSError:
            pass  # the process has ended
    return left


def scenario_attachments_of_this_node(lab):
    ends(lab)  # for the skip
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("made for Heddle")
    bridges = sw.vsctl("list-br")
    out = f"{directory(lab)}/r.jsonl"
    run = subprocess.Popen([heddle_path(), "measure", "--between", "new", "--deployments", "same,across", "--pattern", "rr",
                            "--connections", "1", "--sizes", "1x1", "--family", "4,6", "--seconds", "0.2", "--warmup", "0.05",
                            "--rounds", "1", "--most-rounds", "1", "--rundir", sw.dir, "--out", out],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said = run.communicate(timeout=150)[1]
    lab.trace.note(said)
    assert run.returncode == 0, said
    measured = {s["contender"] for s in records(out, "series")}
    not_here = {r["contender"]: r["why"] for r in records(out, "unavailable")}
    names = [n for a in ("host-device", "veth", "bridge", "macvlan", "ipvlan-l2", "ipvlan-l3", "internal", "vhost-user", "vduse")
             for n in (a, f"{a} across")]
    assert measured | set(not_here) == set(names), (measured, not_here)
    # These any machine that runs these tests has.
    assert {"host-device", "veth", "veth across", "internal", "internal across", "vhost-user"} <= measured, not_here
    assert all(not_here.values()), not_here
    wait_for("processes to end", lambda: not left_behind(run.pid), 20)
    assert sw.vsctl("list-br") == bridges


def scenario_no_switch(lab):
    ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    run = subprocess.run([heddle_path(), "measure", "--between", "new", "--attachments", "internal", "--rundir", "/nowhere", "--out", out],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "no switch runs in /nowhere" in run.stderr and not os.path.exists(out), run.stderr


def scenario_settings_are_put_back_by_whatever_end(lab):
    a, b = ends(lab)
    lab.net.run(b, "ethtool", "-K", "eth0", "tso", "off")

    def settings():
        both = []
        for ns in (a, b):
            both.append(lab.net.run(ns, "cat", "/sys/class/net/eth0/mtu", "/sys/class/net/eth0/queues/rx-0/rps_cpus", quiet=True))
            features = lab.net.run(ns, "ethtool", "-k", "eth0", quiet=True)
            both.append([line for line in features.splitlines() if line.startswith(("tcp-seg", "generic-receive"))])
        return both

    before = settings()
    args = [heddle_path(), "measure", "--between", f"{a},{b}", "--vary", "mtu=1400", "--vary", "rps=on", "--vary", "tso=off,on",
            "--vary", "gro=off,on", "--pattern", "write", "--connections", "1", "--seconds", "0.3", "--warmup", "0.1", "--rounds", "1",
            "--most-rounds", "1"]
    for i, sig in enumerate((None, signal.SIGINT, signal.SIGKILL)):
        out = f"{directory(lab)}/r{i}.jsonl"
        run = subprocess.Popen([*args, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_for("a series with settings", lambda out=out: os.path.exists(out) and len(records(out, "series")) > 1, 60)
        if sig:
            assert settings() != before
            run.send_signal(sig)
        said = run.communicate(timeout=60)[1]
        lab.trace.note(said)
        wait_for("settings as before", lambda: settings() == before, 10)
        if not sig:
            names = {s["contender"] for s in records(out, "series")}
            assert len(names) == 4 and f"{a},{b} mtu=1400 rps=on tso=off gro=on" in names, names
    for bad, want in (("mtu=1", "no such value"), ("ring=512", "rings"), ("colour=red", "cannot be varied"), ("mtu", "a factor and its values")):
        out = f"{directory(lab)}/bad-{bad[:3]}.jsonl"
        run = subprocess.run([heddle_path(), "measure", "--between", f"{a},{b}", "--vary", bad, "--out", out], capture_output=True,
                             text=True, timeout=60)
        assert run.returncode == 1 and want in run.stderr, run.stderr
    assert settings() == before


def scenario_over_ssh(lab):
    a, b = ends(lab)
    if not os.access("/usr/sbin/sshd", os.X_OK):
        raise Skip("no sshd is installed")
    where = directory(lab)
    os.makedirs("/run/sshd", exist_ok=True)
    for key in ("host", "user"):
        lab.trace.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{where}/{key}")
    sshd = subprocess.Popen(["ip", "netns", "exec", b, "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-h", f"{where}/host", "-p", "2222",
                             "-o", f"AuthorizedKeysFile={where}/user.pub", "-o", "StrictModes=no", "-o", "PermitRootLogin=yes",
                             "-o", f"PidFile={where}/pid"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lab.cleanups.append(lambda: (sshd.kill(), sshd.wait()))
    options = f"-p 2222 -i {where}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"

    def ask(out, remote):
        argv = ["ip", "netns", "exec", a, heddle_path(), "measure", "--between", "here,ssh:10.1.0.2", "--remote", remote, "--pattern", "rr",
                "--connections", "2", "--sizes", "1x1", "--out", f"{where}/{out}", *SHORT]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, env={**os.environ, "HEDDLE_SSH_OPTIONS": options})

    wait_for("sshd", lambda: os.path.exists(f"{where}/pid"), 20)
    run = ask("r.jsonl", heddle_path())
    assert run.returncode == 0 and len(records(f"{where}/r.jsonl", "series")) == 2, run.stderr
    run = ask("x.jsonl", "/no/such/heddle")
    assert run.returncode == 1 and len(run.stderr.strip().splitlines()) == 1 and "/no/such/heddle" in run.stderr, run.stderr


def scenario_agent_over_tcp(lab):
    """The situation of a guest: the agent is started there by hand."""
    a, b = ends(lab)
    out = f"{directory(lab)}/r.jsonl"
    agent = subprocess.Popen(["ip", "netns", "exec", b, heddle_path(), "measure", "agent", "--listen", "10.1.0.2:7777"],
                             stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lab.cleanups.append(lambda: (agent.kill(), agent.wait()))
    assert "tcp:10.1.0.2:7777" in agent.stderr.readline()
    for _ in range(2):
        lab.net.run(a, heddle_path(), "measure", "--between", "here,tcp:10.1.0.2:7777", "--pattern", "rr,read", "--connections", "2",
                    "--sizes", "1x1", "--out", out, *SHORT, timeout=60)
        assert len(records(out, "series")) == 4
        os.remove(out)


def scenario_bad_input(lab):
    a, b = ends(lab)
    where = directory(lab)
    busy = lab.net.socket(b, lambda: __import__("socket").create_server(("10.1.0.2", 5201)))
    lab.cleanups.append(busy.close)
    good = ("--between", f"{a},{b}", "--out", f"{where}/r.jsonl")
    for args, want in (
            ((), "--between A,B names two end points"),
            (("--between", f"{a},nowhere"), 'no network namespace "nowhere"'),
            (("--between", f"{a},pid:4194304"), "there is no process 4194304"),
            (("--between", f"{a},container:0123456789ab"), "no process here is in a container"),
            (("--between", f"{a},tcp:10.99.0.1:1", "--out", f"{where}/x.jsonl"), "tcp:10.99.0.1:1"),
            ((*good, "--port", "5201"), "port 5201 of 10.1.0.2 is in use"),
            ((*good, "--pattern", "wrong"), "patterns are rr, write and read"),
            ((*good, "--sizes", "1000"), "200x1000"),
            ((*good, "--transport", "udp", "--sizes", "1x70000"), "a datagram has 1 to 65507"),
            ((*good, "--connections", "0"), "0 connections"),
            (("--between", f"{a},{b}", "--out", "/no/such/directory/r"), "No such file or directory"),
            ((*good, "--server-processors", "4000"), "processors [4000]")):
        run = subprocess.run([heddle_path(), "measure", *args, *SHORT], capture_output=True, text=True, timeout=60)
        said = run.stderr.strip().splitlines()
        assert run.returncode == 1 and len(said) == 1 and want in said[0], (args, run.stderr)
        for name in os.listdir(where):
            os.remove(f"{where}/{name}")


if __name__ == "__main__":
    main()
