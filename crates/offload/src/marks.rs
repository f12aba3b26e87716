//! The programs that carry packets' marks across the devices of internal ports (`bpf/marks.bpf.c`).
//!
//! They have no maps and no state. A process loads them with its first internal port, and replaces those that
//! an earlier process left at a device.

#[cfg(test)]
mod tests;

use crate::filter::{self, Hook, why};
use aya::Ebpf;
use aya::programs::{ProgramError, SchedClassifier};
use heddle_port::MarkPrograms;
use heddle_sys::netns;
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/marks.bpf.o"));

/// The programs, and their hooks.
const PROGRAMS: [(&str, Hook); 2] = [("hd_mark_in", Hook::Ingress), ("hd_mark_out", Hook::Egress)];
/// Priority of the filters: after the program of offloaded flows, which takes packets without mark only.
const PRIORITY: u16 = 0x4846;

/// The programs of this process.
#[derive(Default)]
pub struct Marks(OnceLock<Result<Loaded, String>>);

impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks").finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Loaded(Arc<Mutex<Ebpf>>);

impl Loaded {
    fn load() -> Result<Self, String> {
        if OBJECT.is_empty() {
            return Err("this program was built without clang, which compiles the kernel's part".into());
        }
        let mut ebpf = aya::EbpfLoader::new().load(OBJECT).map_err(|e| why(&e))?;
        for (name, _) in PROGRAMS {
            let program = program(&mut ebpf, name).map_err(|e| why(&e))?;
            program.load().map_err(|e| why(&e))?;
        }
        Ok(Self(Arc::new(Mutex::new(ebpf))))
    }
    /// Does something with each program and its hook.
    fn each(&self, mut f: impl FnMut(&mut SchedClassifier, Hook) -> io::Result<()>) -> io::Result<()> {
        let mut ebpf = self.0.lock();
        for (name, hook) in PROGRAMS {
            f(program(&mut ebpf, name).map_err(io::Error::other)?, hook)?;
        }
        Ok(())
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    let program = ebpf.program_mut(name).ok_or(ProgramError::NotLoaded)?;
    program.try_into()
}

impl Marks {
    /// The programs; the reason is logged if they cannot be loaded.
    fn loaded(&self) -> io::Result<Loaded> {
        let load = || {
            let loaded = Loaded::load();
            if let Err(why) = &loaded {
                // The verifier's log is long.
                let line = why.lines().next().unwrap_or_default();
                let line = line.split(". Verifier output").next().unwrap_or(line);
                log::info!(target: "netdev_linux", "pkt_mark does not cross internal ports: its eBPF programs cannot be loaded: {line}");
                return Err(line.to_owned());
            }
            loaded
        };
        self.0.get_or_init(load).clone().map_err(io::Error::other)
    }
}

/// Runs `work` in a namespace, on this thread if it is the caller's own.
fn within<T: Send + 'static>(
    namespace: Option<&OwnedFd>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match namespace {
        None => work(),
        Some(ns) => netns::inside(ns, work),
    }
}

impl MarkPrograms for Marks {
    fn attach(&self, namespace: Option<&OwnedFd>, name: &str) -> io::Result<()> {
        let (device, loaded) = (name.to_owned(), self.loaded());
        let done = within(namespace, move || {
            loaded?.each(|program, hook| filter::attach(program, &device, hook, PRIORITY))
        });
        if done.is_err() {
            self.detach(namespace, name);
        }
        done
    }
    fn mend(&self, namespace: Option<&OwnedFd>, name: &str) -> io::Result<bool> {
        let (device, loaded) = (name.to_owned(), self.loaded()?);
        within(namespace, move || {
            let mut mended = false;
            loaded.each(|program, hook| {
                mended |= filter::attach_again(program, &device, hook, PRIORITY);
                Ok(())
            })?;
            Ok(mended)
        })
    }
    fn detach(&self, namespace: Option<&OwnedFd>, name: &str) {
        let device = name.to_owned();
        let _ = within(namespace, move || filter::detach(&device, PRIORITY));
    }
}
