//! Requests of the control side to a worker.
//!
//! A bounded ring and an eventfd. Senders take turns under a lock of their own; the worker, the only
//! consumer, takes none. Replies go over a channel whose buffer the command contains.

use super::{RxSlot, Worker};
use crate::exec::program::Program;
use crate::exec::tx::TxPort;
use crate::flow_cache::RevalidatorFindings;
use heddle_datapath_api::DropKind;
use heddle_flow::{FlowKey, packet_type};
use heddle_packet::Packet;
use heddle_port::{RxQueue, TxQueue};
use heddle_sync::ring::{Consumer, Producer, ring};
use heddle_sys::{EventFd, Tsc, cpu, priority};
#[expect(clippy::disallowed_types, reason = "of the senders")]
use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// The real-time priority of workers that have one (`SCHED_RR`).
pub const REALTIME: u8 = 1;

/// A packet from the control side.
pub(crate) struct Injected {
    pub(crate) packet: Packet,
    /// Type of its first header ([`heddle_flow::packet_type`]).
    pub(crate) packet_type: u32,
    /// The packet's context, if there is any ([`FlowKey::context`]).
    pub(crate) context: Option<Box<FlowKey>>,
}

/// A request to a worker.
pub(crate) enum Command {
    /// Send on this port from now on.
    AddTx(u32, TxPort),
    /// Receive from this queue from now on.
    AddRx(RxSlot),
    /// Give these queues back (port, number), to be polled by another worker.
    TakeRx(Vec<(u32, usize)>, Sender<Reply>),
    /// Receive no more from this port; the queues come back.
    DelRx(u32, Sender<Reply>),
    /// Forget this port; its queues come back.
    DelPort(u32, Sender<Reply>),
    /// Forward one packet: by the program, or as if it had been received.
    Run(Box<Injected>, Option<Arc<Program>>, Sender<Reply>),
    /// Evicts these entries (slot, id), or gives them a valid cached translation.
    Findings(RevalidatorFindings),
    /// Pause for this number of microseconds when there are no packets (see [`crate::MaxSleep`]).
    MaxSleep(Option<u64>),
    /// Set the real-time priority, or clear it.
    Realtime(bool, Sender<io::Result<()>>),
    /// Run on these processors from now on.
    Bind(Box<Binding>, Sender<io::Result<()>>),
    /// Reply when all commands before this one are done.
    Barrier(Sender<Reply>),
    /// Reply after a round in which all queues were empty, or after a bounded number of rounds.
    Sync(Sender<Reply>),
    /// End the thread.
    Stop,
}

/// Processors of a worker.
pub(crate) struct Binding {
    pub(crate) name: String,
    pub(crate) cpus: Vec<usize>,
    /// The worker has the only processor for itself.
    pub(crate) pinned: bool,
}

/// A reply of a worker.
pub(crate) enum Reply {
    /// The command is done.
    Done,
    /// The queues that the command took back.
    Slots(Vec<RxSlot>),
    /// The command is done. The caller that drops this reply closes these queues.
    Queues(
        #[expect(dead_code, reason = "held to be dropped elsewhere")] Vec<Box<dyn RxQueue>>,
        #[expect(dead_code, reason = "as before")] Option<Box<dyn TxQueue>>,
    ),
}

/// The sending end.
pub(crate) struct CommandTx {
    #[expect(clippy::disallowed_types, reason = "of the senders")]
    ring: Mutex<Producer<Command>>,
    bell: Arc<EventFd>,
}

/// A command ring for one worker.
#[expect(clippy::disallowed_types, reason = "of the senders")]
pub(crate) fn command_ring(bell: Arc<EventFd>) -> (CommandTx, Consumer<Command>) {
    let (tx, rx) = ring(256);
    (
        CommandTx {
            ring: Mutex::new(tx),
            bell,
        },
        rx,
    )
}

/// Time that a sender waits for room or for a reply.
pub(crate) const WORKER_TIMEOUT: Duration = Duration::from_secs(5);

impl CommandTx {
    /// Sends a command; waits a bounded time for room. `false`: the worker takes no commands.
    #[expect(clippy::disallowed_methods, reason = "the control side waits, not the worker")]
    pub(crate) fn send(&self, command: Command) -> bool {
        let deadline = Instant::now() + WORKER_TIMEOUT;
        let mut command = command;
        loop {
            match self.ring.lock().push(command) {
                Ok(()) => break,
                Err(back) => command = back,
            }
            if Instant::now() > deadline {
                return false;
            }
            self.bell.notify();
            std::thread::sleep(Duration::from_micros(50));
        }
        self.bell.notify();
        true
    }
    /// Sends a command if there is room; `false`: there is none.
    #[expect(clippy::disallowed_methods, reason = "as before")]
    pub(crate) fn try_send(&self, command: Command) -> bool {
        let sent = self.ring.lock().push(command).is_ok();
        self.bell.notify();
        sent
    }
}

/// A descriptor's token in the epoll set.
pub(super) fn token_of(fd: RawFd) -> u64 {
    u64::from(fd.unsigned_abs())
}

impl Worker {
    /// Runs the waiting commands, a bounded number.
    pub(super) fn run_commands(&mut self) {
        for _ in 0..64 {
            let Some(command) = self.commands.pop() else {
                return;
            };
            self.run_command(command);
        }
    }

    fn run_command(&mut self, command: Command) {
        // The caller may have stopped waiting for the reply, which is no error.
        match command {
            Command::AddTx(no, port) => drop(self.resources.tx.insert(no, port)),
            Command::AddRx(mut slot) => {
                slot.watched = slot.queue.wake_fd().map(|fd| fd.0).filter(|fd| self.watch(*fd));
                self.add_slot(slot);
            }
            Command::TakeRx(names, reply) => {
                let slots = self.take_slots(|slot| names.contains(&(slot.port, slot.index)));
                let _ = reply.send(Reply::Slots(slots));
            }
            Command::DelRx(no, reply) => {
                let queues = self.take_rx(no);
                let _ = reply.send(Reply::Queues(queues, None));
            }
            Command::DelPort(no, reply) => {
                let queues = self.take_rx(no);
                let tx = self.resources.tx.remove(no).map(|mut port| {
                    self.counters.drops.add(DropKind::TxFull, port.queue.abandon());
                    port.queue
                });
                let _ = reply.send(Reply::Queues(queues, tx));
            }
            Command::Run(injected, program, reply) => {
                let packet = &injected.packet;
                if let (None, Some(c)) = (&program, self.resources.tx.counters(packet.in_port)) {
                    c.rx_packets.add(1);
                    c.rx_bytes.add(packet.len() as u64);
                }
                self.run_injected(*injected, program.as_ref());
                let _ = reply.send(Reply::Done);
            }
            Command::Findings(mut list) => {
                self.findings.extend(list.drain(..));
                self.cache.give_back(list);
            }
            Command::MaxSleep(us) => self.pause(us),
            Command::Realtime(on, reply) => {
                let _ = reply.send(priority::set_realtime(if on { REALTIME } else { 0 }));
            }
            Command::Bind(binding, reply) => {
                let _ = reply.send(self.bind(*binding));
            }
            Command::Barrier(reply) => {
                let _ = reply.send(Reply::Done);
            }
            Command::Sync(reply) => self.syncing.push((reply, super::SYNC_ROUNDS)),
            Command::Stop => self.stop = true,
        }
    }

    /// Forwards one packet, by a program if there is one.
    pub(super) fn run_injected(&mut self, mut injected: Injected, program: Option<&Arc<Program>>) {
        let mark = injected.context.as_ref().map_or(0, |key| key.pkt_mark);
        injected.packet.set_mark(mark);
        self.resources.live.burst.push(injected.packet);
        (self.scratch.packet_type, self.scratch.context) = (injected.packet_type, injected.context);
        self.burst(program, Tsc::now());
        (self.scratch.packet_type, self.scratch.context) = (packet_type::ETHERNET, None);
    }

    /// Moves the thread; its memory stays on its node.
    fn bind(&mut self, b: Binding) -> io::Result<()> {
        cpu::pin(&b.cpus)?;
        cpu::name_thread(&b.name);
        self.pinned = b.pinned;
        Ok(())
    }

    fn watch(&self, fd: RawFd) -> bool {
        match self.epoll.add(fd, token_of(fd)) {
            Ok(()) => true,
            // Two queues may share a descriptor.
            Err(e) => e.kind() == std::io::ErrorKind::AlreadyExists,
        }
    }

    fn take_rx(&mut self, no: u32) -> Vec<Box<dyn RxQueue>> {
        let slots = self.take_slots(|slot| slot.port == no);
        slots.into_iter().map(|slot| slot.queue).collect()
    }

    /// Removes queues from this worker. All of their packets are forwarded: commands run between bursts.
    fn take_slots(&mut self, which: impl Fn(&RxSlot) -> bool) -> Vec<RxSlot> {
        self.publish_rx_drops();
        self.settle();
        let mut gone = Vec::new();
        let mut i = 0;
        while i < self.rx.len() {
            if which(&self.rx[i]) {
                self.finish_held(i);
                let mut slot = self.rx.remove(i);
                slot.watched = None;
                if let Some(fd) = slot.queue.wake_fd() {
                    // The descriptor may have been shared with a queue removed before.
                    let _ = self.epoll.remove(fd.0);
                }
                gone.push(slot);
            } else {
                i += 1;
            }
        }
        self.regroup();
        gone
    }
}
