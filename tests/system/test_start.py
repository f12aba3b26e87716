#!/usr/bin/env python3
"""Starting, stopping and the command line of the daemon, as scripts of ovs-vswitchd use it."""

import datetime
import os
import pty
import resource
import signal
import socket
import stat
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for
from lab.switch import process_alive, read_pid


def bare(switch, *args, argv0=None):
    """A command line without the options that the lab usually adds."""
    return ["ip", "netns", "exec", switch.netns, argv0 or switch.binary, *args]


def scenario_detach_with_clean_stderr(lab):
    """--detach returns when the daemon is configured; a warning on stderr fails OVS's own tests."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    sw.start_daemon()
    noise = [line for line in sw.stderr.splitlines() if "|INFO|" not in line and line.strip()]
    assert not noise, noise
    assert os.path.exists(f"{sw.dir}/br0.mgmt"), "the bridge is not up when --detach returns"
    assert "|INFO|" in sw.log(), "the log file has no lines in the usual form"


def scenario_symlink_named_ovs_vswitchd(lab):
    """Default names: RUNDIR/ovs-vswitchd.pid, RUNDIR/ovs-vswitchd.PID.ctl, found by plain ovs-appctl."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    link = f"{sw.dir}/ovs-vswitchd"
    os.symlink(os.path.realpath(sw.binary), link)
    # No database argument: unix:RUNDIR/db.sock is the default.
    sw.run(*bare(sw, "--pidfile", "--detach", "--log-file", "--no-chdir", "--disable-system", "-vconsole:off",
                 argv0=link))
    sw.pid = wait_for("pid file", lambda: read_pid(sw.pidfile))
    assert os.path.exists(f"{sw.dir}/ovs-vswitchd.{sw.pid}.ctl")
    assert os.path.exists(f"{sw.dir}/ovs-vswitchd.log")
    assert sw.run("ovs-appctl", "version").strip()
    pid = sw.pid
    sw.run("ovs-appctl", "exit")
    wait_for("end after ovs-appctl exit", lambda: not process_alive(pid))
    sw.pid = None
    wait_for("removed pid file", lambda: not os.path.exists(sw.pidfile))


def scenario_ovs_ctl_locks_what_is_used(lab):
    """`ovs-ctl` starts the daemon with --mlockall: it is ready at once, and only used pages are locked."""
    script = "/usr/share/openvswitch/scripts/ovs-ctl"
    if not os.access(script, os.X_OK):
        raise Skip("no ovs-ctl on this machine")
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    path = f"{sw.dir}/bin"
    os.mkdir(path)
    os.symlink(os.path.realpath(sw.binary), f"{path}/ovs-vswitchd")
    os.symlink("/usr/bin/true", f"{path}/modprobe")
    # The script looks for the database server here.
    os.symlink("ovsdb-server.ctl", f"{sw.dir}/ovsdb-server.{read_pid(f'{sw.dir}/ovsdb-server.pid')}.ctl")
    sw.run("ip", "netns", "exec", sw.netns, script, "--no-ovsdb-server", "--no-monitor", "--no-record-hostname",
           "--system-id=random", "start", env={"PATH": f"{path}:{os.environ['PATH']}"})
    sw.pid = wait_for("pid file", lambda: read_pid(sw.pidfile))
    with open(f"/proc/{sw.pid}/cmdline") as file:
        assert "--mlockall" in file.read()
    log = sw.log()
    assert "mlockall failed" not in log, log
    stamps = [datetime.datetime.fromisoformat(line.split("|")[0][:-1]) for line in log.splitlines() if "|" in line]
    ready = [when for when, line in zip(stamps, log.splitlines()) if "(Open vSwitch)" in line]
    assert ready and (ready[0] - stamps[0]).total_seconds() < 0.5, log
    time.sleep(2)
    with open(f"/proc/{sw.pid}/smaps") as file:
        locked = sum(int(line.split()[1]) for line in file if line.startswith("Locked:"))
    assert 1000 < locked < 100_000, f"{locked} kB are locked"
    assert 1000 < status_kb(sw.pid, "VmLck") < 100_000, f"{status_kb(sw.pid, 'VmLck')} kB of address space are locked"
    # Memory that comes into use is locked soon: records of connections are in a table of gigabytes.
    sw.vsctl("add-port", "br0", "q0", "--", "set", "interface", "q0", "type=internal")
    sw.ofctl("add-flow", "br0", "ip,actions=ct(commit)")
    lab.net.ip(sw.netns, "link", "set", "q0", "up")
    lab.net.ip(sw.netns, "addr", "add", "10.9.0.1/24", "dev", "q0")
    lab.net.ip(sw.netns, "neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", "q0")
    lab.net.run(sw.netns, "ping", "-c", "1", "-W", "0.2", "10.9.0.2", check=False)
    wait_for("a connection", lambda: sw.run("ovs-appctl", "dpctl/ct-get-nconns").strip() == "1")
    wait_for("its record to be locked", lambda: connections_kb(sw.pid, "Locked") >= connections_kb(sw.pid, "Rss") > 0)


def status_kb(pid, key):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{key}:"))


def connections_kb(pid, key):
    """A value of smaps, of the mapping that has the records of connections."""
    total, within = 0, False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            if not line.split()[0].endswith(":"):
                within = "memfd:connections" in line
            elif within and line.startswith(f"{key}:"):
                total += int(line.split()[1])
    return total


def scenario_a_limit_of_locked_memory(lab):
    """If the limit would make the switch fail later, it locks nothing, logs an error and works."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.vsctl("--no-wait", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev")
    # If the test may not raise the limit, a lower one serves as well.
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    limit = 64 << 20 if hard == resource.RLIM_INFINITY else min(hard, 64 << 20)
    sw.before = ["prlimit", f"--memlock={limit}", "setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"]
    sw.start_daemon("--mlockall")
    log = sw.log()
    assert "|ERR|mlockall failed: " in log and "RLIMIT_MEMLOCK" in log, log
    sw.ofctl("add-flow", "br0", "ip,actions=ct(commit)")
    assert status_kb(sw.pid, "VmLck") == 0


def scenario_version_and_help(lab):
    sw = lab.switch(start=False)
    out = sw.run(sw.binary, "--version")
    assert any(char.isdigit() for char in out), out
    assert "--pidfile" in sw.run(sw.binary, "--help")
    sw.run(sw.binary, "--no-such-option", check=1)


def scenario_options_are_accepted(lab):
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.start_daemon("--monitor", "--disable-system-route", "--enable-dummy", "-vfile:info", "-vconsole:off",
                    "-v", "--dummy-numa=0,0,1,1", "--overwrite-pidfile")
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    sw.appctl("exit", "--cleanup")
    pid, sw.pid = sw.pid, None
    wait_for("end", lambda: not process_alive(pid))


def scenario_monitor_restarts_a_crashed_daemon(lab):
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.start_daemon("--monitor")
    lab.bridge(sw)
    first = sw.pid
    os.kill(first, signal.SIGSEGV)
    # Started again with its state from the database; the pid file names the new child.
    sw.pid = wait_for("another process", lambda: read_pid(sw.pidfile) not in (0, first) and read_pid(sw.pidfile))
    wait_for("the bridge again", lambda: "br0" in sw.appctl("ofproto/list", check=False))
    sw.appctl("exit")
    pid, sw.pid = sw.pid, None
    wait_for("end", lambda: not process_alive(pid))


def scenario_sigterm_ends_it(lab):
    """Foreground, then SIGTERM: it ends at once and removes what it made in the run directory."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    child = subprocess.Popen(sw.command(), env=dict(os.environ, **sw.env), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lab.cleanups.append(lambda: child.poll() is None and child.kill())
    wait_for("pid file", lambda: read_pid(sw.pidfile))
    sw.wait_control()
    lab.bridge(sw)
    child.send_signal(signal.SIGTERM)
    child.wait(timeout=60)
    assert not os.path.exists(sw.pidfile), "pid file left behind"


def scenario_second_daemon_refuses_the_pidfile(lab):
    """A pid file that is locked by a running daemon stops the second one; the first continues."""
    sw = lab.switch()
    out = sw.run(*sw.command("--detach"), check=False)
    assert "already running" in out, out
    assert sw.alive()
    lab.bridge(sw)


def scenario_starts_before_the_database(lab):
    """Without a database it waits; when the database comes, it is served."""
    sw = lab.switch(start=False)
    child = subprocess.Popen(sw.command(), env=dict(os.environ, **sw.env), stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lab.cleanups.append(lambda: child.poll() is None and (child.terminate(), child.wait(60)))
    sw.wait_control()
    assert sw.appctl("version").strip()
    sw.start_ovsdb()
    lab.bridge(sw)
    assert "br0" in sw.appctl("ofproto/list")


def scenario_a_start_without_the_database_says_so(lab):
    """A start that waits prints the reason on a terminal."""
    sw = lab.switch(start=False)
    ours, terminal = pty.openpty()
    child = subprocess.Popen(bare(sw, f"unix:{sw.dir}/nowhere.sock", "--pidfile", "--detach", "--no-chdir"), env=dict(os.environ, **sw.env),
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    lab.cleanups.append(lambda: child.poll() is None and (child.terminate(), child.wait(60)))
    with open(ours, errors="replace") as screen:
        said = screen.readline()
    assert f"still waiting for the database at unix:{sw.dir}/nowhere.sock" in said, said
    os.kill(wait_for("the daemon", lambda: read_pid(f"{sw.dir}/ovs-vswitchd.pid")), signal.SIGTERM)
    child.wait(60)


def scenario_small_and_idle(lab):
    """At start under 64 MiB; with ports and no traffic hardly any processor time."""
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.veth_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    def ticks():
        with open(f"/proc/{sw.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    with open(f"/proc/{sw.pid}/status") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
    assert resident < 64, f"{resident:.1f} MiB resident"

    def idle():
        """Some time after its start, when statistics and probes are over."""
        before, began = ticks(), time.monotonic()
        time.sleep(3)
        share = (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
        lab.trace.note(f"{resident:.1f} MiB resident, {share:.1%} of a core when idle")
        return share < 0.10
    wait_for("a daemon that idles", idle)


def scenario_what_a_killed_daemon_left_is_removed(lab):
    """Control sockets of killed daemons by default names; those of live daemons, and other files, stay."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()

    def start():
        sw.run(*bare(sw, sw.db, "--pidfile", "--detach", "--log-file", "--no-chdir", "--disable-system", "-vconsole:off"))
        return wait_for("pid file", lambda: read_pid(sw.pidfile))
    control = lambda: sorted(name for name in os.listdir(sw.dir) if name.endswith(".ctl") and not name.startswith("ovsdb"))
    sw.pid = first = start()
    left = control()
    assert f"ovs-vswitchd.{first}.ctl" in left, left
    sw.run("sh", "-c", f"touch {sw.dir}/ovs-vswitchd.1.ctl {sw.dir}/other.{first}.ctl")
    os.kill(first, signal.SIGKILL)
    wait_for("its end", lambda: not process_alive(first))
    sw.pid = second = start()
    now = control()
    assert not set(left) & set(now), now
    assert {f"ovs-vswitchd.{second}.ctl", "ovs-vswitchd.1.ctl", f"other.{first}.ctl"} <= set(now), now
    assert sw.run("ovs-appctl", "version").strip()
    # A second daemon that gives up takes nothing from the first.
    sw.run(*bare(sw, sw.db, "--pidfile", "--detach", "--no-chdir", "--disable-system", "-vconsole:off"), check=1)
    assert control() == now and sw.run("ovs-appctl", "version").strip()


def scenario_sockets_of_ports_that_went_meanwhile(lab):
    """A killed daemon's sockets of removed bridges and ports are deleted; other programs' sockets stay."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.bridge(sw, "br1")
    for name in ("guest", "stays"):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dpdkvhostuser")
        wait_for("the port's socket", lambda n=name: os.path.exists(f"{sw.dir}/{n}"))
    foreign = socket.socket(socket.AF_UNIX)
    foreign.bind(f"{sw.dir}/foreign")
    foreign.close()
    sw.stop_daemon(signal.SIGKILL)
    sw.vsctl("--no-wait", "del-port", "guest", "--", "del-br", "br1")
    assert all(os.path.exists(f"{sw.dir}/{name}") for name in ("guest", "br1.mgmt"))
    sw.start_daemon()
    wait_for("the port's socket again", lambda: os.path.exists(f"{sw.dir}/stays"))
    left = [name for name in ("guest", "br1.mgmt") if os.path.exists(f"{sw.dir}/{name}")]
    assert not left and os.path.exists(f"{sw.dir}/foreign"), left


def scenario_files_of_others(lab):
    """No mask makes a socket that all may use; planted links, FIFOs and long values do no harm."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.before = ["sh", "-c", 'umask 0; exec "$@"', "sh"]
    os.symlink(f"{sw.dir}/precious", f"{sw.dir}/heddled.id")
    sw.start_daemon()
    lab.bridge(sw)
    sw.vsctl("add-port", "br0", "i0", "--", "set", "interface", "i0", "type=internal",
             "--", "add-port", "br0", "guest", "--", "set", "interface", "guest", "type=dpdkvhostuser",
             "--", "set-controller", "br0", "punix:br0.passive")
    wait_for("the sockets", lambda: all(os.path.exists(f"{sw.dir}/{name}") for name in ("br0.mgmt", "br0.passive", "guest")))
    for name in os.listdir(sw.dir):
        meta = os.lstat(f"{sw.dir}/{name}")
        if stat.S_ISSOCK(meta.st_mode) and name not in ("db.sock", "ovsdb-server.ctl"):
            assert not meta.st_mode & 0o002, (name, oct(meta.st_mode))
    assert not os.path.exists(f"{sw.dir}/precious"), "a symlink was followed"
    # A log that another user leads elsewhere.
    os.symlink(f"{sw.dir}/elsewhere", f"{sw.dir}/planted.log")
    os.lchown(f"{sw.dir}/planted.log", 65534, 65534)
    said = sw.appctl("vlog/set-log-file", f"{sw.dir}/planted.log", check=False) if "set-log-file" in sw.appctl("list-commands") else None
    assert not os.path.exists(f"{sw.dir}/elsewhere"), said
    # The log became a FIFO that no process reads.
    os.rename(sw.logfile, f"{sw.logfile}.1")
    os.mkfifo(sw.logfile)
    sw.appctl("vlog/reopen", check=False)
    assert sw.appctl("version")
    os.unlink(sw.logfile)
    sw.appctl("vlog/reopen")
    # Megabytes of the database are not written whole.
    sw.vsctl("--no-wait", "add-port", "br0", "odd", "--", "set", "interface", "odd", "type=" + "x" * 100_000)
    sw.vsctl("set", "bridge", "br0", "other_config:x=1")
    assert max(len(line) for line in sw.log().splitlines()) < 20_000, "a long value is in the log"


def scenario_pidfile_elsewhere(lab):
    """`ovs-appctl -t heddled` finds the daemon wherever its pid file is."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    sw.run(*bare(sw, sw.db, f"--pidfile={sw.dir}/elsewhere.pid", "--detach", "--log-file", "--no-chdir", "--disable-system", "-vconsole:off"))
    sw.pid = wait_for("pid file", lambda: read_pid(f"{sw.dir}/elsewhere.pid"))
    assert sw.run("ovs-appctl", "-t", "heddled", "version").strip()
    pid = sw.pid
    sw.run("ovs-appctl", "-t", "heddled", "exit")
    wait_for("the end", lambda: not process_alive(pid))
    sw.pid = None
    assert not os.path.islink(f"{sw.dir}/heddled.pid")


def scenario_lasting_faults_are_told_once(lab):
    """A warning about a row comes with the fault, not with every later change."""
    sw = lab.switch()
    lab.bridge(sw)
    sw.vsctl("--no-wait", "add-port", "br0", "missing")
    sw.wait_column("interface", "missing", "error", lambda text: "No such device" in text)
    for index in range(5):
        sw.vsctl("set", "bridge", "br0", f"other_config:x={index}")
    told = lambda: sw.log().count("WARN|could not open network device missing (No such device)")
    assert told() == 1, told()
    sw.vsctl("del-port", "missing")
    sw.vsctl("--no-wait", "add-port", "br0", "missing")
    wait_for("the second fault", lambda: told() == 2)


def scenario_unixctl_commands_answer(lab):
    sw = lab.switch()
    lab.bridge(sw)
    listed = sw.appctl("list-commands")
    wanted = """list-commands version exit vlog/list vlog/set vlog/reopen fdb/show fdb/flush fdb/add dpif/show
        dpif/dump-flows dpctl/dump-flows dpctl/show dpctl/dump-dps ofproto/list ofproto/trace coverage/show
        coverage/read-counter memory/show dpif-netdev/pmd-stats-show dpif-netdev/pmd-stats-clear
        dpif-netdev/pmd-rxq-show upcall/show revalidator/wait revalidator/purge dpif/show-dp-features""".split()
    missing = [name for name in wanted if f" {name} " not in listed + " " and f"  {name}" not in listed]
    assert not missing, f"list-commands lacks {missing}"
    for command in (["version"], ["vlog/list"], ["fdb/show", "br0"], ["fdb/flush", "br0"], ["dpif/show"],
                    ["dpif/dump-flows", "br0"], ["dpctl/dump-flows"], ["dpctl/show"], ["dpctl/dump-dps"],
                    ["ofproto/list"], ["ofproto/trace", "br0", "in_port=LOCAL"], ["coverage/show"],
                    ["memory/show"], ["dpif-netdev/pmd-stats-show"], ["dpif-netdev/pmd-rxq-show"],
                    ["upcall/show"], ["revalidator/wait"], ["revalidator/purge"],
                    ["vlog/set", "ofproto:file:dbg"], ["vlog/reopen"], ["dpif/show-dp-features", "br0"]):
        sw.appctl(*command)
    assert "is not a valid command" in sw.appctl("no/such-command", check=2)
    assert sw.appctl("fdb/show", "no-such-bridge", check=2).strip()
    assert sw.appctl("fdb/add", check=2).strip(), "a missing argument is an error"
    assert "Datapath actions:" in sw.appctl("ofproto/trace", "br0", "in_port=LOCAL")


if __name__ == "__main__":
    main()
