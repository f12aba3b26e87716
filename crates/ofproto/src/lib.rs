//! Tables, learning, translation, controller connections.
//!
//! Two halves meet here. The **control half** (`bridge`, `flow_mod`, `conn`, ...) changes rules and
//! configuration; the **translation half** (`xlate`, `mac`, ...) answers the datapath's misses from any worker
//! thread. They share only what [`model`] defines: an immutable [`model::World`] that is replaced as a whole
//! when configuration changes, and concurrent tables of rules with versions.

pub mod mac;
pub mod model;
pub mod xlate;
