//! Hardware or kernel offload: flows of the cache that a faster place forwards, and its back ends.
//!
//! ```text
//!   revalidator ── FlowObserver ──> Offload ── Rule ──> Backend (tc flower, eBPF)
//!                <── counts ─────           <── counts ──
//! ```
//!
//! * [`rule`]: a flow in the form that all back ends share, or the reason why it cannot have that form.
//! * [`more`]: fields of a rule that only filters of tc match on.
//! * [`policy`]: the choice of flows if the back end has too little room.
//! * [`observer`]: keeps the back end's flows equal to the revalidator's, and gives its counts back.
//! * [`conns`]: established connections, which flows that track need beside them.
//! * [`backend`]: the trait of a back end.
//! * [`ebpf`]: the back end for kernel devices, with a program of its own.
//! * [`tc`]: the back end for network cards, and for kernel devices without that program.
//! * [`stack`]: several back ends as one.
//! * [`marks`]: the programs of internal ports, with every back end and without one.
//!
//! **The truth is the flow cache.** A back end holds copies. A copy is changed or taken out before the change
//! of rules behind it is confirmed. A copy that is missing costs speed; one that is wrong misforwards: in
//! doubt there is none.

pub mod backend;
pub mod conns;
pub mod ebpf;
mod filter;
mod kernel;
pub mod marks;
mod miss;
pub mod more;
pub mod observer;
mod others;
pub mod policy;
mod port_devices;
pub mod rule;
pub mod stack;
pub mod tc;
#[cfg(test)]
mod tests;
mod why;

pub use backend::{Backend, ConnUse, Handle, PortLink};
pub use ebpf::Ebpf;
pub use marks::Marks;
pub use observer::{Explained, Offload, Stats};
pub use policy::Policy;
pub use rule::{Ct, Decap, Headers, Op, Rule};
pub use stack::{Diverters, Stack};
pub use tc::{Tc, TcPolicy};
pub use why::Why;
