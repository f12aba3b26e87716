//! End points that are made for a measurement: one pair for each attachment that this node supports.
//!
//! Pods are network namespaces. If an attachment needs nodes, they are namespaces too: one for both pods, or
//! one each, joined by a *wire*. A wire is a veth pair in the place of two network cards and a cable. All
//! attachments across nodes bear its cost alike; it offers no offloads of real network cards.
//!
//! The [`Keeper`] is notified of each step before the step is made. An attachment that this node does not
//! support is refused with the reason, in one line.

mod kernel;
mod switch;

pub use switch::Switch;

use crate::keeper::{Keeper, Undo, run, words};
use crate::place::Place;
use anyhow::{Context as _, Result, bail};
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A kind of pod attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Devices of the host, moved into the pods: here the two ends of a veth pair.
    HostDevice,
    /// A veth pair for each pod; the node routes.
    Veth,
    /// A veth pair for each pod, in a Linux bridge.
    Bridge,
    /// Macvlan on a device of the node.
    Macvlan,
    /// IPvlan that switches.
    IpvlanL2,
    /// IPvlan that routes.
    IpvlanL3,
    /// Internal ports (tap) of the switch.
    Internal,
    /// vhost-user ports of the switch, with `heddle guest` behind them.
    VhostUser,
    /// VDUSE ports of the switch.
    Vduse,
}

/// All attachments with their names.
pub const ATTACHMENTS: [(&str, Attachment); 9] = [
    ("host-device", Attachment::HostDevice),
    ("veth", Attachment::Veth),
    ("bridge", Attachment::Bridge),
    ("macvlan", Attachment::Macvlan),
    ("ipvlan-l2", Attachment::IpvlanL2),
    ("ipvlan-l3", Attachment::IpvlanL3),
    ("internal", Attachment::Internal),
    ("vhost-user", Attachment::VhostUser),
    ("vduse", Attachment::Vduse),
];

impl Attachment {
    /// Name of the attachment.
    pub fn name(self) -> &'static str {
        ATTACHMENTS
            .iter()
            .find(|(_, a)| *a == self)
            .map_or("?", |(n, _)| n)
    }
}

impl FromStr for Attachment {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = ATTACHMENTS.iter().find(|(name, _)| *name == text);
        found.map(|(_, a)| *a).ok_or_else(|| "no attachment".to_owned())
    }
}

/// Placement of the two pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// Both pods on one node.
    Same,
    /// One pod on each of two nodes, joined by a wire.
    Across,
}

impl FromStr for Deployment {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "same" => Ok(Self::Same),
            "across" => Ok(Self::Across),
            _ => Err("same or across".into()),
        }
    }
}

/// Two pods that reach each other.
#[derive(Debug)]
pub struct Made {
    /// The first pod.
    pub client: Place,
    /// The second pod.
    pub server: Place,
    /// Name of the device in both pods.
    pub device: String,
    /// Addresses of the second pod.
    pub addresses: Vec<IpAddr>,
}

/// Makes pairs of pods.
#[derive(Debug)]
pub struct Maker<'a> {
    keeper: &'a mut Keeper,
    switch: Result<Switch, String>,
    made: usize,
}

/// The device of a pod.
const DEVICE: &str = "eth0";
/// Timeout for the first reply of a new pair.
const ANSWERS: Duration = Duration::from_secs(15);

impl<'a> Maker<'a> {
    /// `switch`: the running switch, or the reason why there is none.
    pub fn new(keeper: &'a mut Keeper, switch: Result<Switch, String>) -> Self {
        let made = 0;
        Self { keeper, switch, made }
    }

    /// Makes a pair, and waits until its second pod replies.
    ///
    /// # Errors
    /// The reason why this node does not support it.
    pub fn make(&mut self, attachment: Attachment, deployment: Deployment) -> Result<Made> {
        self.made += 1;
        if attachment == Attachment::Vduse {
            // Check before anything is made for it.
            vduse()?;
        }
        if matches!(
            attachment,
            Attachment::Internal | Attachment::VhostUser | Attachment::Vduse
        ) && let Err(why) = &self.switch
        {
            bail!("{why}");
        }
        let (a, b) = (self.namespace("a")?, self.namespace("b")?);
        match attachment {
            Attachment::Internal => self.internal(&a, &b, deployment)?,
            Attachment::VhostUser => self.vhost_user(&a, &b, deployment)?,
            Attachment::Vduse => self.vduse(&a, &b, deployment)?,
            _ => self.of_kernel(attachment, &a, &b, deployment)?,
        }
        let subnets = attachment == Attachment::Veth;
        for (i, ns) in [(1, &a), (2, &b)] {
            let net = if subnets { i } else { 0 };
            ip(&format!("-n {ns} link set {DEVICE} up"))?;
            ip(&format!("-n {ns} addr add 10.77.{net}.{i}0/24 dev {DEVICE}"))?;
            ip(&format!(
                "-n {ns} addr add fd77:0:0:{net}::{i}0/64 dev {DEVICE} nodad"
            ))?;
            if subnets {
                ip(&format!("-n {ns} route add default via 10.77.{net}.1"))?;
                ip(&format!("-n {ns} -6 route add default via fd77:0:0:{net}::1"))?;
            }
        }
        let net = if subnets { 2 } else { 0 };
        let v4 = format!("10.77.{net}.20");
        answers(&a, &v4)?;
        let v6 = format!("fd77:0:0:{net}::20");
        Ok(Made {
            client: Place::Netns(Path::new("/run/netns").join(&a)),
            server: Place::Netns(Path::new("/run/netns").join(&b)),
            device: DEVICE.to_owned(),
            addresses: vec![v4.parse()?, v6.parse()?],
        })
    }

    /// Name of a device or namespace of the present pair, unique to this process, at most 15 characters.
    fn name(&self, what: &str) -> String {
        format!("hm{}{what}{}", std::process::id(), self.made)
    }

    fn namespace(&mut self, what: &str) -> Result<String> {
        let name = self.name(what);
        let undo = format!("ip netns del {name}");
        self.keeper.step(&format!("ip netns add {name}"), &undo)?;
        ip(&format!("-n {name} link set lo up"))?;
        // Without duplicate address detection, IPv6 addresses can be used at once.
        inside(
            &name,
            "sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.accept_dad=0",
        )?;
        Ok(name)
    }
}

/// Whether this process may make pods: one check for all attachments.
///
/// # Errors
/// The process may not.
pub fn allowed() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("--between new makes network namespaces, which needs root");
    }
    Ok(())
}

/// Runs `ip` with arguments about namespaces that were made here.
fn ip(args: &str) -> Result<String> {
    run(&words(&format!("ip {args}")))
}

fn inside(ns: &str, command: &str) -> Result<String> {
    run(&words(&format!("ip netns exec {ns} {command}")))
}

fn vduse() -> Result<()> {
    if !Path::new("/dev/vduse/control").exists() {
        bail!("this kernel has no VDUSE (there is no /dev/vduse/control)");
    }
    Ok(())
}

/// Waits until the second pod replies to the first one.
fn answers(a: &str, address: &str) -> Result<()> {
    let end = Instant::now() + ANSWERS;
    loop {
        match inside(a, &format!("ping -c 1 -W 1 -q {address}")) {
            Ok(_) => return Ok(()),
            Err(e) if Instant::now() > end => {
                return Err(e).context("it was made, but the second pod does not reply to the first");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

impl Maker<'_> {
    fn will(&mut self, undo: &str) -> Result<()> {
        self.keeper.will(&Undo::Quietly(words(undo)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for (name, attachment) in ATTACHMENTS {
            assert_eq!(name.parse(), Ok(attachment));
            assert_eq!(attachment.name(), name);
        }
        assert!("eth".parse::<Attachment>().is_err());
    }
}
