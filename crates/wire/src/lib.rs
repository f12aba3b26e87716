//! Header views and builders, checksums.
