//! The place of an end point. It is a network namespace (by name, process, container or pod), another host,
//! or an agent that was started by hand, as in a guest.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The place of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The namespace of this program.
    Here,
    /// The network namespace with this file.
    Netns(PathBuf),
    /// A host, by its name for `ssh`.
    Ssh(String),
    /// An agent that listens at this address and port.
    Tcp(String),
}

/// Forms in which a place is written, for help texts.
pub const FORMS: &str = "here, NAME or netns:NAME (a namespace), pid:N, container:ID, pod:[NAMESPACE/]NAME, \
                         ssh:HOST, tcp:ADDRESS:PORT (`heddle measure agent --listen`)";

impl Place {
    /// Finds the place that `text` names.
    ///
    /// # Errors
    /// There is no such place, or no way to look for it.
    pub fn find(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').unwrap_or(("netns", text));
        match kind {
            "netns" if text == "here" => Ok(Self::Here),
            "netns" => netns(rest),
            "pid" => match rest.parse::<u32>() {
                Ok(pid) => of_process(pid),
                Err(_) => bail!("{text}: not a process's number"),
            },
            "container" => of_process(container(rest)?),
            "pod" => pod(rest),
            "ssh" if !rest.is_empty() && !rest.starts_with('-') => Ok(Self::Ssh(rest.to_owned())),
            "tcp" if rest.contains(':') => Ok(Self::Tcp(rest.to_owned())),
            _ => bail!("{text}: no end point is written so; there are {FORMS}"),
        }
    }

    /// The file of the namespace, if commands of this machine can enter it.
    pub fn netns(&self) -> Option<&Path> {
        match self {
            Self::Netns(path) => Some(path),
            _ => None,
        }
    }

    /// Whether the place is on this machine, so that commands can be run there.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Here | Self::Netns(_))
    }
}

fn netns(name: &str) -> Result<Place> {
    let path = if name.starts_with('/') {
        PathBuf::from(name)
    } else {
        Path::new("/run/netns").join(name)
    };
    if name.is_empty() || !path.exists() {
        bail!("there is no network namespace {name:?}; end points are written {FORMS}");
    }
    Ok(Place::Netns(path))
}

fn of_process(pid: u32) -> Result<Place> {
    let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
    if !path.exists() {
        bail!("there is no process {pid}");
    }
    Ok(Place::Netns(path))
}

/// A process of the container. With all runtimes, the path of its control group contains the container's id.
fn container(id: &str) -> Result<u32> {
    let may_be = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if id.len() < 6 || !id.chars().all(may_be) || id.contains("..") {
        bail!("{id}: six characters of a container's id, at least");
    }
    let mut found: Vec<(u32, String)> = Vec::new();
    for entry in std::fs::read_dir("/proc").context("/proc")?.flatten() {
        if let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok())
            && let Ok(text) = std::fs::read_to_string(entry.path().join("cgroup"))
            && let Some(whole) = in_container(&text, id)
        {
            found.push((pid, whole.to_owned()));
        }
    }
    first_of_one(id, &found)
}

/// The first process, if all are of one container.
fn first_of_one(id: &str, found: &[(u32, String)]) -> Result<u32> {
    let ids: BTreeSet<&str> = found.iter().map(|(_, whole)| whole.as_str()).collect();
    if ids.len() > 1 {
        let ids: Vec<_> = ids.into_iter().collect();
        bail!("{id}: that may be any of {}", ids.join(", "));
    }
    match found.iter().map(|(pid, _)| *pid).min() {
        Some(pid) => Ok(pid),
        None => bail!("no process here is in a container {id}"),
    }
}

/// `0::/system.slice/docker-ID.scope`, `0::/kubepods/.../cri-containerd-ID.scope`,
/// `/kubepods/besteffort/podUID/ID`, `/default/NAME` (the container's whole id).
fn in_container<'a>(cgroup: &'a str, id: &str) -> Option<&'a str> {
    let whole = cgroup.split(['/', '\n']).find(|part| *part == id);
    let begins = |part: &&str| part.len() >= 12 && part.starts_with(id);
    whole.or_else(|| cgroup.split(['/', '-', '.', ':', '\n']).find(begins))
}

/// The namespace of a pod. `crictl` gets it from the container runtime's socket. Without `crictl`, it is read
/// from the working directories of containerd's shims.
fn pod(name: &str) -> Result<Place> {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let spec = match ask_crictl(namespace, name)? {
        Some(spec) => spec,
        None => spec_of_shim(namespace, name)?,
    };
    match network_namespace(&spec) {
        Some(path) => netns(&path),
        None => bail!("pod {namespace}/{name} has no network namespace of its own"),
    }
}

/// The runtime's specification of a pod; `None`: there is no `crictl`.
fn ask_crictl(namespace: &str, name: &str) -> Result<Option<Value>> {
    let crictl = |args: &[&str]| -> Result<Option<String>> {
        let out = match Command::new("crictl").args(args).output() {
            Ok(out) => out,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).context("crictl, which queries the container runtime for pods"),
        };
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            bail!("crictl: {}", text.lines().last().unwrap_or("failed"));
        }
        Ok(Some(String::from_utf8_lossy(&out.stdout).into_owned()))
    };
    let whole = format!("^{name}$");
    let ready = ["--namespace", namespace, "--state", "ready", "-q"];
    let Some(ids) = crictl(&[&["pods", "--name", &whole], &ready[..]].concat())? else {
        return Ok(None);
    };
    let Some(id) = ids.lines().map(str::trim).find(|l| !l.is_empty()) else {
        bail!("no pod {namespace}/{name} is ready on this node");
    };
    let text = crictl(&["inspectp", "-o", "json", id])?.unwrap_or_default();
    let mut status: Value = serde_json::from_str(&text).context("crictl inspectp")?;
    Ok(Some(status["info"]["runtimeSpec"].take()))
}

/// The specification of a pod that containerd gave to a shim: `config.json` in the shim's working directory.
fn spec_of_shim(namespace: &str, name: &str) -> Result<Value> {
    let mut shims = 0;
    for entry in std::fs::read_dir("/proc").context("/proc")?.flatten() {
        let process = entry.path();
        let is_shim =
            std::fs::read_to_string(process.join("comm")).is_ok_and(|c| c.starts_with("containerd-shim"));
        if !is_shim {
            continue;
        }
        shims += 1;
        if let Ok(text) = std::fs::read_to_string(process.join("cwd/config.json"))
            && let Ok(spec) = serde_json::from_str::<Value>(&text)
            && is_of_pod(&spec, namespace, name)
        {
            return Ok(spec);
        }
    }
    match shims {
        0 => bail!("no pods are found here: there is no crictl, and no shim of containerd runs"),
        _ => bail!("no pod {namespace}/{name} runs on this node"),
    }
}

fn is_of_pod(spec: &Value, namespace: &str, name: &str) -> bool {
    let note = |key: &str| spec["annotations"][format!("io.kubernetes.cri.sandbox-{key}")].as_str();
    note("namespace") == Some(namespace) && note("name") == Some(name)
}

/// The path of the network namespace in a runtime's specification.
fn network_namespace(spec: &Value) -> Option<String> {
    let all = spec["linux"]["namespaces"].as_array()?;
    let network = all.iter().find(|n| n["type"] == "network")?;
    network["path"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(Place::find("here").unwrap(), Place::Here);
        assert_eq!(Place::find("ssh:a@b").unwrap(), Place::Ssh("a@b".into()));
        assert_eq!(Place::find("tcp:[::1]:7").unwrap(), Place::Tcp("[::1]:7".into()));
        let own = Place::find(&format!("pid:{}", std::process::id())).unwrap();
        assert!(own.netns().unwrap().starts_with("/proc"));
        for bad in [
            "",
            "no-such-namespace",
            "pid:x",
            "pid:4194304",
            "ssh:",
            "ssh:-oProxyCommand=x",
            "tcp:1",
            "x:y",
            "container:../..",
            "container:ffffffffffff",
        ] {
            let text = Place::find(bad).unwrap_err().to_string();
            assert!(!text.contains('\n') && !text.is_empty(), "{bad}: {text}");
        }
    }

    #[test]
    fn control_groups_of_runtimes() {
        let id = "0123456789abcdef";
        for line in [
            "0::/system.slice/docker-0123456789abcdef.scope\n",
            "0::/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-0123456789abcdef.scope\n",
            "4:cpu:/kubepods/besteffort/pod1-2/0123456789abcdef\n",
        ] {
            assert_eq!(in_container(line, id), Some(id), "{line}");
            assert_eq!(in_container(line, &id[..6]), Some(id), "{line}");
            assert_eq!(in_container(line, "123456"), None, "{line}");
        }
        assert_eq!(in_container("0::/user.slice/session-1.scope\n", "session"), None);
        let named = "0::/default/my-web-1\n";
        assert_eq!(in_container(named, "my-web-1"), Some("my-web-1"));
        assert_eq!(in_container(named, "my-web"), None);
    }

    #[test]
    fn a_beginning_of_two_ids_is_refused() {
        let found = |ids: &[&str]| -> Vec<_> { (7..).zip(ids.iter().map(|id| (*id).to_owned())).collect() };
        assert_eq!(
            first_of_one("abcdef", &found(&["abcdef1", "abcdef1"])).unwrap(),
            7
        );
        let e = first_of_one("abcdef", &found(&["abcdef2", "abcdef1"])).unwrap_err();
        assert_eq!(e.to_string(), "abcdef: that may be any of abcdef1, abcdef2");
        assert!(first_of_one("abcdef", &[]).is_err());
    }

    #[test]
    fn pods_of_a_runtime() {
        let text = r#"{"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/run/netns/cni-1"}]},
            "annotations":{"io.kubernetes.cri.sandbox-name":"web","io.kubernetes.cri.sandbox-namespace":"shop"}}"#;
        let spec = serde_json::from_str(text).unwrap();
        assert_eq!(network_namespace(&spec).as_deref(), Some("/run/netns/cni-1"));
        assert!(is_of_pod(&spec, "shop", "web"));
        assert!(!is_of_pod(&spec, "default", "web") && !is_of_pod(&spec, "shop", "we"));
        assert!(!is_of_pod(&Value::Null, "shop", "web"));
        assert_eq!(network_namespace(&Value::Null), None);
    }
}
