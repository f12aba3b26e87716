#!/usr/bin/env python3
"""The first steps of a new user: the demo, the test script, mistakes in names."""

import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import ROOT, daemon_path
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.switch import end_process
from lab.terminal import Terminal
from lab.vhost import heddle_path


def run(*argv, **env):
    return subprocess.run(argv, capture_output=True, text=True, timeout=450, check=False, cwd=ROOT,
                          stdin=subprocess.DEVNULL, env={**os.environ, **env})


def scenario_devices_that_cannot_be_ports(lab):
    """Packets to the loopback device are lost, and a tun device has no Ethernet headers."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.ip(sw.netns, "tuntap", "add", "dev", "tun9", "mode", "tun")
    for name, why in (("lo", "a loopback device cannot be a port"), ("tun9", "its frames have no Ethernet header")):
        if sw.is_reference:
            continue
        sw.vsctl("add-port", "br0", name, check=False)
        error = sw.get("interface", name, "error")
        assert error == f"could not add network device {name} to ofproto (Invalid argument: {why})", error
        assert sw.get("interface", name, "ofport") == "-1"
    sw.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=internal")
    assert int(sw.get("interface", "p0", "ofport")) > 0, "the others work"


def scenario_mistakes_get_a_word(lab):
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    done = run(heddle_path(), "guest", "--port", "foo", "--tap", "t0")
    assert done.returncode == 2 and "'foo' is no socket" in done.stderr, done
    done = run(heddle_path(), "top", "--once", OVS_RUNDIR="/no/such/directory")
    assert done.returncode == 1 and "OVS_RUNDIR" in done.stderr and "/no/such/directory/ovs-vswitchd.pid" in done.stderr, done
    done = run(daemon_path(), "nonsense", "-vconsole:off", "--unixctl=none")
    assert done.returncode == 1 and done.stderr.count("nonsense") == 1, done


def scenario_the_lint_part_alone(lab):
    """A part without counted tests passes when all of its checks do, and fails when one does not."""
    with tempfile.TemporaryDirectory() as tools:
        for fails, status, last in (("nothing", 0, "5 passed, 0 failed, 0 skipped"), ("clippy", 1, "4 passed, 1 failed, 0 skipped")):
            with open(f"{tools}/cargo", "w") as file:
                file.write(f'#!/bin/sh\n[ "$2" = --version ] && exit 0\n[ "$1" != {fails} ]\n')
            os.chmod(f"{tools}/cargo", 0o755)
            done = run("scripts/test", "lint", PATH=f"{tools}:{os.environ['PATH']}", HOME="/nonexistent")
            assert done.returncode == status and done.stdout.splitlines()[-1] == last, done


def namespaces():
    return set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()


@limit(500)
def scenario_the_demo_fits(lab):
    """The whole demo: short steps, lines of 100 columns, whole commands, the drop by its name."""
    done = run("demo/demo.sh", HEDDLED=os.path.abspath(daemon_path()), HEDDLE=heddle_path())
    lab.trace.note(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-2000:]
    lines = done.stdout.splitlines()
    # A command stays on its line, to be copied whole, also one that a command prints.
    wide = [line for line in lines if len(line) > 100 and not re.match(r" +(\$|trace +ovs-appctl ofproto/trace) ", line)]
    assert not wide, wide
    shown = [line[6:] for line in lines if line.startswith("    $ ")]
    assert len(shown) > 25 and not [command for command in shown if command.endswith("\\") or subprocess.run(
        ["bash", "-n", "-c", command], check=False, capture_output=True).returncode], shown
    steps = re.split(r"^\[\d+/\d+\] ", done.stdout, flags=re.MULTILINE)[1:]
    assert max(step.count("\n") for step in steps) <= 50, [(step.count("\n"), step.splitlines()[0]) for step in steps]
    assert re.search(r"UDP: .* lost|iperf3 gave up", done.stdout) and "before the switch" in done.stdout
    for words in ("drop_action_of_pipeline at red0", "cookie 0x7e1", "heddle top: ", "[11/11]", "Everything of the demo has been removed."):
        assert words in done.stdout, words


@limit(600)
def scenario_the_demo_kept(lab):
    """KEEP=1: the printed commands work in another shell, and the printed way to stop leaves nothing."""
    done = run("demo/demo.sh", HEDDLED=os.path.abspath(daemon_path()), HEDDLE=heddle_path(), KEEP="1")
    rundir = re.search(r"^    \. (/tmp/heddle-demo-\w+)/env$", done.stdout, re.MULTILINE)
    lab.trace.note(done.stdout[-3000:] + done.stderr)
    assert rundir, done.stdout[-2000:]
    rundir = rundir[1]
    lab.cleanups.append(lambda: os.path.exists(rundir) and run(f"{rundir}/stop"))
    with open(f"{rundir}/stop") as file:
        stem = re.search(r"heddle-\d+-", file.read())[0]
    tries = done.stdout.split("What to try next:\n")[1].split("Stop and remove it:")[0].splitlines()
    tries = [line.strip() for line in tries if "tail -f" not in line]
    assert [any(word in line for line in tries) for word in ("heddle top", "heddle drops", "heddle capture", "ofproto/trace")] == [True] * 4
    shown = [line[6:] for line in done.stdout.splitlines() if re.match(r"    \$ (red ping|ovs-appctl|ovs-ofctl .*dump)", line)]
    for line in (*tries, *shown):
        line = line.replace("heddle top ", "heddle top --once ")
        again = subprocess.run(["bash", "-c", f". {rundir}/env || exit 9\n{line}"], capture_output=True, text=True, timeout=60, check=False,
                               stdin=subprocess.DEVNULL, env={key: os.environ[key] for key in ("PATH", "HOME")})
        lab.trace.note(f"$ {line}   [{again.returncode}]\n{again.stdout[:500]}{again.stderr}")
        assert again.returncode == 0, (line, again.stdout, again.stderr)
        if "heddle drops" in line:
            assert "cookie 0x7e1" in again.stdout, again.stdout
    run(f"{rundir}/stop")
    assert not os.path.exists(rundir) and not [name for name in namespaces() if name.startswith(stem)]


def scenario_the_demo_leaves_nothing_behind(lab):
    """Interrupted twice, or when its terminal ends: the demo removes all that it has made."""
    for how in ("twice", "terminal"):
        terminal = Terminal(["demo/demo.sh"], columns=100, rows=50, env={"HEDDLED": os.path.abspath(daemon_path())})
        lab.cleanups.append(terminal.close)
        pid = terminal.proc.pid
        lab.cleanups.append(lambda pid=pid: end_process(pid))
        own = lambda: {name for name in namespaces() if name.startswith(f"heddle-{pid}-")}
        rundir = lambda: [d for d in glob.glob("/tmp/heddle-demo-*") if os.path.exists(f"{d}/stop")
                          and f"heddle-{pid}-" in open(f"{d}/stop").read()]
        wait_for("the demo's namespaces and bridges", lambda: terminal.read(0.1) and len(own()) >= 4)
        assert rundir()
        if how == "twice":
            terminal.press("\x03")
            end = time.monotonic() + 60
            while "Removing" not in terminal.read(0.05).text() and time.monotonic() < end:
                pass
            terminal.press("\x03")
            wait_for("the demo's end", lambda: terminal.read(0.1) and terminal.proc.poll() is not None)
            assert terminal.proc.returncode == 130, terminal.proc.returncode
            assert "has been removed" in terminal.text(), terminal.text()
        else:
            # The kernel hangs up when the last holder of the other end is gone.
            os.close(terminal.slave)
            os.close(terminal.master)
            terminal.master = terminal.slave = None
            wait_for("the demo's end", lambda: terminal.proc.poll() is not None)
        assert not own() and not rundir(), (how, own(), rundir())


if __name__ == "__main__":
    main()
