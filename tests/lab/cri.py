"""A node with a real container runtime: containerd, whose pods get their network from heddle-cni.

containerd and runc are Debian's, unpacked into a directory (`scripts/setup cri`), not installed. It runs in the
switch's network namespace, as a container runtime does, with private directories.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import tarfile
import threading

from . import ROOT
from .cgroups import Cgroups
from .cni import Node
from .runner import Skip
from .shell import wait_for
from .switch import end_process

TOOLS = os.path.join(ROOT, "target", "cri")
IMAGE = "localhost/busybox:1"
# No control groups of its own, and no security modules: the machine may have none to give.
CONFIG = """version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
                    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{dir}/containerd.sock"
[ttrpc]
  address = "{dir}/ttrpc.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  disable_cgroup = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}/bin"
    conf_dir = "{cni}/net.d"
"""


def tools():
    """The directory with containerd, runc, busybox and the client; they are fetched if they are not there."""
    if not os.access(f"{TOOLS}/bin/cri", os.X_OK):
        done = subprocess.run([f"{ROOT}/scripts/setup", "cri"], capture_output=True, text=True, timeout=1500)
        if done.returncode != 0:
            raise Skip("a container runtime cannot be had: " + (done.stderr.strip().splitlines() or ["?"])[-1])
    return TOOLS


def image(path):
    """Writes an image that holds busybox alone, as `docker save` writes one."""
    work = f"{path}.d"
    os.makedirs(f"{work}/rootfs/bin")
    shutil.copy(f"{TOOLS}/bin/busybox", f"{work}/rootfs/bin/busybox")
    for name in ("sh", "sleep", "ping", "nc", "echo", "ip"):
        os.symlink("busybox", f"{work}/rootfs/bin/{name}")
    for name in ("proc", "sys", "dev", "etc", "tmp"):
        os.makedirs(f"{work}/rootfs/{name}")
    with tarfile.open(f"{work}/layer.tar", "w") as layer:
        layer.add(f"{work}/rootfs", ".")
    digest = subprocess.run(["sha256sum", f"{work}/layer.tar"], capture_output=True, text=True, check=True).stdout.split()[0]
    with open(f"{work}/config.json", "w") as file:
        json.dump({"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]},
                   "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}, file)
    with open(f"{work}/manifest.json", "w") as file:
        json.dump([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}], file)
    with tarfile.open(path, "w") as archive:
        for name in ("config.json", "manifest.json", "layer.tar"):
            archive.add(f"{work}/{name}", name)
    shutil.rmtree(work)


def service(switch, bridge, address, port, pod, pod_port, mac):
    """Rules in place of a kube-proxy: connection tracking translates TCP to a service's address to a pod, and
    back."""
    for flow in (f"priority=10,tcp,nw_dst={address},tp_dst={port},actions=ct(commit,zone=5,nat(dst={pod}:{pod_port}),table=1)",
                 f"priority=10,tcp,nw_src={pod},tp_src={pod_port},actions=ct(zone=5,nat,table=2)", "priority=0,actions=NORMAL",
                 f"table=1,actions=mod_dl_dst:{mac},NORMAL", "table=2,actions=NORMAL"):
        switch.ofctl("add-flow", bridge, flow)


def several_networks(node):
    """Puts the plug-in `several`, which replaces Multus, beside the others."""
    shutil.copy(os.path.join(os.path.dirname(__file__), "delegating_cni.py"), f"{node.dir}/bin/several")
    os.chmod(f"{node.dir}/bin/several", 0o755)


class Runtime:
    """containerd, and the pods that it runs."""

    def __init__(self, lab, switch):
        tools()
        self.lab, self.switch = lab, switch
        self.node = Node(lab, switch)
        os.symlink(f"{TOOLS}/plugins/loopback", f"{self.node.dir}/bin/loopback")
        self.dir = f"{switch.dir}/containerd"
        os.makedirs(self.dir)
        self.socket = f"{self.dir}/containerd.sock"
        with open(f"{self.dir}/config.toml", "w") as file:
            file.write(CONFIG.format(dir=self.dir, image=IMAGE, cni=self.node.dir))
        self.process, self.count, self.lock = None, 0, threading.Lock()
        self.groups, self.ids = Cgroups(f"heddle-containerd-{os.getpid()}"), set()
        # Before namespaces go, and whatever the scenario did.
        lab.cleanups.append(self.close)

    # -- the runtime -------------------------------------------------------------

    def start(self):
        # `ip netns exec` would hide mounts.
        env = {**os.environ, "PATH": f"{TOOLS}/bin:{os.environ['PATH']}", "HEDDLE_CNI_DIRS": os.path.dirname(self.dir)}
        log = open(f"{self.dir}/containerd.log", "a")
        self.process = subprocess.Popen(["nsenter", f"--net=/run/netns/{self.switch.netns}", f"{TOOLS}/bin/containerd", "--config",
                                         f"{self.dir}/config.toml"], stdout=log, stderr=log, env=env, preexec_fn=self.groups.enter)
        log.close()
        wait_for("the container runtime", self.ready, 60, 0.2)
        if IMAGE not in self.ctr("images", "ls"):
            image(f"{self.dir}/image.tar")
            self.ctr("images", "import", f"{self.dir}/image.tar")
        return self

    def ready(self):
        """Whether the runtime replies, and finds its network's configuration."""
        if self.process.poll() is not None:
            with open(f"{self.dir}/containerd.log") as file:
                raise AssertionError("containerd ended: " + file.read()[-800:])
        if not os.path.exists(self.socket):
            return False
        said = self.call("Status", check=False)
        return said and all(c.get("status") for c in said["status"]["conditions"])

    def stop(self, sig=signal.SIGKILL):
        self.process.send_signal(sig)
        self.process.wait(30)

    def ctr(self, *words):
        return self.lab.trace.run(f"{TOOLS}/bin/ctr", "-a", self.socket, "-n", "k8s.io", *words)

    def shims(self):
        """Processes that hold pods, by their command line."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    words = file.read().split("\0")
            except OSError:
                continue
            if "containerd-shim" in words[0] and self.socket in words:
                found.append(int(pid))
        return found

    def reboot(self):
        """All processes, namespaces, mounts and control groups are gone; files are not."""
        self.stop()
        for pid in self.shims():
            children = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
            for one in (pid, *map(int, children)):
                end_process(one, signal.SIGKILL)
        self.unmount()
        self.groups.remove(self.ids)
        shutil.rmtree(f"{self.dir}/state", ignore_errors=True)

    def unmount(self):
        with open("/proc/self/mounts") as file:
            mounts = [line.split()[1] for line in file if self.dir in line.split()[1]]
        for mount in reversed(mounts):
            subprocess.run(["umount", "-l", mount], capture_output=True)

    def close(self):
        if self.process:
            if self.process.poll() is None:
                for pod in self.pods():
                    self.remove(pod["id"], check=False)
            self.reboot()

    # -- pods ----------------------------------------------------------------------

    def call(self, method, check=True, **request):
        """A request of the Container Runtime Interface; returns the reply."""
        done = subprocess.run([f"{TOOLS}/bin/cri", self.socket, method], input=json.dumps(request), capture_output=True, text=True, timeout=300)
        self.lab.trace.note(f"{method} {json.dumps(request)}\n  {done.stdout}{done.stderr}")
        if done.returncode:
            assert not check, f"{method}: {done.stderr}"
            return None
        return json.loads(done.stdout)

    def run(self, name=None, command=("/bin/sleep", "1000000")):
        """A pod with a container, Running; its id, its container's id, and its address."""
        with self.lock:
            self.count += 1
            number = self.count
        name = name or f"pod{number}"
        config = {"metadata": {"name": name, "uid": f"uid-{number}", "namespace": "default"}, "log_directory": f"{self.dir}/logs", "linux": {}}
        pod = self.call("RunPodSandbox", config=config)["pod_sandbox_id"]
        inside = {"metadata": {"name": "main"}, "image": {"image": IMAGE}, "command": list(command), "log_path": f"{name}.log", "linux": {}}
        self.ids.add(pod)
        container = self.call("CreateContainer", pod_sandbox_id=pod, config=inside, sandbox_config=config)["container_id"]
        self.ids.add(container)
        self.call("StartContainer", container_id=container)
        status = self.call("PodSandboxStatus", pod_sandbox_id=pod)["status"]
        assert status.get("state", 0) == 0, status
        return pod, container, status["network"]["ip"]

    def remove(self, pod, check=True):
        self.call("StopPodSandbox", pod_sandbox_id=pod, check=check)
        self.call("RemovePodSandbox", pod_sandbox_id=pod, check=check)

    def pods(self):
        said = self.call("ListPodSandbox", check=False) or {}
        return said.get("items") or []

    def inside(self, container, *words, check=True):
        """Runs a command in a container; returns its output."""
        said = self.call("ExecSync", container_id=container, cmd=list(words), timeout=60)
        out = base64.b64decode(said.get("stdout", "")).decode() + base64.b64decode(said.get("stderr", "")).decode()
        assert not check or not said.get("exit_code"), f"{words}: {out}"
        return out

    def answers(self, container, address):
        return " 0% packet loss" in self.inside(container, "ping", "-c", "1", "-W", "2", address, check=False)
