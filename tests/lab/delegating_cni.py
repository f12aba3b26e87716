#!/usr/bin/env python3
"""A CNI plug-in in the place of Multus: a pod gets several networks, each by a plug-in of its own.

The configuration has `delegates`: the first makes the pod's own device, the others net1, net2, ... With `api`
(`server` as HOST:PORT, `token`), networks of the pod's annotation follow, by their
NetworkAttachmentDefinitions. With `state`, a directory, a DEL finds the delegates of the ADD there, since the
pod may be gone from the API by then.
"""

import http.client
import json
import os
import ssl
import subprocess
import sys


def ask(api, path):
    """An object of the API."""
    host, port = api["server"].split(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=ssl._create_unverified_context())
    connection.request("GET", path, headers={"Authorization": f"Bearer {api['token']}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise OSError(f"{path}: {answer.status} {text[:200]}")
    return json.loads(text)


def attached(api):
    """The configurations that the pod's annotation names: names, or objects with `name`, `mac` and `ips`.

    A plug-in gets only the settings that its `capabilities` declare, as with Multus."""
    extra = dict(pair.split("=", 1) for pair in os.environ.get("CNI_ARGS", "").split(";") if "=" in pair)
    space, pod = extra["K8S_POD_NAMESPACE"], extra["K8S_POD_NAME"]
    annotations = ask(api, f"/api/v1/namespaces/{space}/pods/{pod}")["metadata"].get("annotations", {})
    text = annotations.get("k8s.v1.cni.cncf.io/networks", "").strip()
    names = [{"name": name.strip()} for name in text.split(",") if name.strip()]
    wanted = json.loads(text) if text.startswith("[") else names
    for one in wanted:
        place = f"/apis/k8s.cni.cncf.io/v1/namespaces/{one.get('namespace', space)}/network-attachment-definitions"
        conf = json.loads(ask(api, f"{place}/{one['name']}")["spec"]["config"])
        can = conf.get("capabilities", {})
        conf["runtimeConfig"] = {key: one[key] for key in ("mac", "ips") if key in one and can.get(key)}
        yield conf


def run(conf, command, number, inner):
    """Runs a delegate; its status and output."""
    env = {**os.environ, "CNI_COMMAND": command, "CNI_IFNAME": f"net{number}" if number else os.environ["CNI_IFNAME"]}
    program = os.path.join(os.environ["CNI_PATH"].split(":")[0], inner["type"])
    text = json.dumps({"cniVersion": conf["cniVersion"], "name": conf["name"], **inner})
    done = subprocess.run([program], env=env, input=text, capture_output=True, text=True)
    return done.returncode, done.stdout


def add(conf, delegates):
    """Runs all delegates, or none; the result is that of the first."""
    answers = []
    for number, inner in enumerate(delegates):
        status, said = run(conf, "ADD", number, inner)
        answers.append(said)
        if status:
            for earlier in reversed(range(number + 1)):
                run(conf, "DEL", earlier, delegates[earlier])
            return status, said
    return 0, answers[0]


def main():
    conf, command = json.load(sys.stdin), os.environ["CNI_COMMAND"]
    if command == "VERSION":
        return 0, json.dumps({"cniVersion": conf["cniVersion"], "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]})
    container = os.environ.get("CNI_CONTAINERID")
    kept = os.path.join(conf["state"], container) if "state" in conf and container else None
    delegates = list(conf["delegates"])
    if command == "ADD":
        delegates += attached(conf["api"]) if "api" in conf else []
        if kept:
            os.makedirs(conf["state"], exist_ok=True)
            with open(kept, "w") as file:
                json.dump(delegates, file)
        return add(conf, delegates)
    if kept and os.path.exists(kept):
        with open(kept) as file:
            delegates = json.load(file)
    first = (0, "")
    for number, inner in reversed(list(enumerate(delegates))):
        status, said = run(conf, command, number, inner)
        first = first if first[0] else (status, said)
    if command == "DEL" and kept and not first[0] and os.path.exists(kept):
        os.unlink(kept)
    return first


if __name__ == "__main__":
    try:
        status, said = main()
    except (OSError, KeyError, ValueError) as why:
        status, said = 1, json.dumps({"cniVersion": "1.0.0", "code": 999, "msg": f"several: {why!r}"})
    print(said, end="")
    sys.exit(status)
