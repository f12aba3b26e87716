#!/usr/bin/env python3
"""`heddle top` on terminals of several sizes, which change, while the switch goes and comes; and without a terminal."""

import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for
from lab.terminal import Terminal
from lab.vhost import heddle_path

UDP = "50540000000a50540000000908004500" + "00" * 40
SCREEN, CURSOR = 1049, 25


def switch(lab, ports=1, queues=1):
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", "--dummy-numa=0,0", netns=False)
    if sw.is_reference:
        raise Skip("the reference has no such command")
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure", "--", "set",
             "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x3")
    for i in range(ports):
        sw.vsctl("add-port", "br0", f"p{i}", "--", "set", "interface", f"p{i}", "type=dummy-pmd", f"options:n_rxq={queues}")
    sw.ofctl("add-flow", "br0", "actions=drop")
    return sw


def top(lab, sw, *args, **kw):
    terminal = Terminal([heddle_path(), "top", "--target", sw.ctl, "--interval", "0.2", *args], **kw)
    lab.cleanups.append(terminal.close)
    return terminal


def sound(terminal):
    assert not terminal.faults, terminal.faults[:3]
    assert terminal.proc.poll() is None


def scenario_fits_every_size(lab):
    sw = switch(lab, ports=64)
    sw.appctl("netdev-dummy/receive", "p0", UDP)
    terminal = top(lab, sw)
    text = terminal.wait("drop_action")
    assert text.startswith("heddle top: 2 workers, 66 receive queues"), text
    assert "BUSY%" in text and "miss%" in text and "lookup" in text and "cycles per packet" in text, text
    sound(terminal)
    for columns, rows in ((40, 10), (200, 60), (80, 24), (10, 3), (1, 1), (300, 200)):
        terminal.resize(columns, rows)
        terminal.wait(lambda text: rows < 3 or f"{'heddle top: 2 workers'[:columns]}" in text)
        terminal.read(0.5)
        sound(terminal)
    # All of it has room now, stages beside levels.
    terminal.wait(lambda text: "lines " not in text and "cycles per packet" not in text and "\np63 " in text
                  and "miss%" in terminal.lines[1] and "tx" in terminal.lines[1])
    sound(terminal)


def scenario_keys(lab):
    sw = switch(lab, ports=64)
    terminal = top(lab, sw, columns=40, rows=10)
    terminal.wait("lines 1-8 of ")
    terminal.press("\x1b[B")
    terminal.wait("lines 2-9 of ")
    terminal.press("\x1b[F")
    terminal.wait("p63 ")
    terminal.press("\x1b[B\x1b[B\x1b[6~")
    terminal.read(0.4)
    assert "p63 " in terminal.text()
    terminal.press("g")
    terminal.wait("lines 1-8 of ")
    terminal.press("\x1b[C" * 3)
    terminal.wait("L0%")
    terminal.press("\x1b[D" * 9)
    terminal.wait("WORKER NUMA")
    # Half the interval; and rubbish, which does nothing.
    terminal.resize(80, 24)
    terminal.press("\x1b[15~\x1b[1;5Az\x7f\t-")
    terminal.wait("every 0.4 s")
    terminal.press("++")
    terminal.wait("every 0.1 s")
    frames = terminal.frames
    wait_for("more frames", lambda: terminal.read(0.1).frames - frames >= 5)
    sound(terminal)
    assert {SCREEN} <= terminal.modes and CURSOR not in terminal.modes and not terminal.put_back()
    terminal.press("q")
    assert terminal.end() == 0
    assert SCREEN not in terminal.modes and CURSOR in terminal.modes and terminal.put_back()


def scenario_signals_put_the_terminal_back(lab):
    sw = switch(lab)
    for how in ("\x03", signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        terminal = top(lab, sw)
        terminal.wait("BUSY%")
        if isinstance(how, str):
            terminal.press(how)
        else:
            terminal.proc.send_signal(how)
        assert terminal.end() == 0, how
        assert SCREEN not in terminal.modes and terminal.put_back(), how
    terminal = top(lab, sw)
    terminal.wait("BUSY%")
    terminal.press("\x1a")
    state = f"/proc/{terminal.proc.pid}/stat"
    wait_for("it stops", lambda: open(state).read().rsplit(")", 1)[1].split()[0] == "T")
    terminal.read()
    assert SCREEN not in terminal.modes and terminal.put_back()
    frames = terminal.frames
    terminal.proc.send_signal(signal.SIGCONT)
    wait_for("it goes on", lambda: terminal.read(0.1).frames > frames + 2)
    assert SCREEN in terminal.modes and not terminal.put_back()
    sound(terminal)


def scenario_a_switch_that_goes_and_comes(lab):
    sw = switch(lab)
    terminal = Terminal([heddle_path(), "top", "--interval", "0.2"], env={"OVS_RUNDIR": sw.dir})
    lab.cleanups.append(terminal.close)
    # The usual place of the socket is found by the pid file.
    os.symlink(sw.ctl, f"{sw.dir}/ovs-vswitchd.{sw.pid}.ctl")
    terminal.wait("BUSY%")
    os.unlink(f"{sw.dir}/ovs-vswitchd.{sw.pid}.ctl")
    sw.stop_daemon(signal.SIGKILL)
    terminal.wait("waiting for the switch")
    sound(terminal)
    sw.start_daemon()
    os.symlink(sw.ctl, f"{sw.dir}/ovs-vswitchd.{sw.pid}.ctl")
    terminal.wait("BUSY%")
    # A switch that does not reply must not block the keys.
    os.kill(sw.pid, signal.SIGSTOP)
    try:
        terminal.read(0.7)
        terminal.resize(100, 20)
        terminal.wait("heddle top")
        # `heddle top` waits five seconds for a reply. If keys waited for that, these would take a minute.
        began = time.monotonic()
        for _ in range(6):
            terminal.press("-")
            terminal.wait("every 0.4 s")
            terminal.press("+")
            terminal.wait("every 0.2 s")
        terminal.press("q")
        assert terminal.end() == 0 and time.monotonic() - began < 30
    finally:
        os.kill(sw.pid, signal.SIGCONT)


def scenario_names(lab):
    """Wide letters, long names, and characters that would command the terminal."""
    sw = switch(lab)
    for name in ("端口端口端口端口端口", "vhu" + "0123456789" * 5, "evil\\033[2Jx"):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dummy-pmd", check=False)
    terminal = top(lab, sw)
    terminal.wait("端口端口端口端口端口")
    terminal.wait("vhu0123456789")
    for columns in (80, 47, 46, 45, 12):
        terminal.resize(columns, 40)
        terminal.read(0.5)
        sound(terminal)
    terminal.resize(80, 40)
    terminal.wait("vhu0123456789")
    columns = {line.split()[-2]: line for line in terminal.lines if line.startswith(("端", "vhu", "p0"))}
    assert columns, terminal.text()


def scenario_explains_itself(lab):
    """`?` explains each column; drops by rules are no loss; ports have rates, drops by name, and bars."""
    sw = switch(lab)
    terminal = top(lab, sw, columns=140, rows=50)
    terminal.wait("BUSY%")
    terminal.press("?")
    terminal.wait("64 KiB is one packet: many cycles for a packet, few for a byte")
    sound(terminal)
    terminal.press("?")
    terminal.wait("OUT kpps")

    def seen(text):
        sw.appctl("netdev-dummy/receive", "p0", UDP)
        row = next((line for line in text.split("\n") if line.startswith("p0 ")), "")
        return "drop_action_of_pipeline" in row and "\u2588" in row
    text = terminal.wait(seen)
    sound(terminal)
    lost = next(line for line in text.split("\n") if line.startswith("LOST"))
    assert lost.split() == ["LOST", "nothing"], text
    assert "DROPPED by rules" in text and "-0.0" not in text, text


def scenario_for_scripts(lab):
    sw = switch(lab)
    sw.appctl("netdev-dummy/receive", "p0", UDP)
    argv = [heddle_path(), "top", "--target", sw.ctl, "--once", "--json", "--interval", "0.5"]
    once = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    lab.cleanups.append(once.kill)
    while once.poll() is None:
        sw.appctl("netdev-dummy/receive", "p0", UDP)
        time.sleep(0.05)
    frame = json.loads(once.stdout.read())
    # Plain text fits a width that is given.
    argv = [heddle_path(), "top", "--target", sw.ctl, "--once", "--interval", "0.2"]
    for columns in ("94", "200"):
        text = lab.trace.run("env", f"COLUMNS={columns}", *argv)
        widest = max(map(len, text.splitlines()))
        assert widest <= int(columns) and (widest > 100) == (columns == "200"), text
    ports = {p["port"]: p for p in frame["ports"]}
    assert set(ports) >= {"p0", "br0"} and len(frame["workers"]) == 2 and len(frame["queues"]) == 3, frame
    packets = ports["p0"]["rx_packets_per_second"]
    assert packets > 0 and abs(ports["p0"]["rx_bits_per_second"] / packets / 8 - len(UDP) / 2) < 0.01, ports
    assert ports["p0"]["drops_per_second"]["drop_action_of_pipeline"] > 0 == ports["br0"]["rx_packets_per_second"], ports
    busy = [w for w in frame["workers"] if w["packets_per_second"] > 0]
    assert len(busy) == 1 and busy[0]["bytes_per_packet"] == len(UDP) / 2 and busy[0]["cycles_per_packet"] > 0, frame
    assert frame["dropped"]["drop_action_of_pipeline"]["all"] > 1 and frame["lost"] == {}, frame


def scenario_without_a_terminal(lab):
    sw = switch(lab)
    argv = [heddle_path(), "top", "--target", sw.ctl, "--interval", "0.1"]
    proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lab.cleanups.append(proc.kill)
    lines = [proc.stdout.readline() for _ in range(60)]
    assert sum("heddle top: 2 workers" in line for line in lines) >= 3, lines
    assert not any("\x1b" in line for line in lines), lines
    proc.stdout.close()
    assert proc.wait(60) == 0, "the reader has enough"
    assert proc.stderr.read() == ""
    terminal = top(lab, sw, stdin=False)
    terminal.wait("BUSY%")
    terminal.proc.send_signal(signal.SIGTERM)
    assert terminal.end() == 0 and SCREEN not in terminal.modes
    terminal = top(lab, sw, env={"TERM": "dumb"})
    terminal.read(1)
    assert not terminal.modes and terminal.frames == 0
    once = subprocess.run([*argv[:3], "/no/such/socket", "--once"], capture_output=True, text=True, timeout=60, check=False)
    assert once.returncode == 1 and "/no/such/socket" in once.stderr, once


if __name__ == "__main__":
    main()
