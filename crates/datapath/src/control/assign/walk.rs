//! The order in which workers are taken.

use super::Core;

/// A NUMA node with workers that take queues without an affinity.
#[derive(Debug)]
pub(super) struct Node {
    numa: u32,
    /// Indices of those workers, ascending.
    pub(super) workers: Vec<usize>,
    at: usize,
    down: bool,
}

impl Node {
    /// The next worker: in turn, or (`updown`) to the end and back, each end twice.
    pub(super) fn next(&mut self, updown: bool) -> Option<usize> {
        let worker = self.workers.get(self.at).copied()?;
        let last = self.workers.len() - 1;
        match (self.down, self.at) {
            (false, at) if at < last => self.at += 1,
            (false, _) if updown => self.down = true,
            (false, _) => self.at = 0,
            (true, 0) => self.down = false,
            (true, _) => self.at -= 1,
        }
        Some(worker)
    }
}

/// All nodes, ascending.
pub(super) struct Nodes {
    nodes: Vec<Node>,
    /// Node for the next queue that cannot have its own.
    turn: usize,
}

impl Nodes {
    pub(super) fn new(cores: &[Core], isolated: &[bool]) -> Self {
        let mut nodes: Vec<Node> = Vec::new();
        for (i, core) in cores.iter().enumerate().filter(|(i, _)| !isolated[*i]) {
            match nodes.iter_mut().find(|n| n.numa == core.numa) {
                Some(node) => node.workers.push(i),
                None => nodes.push(Node {
                    numa: core.numa,
                    workers: vec![i],
                    at: 0,
                    down: false,
                }),
            }
        }
        nodes.sort_by_key(|n| n.numa);
        Self { nodes, turn: 0 }
    }
    /// A queue's own node, if that has a worker for it; else one node after the other.
    pub(super) fn choose(&mut self, numa: Option<u32>) -> Option<&mut Node> {
        let own = numa.and_then(|n| self.nodes.iter().position(|node| node.numa == n));
        let at = own.unwrap_or_else(|| {
            let at = self.turn % self.nodes.len().max(1);
            self.turn = at + 1;
            at
        });
        self.nodes.get_mut(at)
    }
}
