//! JSON-RPC and a replica of an OVSDB database.
