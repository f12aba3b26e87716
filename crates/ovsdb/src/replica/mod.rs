//! The replica: a copy of the monitored part of the database, kept up to date from the server's
//! notifications.
//!
//! * [`MonitorSpec`] has the wanted tables and columns; [`Layout`] has those that the database has.
//! * [`Db`] is one consistent state, shared and never changed in a reader's hands. Every update message of
//!   the server is one transaction and is applied as a whole or not at all.
//! * [`Change`] is one changed row, so that a reconciler looks at changed rows only.
//!
//! Cost: a snapshot is one reference count. Applying an update to a table whose snapshot is still held copies
//! the table's map of row references once (not the rows). A changed row is copied as references to its column
//! values.

mod changes;
mod db;
mod layout;
mod row;
mod spec;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use changes::ChangeLog;
pub use changes::{Change, ChangeKind};
pub use db::{Db, Table};
pub use layout::{Layout, LayoutColumn};
pub(crate) use layout::{layouts, monitor_requests};
pub use row::{ColumnError, Row};
pub use spec::MonitorSpec;
pub(crate) use update::{Inconsistent, parse_updates, parse_updates2};
