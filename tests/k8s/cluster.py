"""Kubernetes of one node: etcd, API server, kubelet and containerd, on one switch.

Pods name their node, so that no scheduler is needed, and there is one object for each, so that no controller is.

All of it is in the network namespace of the switch, as on a node: what the kubelet probes is reached over the
bridge. The first network is network.json's, one node's; the second one is that of deploy/kubernetes.
"""

import json
import os
import re
import signal
import subprocess
import time

import enclosure
from lab import ROOT
from lab.cri import IMAGE, Runtime
from lab.runner import Lab
from lab.shell import wait_for
from lab.switch import remove

DEPLOY = f"{ROOT}/deploy/kubernetes"
NODE, NODE_IP = "node1", "172.30.0.1"
GATEWAY = "10.244.0.1"
LEASES, STORAGE_LEASES = "/var/lib/cni/networks/heddle", "/var/lib/cni/networks/storage"
TOKEN = "token-of-the-lab"
# For machines that others keep busy; nothing takes this long that works.
PATIENCE = 400
SLEEP = ("/bin/sleep", "1000000")
# No control groups for quality of service; nothing is evicted, since others may have filled the machine.
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"}, "failCgroupV1": False, "failSwapOn": False,
    "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [],
    "localStorageCapacityIsolation": False, "evictionHard": {"memory.available": "0%"}, "imageGCHighThresholdPercent": 100,
    "makeIPTablesUtilChains": False, "resolvConf": "", "maxPods": 200,
}


class Cluster:
    """See the module's text. tools: the directory that tests/k8s/setup-cluster prints."""

    def __init__(self, tools):
        self.tools = tools
        self.lab = Lab("kubernetes")
        self.trace = self.lab.trace
        self.kept_mounts = enclosure.mounts()
        self.sw = self.lab.switch(start=False)
        self.dir = f"{self.sw.dir}/kubernetes"
        os.makedirs(self.dir)
        self.runtime = Runtime(self.lab, self.sw)
        self.node = self.runtime.node
        self.processes, self.ready_seconds = {}, None
        self.files()

    def files(self):
        """The files that the programs read at their start."""
        def write(name, text):
            with open(f"{self.dir}/{name}", "w") as file:
                file.write(text if isinstance(text, str) else json.dumps(text))
        write("tokens.csv", f'{TOKEN},admin,admin,"system:masters"\n')
        write("config", {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}]})
        write("kubelet.json", {**KUBELET, "containerRuntimeEndpoint": f"unix://{self.runtime.socket}"})
        self.trace.run("openssl", "genrsa", "-out", f"{self.dir}/key", "2048")
        with open(f"{os.path.dirname(__file__)}/network.json") as file:
            self.network = json.load(file)
        with open(f"{self.node.dir}/net.d/10-heddle.conflist", "w") as file:
            json.dump(self.network, file)

    # -- life -------------------------------------------------------------------------

    def boot(self):
        """Starts everything, as a machine does; names of the ports of former pods that were removed."""
        if not os.path.exists(f"/run/netns/{self.sw.netns}"):
            self.lab.net.names.clear()
            self.lab.net.namespace("sw")
        self.lab.net.ip(self.sw.netns, "addr", "add", f"{NODE_IP}/32", "dev", "lo")
        os.symlink(self.sw.dir, "/run/openvswitch")
        self.sw.start()
        for bridge in ("br-int", "br-storage"):
            self.sw.vsctl("--may-exist", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
        swept = self.sweep()
        wait_for("the bridge's device", lambda: "br-int" in self.lab.net.ip(self.sw.netns, "link", quiet=True))
        self.lab.net.ip(self.sw.netns, "addr", "replace", f"{GATEWAY}/24", "dev", "br-int")
        self.lab.net.ip(self.sw.netns, "link", "set", "br-int", "up")
        self.spawn("etcd", "--data-dir", f"{self.dir}/etcd", "--log-level", "error")
        self.spawn("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=10.96.0.0/24",
                   "--authorization-mode=AlwaysAllow", f"--token-auth-file={self.dir}/tokens.csv",
                   f"--cert-dir={self.dir}/certificates", f"--advertise-address={NODE_IP}",
                   "--allow-privileged=true", "--kubelet-preferred-address-types=InternalIP",
                   "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount",
                   "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={self.dir}/key",
                   f"--service-account-signing-key-file={self.dir}/key")
        wait_for("the API server", self.api_ready, PATIENCE, 0.5)
        self.runtime.start()
        began = time.monotonic()
        self.start_kubelet()
        self.kubectl("wait", "--for=create", f"node/{NODE}", f"--timeout={PATIENCE}s", timeout=PATIENCE + 20)
        self.kubectl("wait", "--for=condition=Ready", f"node/{NODE}", f"--timeout={PATIENCE}s", timeout=PATIENCE + 20)
        self.ready_seconds = time.monotonic() - began
        return swept

    def sweep(self):
        """Runs the command of the unit before the kubelet; returns the names of the ports that it has
        removed."""
        out = self.lab.net.run(self.sw.netns, f"{self.node.dir}/bin/heddle-cni", "sweep")
        return re.findall(r" (h[0-9a-f]{14})\b", out)

    def start_kubelet(self):
        self.spawn("kubelet", f"--kubeconfig={self.dir}/config", f"--config={self.dir}/kubelet.json",
                   f"--hostname-override={NODE}", f"--node-ip={NODE_IP}")

    def spawn(self, name, *words):
        words = (*self.at_home(), f"{self.tools}/bin/{name}", *words)
        with open(f"{self.dir}/{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def at_home(self):
        """Runs a command in the node's network namespace. (`ip netns exec` hides control groups.)"""
        return "nsenter", f"--net=/run/netns/{self.sw.netns}"

    def kill(self, name):
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def alive(self):
        """Fails if a program has ended that should run."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                with open(f"{self.dir}/{name}.log", errors="replace") as file:
                    raise AssertionError(f"{name} ended with {process.returncode}: {file.read()[-600:]}")
        return True

    def api_ready(self):
        return self.alive() and self.kubectl("get", "--raw", "/readyz", check=False, quiet=True).strip() == "ok"

    def power_off(self):
        """A power failure: no program is notified. Files stay, except those of processes (sockets, pid
        files)."""
        enclosure.power_off(self.kept_mounts)
        for process in (*self.processes.values(), self.runtime.process):
            process.wait()
        self.processes.clear()
        self.sw.pid = None
        self.runtime.reboot()
        for name in os.listdir(self.sw.dir):
            if name.endswith((".pid", ".sock", ".ctl")):
                remove(f"{self.sw.dir}/{name}")

    def keep_logs(self, place):
        for place_of, *_, names in os.walk(self.sw.dir):
            if "containerd/" in place_of:
                continue
            for name in names:
                if name.endswith(".log"):
                    os.makedirs(place, exist_ok=True)
                    subprocess.run(["cp", f"{place_of}/{name}", place], check=False)
        subprocess.run(f"cp /var/log/heddle/cni.log {place}/", shell=True, check=False, capture_output=True)
        with open(f"{place}/trace.txt", "w") as file:
            file.write(self.trace.text())

    # -- Kubernetes -------------------------------------------------------------------

    def kubectl(self, *words, **keys):
        """Runs kubectl in the node's namespace; returns its output."""
        own = (f"--kubeconfig={self.dir}/config", f"--cache-dir={self.dir}/cache")
        return self.trace.run(*self.at_home(), f"{self.tools}/bin/kubectl", *own, *words, merge=False, **{"timeout": 120, **keys})

    def apply(self, *objects):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--validate=false", "-f", "-", stdin=text)

    def run(self, name, count=1, command=SLEEP, annotations=None, probe=None):
        """Makes pods at once, and waits until they are ready; them."""
        container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": list(command)}
        if probe:
            container["readinessProbe"] = {"tcpSocket": {"port": probe}, "periodSeconds": 1, "timeoutSeconds": 10}
        spec = {"nodeName": NODE, "terminationGracePeriodSeconds": 1, "enableServiceLinks": False, "containers": [container]}
        about = {"labels": {"app": name}, "annotations": annotations or {}}
        self.apply(*({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-{number}", **about}, "spec": spec}
                     for number in range(count)))
        self.kubectl("wait", "--for=condition=Ready", "pod", "-l", f"app={name}", f"--timeout={PATIENCE}s", timeout=PATIENCE + 20)
        return self.pods(name)

    def get(self, *words):
        return json.loads(self.kubectl("get", *words, "-o", "json", quiet=True))

    def pods(self, name=None):
        return self.get("pods", *(["-l", f"app={name}"] if name else []))["items"]

    def delete(self, *names):
        """Removes pods, and waits until the kubelet has."""
        self.kubectl("delete", "pod", "-l", f"app in ({','.join(names)})", f"--timeout={PATIENCE}s", timeout=PATIENCE + 20)

    def inside(self, pod, *words, **keys):
        return self.kubectl("exec", pod["metadata"]["name"], "--", *words, **keys)

    def reach(self, pod, *addresses):
        """Waits until each address replies to a pod."""
        for one in addresses:
            wait_for(f"{one} to answer {pod['metadata']['name']}", lambda: " 0% packet loss" in self.inside(
                pod, "ping", "-c", "2", "-W", "2", one, check=False), PATIENCE, 1)

    # -- the switch -------------------------------------------------------------------

    def ports(self):
        """`external_ids` of the pods' Interfaces, with the row's name."""
        out = json.loads(self.sw.vsctl("--format=json", "--columns=name,external_ids,ofport", "list", "Interface"))
        rows = [{"name": name, "ofport": number, **dict(ids[1])} for name, ids, number in out["data"]]
        return [row for row in rows if "heddle-cni/container" in row]

    def port(self, pod, ifname="eth0"):
        full = f"default/{pod['metadata']['name']}"
        return next(p for p in self.ports() if p.get("heddle-cni/pod") == full and p["heddle-cni/ifname"] == ifname)

    def leases(self, place=LEASES):
        return sorted(name for name in os.listdir(place) if name[0].isdigit()) if os.path.isdir(place) else []

    def as_pods(self, pods):
        """Whether ports and leases are exactly those of these pods, which have one device each."""
        names = {f"default/{pod['metadata']['name']}" for pod in pods}
        ports = self.ports()
        return (len(ports) == len(pods) and {p.get("heddle-cni/pod") for p in ports} == names and
                self.leases() == sorted(pod["status"].get("podIP", "") for pod in pods))


def address(pod):
    return pod["status"]["podIP"]


class Pinging:
    """Pings an address from within a pod's namespace ten times a second, until end()."""

    def __init__(self, cluster, pod, to):
        self.out = f"{cluster.dir}/ping"
        inside = ("nsenter", f"--net={cluster.port(pod)['heddle-cni/netns']}")
        with open(self.out, "w") as file:
            self.process = subprocess.Popen([*inside, "ping", "-n", "-i", "0.1", to], stdout=file, stderr=file)
        time.sleep(1)

    def end(self):
        """Number of pings sent, without the last ones, and number of them lost.

        The last ones need a reply."""
        time.sleep(2)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        with open(self.out) as file:
            text = file.read()
        sent = int(re.search(r"(\d+) packets transmitted", text).group(1)) - 5
        seen = {int(number) for number in re.findall(r"icmp_seq=(\d+) ttl=", text)}
        assert seen & set(range(sent - 4, sent + 6)), f"pings are not answered any more: {text[-200:]}"
        return sent, sum(number not in seen for number in range(1, sent + 1))
