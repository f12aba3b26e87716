//! Integers, ports and properties as all messages and actions have them.

pub(crate) mod cursor;
pub(crate) mod port;
pub(crate) mod property;
