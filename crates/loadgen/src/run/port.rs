//! One port: a device with its senders and receivers.

use super::Link;
use crate::flows::Sequence;
use crate::frame::{HDR, mac};
use crate::load::{Load, Setup};
use crate::traffic::{Frames, Pace, Received, Receiver, Sender, Sent};
use heddle_sys::Tsc;
use heddle_vhost_user::frontend::Nic;
use heddle_virtio::driver::DriverError;
use heddle_wire::eth::ethertype;

/// A port of the generator.
#[derive(Debug)]
pub struct Port {
    /// The device.
    pub nic: Nic,
    /// The device's connection; `None` if the device side is in this process.
    pub link: Option<Link>,
    pub(super) senders: Vec<Sender>,
    pub(super) receivers: Vec<Receiver>,
}

impl Port {
    /// A port without traffic yet.
    pub fn new(nic: Nic, link: Option<Link>) -> Self {
        Self {
            nic,
            link,
            senders: Vec::new(),
            receivers: Vec::new(),
        }
    }

    /// Posts one frame from which a learning switch learns this port's address; [`Port::announced`] waits for
    /// it.
    pub fn announce(&mut self, port: u8) {
        let Some(queue) = self.nic.tx.first_mut() else {
            return;
        };
        let mut frame = vec![0; HDR];
        frame.extend([0xff; 6]);
        frame.extend(mac(port));
        frame.extend(ethertype::RARP.to_be_bytes());
        // RFC 903: a reverse request for one's own address; it gets no reply here.
        frame.extend([0, 1, 8, 0, 6, 4, 0, 3]);
        for _ in 0..2 {
            frame.extend(mac(port));
            frame.extend([0; 4]);
        }
        frame.resize(HDR + 60, 0);
        let buffer = queue.stream.upcoming(0);
        queue.stream.write(buffer, 0, &frame);
        queue
            .stream
            .set_len(buffer, u32::try_from(frame.len()).unwrap_or(0));
        queue.post(1);
    }
    /// Whether the device has taken the announcement.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    pub fn announced(&mut self) -> Result<bool, DriverError> {
        let Some(queue) = self.nic.tx.first_mut() else {
            return Ok(true);
        };
        queue.stream.take(usize::MAX, |_, _| ())?;
        Ok(queue.stream.free() == usize::from(queue.config.size))
    }

    /// Sets its senders and receivers up. `index` of `ports` is this port, `sending` the number of ports that
    /// share the load's rate; all transmit buffers must be free.
    pub fn load(&mut self, load: &Load, setup: &Setup, index: usize, ports: usize, sending: usize) {
        let number = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
        let features = self.nic.features();
        let capacity = setup.nic(load.shape).rx_len;
        self.receivers = self
            .nic
            .rx
            .iter()
            .map(|q| Receiver::new(q, features, capacity, number(index), load))
            .collect();
        self.senders.clear();
        let Some(to) = load.target(index, ports) else {
            return;
        };
        let pairs = self.nic.tx.len();
        let sending = sending * pairs;
        let pace = load.rate.map_or(Pace::Full, |rate| {
            Pace::of_rate(rate / sending.max(1) as f64, Tsc::hz())
        });
        for (k, queue) in self.nic.tx.iter_mut().enumerate() {
            let id = number(index * pairs + k);
            let flows = load.flows.div_ceil(u32::try_from(pairs).unwrap_or(1));
            let flows = Sequence::new(load.order, flows, 0x9e37_79b9_7f4a_7c15 ^ u64::from(id));
            let mut frames = Frames::new(load.shape, number(index), number(to), id);
            if let Some(gateway) = load.aim.gateway {
                frames = frames.to_ethernet(gateway);
            }
            self.senders.push(
                Sender::new(queue, frames, id, flows, pace, load).to_address(load.aim.address[index % 2]),
            );
        }
    }

    /// One turn: sends the packets that are due, takes those that have come. Returns packets sent and buffers
    /// taken.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    #[inline]
    pub fn turn(&mut self, now: u64, send: bool) -> Result<(usize, usize), DriverError> {
        let (mut sent, mut taken) = (0, 0);
        if send {
            for (sender, queue) in self.senders.iter_mut().zip(&mut self.nic.tx) {
                sent += sender.poll(queue, now)?;
            }
        }
        for (receiver, queue) in self.receivers.iter_mut().zip(&mut self.nic.rx) {
            taken += receiver.poll(queue, Tsc::now)?;
        }
        Ok((sent, taken))
    }
    /// Takes used transmit buffers back; returns whether the device has used all of them.
    ///
    /// # Errors
    /// [`DriverError::Device`].
    pub fn reap(&mut self) -> Result<bool, DriverError> {
        let mut all = true;
        for (sender, queue) in self.senders.iter_mut().zip(&mut self.nic.tx) {
            sender.reap(queue)?;
            all &= queue.stream.free() == usize::from(queue.config.size);
        }
        Ok(all)
    }
    /// Sums of its senders' counters.
    pub fn sent(&self) -> Sent {
        self.senders
            .iter()
            .fold(Sent::default(), |a, s| a.plus(s.counts()))
    }
    /// Sums of its receivers' counters.
    pub fn received(&self) -> Received {
        self.receivers
            .iter()
            .fold(Received::default(), |a, r| a.plus(r.counts()))
    }
}
