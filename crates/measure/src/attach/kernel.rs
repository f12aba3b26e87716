//! Attachments that the kernel makes.

use super::{Attachment, DEVICE, Deployment, Maker, inside, ip};
use anyhow::{Result, bail};

impl Maker<'_> {
    /// Gives both pods their device, without addresses.
    pub(super) fn of_kernel(
        &mut self,
        attachment: Attachment,
        a: &str,
        b: &str,
        deployment: Deployment,
    ) -> Result<()> {
        match attachment {
            Attachment::HostDevice => veth(a, DEVICE, b, DEVICE).map(drop),
            Attachment::Veth => self.routed(a, b, deployment),
            Attachment::Bridge => self.bridged(a, b, deployment),
            Attachment::Macvlan => self.on_a_parent(a, b, deployment, "macvlan mode bridge"),
            Attachment::IpvlanL2 => self.on_a_parent(a, b, deployment, "ipvlan mode l2"),
            Attachment::IpvlanL3 if deployment == Deployment::Across => {
                bail!(
                    "IPvlan in mode l3 needs routes in the network between nodes, which this command does not make"
                )
            }
            Attachment::IpvlanL3 => self.on_a_parent(a, b, deployment, "ipvlan mode l3"),
            Attachment::Internal | Attachment::VhostUser | Attachment::Vduse => {
                bail!("not the kernel's to make")
            }
        }
    }

    /// Namespaces of the nodes: one twice, or two that are joined by a wire, whose ends are called `w0`.
    fn nodes(&mut self, deployment: Deployment) -> Result<[String; 2]> {
        let n = self.namespace("n")?;
        if deployment == Deployment::Same {
            return Ok([n.clone(), n]);
        }
        let m = self.namespace("m")?;
        veth(&n, "w0", &m, "w0")?;
        Ok([n, m])
    }

    fn routed(&mut self, a: &str, b: &str, deployment: Deployment) -> Result<()> {
        let nodes = self.nodes(deployment)?;
        for (i, (node, pod)) in (1..).zip(nodes.iter().zip([a, b])) {
            let device = format!("p{i}");
            veth(pod, DEVICE, node, &device)?;
            inside(
                node,
                "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
            )?;
            ip(&format!("-n {node} addr add 10.77.{i}.1/24 dev {device}"))?;
            ip(&format!(
                "-n {node} addr add fd77:0:0:{i}::1/64 dev {device} nodad"
            ))?;
            if deployment == Deployment::Across {
                let other = 3 - i;
                ip(&format!("-n {node} addr add 10.77.0.{i}/24 dev w0"))?;
                ip(&format!("-n {node} addr add fd77::{i}/64 dev w0 nodad"))?;
                ip(&format!(
                    "-n {node} route add 10.77.{other}.0/24 via 10.77.0.{other}"
                ))?;
                ip(&format!(
                    "-n {node} route add fd77:0:0:{other}::/64 via fd77::{other}"
                ))?;
            }
        }
        Ok(())
    }

    fn bridged(&mut self, a: &str, b: &str, deployment: Deployment) -> Result<()> {
        let nodes = self.nodes(deployment)?;
        for (i, (node, pod)) in (1..).zip(nodes.iter().zip([a, b])) {
            if i == 1 || deployment == Deployment::Across {
                ip(&format!("-n {node} link add br0 type bridge"))?;
                ip(&format!("-n {node} link set br0 up"))?;
            }
            if deployment == Deployment::Across {
                ip(&format!("-n {node} link set w0 master br0"))?;
            }
            let device = format!("p{i}");
            veth(pod, DEVICE, node, &device)?;
            ip(&format!("-n {node} link set {device} master br0"))?;
        }
        Ok(())
    }

    fn on_a_parent(&mut self, a: &str, b: &str, deployment: Deployment, kind: &str) -> Result<()> {
        // Both deployments need a wire: it is the node's network card.
        let wired = self.nodes(Deployment::Across)?;
        let of = |i: usize| &wired[if deployment == Deployment::Same { 0 } else { i }];
        for (i, pod) in [a, b].iter().enumerate() {
            let node = of(i);
            ip(&format!("-n {node} link add link w0 name x{i} type {kind}"))?;
            ip(&format!("-n {node} link set x{i} netns {pod} name {DEVICE}"))?;
        }
        Ok(())
    }
}

/// A pair between two namespaces, both ends up.
fn veth(ns_a: &str, a: &str, ns_b: &str, b: &str) -> Result<()> {
    ip(&format!(
        "link add name {a} netns {ns_a} type veth peer name {b} netns {ns_b}"
    ))?;
    ip(&format!("-n {ns_a} link set {a} up"))?;
    ip(&format!("-n {ns_b} link set {b} up")).map(drop)
}
