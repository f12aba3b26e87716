"""Container networks: the plug-in under test, run as a container runtime runs it, and the reference plug-ins."""

import json
import os
import subprocess

from . import ROOT, daemon_path
from .runner import Skip

REFERENCE = os.path.join(ROOT, "target", "cni", "bin")


def plugin_path():
    """The plug-in under test: $HEDDLE_CNI, or the one beside the daemon."""
    path = os.environ.get("HEDDLE_CNI") or os.path.join(os.path.dirname(daemon_path()), "heddle-cni")
    if not os.access(path, os.X_OK):
        raise AssertionError(f"no plug-in at {path}: build it (cargo build --release --bin heddle-cni) or set HEDDLE_CNI")
    return os.path.abspath(path)


def reference():
    """The directory of the reference plug-ins and cnitool, which are fetched if they are not there."""
    if not os.access(f"{REFERENCE}/cnitool", os.X_OK):
        done = subprocess.run([f"{ROOT}/scripts/setup", "cni"], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise Skip("the reference plug-ins cannot be had: " + (done.stderr.strip().splitlines() or ["?"])[-1])
    return REFERENCE


class Failed(Exception):
    """A plug-in failed; its number and its words."""

    def __init__(self, code, msg):
        super().__init__(f"{code}: {msg}")
        self.code, self.msg = code, msg


class Node:
    """A node with a switch, a directory of plug-ins, and pods."""

    def __init__(self, lab, switch):
        self.lab, self.switch = lab, switch
        self.dir = f"{switch.dir}/cni"
        os.makedirs(f"{self.dir}/bin")
        os.makedirs(f"{self.dir}/net.d")
        for name in os.listdir(reference()):
            os.symlink(f"{REFERENCE}/{name}", f"{self.dir}/bin/{name}")
        os.symlink(plugin_path(), f"{self.dir}/bin/heddle-cni")
        self.pods = 0

    def conf(self, version="1.0.0", **keys):
        """A configuration of the plug-in, with addresses of 10.1.0.0/24; a key that is None is left out."""
        conf = {"cniVersion": version, "name": "net", "type": "heddle-cni", "bridge": "br0", "kind": "internal",
                "database": self.switch.db, "timeoutSeconds": 20, "logFile": f"{self.dir}/cni.log", "ipam": self.ipam()}
        conf.update(keys)
        return {key: value for key, value in conf.items() if value is not None}

    def ipam(self, subnet="10.1.0.0/24", **keys):
        return {"type": "host-local", "dataDir": f"{self.dir}/ipam", "ranges": [[{"subnet": subnet, **keys}]],
                "routes": [{"dst": "10.7.0.0/16"}]}

    def pod(self, name=None):
        self.pods += 1
        return self.lab.net.namespace(name or f"p{self.pods}", ipv6=True)

    def command(self, plugin, env, without_rights=False):
        """The command line of a plug-in in the switch's namespace."""
        words = [f"{key}={value}" for key, value in env.items() if value is not None]
        drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if without_rights else []
        return ["ip", "netns", "exec", self.switch.netns, *drop, "env", *words, f"{self.dir}/bin/{plugin}"]

    def env(self, command, pod, ifname="eth0", container=None, args="", netns=None):
        return {"CNI_COMMAND": command, "CNI_CONTAINERID": container or f"id-{pod}", "CNI_IFNAME": ifname,
                "CNI_NETNS": netns if netns is not None else f"/run/netns/{pod}", "CNI_ARGS": args,
                "CNI_PATH": f"{self.dir}/bin", "HEDDLE_CNI_DIRS": self.switch.dir, "HEDDLE_CNI_LOG_DIRS": self.dir,
                "HEDDLE_CNI_DEVICES": "card*, rep*"}

    def call(self, command, conf, pod, plugin="heddle-cni", without_rights=False, **keys):
        """Runs a plug-in once; its result. conf: an object, or any text."""
        text = conf if isinstance(conf, str) else json.dumps(conf)
        argv = self.command(plugin, self.env(command, pod, **keys), without_rights)
        done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=100)
        self.lab.trace.note(f"{command} {pod} {keys} {text}\n  {done.stdout}{done.stderr}")
        said = json.loads(done.stdout) if done.stdout.strip() else None
        if done.returncode:
            raise Failed(said["code"], said["msg"])
        return said

    def add(self, conf, pod, **keys):
        return self.call("ADD", conf, pod, **keys)

    def delete(self, conf, pod, **keys):
        return self.call("DEL", conf, pod, **keys)

    def write(self, name, *plugins, version="1.0.0"):
        """A list of plug-ins for cnitool."""
        own = [{key: value for key, value in p.items() if key not in ("cniVersion", "name")} for p in plugins]
        with open(f"{self.dir}/net.d/{name}.conflist", "w") as file:
            json.dump({"cniVersion": version, "name": name, "plugins": own}, file)

    def tool(self, command, network, pod=None, check=True, ifname=None, capabilities=None):
        """Runs cnitool; returns its output."""
        env = {"NETCONFPATH": f"{self.dir}/net.d", "CNI_PATH": f"{self.dir}/bin", "CNI_IFNAME": ifname,
               "CAP_ARGS": json.dumps(capabilities) if capabilities else None, "HEDDLE_CNI_DIRS": self.switch.dir, "HEDDLE_CNI_LOG_DIRS": self.dir}
        where = f"/run/netns/{pod}" if pod else "/run/netns/none"
        return self.lab.trace.run(*self.command("cnitool", env), command, network, where, check=check)

    def rows(self, pod=None):
        """The database's rows of ports, as text that changes if any of them does; statistics apart."""
        columns = {"Bridge": "name,ports", "Port": "name,tag,trunks,vlan_mode,qos,external_ids,interfaces",
                   "Interface": "name,type,options,external_ids,mac,mtu_request,ofport_request,ingress_policing_rate",
                   "QoS": "type,other_config", "Queue": "other_config"}
        return "".join(self.switch.vsctl(f"--columns={names}", "list", table) for table, names in columns.items())

    def leases(self):
        """Addresses that are handed out."""
        found = []
        for _, _, names in os.walk(f"{self.dir}/ipam"):
            found += [name for name in names if name[0].isdigit()]
        return sorted(found)

    def log(self):
        with open(f"{self.dir}/cni.log") as file:
            return file.read()


def address(result, index=0):
    """An address of a result, without its length."""
    return result["ips"][index]["address"].split("/")[0]
