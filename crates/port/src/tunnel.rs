//! The datapath port that all tunnels of one type (and transport port) share.
//!
//! The port has a number and a name for keys and actions, and no queues. A packet into a tunnel leaves by the
//! port of the outer packet. A packet out of a tunnel is taken out of its headers where the outer packet
//! arrived. A packet that is sent to this port itself cannot leave, and counts as sent to a port that does
//! not exist.

use crate::{Port, PortError, PortStatus, RxQueue, TxCounts, TxQueue};
use heddle_packet::{Packet, Pool};
use heddle_tunnel::TunnelType;
use std::sync::Arc;

/// See the module's text.
#[derive(Debug)]
pub struct TunnelPort {
    name: String,
    ty: TunnelType,
    dst_port: u16,
}

impl TunnelPort {
    /// The port for tunnels of a type and with that transport port (0 for types without).
    pub fn open(ty: TunnelType, dst_port: u16) -> Arc<Self> {
        Arc::new(Self {
            name: ty.port_name(dst_port),
            ty,
            dst_port,
        })
    }
    /// The transport port, 0 for types without.
    pub fn dst_port(&self) -> u16 {
        self.dst_port
    }
}

impl Port for TunnelPort {
    fn name(&self) -> &str {
        &self.name
    }
    fn kind(&self) -> &'static str {
        self.ty.name()
    }
    fn tunnel(&self) -> Option<TunnelType> {
        Some(self.ty)
    }
    fn open_rx(&self, _n: usize) -> Result<Vec<Box<dyn RxQueue>>, PortError> {
        Ok(Vec::new())
    }
    fn open_tx(&self, _worker: usize, _n: usize) -> Result<Box<dyn TxQueue>, PortError> {
        Ok(Box::new(NoWay))
    }
    fn status(&self) -> PortStatus {
        PortStatus {
            admin_up: true,
            link_up: true,
            ..PortStatus::default()
        }
    }
    fn set_mtu(&self, _mtu: u32) -> Result<(), PortError> {
        Err(PortError::Unsupported("MTU of a tunnel"))
    }
    fn set_mac(&self, _mac: [u8; 6]) -> Result<(), PortError> {
        Err(PortError::Unsupported("address of a tunnel"))
    }
    fn set_admin(&self, _up: bool) -> Result<(), PortError> {
        Err(PortError::Unsupported("admin state of a tunnel"))
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

struct NoWay;

impl TxQueue for NoWay {
    fn tx(&mut self, _pool: &mut Pool, packets: &[&Packet]) -> TxCounts {
        TxCounts {
            nowhere: packets.len() as u64,
            ..TxCounts::default()
        }
    }
}
