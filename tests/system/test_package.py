#!/usr/bin/env python3
"""`make install` and Debian's packages: built, looked at by lintian, installed, upgraded and removed in a throw-away root."""

import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import ROOT, daemon_path
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.vhost import heddle_path

ALTERNATIVE = "/usr/lib/heddle/ovs-vswitchd"


def run(*argv, check=True, timeout=300, **kw):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL, **kw)
    assert not check or done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout[-3000:]}"
    return done.stdout


def needs():
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")


def make(*args):
    return run("make", "--no-print-directory", "-C", ROOT, f"HEDDLED={os.path.abspath(daemon_path())}", f"HEDDLE={heddle_path()}", "BUILT=1", *args)


def scenario_installed_by_make(lab):
    needs()
    with tempfile.TemporaryDirectory() as root:
        make("install", f"DESTDIR={root}", "PREFIX=/opt/heddle")
        at = lambda path: os.path.join(root, "opt/heddle", path)
        for path in ("sbin/heddled", "bin/heddle"):
            assert os.access(at(path), os.X_OK), path
        assert "heddled" in run(at("sbin/heddled"), "--version")
        assert os.readlink(at("lib/heddle/ovs-vswitchd")) == "../../sbin/heddled"
        assert "ovs-vswitchd" in run(at("lib/heddle/ovs-vswitchd"), "--version")
        for page in ("man8/heddled.8", "man8/heddle-cni.8", "man1/heddle.1", "man1/heddle-top.1", "man1/heddle-drops.1", "man1/heddle-capture.1", "man1/heddle-bench-vhost.1"):
            text = open(at(f"share/man/{page}")).read()
            assert ".TH" in text and ".SH" in text, page
            assert page.endswith(("vhost.1", "bench.1")) or ".SH EXAMPLES" in text, page
        assert "metrics" in open(at("share/man/man8/heddled.8")).read()
        assert "USER[:GROUP]" in open(at("share/man/man8/heddled.8")).read()
        unit = open(at("lib/systemd/system/heddled.service")).read()
        # The unit takes another unit's name without a conflict: openvswitch-switch.service ends with
        # ovs-vswitchd.service, and the database with that.
        assert "Alias=ovs-vswitchd.service" in unit and "Conflicts=" not in unit, unit
        assert "ExecStart=/opt/heddle/sbin/heddled " in unit and "@" not in unit.replace("@system-service", "").replace("@mount", ""), unit
        for name in ("heddle-node", "heddle-cni-sweep"):
            unit = open(at(f"lib/systemd/system/{name}.service")).read()
            assert "ExecStart=" in unit and "/usr/bin/heddle " not in unit and "/opt/cni" not in unit, unit
        # Programs have no debugging symbols.
        sections = run("readelf", "-S", "--wide", at("sbin/heddled"))
        assert ".text" in sections and ".debug_info" not in sections and ".symtab" not in sections, sections
        # The pages' links lead to pictures and examples.
        for path in ("README.md", "docs/picture.svg", "docs/metrics.md", "deploy/metrics/dashboard.json", "deploy/kubernetes/switch.yaml", "deploy/node/node.toml"):
            assert os.path.getsize(at(f"share/doc/heddle/{path}")) > 0, path
        # Completions are read by their shells without a word, and complete.
        bash = at("share/bash-completion/completions/heddle")
        out = run("bash", "-c", f"set -e; . {bash}; COMP_WORDS=(heddle dr); COMP_CWORD=1; _heddle heddle dr heddle; echo ${{COMPREPLY[@]}}")
        assert "drops" in out, out


@limit(600)
def scenario_packages(lab):
    needs()
    for tool in ("dh", "dpkg-buildpackage", "lintian"):
        if not shutil.which(tool):
            raise Skip(f"no {tool} on this machine (scripts/setup package)")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        make("deb", f"DEBS={place}")
        debs = {os.path.basename(path).split("_")[0]: path for path in glob.glob(f"{place}/*.deb")}
        assert set(debs) == {"heddle-switch", "heddle-tools"}, debs
        said = run("lintian", "--fail-on", "error", *debs.values(), check=False)
        assert "E: " not in said, said
        # A newer version of the same, to upgrade to.
        newer = f"{place}/newer"
        os.mkdir(newer)
        for name, path in debs.items():
            run("dpkg-deb", "-R", path, f"{newer}/{name}")
            control = f"{newer}/{name}/DEBIAN/control"
            text = open(control).read().replace("Version: ", "Version: 9:")
            with open(control, "w") as file:
                file.write(text)
            run("dpkg-deb", "-Znone", "-b", f"{newer}/{name}", f"{newer}/{name}.deb")
        # The host's root, on which nothing is written: packages that ours need are there.
        script = f"""set -ex
mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
mkdir -p /mnt/root{place}; mount --bind {place} /mnt/root{place}
inside() {{ chroot /mnt/root env DEBIAN_FRONTEND=noninteractive "$@"; }}
printf '#!/bin/sh\\nexit 101\\n' > /mnt/root/usr/sbin/policy-rc.d; chmod 755 /mnt/root/usr/sbin/policy-rc.d
inside dpkg -i {' '.join(debs.values())}
inside heddled --version; inside heddle --version
inside test -L {ALTERNATIVE}
inside update-alternatives --query ovs-vswitchd | grep -A1 '^Alternative: {ALTERNATIVE}'
# Heddle is installed, and Open vSwitch's daemon is still the chosen one.
inside readlink -f /usr/sbin/ovs-vswitchd | grep -v heddled
inside update-alternatives --set ovs-vswitchd {ALTERNATIVE}
inside ovs-vswitchd --version | grep -i heddle
echo 'HEDDLED_OPTIONS="--metrics=tcp:9310"' > /mnt/root/etc/default/heddled
inside dpkg -i {newer}/heddle-switch.deb {newer}/heddle-tools.deb
inside readlink -f /usr/sbin/ovs-vswitchd | grep heddled
grep 9310 /mnt/root/etc/default/heddled
# Operators find the units, the dashboard and the recipe of the image.
for name in heddled heddle-node heddle-cni-sweep; do inside test -s /lib/systemd/system/$name.service; done
for path in metrics/dashboard.json metrics/alerts.yml kubernetes/switch.yaml node/node.toml Containerfile; do
    inside test -s /usr/share/doc/heddle-switch/deploy/$path; done
inside systemd-analyze verify --man=no heddled.service
inside dpkg -r heddle-switch heddle-tools
inside test ! -e {ALTERNATIVE}
inside readlink -f /usr/sbin/ovs-vswitchd | grep -v heddled
inside ovs-vswitchd --version
grep 9310 /mnt/root/etc/default/heddled
inside dpkg -P heddle-switch heddle-tools
inside test ! -e /etc/default/heddled
echo ALL WELL
"""
        # In a network namespace of its own: a removal searches filters at all devices.
        out = run("unshare", "-m", "-n", "bash", "-c", script, check=False)
        lab.trace.note(out)
        assert out.rstrip().endswith("ALL WELL"), out[-3000:]


def scenario_removal_gives_devices_back(lab):
    """Removal of the package removes filters that a killed switch has left."""
    sw = lab.switch()
    lab.bridge(sw)
    red = lab.veth_pod(sw, "red", "10.90.0.2/24")
    inside = lambda *words, **kw: lab.net.run(sw.netns, *words, **kw)
    shown = lambda: inside("tc", "filter", "show", "dev", "vred", "ingress")
    wait_for("the port's filter", lambda: "pref 18501" in shown())
    # Another program's filter, and an nftables table as the switch makes it if the kernel has no classifiers.
    inside("tc", "filter", "add", "dev", "vred", "ingress", "pref", "7", "protocol", "all", "bpf", "bytecode", "1,6 0 0 0")
    by_nft = shutil.which("nft") and not inside("nft", "add", "table", "netdev", "heddle_00000000000000ab", check=False)
    if by_nft:
        inside("nft", "add", "table", "netdev", "mine")
    inside("ip", "addr", "add", "10.90.0.1/24", "dev", "vred")
    sw.stop_daemon(signal.SIGKILL)
    ping = ("ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", "10.90.0.1")
    assert " 0 received" in lab.net.run(red, *ping, check=False)
    with tempfile.TemporaryDirectory() as programs:
        # The machine's own choice of ovs-vswitchd does not change.
        os.symlink("/bin/true", f"{programs}/update-alternatives")
        script = ("env", f"PATH={programs}:{os.environ['PATH']}:/usr/sbin:/sbin", "sh", f"{ROOT}/debian/heddle-switch.prerm")
        inside(*script, "upgrade", "9:1")
        assert "pref 18501" in shown()
        inside(*script, "remove")
    assert "pref 18501" not in shown() and "pref 7 " in shown(), shown()
    assert not by_nft or inside("nft", "list", "tables").split() == ["table", "netdev", "mine"]
    # The pod still has the neighbour entry that failed before.
    wait_for("the host to answer", lambda: " 0% packet loss" in lab.net.run(red, *ping, check=False))


def scenario_what_the_unit_leaves_is_enough(lab):
    """With the capabilities of the unit and no others the switch makes ports, also of devices that were moved elsewhere."""
    needs()
    unit = open(os.path.join(ROOT, "deploy", "systemd", "heddled.service")).read()
    kept = [word.removeprefix("CAP_").lower() for line in unit.splitlines() if line.startswith("CapabilityBoundingSet=")
            for word in line.split("=", 1)[1].split()]
    assert "net_admin" in kept and "sys_module" not in kept
    bounded = f"{tempfile.mkdtemp()}/heddled"
    lab.cleanups.append(lambda: shutil.rmtree(os.path.dirname(bounded)))
    with open(bounded, "w") as file:
        file.write(f"#!/bin/sh\nexec setpriv --no-new-privs --bounding-set -all,{','.join(f'+{name}' for name in kept)} "
                   f"--inh-caps -all {os.path.abspath(daemon_path())} \"$@\"\n")
    os.chmod(bounded, 0o755)
    sw = lab.switch(binary=bounded)
    lab.bridge(sw)
    red = lab.internal_pod(sw, "red", "10.0.0.1/24")
    lab.veth_pod(sw, "blue", "10.0.0.2/24")
    lab.net.ping(red, "10.0.0.2")
    status = open(f"/proc/{sw.pid}/status").read()
    bound = int(next(line for line in status.splitlines() if line.startswith("CapBnd:")).split()[1], 16)
    assert bin(bound).count("1") <= len(kept) and not bound >> 16 & 1, (hex(bound), kept)
    # A restart finds the device in the other namespace.
    sw.stop_daemon()
    sw.start_daemon()
    lab.net.ping(red, "10.0.0.2")


if __name__ == "__main__":
    main()
