"""Open vSwitch's own test suite: unpacking it, and what is in it.

The suite comes from Debian's package openvswitch-source. The installed one is unpacked and configured. One of
a later version is also built, because its tests want clients of their own version. Both are below
target/conformance/, so nothing of them ever becomes part of this repository.
"""

import os
import re
import shutil
import subprocess
import tarfile

PACKAGE = "openvswitch-source"
TARBALL = "/usr/src/openvswitch/openvswitch.tar.gz"
# Later versions of the suite, and Debian's suite of packages that has each.
LATER = {"4.0": "sid"}
BUILD_LIMIT_S = 3600
# The daemon's clients and the database, never of this project.
TOOLS = ("ovsdb-server", "ovsdb-tool", "ovsdb-client", "ovs-vsctl", "ovs-ofctl", "ovs-appctl", "ovs-dpctl", "ovs-pcap",
         "ovs-tcpundump", "ovs-parse-backtrace", "ovs-pki", "ovs-testcontroller", "vtep-ctl")
# Shell completions, from the suite's own tree: the tests do not look where Debian installs them.
COMPLETIONS = ("ovs-appctl-bashcomp.bash", "ovs-vsctl-bashcomp.bash")
# Commands that start the switch daemon in a test's script.
STARTS_DAEMON = re.compile(r"\bovs-vswitchd --|\bovs-vswitchd  --detach|start_daemon ovs-vswitchd|\bsim_add\b")
# Programs that exist only in a built source tree.
HELPER = re.compile(r"\bovstest\b|\btest-ofparse\b|\bovs-testcontroller\b")


# Debian's packages of Python programs are this one's.
PYTHON = "/usr/bin/python3"


class Unavailable(Exception):
    """The suite cannot be had on this machine; the text is the remedy."""


def numbers(text):
    """The set that `3,5-7` names."""
    found = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


class Test:
    """One test of the suite. `key` (file and title) stays the same when numbers move."""

    def __init__(self, number, file, line, title, body):
        self.number, self.file, self.line, self.title = number, file, line, title
        self.starts_daemon = bool(STARTS_DAEMON.search(body))
        self.helper = match.group(0) if (match := HELPER.search(body)) else None
        self.key = (file, title)


class Suite:
    """An unpacked, configured source tree, and one of the suites in it."""

    def __init__(self, directory, name="testsuite", package="openvswitch"):
        self.directory = directory
        self.script = os.path.join(directory, "tests", name)
        with open(self.script, errors="replace") as file:
            text = file.read()
        self.version = re.search(rf"\b{package} ([0-9.]+)\b", text).group(1)
        self.tests = list(self._tests(text))

    @staticmethod
    def _tests(text):
        bodies = {number: body for number, body in
                  re.findall(r"^#AT_START_(\d+)$(.*?)^#AT_STOP_\1$", text, re.S | re.M)}
        seen = {}
        for row in re.search(r'^at_help_all="(.*?)"$', text, re.S | re.M).group(1).splitlines():
            number, place, title = row.split(";")[:3]
            file, line = place.rsplit(":", 1)
            test = Test(int(number), file, int(line), title, bodies.get(number, ""))
            # Two tests of one file may share a title: count from the second on.
            seen[test.key] = seen.get(test.key, 0) + 1
            if seen[test.key] > 1:
                test.key = (file, f"{title} [{seen[test.key]}]")
            yield test


def call(words, directory, what, limit=600):
    """Runs a command in a source tree; Unavailable if it fails."""
    done = subprocess.run(words, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit)
    if done.returncode:
        raise Unavailable(f"{what} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def prepare_later(root, version, name="testsuite", build=True):
    """The suite of a later version, fetched if it is not there yet, and built with its own clients unless build=False."""
    home = os.path.join(root, "target", "conformance", f"later-{version}")
    tree = os.path.join(home, "usr", "src", PACKAGE.removesuffix("-source"))
    if not build and not os.path.exists(os.path.join(tree, ".built")):
        if not os.path.exists(os.path.join(tree, "tests", "atlocal")):
            print(f"fetching and configuring the suite of Open vSwitch {version} ...", flush=True)
            call([os.path.join(root, "scripts", "fetch-debs"), "--alone", LATER[version], home, PACKAGE], root, "fetching")
            call(["./configure", "--disable-ssl", f"PYTHON3={PYTHON}"], tree, "configuring the suite")
    elif not os.path.exists(os.path.join(tree, ".built")):
        print(f"fetching and building Open vSwitch {version} for its suite and clients (5 to 15 minutes) ...", flush=True)
        call([os.path.join(root, "scripts", "fetch-debs"), "--alone", LATER[version], home, PACKAGE], root, "fetching")
        call(["./configure", "--disable-ssl", f"PYTHON3={PYTHON}"], tree, "configuring the suite")
        call(["make", f"-j{os.cpu_count() or 1}"], tree, "building the suite", BUILD_LIMIT_S)
        with open(os.path.join(tree, ".built"), "w"):
            pass
    suite = Suite(tree, name)
    if not suite.version.startswith(f"{version}."):
        raise Unavailable(f"Debian's {LATER[version]} has version {suite.version} of {PACKAGE} by now")
    return suite


def prepare(root, name="testsuite"):
    """The suite of this name, unpacked and configured if it is not there yet."""
    if not os.path.exists(TARBALL):
        raise Unavailable(f"{TARBALL} is missing: apt-get install {PACKAGE}")
    home = os.path.join(root, "target", "conformance")
    stamp = str(int(os.stat(TARBALL).st_mtime))
    directory = os.path.join(home, f"suite-{stamp}")
    if not os.path.exists(os.path.join(directory, "tests", "atlocal")):
        print("unpacking and configuring the suite ...", flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        raw = directory + ".raw"
        shutil.rmtree(raw, ignore_errors=True)
        os.makedirs(raw)
        with tarfile.open(TARBALL) as tar:
            tar.extractall(raw)
        os.rename(os.path.join(raw, os.listdir(raw)[0]), directory)
        os.rmdir(raw)
        call(["./configure", "--disable-ssl"], directory, "configuring the suite")
    return Suite(directory, name)


def tool_path(directory, daemon, suite, built):
    """Fills `directory` with links to the tools and, as ovs-vswitchd, to the daemon under test.

    The tools are those that were `built` with the suite, or Debian's.
    """
    os.makedirs(directory)
    os.symlink(os.path.abspath(daemon), os.path.join(directory, "ovs-vswitchd"))
    where = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if built:
        where = ":".join(os.path.join(suite.directory, part) for part in ("utilities", "ovsdb", "vtep"))
    for tool in TOOLS:
        if found := shutil.which(tool, path=where):
            os.symlink(found, os.path.join(directory, tool))
    for script in COMPLETIONS:
        os.symlink(os.path.join(suite.directory, "utilities", script), os.path.join(directory, script))
    for needed in ("ovsdb-server", "ovs-vsctl", "ovs-ofctl", "ovs-appctl"):
        if not os.path.exists(os.path.join(directory, needed)):
            raise Unavailable(f"{needed} is missing: run scripts/setup")
    return directory
