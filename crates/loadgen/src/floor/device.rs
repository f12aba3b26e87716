//! This project's own rings between two ports, without a datapath.

use super::{BURST, Lane};
use crate::error::RunError;
use arrayvec::ArrayVec;
use heddle_packet::{Burst, Packet, Pool};
use heddle_vhost_user::frontend::{FrontendError, Nic, NicQueue};
use heddle_virtio::{DeviceRx, DeviceTx, SharedMemory};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Rings {
    rx: DeviceRx,
    tx: DeviceTx,
    pool: Pool,
    burst: Burst,
}

impl Rings {
    pub(super) fn new(from: (&Nic, &NicQueue), to: (&Nic, &NicQueue)) -> Result<Self, RunError> {
        let wrong = |error: FrontendError| RunError::Session { port: 0, error };
        let memory = |nic: &Nic| -> Result<_, RunError> {
            Ok(Arc::new(SharedMemory::new(nic.ram().table().map_err(wrong)?)))
        };
        let mut rx = DeviceRx::new(from.1.config, memory(from.0)?).map_err(|e| wrong(e.into()))?;
        let mut tx = DeviceTx::new(to.1.config, memory(to.0)?).map_err(|e| wrong(e.into()))?;
        rx.disarm();
        tx.disarm();
        Ok(Self {
            rx,
            tx,
            pool: Pool::new(4 * BURST),
            burst: Burst::new(),
        })
    }
}

impl Lane for Rings {
    fn turn(&mut self) -> Result<(usize, usize), RunError> {
        let n = self.rx.rx(&mut self.pool, &mut self.burst);
        let broken = self.rx.error().or(self.tx.error());
        if let Some(e) = broken {
            return Err(RunError::Silent(format!("the rings stop: {e}")));
        }
        if n == 0 {
            return Ok((0, 0));
        }
        let packets: ArrayVec<&Packet, { heddle_packet::BURST }> = self.burst.iter().collect();
        let out = self.tx.tx(&packets);
        drop(packets);
        self.pool.put_all(self.burst.drain(..));
        self.rx.complete();
        let sent = usize::try_from(out.sent).unwrap_or(0);
        Ok((sent, n - sent))
    }
}
