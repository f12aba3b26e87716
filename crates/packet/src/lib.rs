//! Packets, buffers, pools, bursts, offload metadata.
