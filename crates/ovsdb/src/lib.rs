//! A client of an OVSDB server (RFC 7047): a live replica of a database, transactions, and a lock.
//!
//! The configuration of a switch is in a database that other programs write. The daemon needs all of it at
//! hand, in one consistent state, with notifications of changes; and it writes status back. This crate gives
//! it that, and does not interpret the columns.
//!
//! * A background task owns the socket: it connects (with back-off), loads, follows, and reconnects.
//!   [`Client`] is the handle; clones of it may be used from any number of tasks and threads.
//! * [`Client::snapshot`] is the newest state ([`Db`]); it stays available, unchanged, while the server is
//!   away.
//! * [`Client::poll`] adds the rows that changed since the last poll; [`Client::changed`] waits for a change.
//! * [`Client::transact`] sends a [`Txn`]. When it returns, the replica has the transaction's effects.
//!
//! No message of a server can make it panic or hold memory without bound ([`Options::max_message`]). A
//! message that is not understood ends the connection, and the next connection starts over.
//!
//! ```no_run
//! use heddle_ovsdb::{Client, Columns, MonitorSpec, Options, Txn};
//!
//! # async fn daemon() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = MonitorSpec::new()
//!     .table("Open_vSwitch", ["bridges", "next_cfg", "cur_cfg", "other_config"])
//!     .table("Bridge", ["name", "ports", "datapath_type", "other_config"])
//!     .whole_table("Port")
//!     .whole_table("Interface");
//! let options = Options { lock: Some("ovs_vswitchd".into()), ..Options::default() };
//! let mut client = Client::spawn("unix:/var/run/openvswitch/db.sock", "Open_vSwitch", spec, options)?;
//!
//! while client.changed().await.is_ok() {
//!     let batch = client.poll();
//!     if !batch.db.is_loaded() || !batch.status.has_lock() {
//!         continue;
//!     }
//!     for change in &batch.changes {
//!         println!("{} {} {:?} {:?}", change.table, change.uuid, change.kind, change.columns);
//!     }
//!     let Some(top) = batch.db.first("Open_vSwitch") else { continue };
//!     for bridge in batch.db.referenced(top, "bridges", "Bridge") {
//!         println!("{}: {:?}", bridge.str("name")?, bridge.map_str("other_config")?);
//!     }
//!     // Status: only what differs from the replica is sent.
//!     let mut txn = Txn::new();
//!     txn.assert_lock();
//!     let refused = txn.update_changed(top, &Columns::new().with("cur_cfg", top.int("next_cfg")?));
//!     assert!(refused.is_empty());
//!     if !txn.is_empty() {
//!         match client.transact(txn).await {
//!             Err(e) if e.is_retriable() => continue,
//!             other => drop(other?),
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```

#![deny(clippy::indexing_slicing)] // whatever a server sends

pub mod blocking;
mod call_error;
mod client;
mod options;
mod replica;
pub mod rpc;
mod schema;
mod session;
mod status;
mod txn;
mod value;
pub mod vswitch;

pub use call_error::CallError;
pub use client::{Batch, Client, Closed, PendingTxn, SpawnError};
pub use options::Options;
pub use replica::{Change, ChangeKind, ColumnError, Db, Layout, LayoutColumn, MonitorSpec, Row, Table};
pub use schema::{ColumnSchema, Schema, SchemaError, TableSchema};
pub use status::{ConnState, LockState, Status};
pub use txn::{Columns, Condition, Inserted, Mutation, Mutator, OpResult, Refused, Txn, TxnError, WaitUntil};
pub use uuid::Uuid;
pub use value::{Atom, AtomType, BaseType, ColumnType, Datum, Reference, ValueError};
