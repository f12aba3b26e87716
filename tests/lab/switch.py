"""One ovsdb-server and one daemon in a private run directory."""

import os
import shutil
import signal
import socket
import tempfile
import time

from . import daemon_path
from .shell import PATIENCE, Trace, wait_for
from .unixctl import Unixctl

# Options of Open vSwitch's own programs. On a machine that stands still these modules would log in the middle
# of the output.
CLIENT = ("--timeout=50", "-vtimeval:off", "-vcoverage:off", "-vpoll_loop:off")
SCHEMA = os.environ.get("OVS_PKGDATADIR", "/usr/share/openvswitch") + "/vswitch.ovsschema"


class Switch:
    """Start, stop, kill and question one switch.

    netns: name of the namespace in which the daemon (not ovsdb-server) runs.
    """

    def __init__(self, trace=None, binary=None, netns=None, args=(), prefix="heddle"):
        self.trace = trace or Trace()
        self.binary = binary or daemon_path()
        self.netns = netns
        self.args = list(args)
        # Words before the daemon's command line, such as prlimit's.
        self.before = []
        self.dir = tempfile.mkdtemp(prefix=f"{prefix}-")
        os.chmod(self.dir, 0o755)
        self.db = f"unix:{self.dir}/db.sock"
        self.ctl = f"{self.dir}/ovs-vswitchd.ctl"
        self.pidfile = f"{self.dir}/ovs-vswitchd.pid"
        self.logfile = f"{self.dir}/ovs-vswitchd.log"
        self.schema = SCHEMA
        self.env = {"OVS_RUNDIR": self.dir, "OVS_LOGDIR": self.dir, "OVS_DBDIR": self.dir,
                    "OVS_SYSCONFDIR": self.dir}
        self.pid = None
        self.stderr = ""

    # -- processes ---------------------------------------------------------

    @property
    def is_reference(self):
        """True when the real ovs-vswitchd is being run."""
        return os.path.basename(os.path.realpath(self.binary)).startswith("ovs-vswitchd")

    def start(self, *args):
        self.start_ovsdb()
        self.start_daemon(*args)
        return self

    def start_ovsdb(self):
        conf = f"{self.dir}/conf.db"
        if not os.path.exists(conf):
            self.run("ovsdb-tool", "create", conf, self.schema)
            fresh = True
        else:
            fresh = False
        self.run("ovsdb-server", conf, f"--remote=punix:{self.dir}/db.sock", "--detach", "--no-chdir",
                 f"--pidfile={self.dir}/ovsdb-server.pid", f"--unixctl={self.dir}/ovsdb-server.ctl",
                 f"--log-file={self.dir}/ovsdb-server.log", "-vconsole:off")
        if fresh:
            self.run("ovs-vsctl", f"--db={self.db}", *CLIENT, "--no-wait", "init")

    def stop_ovsdb(self):
        pid = read_pid(f"{self.dir}/ovsdb-server.pid")
        if pid:
            end_process(pid)
            for name in ("ovsdb-server.pid", "ovsdb-server.ctl", "db.sock"):
                remove(f"{self.dir}/{name}")

    def command(self, *args):
        """The daemon's command line, without --detach."""
        prefix = ["ip", "netns", "exec", self.netns] if self.netns else []
        return prefix + self.before + [self.binary, self.db, f"--pidfile={self.pidfile}", f"--unixctl={self.ctl}",
                         f"--log-file={self.logfile}", "--no-chdir", "-vconsole:warn", *self.args, *args]

    def start_daemon(self, *args, timeout=PATIENCE):
        self.stderr = self.run(*self.command("--detach", *args), timeout=timeout)
        self.pid = wait_for("the daemon's pid file", lambda: read_pid(self.pidfile))
        self.wait_control()

    def wait_control(self):
        """Waits until the daemon listens at the control socket, whose file appears a moment before."""
        wait_for("the daemon's control socket", lambda: listens(self.ctl))

    def stop_daemon(self, sig=signal.SIGTERM, timeout=PATIENCE):
        """Ends the daemon and waits for it."""
        pid = self.pid or read_pid(self.pidfile)
        self.pid = None
        if pid:
            end_process(pid, sig, timeout)
        # A killed daemon leaves these behind; the next one must cope, but not wait on them.
        if sig == signal.SIGKILL:
            remove(self.pidfile)

    def alive(self):
        return self.pid is not None and process_alive(self.pid)

    def close(self, keep=None):
        """Ends everything; with keep, copies logs and the database there first."""
        try:
            if self.netns is None and self.alive():
                # No namespace takes the devices of internal ports along.
                self.appctl("exit", "--cleanup", check=False)
                wait_for("the daemon's end", lambda: not self.alive(), 20)
            self.stop_daemon(timeout=20)
        finally:
            self.stop_ovsdb()
            if keep:
                os.makedirs(keep, exist_ok=True)
                for name in os.listdir(self.dir):
                    if name.endswith((".log", ".db", ".pcap", ".txt")):
                        shutil.copy(f"{self.dir}/{name}", keep)
            shutil.rmtree(self.dir, ignore_errors=True)

    # -- clients -----------------------------------------------------------

    def run(self, *argv, **kw):
        kw["env"] = dict(self.env, **kw.get("env", {}))
        return self.trace.run(*argv, **kw)

    def vsctl(self, *args, **kw):
        return self.run("ovs-vsctl", f"--db={self.db}", *CLIENT, *args, **kw).strip()

    def ofctl(self, *args, **kw):
        return self.run("ovs-ofctl", *CLIENT, *args, **kw)

    def appctl(self, *args, **kw):
        return self.run("ovs-appctl", *CLIENT, "-t", self.ctl, *args, **kw)

    def unixctl(self):
        return Unixctl(self.ctl)

    def get(self, table, record, column):
        """A column's value, without the quotes that ovs-vsctl puts around strings."""
        return self.vsctl("get", table, record, column).strip('"')

    def wait_column(self, table, record, column, want, timeout=PATIENCE):
        """Waits until the column equals want (or want(value) is true)."""
        ok = want if callable(want) else lambda value: value == str(want)
        seen = []

        def probe():
            seen[:] = [self.get(table, record, column)]
            return ok(seen[0])
        try:
            wait_for("", probe, timeout, 0.1)
        except AssertionError:
            raise AssertionError(f"{table} {record} {column} is {seen[0]!r}") from None
        return seen[0]

    def flows(self, bridge, *args):
        """dump-flows without its header line and without durations."""
        out = self.ofctl("-O", "OpenFlow14", "dump-flows", "--no-stats" if "--no-stats" in args else "--rsort=priority", bridge,
                         *[a for a in args if a != "--no-stats"])
        return [line.strip() for line in out.splitlines()
                if line.strip() and "_FLOW reply" not in line and "NXST_" not in line and "OFPST_" not in line]

    def log(self):
        """The log so far. A thread of its own writes it, and no reply of the daemon overtakes that."""
        if self.alive() and os.path.exists(self.ctl):
            self.appctl("version", check=False, quiet=True)
        try:
            with open(self.logfile, errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""


def read_pid(path):
    try:
        with open(path) as file:
            return int(file.read().strip() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def process_alive(pid):
    """True while pid runs; a zombie has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end_process(pid, sig=signal.SIGTERM, timeout=PATIENCE):
    """Signals one process by its id, waits, and kills it if it does not end."""
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        return
    end = time.monotonic() + timeout
    while process_alive(pid):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} did not end within {timeout} s of signal {int(sig)}")
        time.sleep(0.02)


def listens(path):
    """Whether a process listens at a socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
            return True
        except OSError:
            return False


def remove(path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
