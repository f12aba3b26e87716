//! Attachments to the switch that runs here, through `ovs-vsctl`, as its users make them.

use super::{DEVICE, Deployment, Maker, inside, ip};
use crate::keeper::{Undo, run, words};
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for the kernel to make a device.
const DEVICE_COMES: Duration = Duration::from_secs(10);

/// A running switch.
#[derive(Clone, Debug)]
pub struct Switch {
    db: String,
    netns: PathBuf,
    dir: PathBuf,
}

impl Switch {
    /// The switch whose run directory is `dir`.
    ///
    /// # Errors
    /// No switch runs there.
    pub fn find(dir: &Path) -> Result<Self> {
        let db = dir.join("db.sock");
        let pid = std::fs::read_to_string(dir.join("ovs-vswitchd.pid")).unwrap_or_default();
        let netns = PathBuf::from(format!("/proc/{}/ns/net", pid.trim()));
        if !db.exists() || pid.trim().is_empty() || !netns.exists() {
            bail!(
                "no switch runs in {} (--rundir names another directory)",
                dir.display()
            );
        }
        Ok(Self {
            db: format!("unix:{}", db.display()),
            netns,
            dir: dir.to_owned(),
        })
    }

    fn vsctl(&self, args: &str) -> Vec<String> {
        let mut argv = vec![
            "ovs-vsctl".to_owned(),
            format!("--db={}", self.db),
            "--timeout=20".to_owned(),
        ];
        argv.extend(args.split_whitespace().map(str::to_owned));
        argv
    }

    /// A command in the switch's namespace.
    fn here(&self, command: &str) -> Vec<String> {
        let mut argv = vec!["nsenter".to_owned(), format!("--net={}", self.netns.display())];
        argv.extend(command.split_whitespace().map(str::to_owned));
        argv
    }

    /// The network device that the kernel has made for a port.
    fn device_of(&self, port: &str) -> Result<String> {
        let end = Instant::now() + DEVICE_COMES;
        loop {
            let said = run(&self.vsctl(&format!("--if-exists get interface {port} error status:netdev")))
                .unwrap_or_default();
            let mut lines = said.lines().map(|l| l.trim().trim_matches('"'));
            match (lines.next().unwrap_or_default(), lines.next().unwrap_or_default()) {
                (_, device) if !device.is_empty() => return Ok(device.to_owned()),
                ("" | "[]", _) if Instant::now() < end => std::thread::sleep(Duration::from_millis(50)),
                ("" | "[]", _) => bail!("the switch makes no device for a port of type vduse"),
                (error, _) => bail!("{error}"),
            }
        }
    }

    /// Arguments that add a bridge in userspace (`netdev`).
    fn bridge(&self, name: &str) -> Vec<String> {
        self.vsctl(&format!(
            "add-br {name} -- set bridge {name} datapath_type=netdev"
        ))
    }
}

impl Maker<'_> {
    fn switch(&self) -> Result<Switch> {
        match &self.switch {
            Ok(switch) => Ok(switch.clone()),
            Err(why) => bail!("{why}"),
        }
    }

    /// The bridges of the two pods: one twice, or two, joined by a wire of two system ports.
    fn bridges(&mut self, deployment: Deployment) -> Result<[String; 2]> {
        let switch = self.switch()?;
        let names = [self.name("r"), self.name("s")];
        let many = if deployment == Deployment::Same { 1 } else { 2 };
        for name in names.iter().take(many) {
            let undo = switch.vsctl(&format!("--if-exists del-br {name}"));
            self.keeper.will(&Undo::Quietly(undo))?;
            run(&switch.bridge(name))?;
        }
        if deployment == Deployment::Same {
            return Ok([names[0].clone(), names[0].clone()]);
        }
        let wire = [self.name("w"), self.name("v")];
        self.keeper
            .will(&Undo::Quietly(switch.here(&format!("ip link del {}", wire[0]))))?;
        run(&switch.here(&format!(
            "ip link add {} type veth peer name {}",
            wire[0], wire[1]
        )))?;
        for (bridge, end) in names.iter().zip(&wire) {
            run(&switch.here(&format!("ip link set {end} up")))?;
            run(&switch.vsctl(&format!("add-port {bridge} {end}")))?;
        }
        Ok(names)
    }

    pub(super) fn internal(&mut self, a: &str, b: &str, deployment: Deployment) -> Result<()> {
        let switch = self.switch()?;
        let bridges = self.bridges(deployment)?;
        for ((bridge, pod), what) in bridges.iter().zip([a, b]).zip(["p", "q"]) {
            let port = self.name(what);
            run(&switch.vsctl(&format!(
                "add-port {bridge} {port} -- set interface {port} type=internal"
            )))?;
            run(&switch.here(&format!("ip link set {port} netns {pod}")))?;
            ip(&format!("-n {pod} link set {port} name {DEVICE}"))?;
        }
        Ok(())
    }

    pub(super) fn vduse(&mut self, a: &str, b: &str, deployment: Deployment) -> Result<()> {
        let switch = self.switch()?;
        let bridges = self.bridges(deployment)?;
        for ((bridge, pod), what) in bridges.iter().zip([a, b]).zip(["d", "e"]) {
            let port = self.name(what);
            run(&switch.vsctl(&format!(
                "add-port {bridge} {port} -- set interface {port} type=vduse"
            )))?;
            let device = switch.device_of(&port)?;
            // The kernel makes it in the first namespace, wherever the switch runs.
            run(&words(&format!(
                "nsenter --net=/proc/1/ns/net ip link set {device} netns {pod}"
            )))?;
            ip(&format!("-n {pod} link set {device} name {DEVICE}"))?;
        }
        Ok(())
    }

    pub(super) fn vhost_user(&mut self, a: &str, b: &str, deployment: Deployment) -> Result<()> {
        let switch = self.switch()?;
        let bridges = self.bridges(deployment)?;
        for ((bridge, pod), what) in bridges.iter().zip([a, b]).zip(["g", "h"]) {
            let port = self.name(what);
            let socket = switch.dir.join(format!("{port}.sock"));
            self.will(&format!("rm -f {}", socket.display()))?;
            run(&switch.vsctl(&format!(
                "add-port {bridge} {port} -- set interface {port} type=dpdkvhostuserclient \
                 options:vhost-server-path={}",
                socket.display()
            )))?;
            let program = std::env::current_exe().context("where is this program?")?;
            let file = program
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let guest = Command::new("ip")
                .args(["netns", "exec", pod])
                .arg(&program)
                .args(["guest", "--tap", DEVICE, "--port"])
                .arg(format!("listen:{}", socket.display()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("heddle guest")?;
            self.keeper.will(&Undo::End {
                pid: guest.id(),
                // The kernel cuts command names to 15 characters.
                name: file.chars().take(15).collect(),
            })?;
            let end = Instant::now() + Duration::from_secs(10);
            while inside(pod, &format!("ip link show {DEVICE}")).is_err() {
                if Instant::now() > end {
                    bail!("heddle guest makes no device");
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}
