//! Processors of the workers.
//!
//! **With a mask** (`pmd-cpu-mask`) there is one worker per processor of it, pinned. The mask may name
//! processors outside of the process's affinity: that is how a daemon is kept off the processors of its
//! workers. One that the system refuses (it is not there, or outside of the process's cpuset) is left out,
//! with a warning.
//!
//! **Without a mask** (or when none of its processors can be used) there are at most [`MAX_DEFAULT_WORKERS`]
//! workers. They use the processors that are allowed for the process. Each gets a physical core of its own as
//! long as there are some, taken node by node. They are not pinned to a processor, since the machine has
//! other work to do and an idle worker sleeps. On a machine with several NUMA nodes each is bound to its
//! node's processors, near its memory.

use heddle_sys::cpu;
use std::collections::BTreeMap;

/// Maximum number of workers when no processors are named.
const MAX_DEFAULT_WORKERS: usize = 4;

/// Processors and NUMA node of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkerCpus {
    /// The worker's processor, or the one that represents it in texts.
    pub(super) core: usize,
    pub(super) numa: u32,
    /// Processors that it is bound to; empty: all.
    pub(super) bound: Vec<usize>,
}

impl WorkerCpus {
    /// Whether the worker is bound to a single processor.
    pub(super) fn pinned(&self) -> bool {
        self.bound.len() == 1
    }
    /// The processors that its thread may run on.
    pub(super) fn cpus(&self) -> std::io::Result<Vec<usize>> {
        match self.bound.is_empty() {
            true => cpu::allowed(),
            false => Ok(self.bound.clone()),
        }
    }
    /// Name of the thread of worker `id`.
    pub(super) fn thread_name(&self, id: usize) -> String {
        match self.pinned() {
            true => format!("pmd-c{:02}", self.core),
            false => format!("worker{id}"),
        }
    }
}

/// A processor, for the choice of default workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpu {
    cpu: usize,
    numa: u32,
    /// Processors with the same number share a physical core; `None` shares none.
    core: Option<u32>,
}

/// Processors of default workers: at most `most`, one node after the other. A second hardware thread of a
/// core is used last.
fn choose(cpus: &[Cpu], most: usize) -> Vec<Cpu> {
    let mut nodes: BTreeMap<u32, (Vec<Cpu>, Vec<Cpu>)> = BTreeMap::new();
    for cpu in cpus {
        let (first, siblings) = nodes.entry(cpu.numa).or_default();
        match first.iter().any(|f| f.core.is_some() && f.core == cpu.core) {
            true => siblings.push(*cpu),
            false => first.push(*cpu),
        }
    }
    let mut queues: Vec<_> = nodes
        .into_values()
        .map(|(first, siblings)| first.into_iter().chain(siblings))
        .collect();
    let mut chosen = Vec::new();
    let n = most.min(cpus.len());
    while chosen.len() < n {
        for queue in &mut queues {
            chosen.extend(queue.next().filter(|_| chosen.len() < n));
        }
    }
    chosen.sort_by_key(|c| c.cpu);
    chosen
}

/// Processors of the default workers, without a mask.
pub(super) fn default_places() -> Vec<WorkerCpus> {
    let allowed = cpu::allowed().unwrap_or_else(|_| vec![0]);
    let describe = |cpu| Cpu {
        cpu,
        numa: cpu::numa_node(cpu).unwrap_or(0),
        core: cpu::core_id(cpu),
    };
    let cpus: Vec<Cpu> = allowed.into_iter().map(describe).collect();
    let one_node = cpus.iter().all(|c| c.numa == cpus[0].numa);
    let node = |numa| cpus.iter().filter(move |c| c.numa == numa).map(|c| c.cpu);
    let place = |c: Cpu| WorkerCpus {
        core: c.cpu,
        numa: c.numa,
        bound: if one_node {
            Vec::new()
        } else {
            node(c.numa).collect()
        },
    };
    choose(&cpus, MAX_DEFAULT_WORKERS)
        .into_iter()
        .map(place)
        .collect()
}

/// Pretended processors of workers: those of `cpus` that exist, else the first of each node.
pub(super) fn pretended(nodes: &[u32], cpus: Option<&[usize]>) -> Vec<WorkerCpus> {
    let asked = cpus.unwrap_or_default().iter().copied();
    let mut cores: Vec<usize> = asked.filter(|c| *c < nodes.len()).collect();
    if cores.is_empty() {
        let first = |i: &usize| !nodes[..*i].contains(&nodes[*i]);
        cores = (0..nodes.len()).filter(first).collect();
    }
    if cores.is_empty() {
        cores.push(0);
    }
    let place = |core| WorkerCpus {
        core,
        numa: nodes.get(core).copied().unwrap_or(0),
        bound: Vec::new(),
    };
    cores.into_iter().map(place).collect()
}

/// Processors of pinned workers. Processors that the machine does not have are logged in one line, because a
/// mask may name any number of them.
pub(super) fn pinned_places(cpus: &[usize]) -> Vec<WorkerCpus> {
    let there = cpu::online().ok();
    let (cpus, absent): (Vec<usize>, Vec<usize>) = cpus
        .iter()
        .partition(|c| there.as_ref().is_none_or(|there| there.contains(*c)));
    if let [first, ..] = absent[..] {
        let n = absent.len();
        log::warn!(target: "dpif_netdev", "pmd-cpu-mask names {n} processors that are not there, the first of them is {first}");
    }
    let place = |core| WorkerCpus {
        core,
        numa: cpu::numa_node(core).unwrap_or(0),
        bound: vec![core],
    };
    cpus.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &[(usize, u32, u32)]) -> Vec<Cpu> {
        let one = |&(cpu, numa, core)| Cpu {
            cpu,
            numa,
            core: Some(core),
        };
        list.iter().map(one).collect()
    }
    fn numbers(chosen: Vec<Cpu>) -> Vec<usize> {
        chosen.into_iter().map(|c| c.cpu).collect()
    }

    #[test]
    fn default_workers_take_cores_before_their_siblings_and_all_nodes() {
        let one = cpus(&[(0, 0, 0), (1, 0, 0), (2, 0, 1), (3, 0, 1)]);
        assert_eq!(numbers(choose(&one, 2)), [0, 2]);
        assert_eq!(numbers(choose(&one, 3)), [0, 1, 2]);
        assert_eq!(numbers(choose(&one, 9)), [0, 1, 2, 3]);
        let two = cpus(&[(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1)]);
        assert_eq!(numbers(choose(&two, 4)), [0, 1, 3, 4]);
        assert_eq!(numbers(choose(&two[..4], 4)), [0, 1, 2, 3]);
        let unknown = [3, 5].map(|cpu| Cpu {
            cpu,
            numa: 0,
            core: None,
        });
        assert_eq!(numbers(choose(&unknown, 4)), [3, 5]);
        assert!(choose(&[], 4).is_empty());
    }

    #[test]
    fn processors_that_are_not_there_get_no_threads() {
        let online = cpu::online().unwrap();
        let named: Vec<usize> = (0..80_000).collect();
        let cores: Vec<usize> = pinned_places(&named).iter().map(|p| p.core).collect();
        assert_eq!(cores, online);
    }

    #[test]
    fn pretended_processors() {
        let cores = |nodes: &[u32], asked: Option<&[usize]>| -> Vec<(usize, u32)> {
            pretended(nodes, asked).iter().map(|p| (p.core, p.numa)).collect()
        };
        assert_eq!(cores(&[1, 1, 0, 0], None), [(0, 1), (2, 0)]);
        assert_eq!(cores(&[1, 1, 0, 0], Some(&[1, 2, 9])), [(1, 1), (2, 0)]);
        assert_eq!(cores(&[0], Some(&[9])), [(0, 0)]);
        assert_eq!(cores(&[], None), [(0, 0)]);
    }
}
