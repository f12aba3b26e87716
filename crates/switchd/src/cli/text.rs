//! The text of `--help`.

use super::names::Names;
use heddle_daemon::dirs;

/// The whole help, for the names and directories of this process.
pub(super) fn help(names: &Names) -> String {
    let Names { program, service, .. } = names;
    let (rundir, logdir) = (dirs::rundir(), dirs::logdir());
    let (rundir, logdir) = (rundir.display(), logdir.display());
    format!(
        "\
{program}: Heddle, a virtual switch with the interfaces of Open vSwitch
usage: {program} [OPTIONS] [DATABASE]
where DATABASE is a socket on which ovsdb-server listens
      (default: \"unix:{rundir}/db.sock\").

Ways to connect to DATABASE:
  tcp:HOST:PORT           PORT at HOST
  ssl:HOST:PORT           PORT at HOST, encrypted
  unix:FILE               Unix domain socket FILE
Keys (needed for ssl):
  -p, --private-key=FILE  private key
  -c, --certificate=FILE  certificate of the private key
  -C, --ca-cert=FILE      certificate of the peer's authority
  --bootstrap-ca-cert=FILE  the same, fetched from the peer if FILE does not exist
  --peer-ca-cert=FILE     certificates to send to the peer
  --ssl-protocols=PROTOS  protocols to allow
  --ssl-ciphers=CIPHERS   ciphers to allow

Daemon options:
  --detach                run in the background
  --monitor               restart the daemon when it crashes
  --user=USER[:GROUP]     run as this user
  --no-chdir              stay in this directory
  --pidfile[=FILE]        write a pid file (default: {rundir}/{service}.pid)
  --overwrite-pidfile     with --pidfile, start even if already running
  --no-self-confinement   allow files outside of the usual directories
  --mlockall              keep all memory resident

Logging options:
  -vSPEC, --verbose=SPEC  set logging levels
  -v, --verbose           log everything
  --log-file[=FILE]       log to FILE
                          (default: {logdir}/{service}.log)
  --syslog-method=(libc|unix:FILE|udp:IP:PORT|null)
                          how to reach the system log
  --syslog-target=IP:PORT also send to this UDP port

Options for tests:
  --enable-dummy[=(override|system)]
                          offer ports and datapaths of type dummy
  --disable-system        no datapaths of type system
  --disable-system-route  do not follow the system's routing table
  --dummy-numa=NODE[,NODE]...
                          pretend that the processors are on these NUMA nodes

Other options:
  --unixctl=SOCKET        name of the control socket
  --metrics=unix:FILE|tcp:[ADDRESS:]PORT
                          where metrics are to be had (OpenMetrics over HTTP)
  --hw-rawio-access       accepted for compatibility
  -h, --help              show this help
  -V, --version           show the version
"
    )
}
