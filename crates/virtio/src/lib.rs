//! The virtio-net header and, later, the rings.
