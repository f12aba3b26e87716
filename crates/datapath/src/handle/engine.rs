//! The methods of a datapath that policy calls ([`Engine`]).

use super::Datapath;
use crate::exec::program::Program;
use crate::exec::upcalls::{Bell, UpcallInbox};
use crate::worker::{Command, Injected};
use heddle_conntrack::Conntrack;
use heddle_datapath_api::{
    Action, DeviceStats, Engine, LinkChange, NoReply, PortNo, PortStats, Posted, UpcallPacket,
};
use heddle_flow::FlowKey;
use heddle_packet::Packet;
use heddle_sys::QueueCounts;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

impl Engine for Datapath {
    fn has_port(&self, no: PortNo) -> bool {
        self.port(no).is_some()
    }
    fn port_stats(&self, no: PortNo) -> Option<PortStats> {
        self.control.lock().port_stats(no)
    }
    fn device_stats(&self, no: PortNo) -> Option<DeviceStats> {
        let device = self.port(no)?;
        Some(DeviceStats {
            rx_dropped: device.status().rx_dropped,
            custom: device.statistics(),
            driver: device.device_counters(),
            counts_losses: device.counts_losses(),
        })
    }
    fn set_port_admin(&self, no: PortNo, up: bool) -> Option<LinkChange> {
        let device = self.port(no)?;
        let error = device.set_admin(up).err().map(|e| e.to_string());
        let now = device.status();
        Some(LinkChange {
            admin_up: now.admin_up,
            link_up: now.link_up,
            error,
        })
    }
    fn queue_counts(&self, no: PortNo) -> Option<Vec<QueueCounts>> {
        let Some(device) = self.port(no) else {
            return Some(Vec::new());
        };
        let counted = device.queue_counts();
        (!counted.is_empty() || !device.has_default_queue()).then_some(counted)
    }
    fn inject(
        &self,
        packet: Packet,
        key: &FlowKey,
        in_port: PortNo,
        actions: Vec<Action>,
    ) -> Result<(), NoReply> {
        let program = Arc::new(Program::compile(&actions));
        let context = Some(key.context()).filter(|c| *c != FlowKey::default());
        let injected = Injected {
            packet,
            packet_type: key.packet_type,
            context: context.map(Box::new),
        };
        self.run(injected, in_port, Some(program))
    }
    fn post(&self, mut packet: Packet, actions: &[Action]) -> Option<Posted> {
        packet.in_port = PortNo::NONE.0;
        packet.make_private();
        let injected = Injected {
            packet,
            packet_type: heddle_flow::packet_type::ETHERNET,
            context: None,
        };
        let mut to = self.post_box.lock();
        // If another thread holds the lock, the previous worker is as good.
        if let Some(control) = self.control.try_lock()
            && let Some(worker) = control.worker_of(PortNo::NONE)
        {
            *to = Some(Arc::clone(&worker.commands));
        }
        let worker = to.as_ref()?;
        let program = Arc::new(Program::compile(actions));
        let (done, reply) = mpsc::channel();
        let sent = worker.try_send(Command::Run(Box::new(injected), Some(program), done));
        let is_done = move || !matches!(reply.try_recv(), Err(mpsc::TryRecvError::Empty));
        sent.then(|| Posted::new(is_done))
    }
    fn take_upcalls(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize {
        take(&self.shared.bells.packets, &self.upcalls.packets, max, f)
    }
    fn take_control(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize {
        take(&self.shared.bells.control, &self.upcalls.control, max, f)
    }
    fn take_samples(&self, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize {
        take(&self.shared.bells.samples, &self.upcalls.samples, max, f)
    }
    fn wake_control(&self) {
        self.shared.bells.control.ring();
    }
    fn flush_stats(&self) {
        // A busy worker replies after a bounded number of rounds. The limit passes only if a worker gets no
        // processor time: then the counts so far are credited.
        if let Err(e) = self.control.lock().sync(Duration::from_secs(1)) {
            log::debug!("statistics flushed without waiting for a worker: {e}");
        }
        self.revalidator.lock().credit();
    }
    fn observe_now(&self) {
        self.revalidator.lock().observe();
    }
    fn conntrack(&self) -> &Arc<Conntrack> {
        &self.shared.conntrack
    }
}

/// Takes up to `max` packets out of rings.
fn take(bell: &Bell, inbox: &Mutex<UpcallInbox>, max: usize, f: &mut dyn FnMut(UpcallPacket)) -> usize {
    let got = inbox.lock().take(bell, max);
    let n = got.len();
    got.into_iter().for_each(f);
    n
}
