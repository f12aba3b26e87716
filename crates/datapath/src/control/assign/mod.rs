//! Assigns receive queues to workers, and decides whether another assignment would be better.
//!
//! Pure functions over a description of workers and queues ([`Core`], [`Queue`]), so that tests can describe
//! any machine. The rules are Open vSwitch's (`pmd-rxq-assign`, `pmd-rxq-affinity`, `pmd-rxq-isolate`), and
//! so are the sentences that go to the log:
//!
//! * A queue with an affinity goes to the worker of that processor. This worker is isolated: it polls queues
//!   with an affinity only. [`Spread::isolate`] turns that off, but only with the algorithm `group`.
//! * The other queues go, busiest first, to workers of their memory's NUMA node. If none is free there, they
//!   go to any worker, node by node.
//! * `cycles` walks the workers up and down. `roundrobin` takes them in turn, in the order of ports. `group`
//!   takes the worker with the least load so far.
//!
//! One exception protects a queue that Open vSwitch polls on its main thread. A queue that must be polled
//! ([`Queue::must`]) goes to an isolated worker if there is no other.
//!
//! Cost: O(q log q + q × w) for q queues and w workers, on a control thread.

mod balance;
mod walk;

#[cfg(test)]
mod tests;

pub(crate) use balance::{Balance, dry_run};
use walk::{Node, Nodes};

/// Algorithm that spreads queues over workers (`pmd-rxq-assign`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxqAssign {
    /// Queues in order of measured cycles, workers taken up and down.
    #[default]
    Cycles,
    /// Workers in turn, regardless of cycles.
    RoundRobin,
    /// Queues in order of measured cycles, each to the worker with the least so far.
    Group,
}

impl RxqAssign {
    /// The setting's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::RoundRobin => "roundrobin",
            Self::Group => "group",
        }
    }
}

/// Settings of the assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// `pmd-rxq-assign`.
    pub assign: RxqAssign,
    /// `pmd-rxq-isolate`: a worker with a queue of affinity gets no others. Only [`RxqAssign::Group`] may
    /// turn it off.
    pub isolate: bool,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            assign: RxqAssign::default(),
            isolate: true,
        }
    }
}

/// One worker. Workers are described in ascending order of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) core: usize,
    pub(crate) numa: u32,
}

/// A receive queue. Queues are described in the order of port numbers, then of queue numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// The port's name.
    pub(crate) port: String,
    pub(crate) queue: usize,
    /// NUMA node of its memory; `None`: any will do.
    pub(crate) numa: Option<u32>,
    /// Processor of its affinity.
    pub(crate) pinned: Option<usize>,
    /// Cycles that its packets took in the last minute.
    pub(crate) cycles: u64,
    /// Polled on an isolated worker rather than not at all.
    pub(crate) must: bool,
}

/// A sentence for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlanNote {
    /// The queue that it is about; `None`: all.
    pub(crate) queue: Option<usize>,
    pub(crate) warning: bool,
    pub(crate) text: String,
}

/// An assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Each queue's worker, as an index into the workers; `None`: no worker polls it.
    pub(crate) place: Vec<Option<usize>>,
    /// Workers that poll queues with an affinity only.
    pub(crate) isolated: Vec<bool>,
    pub(crate) notes: Vec<PlanNote>,
}

/// Assigns `queues` to `cores`.
pub(crate) fn plan(spread: Spread, cores: &[Core], queues: &[Queue]) -> Plan {
    let isolate = spread.isolate || spread.assign != RxqAssign::Group;
    let mut planning = Planning {
        assign: spread.assign,
        cores,
        queues,
        load: vec![(0, 0); cores.len()],
        plan: Plan {
            place: vec![None; queues.len()],
            isolated: vec![false; cores.len()],
            notes: Vec::new(),
        },
    };
    let mut rest: Vec<usize> = (0..queues.len()).filter(|q| !planning.pin(*q, isolate)).collect();
    if spread.assign != RxqAssign::RoundRobin {
        // Stable: of equal queues the first port's first queue comes first.
        rest.sort_by_key(|q| std::cmp::Reverse(queues[*q].cycles));
    }
    if !rest.is_empty() {
        let name = spread.assign.name();
        planning.note(
            None,
            false,
            format!("Performing pmd to rx queue assignment using {name} algorithm."),
        );
    }
    let mut nodes = Nodes::new(cores, &planning.plan.isolated);
    for q in rest {
        planning.spread(q, &mut nodes);
    }
    planning.plan
}

struct Planning<'a> {
    assign: RxqAssign,
    cores: &'a [Core],
    queues: &'a [Queue],
    /// Cycles and queues of each worker so far.
    load: Vec<(u64, usize)>,
    plan: Plan,
}

impl Planning<'_> {
    fn note(&mut self, queue: Option<usize>, warning: bool, text: String) {
        self.plan.notes.push(PlanNote { queue, warning, text });
    }
    fn put(&mut self, q: usize, worker: usize) {
        self.plan.place[q] = Some(worker);
        self.load[worker].0 += self.queues[q].cycles;
        self.load[worker].1 += 1;
    }
    fn measured(&self, q: usize) -> String {
        match self.assign {
            RxqAssign::RoundRobin => String::new(),
            _ => format!(" (measured processing cycles {})", self.queues[q].cycles),
        }
    }

    /// Follows an affinity; `false`: there is none, or none that can be followed.
    fn pin(&mut self, q: usize, isolate: bool) -> bool {
        let Queue {
            port, queue, pinned, ..
        } = &self.queues[q];
        let Some(core) = *pinned else { return false };
        let Some(worker) = self.cores.iter().position(|c| c.core == core) else {
            let text = format!(
                "Core {core:2} cannot be pinned with port '{port}' rx queue {queue}. Use pmd-cpu-mask to enable a pmd on core \
                 {core}. An alternative core will be assigned."
            );
            self.note(Some(q), true, text);
            return false;
        };
        self.plan.isolated[worker] |= isolate;
        let text = format!(
            "Core {core:2} on numa node {} is pinned with port '{port}' rx queue {queue}{}",
            self.cores[worker].numa,
            self.measured(q)
        );
        self.note(Some(q), false, text);
        self.put(q, worker);
        true
    }

    fn spread(&mut self, q: usize, nodes: &mut Nodes) {
        let queues = self.queues;
        let Queue {
            port,
            queue,
            numa,
            cycles,
            must,
            ..
        } = &queues[q];
        let node = nodes.choose(*numa);
        let worker = node.and_then(|node| match self.assign {
            RxqAssign::Group => self.least(node, *cycles > 0),
            RxqAssign::Cycles => node.next(true),
            RxqAssign::RoundRobin => node.next(false),
        });
        let measured = self.measured(q);
        let Some(worker) = worker else {
            match (0..self.cores.len()).min_by_key(|w| self.load[*w].1) {
                Some(worker) if *must => self.put(q, worker),
                _ => {
                    let text = format!(
                        "No non-isolated pmd on any numa available for port '{port}' rx queue {queue}{measured}. This rx queue will \
                         not be polled."
                    );
                    self.note(Some(q), true, text);
                }
            }
            return;
        };
        let Core { core, numa: there } = self.cores[worker];
        if let Some(wanted) = numa.filter(|n| *n != there) {
            let text = format!(
                "There's no available (non-isolated) pmd thread on numa node {wanted}. Port '{port}' rx queue {queue} will be \
                 assigned to a pmd on numa node {there}. This may lead to reduced performance."
            );
            self.note(Some(q), false, text);
        }
        let text =
            format!("Core {core:2} on numa node {there} assigned port '{port}' rx queue {queue}{measured}.");
        self.note(Some(q), false, text);
        self.put(q, worker);
    }

    /// The worker of a node with the least cycles, or for a queue without any, the fewest queues.
    fn least(&self, node: &Node, by_cycles: bool) -> Option<usize> {
        let free = node.workers.iter().copied();
        free.min_by_key(|w| {
            let (cycles, queues) = self.load[*w];
            if by_cycles { cycles } else { queues as u64 }
        })
    }
}
