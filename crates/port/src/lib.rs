//! Receive and transmit queues of every port type.
//!
//! A [`Port`] is the control plane's handle of one port: it opens queues, reports status, changes MTU, MAC
//! and admin state. A [`RxQueue`] or [`TxQueue`] belongs to one worker at a time and is all that the fast
//! path sees: no lock, no allocation, no clock.

mod afxdp;
mod drops;
pub mod dummy;
mod flow_hash;
pub mod gro;
mod guest;
mod netdev;
pub mod qos;
mod rates;
pub mod segment;
pub mod sum;
mod system;
mod tap;
mod traits;
mod tunnel;
pub mod types;
mod virtio;

pub use afxdp::AfxdpPort;
pub use dummy::DummyPort;
pub use guest::vduse::VduseContext;
pub use guest::vhost::{VhostContext, open_vhost, socket_dir};
pub use qos::QosConfig;
pub use system::{Divert, IngressFilters, Receivers, SystemPort};
pub use tap::{Birthplace, KeptTaps, MarkPrograms, TapPort};
pub use traits::{Port, PortError, PortStatus, Released, RxQueue, TxCounts, TxQueue, WakeFd};
pub use tunnel::TunnelPort;
pub use types::{Host, PortType, open};
