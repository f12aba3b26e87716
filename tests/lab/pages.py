"""Tests a page of the documentation: runs its commands unchanged, in their order, on a machine of their own.

The first line of a fenced block gives its kind:

    ```sh                    commands, which are run
    ```sh needs: PROGRAM     the same, where that program is installed
    ```sh not-run: WHY       commands that cannot be run here
    ```output                what the command before printed: each line is there, in this order
    ```json  ```text  ...    something else

In an output `...` stands for anything, and a number that is a word by itself for any number. A command whose comment says
"until Ctrl-C" is interrupted after two seconds, as its reader would. What a page has lived through is kept for the next
command: variables, directories, and what runs in the background.
"""

import os
import re
import select
import shutil
import subprocess
import tempfile
import time

from . import ROOT, daemon_path
from .shell import PATIENCE, CommandError

FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.:/=,+-])\d+(?:\.\d+)?(?![\w:/=]|\.\d)")
# The page's commands run in it, with the default directories of programs. Files written there are in memory,
# and end with it.
MACHINE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs none /run
mkdir -p /run/page /run/netns /run/openvswitch /run/lock /run/top
mount --bind "$1" /run/page
for program in "$2"/heddled "$2"/heddle "$2"/heddle-cni; do
    [ ! -x "$program" ] || { touch "/run/page/target/release/${program##*/}"; mount --bind "$program" "/run/page/target/release/${program##*/}"; }
done
for tree in etc opt usr var; do
    mkdir -p /run/top/$tree/up /run/top/$tree/work
    mount -t overlay overlay -o lowerdir=/$tree,upperdir=/run/top/$tree/up,workdir=/run/top/$tree/work /$tree
done
mount -t tmpfs none /tmp
mount -t sysfs none /sys
rm -rf /etc/openvswitch /var/lib/openvswitch /var/log/openvswitch && mkdir -p /etc/openvswitch /var/log/openvswitch
ip link set lo up
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
export PATH=/run/page/target/release:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/page LC_ALL=C
unset OVS_RUNDIR OVS_LOGDIR OVS_DBDIR OVS_SYSCONFDIR OVS_PKGDATADIR
cd /run/page
set +e
"""


class Block:
    """One fenced block. number: of its first line in the page."""

    def __init__(self, number, info, text):
        self.number, self.text = number, text
        self.kind, _, rest = info.strip().partition(" ")
        self.mark, _, self.why = (part.strip() for part in rest.partition(":"))


def blocks(page):
    """The fenced blocks of a page, by its path below the project."""
    with open(os.path.join(ROOT, page)) as file:
        text = file.read()
    return [Block(text[:m.start()].count("\n") + 1, m[1], m[2]) for m in FENCE.finditer(text)]


def commands(text):
    """A block's commands: lines, joined where the shell would read on."""
    parts = []
    for line in text.splitlines():
        parts.append(line)
        whole = "\n".join(parts)
        read = subprocess.run(["bash", "-n"], input=whole + "\n", text=True, capture_output=True, check=False)
        if read.returncode == 0 and "here-document" not in read.stderr and not whole.endswith("\\"):
            if whole.strip() and not whole.lstrip().startswith("#"):
                yield whole
            parts = []
    if parts:
        raise AssertionError(f"no command: {parts}")


def line_pattern(shown):
    """The pattern of a line of an output block."""
    def plain(text):
        return r"\s+".join(map(re.escape, re.split(r"\s+", text)))

    def numbers(text):
        found, at = "", 0
        for number in NUMBER.finditer(text):
            found += plain(text[at:number.start()]) + r"\d+(?:\.\d+)?"
            at = number.end()
        return found + plain(text[at:])
    return re.compile(".*".join(map(numbers, shown.strip().split("..."))))


def missing(shown, real):
    """The first line of an output block that is missing in the real output, or not after the line before.
    If all lines are there, returns None."""
    rest = iter(real.splitlines())
    for line in filter(str.strip, shown.splitlines()):
        pattern = line_pattern(line)
        if not any(pattern.fullmatch(have.strip()) for have in rest):
            return line
    return None


class Machine:
    """A shell with namespaces, directories and processes of its own, which end with it."""

    def __init__(self, lab):
        self.trace = lab.trace
        self.dir = tempfile.mkdtemp(prefix="heddle-page-")
        os.makedirs(f"{self.dir}/target/release")
        lab.cleanups.append(self.close)
        self.shell = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "--norc", "-s"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/")
        self.send(f"set -- {self.dir} {os.path.dirname(daemon_path())}\n{MACHINE}\necho =$?\n")
        self.status("making a machine", PATIENCE)

    def pid(self):
        """The shell's process id, as seen from outside."""
        with open(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children") as file:
            return int(file.read().split()[0])

    def send(self, text):
        self.shell.stdin.write(text.encode())
        self.shell.stdin.flush()

    def status(self, what, timeout):
        """Waits for the line that ends a command."""
        end, said = time.monotonic() + timeout, b""
        while not re.search(rb"^=(\d+)\n", said, re.MULTILINE):
            ready, _, _ = select.select([self.shell.stdout], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self.shell.stdout.fileno(), 65536) if ready else b""
            if not piece:
                why = "the shell ended" if ready else f"no end after {timeout} s"
                raise CommandError(f"{why}: {what}\n{said.decode(errors='replace')}{self.said()}")
            said += piece
        return int(re.search(rb"^=(\d+)\n", said, re.MULTILINE)[1])

    def said(self):
        try:
            with open(f"{self.dir}/.out", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def run(self, text, check=True, timeout=PATIENCE):
        """Runs commands in the shell; returns their output."""
        with open(f"{self.dir}/.command", "w") as file:
            file.write(text + "\n")
        self.send(". /run/page/.command >/run/page/.out 2>&1 </dev/null; echo =$?\n")
        status = self.status(text, timeout)
        out = self.said()
        self.trace.note(f"$ {text.strip()}   [{status}]\n{out[:4000]}".rstrip())
        if check and status:
            raise CommandError(f"status {status}: {text.strip()}\n{out}")
        return out

    def wait(self, text, timeout=PATIENCE):
        """Runs a command until it succeeds; returns its last output."""
        end = time.monotonic() + timeout
        while True:
            try:
                return self.run(text)
            except CommandError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def close(self):
        self.shell.kill()
        self.shell.wait()
        self.shell.stdin.close()
        self.shell.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)


def follow(machine, page, after=None, change=str):
    """Runs the commands of a page.

    `after` maps a text of a command to a function, which gets the output of the first such command. `change`
    replaces each command before it is run, as a reader would on another node.
    """
    after = dict(after or {})
    ran, left, out = 0, [], None
    for block in blocks(page):
        where = f"{page}, line {block.number}"
        assert block.kind, f"{where}: what the block is, its first line has to say (sh, output, text, json)"
        if block.kind == "output":
            assert out is not None, f"{where}: the output of what?"
            lost = missing(block.text, out)
            assert lost is None, f"{where}: the page shows {lost!r}, and printed was\n{out}"
            continue
        if block.kind != "sh":
            continue
        assert block.mark in ("", "needs", "not-run"), f"{where}: {block.mark}?"
        out = None
        if block.mark == "not-run" or block.mark == "needs" and not shutil.which(block.why):
            left.append(f"line {block.number}, {block.mark} {block.why}")
            continue
        for command in commands(block.text):
            text = change(command)
            if re.search(r"#.*until Ctrl-C", text):
                text = f"timeout --preserve-status -s INT -k 10 2 {text}\ncase $? in 0|130) ;; *) false ;; esac"
            try:
                out = machine.run(text, timeout=100)
            except CommandError as why:
                raise AssertionError(f"{where}: {why}") from None
            ran += 1
            for part in [part for part in after if part in command]:
                after.pop(part)(out)
    assert not after, f"{page} has no command {' or '.join(after)}"
    assert ran, f"{page}: nothing was run"
    print(f"     {page}: {ran} commands run" + (f"; blocks left out: {'; '.join(left)}" if left else ""), flush=True)
