//! The group that shares the processors on behalf of this process: a control group, or its session's.
//!
//! The kernel divides each processor's time among groups first, and each group's part among its threads by
//! their nice values. Outside of control groups with the controller `cpu`, a process is in the *autogroup* of
//! its session (sched(7)). That group's weight is a nice value of its own. A control group has a weight
//! (`cpu.weight`), and maybe a limit (`cpu.max`). When the limit is used up, no thread of the group runs
//! until the next period.

use rustix::process::{getpid, getppid, getsid};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A control group that shares the processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuGroup {
    /// The path in `/proc/self/cgroup`.
    pub path: String,
    /// The tightest limit of the group and those above it that this process can see.
    pub limit: Option<CpuLimit>,
}

/// Time of processors that a group may use in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLimit {
    /// Microseconds of all processors together.
    pub quota_us: u64,
    /// Microseconds.
    pub period_us: u64,
}

impl CpuLimit {
    /// Whether it allows less than `other`.
    fn is_tighter(self, other: Self) -> bool {
        let product = |quota: u64, period: u64| u128::from(quota) * u128::from(period);
        product(self.quota_us, other.period_us) < product(other.quota_us, self.period_us)
    }
}

/// This process's control group with the controller `cpu`; `None`: it is in the root group, as far as it can
/// see.
pub fn own() -> Option<CpuGroup> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    find(&text, Path::new("/sys/fs/cgroup"))
}

/// The group that `text` (of `/proc/self/cgroup`) names, with the hierarchies mounted below `mounts`.
fn find(text: &str, mounts: &Path) -> Option<CpuGroup> {
    let lines = text.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        Some((parts.next()?, parts.next()?))
    });
    let (mut first, mut second) = (None, None);
    for (controllers, path) in lines {
        if controllers.is_empty() {
            second = Some(path);
        } else if controllers.split(',').any(|c| c == "cpu") {
            first = Some((controllers, path));
        }
    }
    match (first, second) {
        (Some((controllers, path)), _) => version1(path, &mounts.join(controllers)),
        (None, Some(path)) => version2(path, mounts),
        (None, None) => None,
    }
}

/// The directories of a group and of those above it. In a container, the mount may have the container's group
/// as its root while the path is the host's.
fn upwards(path: &str, mount: &Path) -> Vec<PathBuf> {
    let relative = path.trim_start_matches('/');
    let own = mount.join(relative);
    if relative.split('/').any(|part| part == "..") || !own.is_dir() {
        return vec![mount.to_owned()];
    }
    own.ancestors()
        .take_while(|dir| dir.starts_with(mount))
        .map(Path::to_owned)
        .collect()
}

fn tightest(limits: impl Iterator<Item = CpuLimit>) -> Option<CpuLimit> {
    limits.reduce(|a, b| if b.is_tighter(a) { b } else { a })
}

fn version1(path: &str, mount: &Path) -> Option<CpuGroup> {
    let number = |dir: &Path, name: &str| fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
    let limit = |dir: &PathBuf| {
        Some(CpuLimit {
            // Without a limit it is -1.
            quota_us: number(dir, "cpu.cfs_quota_us")?,
            period_us: number(dir, "cpu.cfs_period_us")?,
        })
    };
    let limit = tightest(upwards(path, mount).iter().filter_map(limit));
    (path != "/" || limit.is_some()).then(|| CpuGroup {
        path: path.to_owned(),
        limit,
    })
}

fn version2(path: &str, mount: &Path) -> Option<CpuGroup> {
    let dirs = upwards(path, mount);
    let limit = |dir: &PathBuf| {
        let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(CpuLimit {
            // Without a limit it is `max`.
            quota_us: quota.parse().ok()?,
            period_us: period.parse().ok()?,
        })
    };
    // The root group has no such file, nor has a group without the controller. If no group is visible at all,
    // the path alone has to decide.
    let hidden = path != "/" && !mount.join("cgroup.controllers").exists();
    let shares = hidden || dirs.iter().any(|dir| dir.join("cpu.weight").exists());
    shares.then(|| CpuGroup {
        path: path.to_owned(),
        limit: tightest(dirs.iter().filter_map(limit)),
    })
}

/// Time between two changes of an autogroup that the kernel allows a process without `CAP_SYS_ADMIN`, and the
/// number of attempts.
const AUTOGROUP_INTERVAL: Duration = Duration::from_millis(110);
const AUTOGROUP_ATTEMPTS: u32 = 5;

/// The nice value of this process's autogroup; `None`: the kernel has no autogroups, or they are off.
pub fn autogroup_nice() -> Option<i32> {
    let on = fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").ok()?;
    if on.trim() != "1" {
        return None;
    }
    parse_autogroup(&fs::read_to_string("/proc/self/autogroup").ok()?)
}

/// The nice value in `/autogroup-NUMBER nice VALUE`.
fn parse_autogroup(text: &str) -> Option<i32> {
    text.trim().rsplit_once(" nice ")?.1.parse().ok()
}

/// Changes the nice value of this process's autogroup, which all processes of its session are in.
///
/// # Errors
/// `EPERM`: a negative value needs `CAP_SYS_NICE`. `EROFS`, `EACCES`: /proc is read-only here.
pub fn set_autogroup_nice(nice: i32) -> io::Result<()> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut file = fs::OpenOptions::new().write(true).open("/proc/self/autogroup")?;
        match file.write_all(nice.to_string().as_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && attempts < AUTOGROUP_ATTEMPTS => {
                std::thread::sleep(AUTOGROUP_INTERVAL);
            }
            done => return done,
        }
    }
}

/// Whether this process's session is its own: it leads the session, or its parent does, which runs the same
/// program (`--monitor`).
pub fn has_own_session() -> bool {
    let Ok(leader) = getsid(None) else {
        return false;
    };
    if leader == getpid() {
        return true;
    }
    let exe = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    getppid() == Some(leader)
        && exe("self").is_some_and(|own| exe(&leader.as_raw_nonzero().to_string()) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of files that plays `/sys/fs/cgroup`.
    struct Mounts(PathBuf);

    impl Mounts {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("heddle-cpu-group-{}-{name}", std::process::id()));
            for (file, text) in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
                fs::write(path, text).expect("a file");
            }
            Self(root)
        }
        fn find(&self, text: &str) -> Option<CpuGroup> {
            find(text, &self.0)
        }
    }

    impl Drop for Mounts {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn group(path: &str, limit: Option<(u64, u64)>) -> Option<CpuGroup> {
        Some(CpuGroup {
            path: path.to_owned(),
            limit: limit.map(|(quota_us, period_us)| CpuLimit { quota_us, period_us }),
        })
    }

    #[test]
    fn a_group_with_the_controller_counts_wherever_it_is_on_the_path() {
        let files = [
            ("cgroup.controllers", "cpu memory\n"),
            ("system.slice/cpu.weight", "100\n"),
            ("system.slice/cpu.max", "max 100000\n"),
            ("system.slice/heddled.service/cgroup.procs", ""),
            ("user.slice/cgroup.procs", ""),
        ];
        let mounts = Mounts::new("weights", &files);
        let own = "/system.slice/heddled.service";
        assert_eq!(mounts.find(&format!("0::{own}\n")), group(own, None));
        assert_eq!(mounts.find("0::/user.slice\n"), None, "no controller there");
        assert_eq!(mounts.find("0::/\n"), None);
        assert_eq!(mounts.find(""), None);
        assert_eq!(mounts.find("rubbish\n1:\n"), None);
    }

    #[test]
    fn the_tightest_limit_on_the_path_counts() {
        let files = [
            ("pods/cpu.weight", "1"),
            ("pods/cpu.max", "150000 100000\n"),
            ("pods/pod1/cpu.max", "20000 10000\n"),
            ("pods/pod1/box/cpu.max", "max 100000\n"),
        ];
        let mounts = Mounts::new("limits", &files);
        assert_eq!(
            mounts.find("0::/pods/pod1/box\n"),
            group("/pods/pod1/box", Some((150_000, 100_000)))
        );
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let files = [("cpu.weight", "39\n"), ("cpu.max", "50000 100000\n")];
        let mounts = Mounts::new("container", &files);
        for path in ["/", "/kubepods/pod1", "/../other"] {
            assert_eq!(
                mounts.find(&format!("0::{path}\n")),
                group(path, Some((50_000, 100_000))),
                "{path}"
            );
        }
    }

    #[test]
    fn a_path_counts_where_no_group_is_visible() {
        let mounts = Mounts::new("hidden", &[]);
        assert_eq!(mounts.find("0::/pods\n"), group("/pods", None));
        assert_eq!(mounts.find("0::/\n"), None);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_per_controller() {
        let files = [
            ("cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/a/cpu.cfs_quota_us", "30000\n"),
            ("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n"),
            ("cpu,cpuacct/b/cpu.shares", "1024\n"),
        ];
        let mounts = Mounts::new("first", &files);
        let text = |path: &str| format!("4:cpuset:/x\n3:cpu,cpuacct:{path}\n0::/\n");
        assert_eq!(mounts.find(&text("/")), None);
        assert_eq!(mounts.find(&text("/a")), group("/a", Some((30_000, 100_000))));
        assert_eq!(mounts.find(&text("/b")), group("/b", None));
    }

    #[test]
    fn the_kernels_line_of_an_autogroup() {
        assert_eq!(parse_autogroup("/autogroup-51782 nice -5\n"), Some(-5));
        assert_eq!(parse_autogroup("/autogroup-1 nice 0\n"), Some(0));
        assert_eq!(parse_autogroup(""), None);
        assert_eq!(parse_autogroup("/autogroup-1"), None);
    }

    #[test]
    fn a_test_does_not_lead_a_session_that_its_caller_leads() {
        let leads = getsid(None).expect("it has one") == getpid();
        // The parent is cargo, or a debugger.
        assert_eq!(has_own_session(), leads);
    }
}
