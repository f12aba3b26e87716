#!/usr/bin/env python3
"""The examples for libvirt and KubeVirt: their schemas, the hook, and the script that moves connections beside
`virsh migrate`.

LIBVIRT_SCHEMA=FILE: libvirt's domain.rng (package libvirt0 has it in /usr/share/libvirt/schemas); needs xmllint.
KUBEVIRT_SCHEMA=FILE: KubeVirt's swagger.json, or the CustomResourceDefinition of VirtualMachine; needs Python's yaml
and jsonschema. Without them, those checks are skipped.
"""

import json
import os
import stat
import subprocess
import sys
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import ROOT
from lab.runner import Skip, main

DOMAIN, MACHINE = f"{ROOT}/deploy/libvirt/guest.xml", f"{ROOT}/deploy/kubevirt/guest.yaml"


def schema(name, what):
    path = os.environ.get(name)
    if not path:
        raise Skip(f"{what}: no schema ({name}=FILE names it)")
    return path


def scenario_the_domain_pairs_its_devices(lab):
    """Both devices have one address, and the VF names the virtio device as its standby."""
    first, second = ET.parse(DOMAIN).findall("devices/interface")
    assert first.find("mac").get("address") == second.find("mac").get("address")
    assert first.find("teaming").get("type") == "persistent" and second.find("teaming").get("type") == "transient"
    assert second.find("teaming").get("persistent") == first.find("alias").get("name")
    assert first.find("virtualport").get("type") == "openvswitch"


def scenario_the_domain_fits_libvirts_schema(lab):
    path = schema("LIBVIRT_SCHEMA", "deploy/libvirt/guest.xml")
    try:
        lab.trace.run("xmllint", "--noout", "--relaxng", path, DOMAIN)
    except FileNotFoundError:
        raise Skip("needs the program xmllint") from None


def scenario_the_machine_fits_kubevirts_schema(lab):
    path = schema("KUBEVIRT_SCHEMA", "deploy/kubevirt/guest.yaml")
    try:
        import jsonschema
        import yaml
    except ImportError as exc:
        raise Skip(f"needs Python's {exc.name}") from None
    with open(path) as file:
        found = json.load(file) if path.endswith(".json") else yaml.safe_load(file)
    with open(MACHINE) as file:
        machine = yaml.safe_load(file)
    if "definitions" in found:
        found = {"$ref": "#/definitions/v1.VirtualMachine", "definitions": found["definitions"]}
    elif "spec" in found:
        version = machine["apiVersion"].partition("/")[2]
        found = next(v["schema"]["openAPIV3Schema"] for v in found["spec"]["versions"] if v["name"] == version)
    closed(found)
    jsonschema.validate(machine, found)


def closed(part):
    """Refuses unknown keys, as `kubectl` does; values that are a number or a text are either."""
    if isinstance(part, list):
        for one in part:
            closed(one)
    if not isinstance(part, dict):
        return
    if part.get("x-kubernetes-int-or-string") or part.get("format") == "int-or-string":
        part.pop("type", None)
    properties = part.get("properties")
    if isinstance(properties, dict) and not part.get("x-kubernetes-preserve-unknown-fields"):
        properties.setdefault("apiVersion", {})
        properties.setdefault("kind", {})
        part.setdefault("additionalProperties", False)
    for one in part.values():
        closed(one)


class Programs:
    """Stand-ins for heddle, ssh and virsh: each writes its words to one file, and does what a test wants."""

    def __init__(self, lab, **scripts):
        self.dir = f"{lab.switch(start=False, netns=False).dir}/bin"
        self.log = f"{self.dir}/calls"
        os.mkdir(self.dir)
        for name, body in scripts.items():
            path = f"{self.dir}/{name}"
            with open(path, "w") as file:
                file.write(f'#!/bin/sh\necho "{name} $*" >>{self.log}\n{body}\n')
            os.chmod(path, 0o755)

    def run(self, *words, stdin=""):
        env = dict(os.environ, PATH=f"{self.dir}:{os.environ['PATH']}")
        return subprocess.run(words, input=stdin, env=env, text=True, capture_output=True, timeout=60, check=False)

    def calls(self):
        with open(self.log) as file:
            return [line.strip() for line in file]


def migrated(lab, status, refuse=""):
    """Runs the script for a migration with this status of virsh; returns the process and the calls."""
    programs = Programs(
        lab,
        # The port is there after a while; the file is what the export writes.
        ssh=f'shift; case "$*" in *prepare*) [ -e {{0}}/port ];; *import*) read -r file; [ "$file" = connections ];; *) "$@" ;; esac',
        heddle=f'[ "$2" != "{refuse}" ] || exit 1\n[ "$2" != export ] || echo connections',
        virsh='case $1 in event) sleep 0.8; echo "event \'lifecycle\' for domain \'web-1\': Suspended Migrated"; exec sleep 60 ;; '
              f'migrate) sleep 0.4; touch {{0}}/port; sleep 1.2; exit {status} ;; esac')
    for name in ("ssh", "virsh"):
        path = f"{programs.dir}/{name}"
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace("{0}", programs.dir))
    done = programs.run(f"{ROOT}/deploy/libvirt/migrate", "web-1", "web-port", "node2", "--tls")
    calls = programs.calls()
    lab.trace.note(f"{done}\n" + "\n".join(calls))
    return done, calls


def scenario_connections_move_beside_virsh(lab):
    """They are exported when the target has the port, again when the guest is paused, and the move is finished."""
    done, calls = migrated(lab, 0)
    assert done.returncode == 0, done
    own = [call for call in calls if "prepare" not in call]
    assert "virsh migrate --live --tls web-1 qemu+ssh://node2/system" in own
    steps = [call for call in own if not call.startswith("virsh")]
    assert sorted(steps[:2]) == ["heddle migrate export --live --file - web-port", "ssh node2 heddle migrate import --file - web-port"], steps
    assert sorted(steps[2:4]) == ["heddle migrate export --file - web-port", "ssh node2 heddle migrate import --file - web-port"], steps
    assert steps[4:] == ["heddle migrate finish web-port", "ssh node2 heddle migrate finish web-port", "heddle migrate finish web-port"], steps


def scenario_a_guest_that_stays(lab):
    """If virsh fails, the move is given up at both nodes, and the status is virsh's."""
    done, calls = migrated(lab, 7)
    assert done.returncode == 7, done
    assert calls[-3:] == ["heddle migrate abort web-port", "ssh node2 heddle migrate abort web-port", "heddle migrate abort web-port"], calls
    assert not any("finish" in call for call in calls)


def scenario_a_guest_moves_without_its_connections(lab):
    """A failed export does not stop the guest, and is tried three times."""
    done, calls = migrated(lab, 0, refuse="export")
    assert done.returncode == 0, done
    assert sum(call.startswith("heddle migrate export") for call in calls) == 3, calls
    assert "heddle migrate finish web-port" in calls


def scenario_the_hook_gives_a_target_up(lab):
    """The hook aborts a move of which this node is the target, and nothing else; it never fails."""
    with open(DOMAIN) as file:
        domain = file.read()
    port = "0b1f8a52-6a53-4c5e-9f0c-2f6a5b9d7e11"
    hook = f"{ROOT}/deploy/libvirt/qemu"
    assert os.stat(hook).st_mode & stat.S_IXUSR
    for line, operation, aborts in ((f"port {port}: target since 3 s", "release", True), (f"port {port}: source since 3 s", "release", False),
                                    ("no move has begun here", "release", False), (f"port {port}: target since 3 s", "started", False)):
        programs = Programs(lab, heddle=f'[ "$2" = status ] && echo "{line}"\n[ "$2" != abort ] || exit 1')
        done = programs.run(hook, "web-1", operation, "end", "-", stdin=domain)
        assert (done.returncode, done.stdout) == (0, ""), done
        calls = programs.calls() if os.path.exists(programs.log) else []
        assert (f"heddle migrate abort {port}" in calls) == aborts, (line, operation, calls)


if __name__ == "__main__":
    main()
