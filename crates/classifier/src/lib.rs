//! Tuple-space search with wildcard tracking, priorities and versions.
