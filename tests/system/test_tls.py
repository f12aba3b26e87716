#!/usr/bin/env python3
"""TLS to and from controllers and the database, with keys that ovs-pki made and Open vSwitch's own programs at the other end."""

import os
import random
import socket
import ssl
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import openflow
from lab.runner import main
from lab.shell import wait_for


class Pki:
    """Two authorities, one for switches and one for controllers, as ovs-pki lays them out."""

    def __init__(self, directory):
        self.dir = directory
        self.run("init")
        self.run("req+sign", "sc", "switch")
        self.run("req+sign", "ctl", "controller")
        self.switch_ca = f"{directory}/pki/switchca/cacert.pem"
        self.controller_ca = f"{directory}/pki/controllerca/cacert.pem"

    def run(self, *args):
        subprocess.run(["ovs-pki", "--force", f"--dir={self.dir}/pki", f"--log={self.dir}/pki.log", *args], cwd=self.dir,
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)

    def key(self, who):
        return f"{self.dir}/{who}-privkey.pem"

    def cert(self, who):
        return f"{self.dir}/{who}-cert.pem"

    def options(self, who, ca):
        """For the command lines of Open vSwitch's programs."""
        return [f"--private-key={self.key(who)}", f"--certificate={self.cert(who)}", f"--ca-cert={ca}"]


def free_port():
    """A TCP port of the loopback without a listener, below the kernel's ephemeral ports."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def controller(lab, pki, port=0):
    """A controller that takes TLS only, from switches of the authority only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.cert("ctl"), pki.key("ctl"))
    # The authority's certificate is sent too, for switches that bootstrap.
    context.load_verify_locations(pki.switch_ca)
    context.load_verify_locations(pki.controller_ca)
    context.verify_mode = ssl.CERT_REQUIRED
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(4)
    made = openflow.Controller(context.wrap_socket(sock, server_side=True), openflow.V13)
    lab.cleanups.append(made.close)
    return made


def scenario_who_calls_by_tls(lab):
    sw = lab.switch(netns=False)
    pki = Pki(sw.dir)
    lab.bridge(sw, "br0")
    port, plain = free_port(), free_port()
    # Without keys no client gets in, and the log names what is missing.
    sw.vsctl("set-controller", "br0", f"pssl:{port}:127.0.0.1", f"ptcp:{plain}:127.0.0.1")
    client = pki.options("ctl", pki.switch_ca)
    show = lambda method, *options, **kw: sw.ofctl("-O", "OpenFlow13", *options, "show", method, **kw)
    wait_for("ptcp", lambda: "OFPT_FEATURES_REPLY" in show(f"tcp:127.0.0.1:{plain}", check=False))
    assert "OFPT_FEATURES_REPLY" not in show(f"ssl:127.0.0.1:{port}", *client, check=False)
    wait_for("a word in the log", lambda: "stream_ssl|ERR|Private key must be configured to use SSL" in sw.log())
    sw.vsctl("set-ssl", pki.key("sc"), pki.cert("sc"), pki.controller_ca)
    wait_for("pssl", lambda: "OFPT_FEATURES_REPLY" in show(f"ssl:127.0.0.1:{port}", *client, check=False))
    # A certificate of the wrong authority, and plain text where TLS is expected.
    stranger = pki.options("sc", pki.switch_ca)
    assert "OFPT_FEATURES_REPLY" not in show(f"ssl:127.0.0.1:{port}", *stranger, check=False)
    assert "OFPT_FEATURES_REPLY" not in show(f"tcp:127.0.0.1:{port}", check=False)
    # Many silent clients delay no other, and the number of waiting ones is limited.
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    lab.cleanups.append(lambda: [s.close() for s in silent])
    wait_for("the oldest to give way", lambda: len(os.listdir(f"/proc/{sw.pid}/fd")) < 150)
    sw.ofctl("-O", "OpenFlow13", *client, "add-flow", f"ssl:127.0.0.1:{port}", "tcp,actions=drop")
    assert any("tcp" in flow for flow in sw.flows("br0"))
    # Away they go with their rows.
    sw.vsctl("del-controller", "br0")
    wait_for("the end of ptcp", lambda: "OFPT_FEATURES_REPLY" not in show(f"tcp:127.0.0.1:{plain}", check=False))


def scenario_a_controller_by_tls(lab):
    sw = lab.switch(netns=False)
    pki = Pki(sw.dir)
    lab.bridge(sw, "br0", "fail_mode=secure")
    theirs = controller(lab, pki)
    sw.vsctl("set-ssl", pki.key("sc"), pki.cert("sc"), pki.controller_ca)
    sw.vsctl("set-controller", "br0", f"ssl:127.0.0.1:{theirs.port}", "--", "set", "controller", "br0", "max_backoff=1000")
    wait_for("a connection", theirs.connected.is_set)
    sw.wait_column("controller", "br0", "is_connected", "true")
    # A controller that the authority does not know: not connected, and the reason is logged.
    sw.vsctl("del-ssl", "--", "set-ssl", pki.key("sc"), pki.cert("sc"), pki.switch_ca)
    sw.vsctl("set-controller", "br0", f"ssl:127.0.0.1:{controller(lab, pki).port}", "--", "set", "controller", "br0",
             "max_backoff=1000")
    wait_for("a word in the log", lambda: "stream_ssl|WARN|SSL_connect: " in sw.log())
    sw.wait_column("controller", "br0", "is_connected", "false")


def scenario_the_database_by_tls(lab):
    sw = lab.switch(netns=False, start=False)
    pki = Pki(sw.dir)
    sw.start_ovsdb()
    port = free_port()
    for argument in (pki.key("ctl"), pki.cert("ctl"), pki.switch_ca):
        assert os.path.exists(argument), argument
    server = lambda *args: sw.run("ovs-appctl", "-t", f"{sw.dir}/ovsdb-server.ctl", *args)
    # The server takes the peer's keys from the database here, so the switch has its own on its command line.
    sw.vsctl("--no-wait", "set-ssl", pki.key("ctl"), pki.cert("ctl"), pki.switch_ca)
    sw.stop_ovsdb()
    keys = "db:Open_vSwitch,SSL"
    sw.run("ovsdb-server", f"{sw.dir}/conf.db", f"--remote=punix:{sw.dir}/db.sock", f"--remote=pssl:{port}:127.0.0.1",
           f"--private-key={keys},private_key", f"--certificate={keys},certificate", f"--ca-cert={keys},ca_cert", "--detach",
           "--no-chdir", f"--pidfile={sw.dir}/ovsdb-server.pid", f"--unixctl={sw.dir}/ovsdb-server.ctl",
           f"--log-file={sw.dir}/ovsdb-server.log", "-vconsole:off")
    assert "pssl" in server("ovsdb-server/list-remotes")
    local = sw.db
    sw.db = f"ssl:127.0.0.1:{port}"
    try:
        sw.start_daemon(*pki.options("sc", pki.controller_ca))
    finally:
        sw.db = local
    # The row names keys of the other side, which fit neither authority: existing connections stay.
    lab.bridge(sw, "br0")
    assert sw.get("bridge", "br0", "datapath_version")
    wait_for("the bridge", lambda: "br0" in sw.appctl("ofproto/list"))


if __name__ == "__main__":
    main()
