//! Sessions over patches and tunnels of a pretended switch.
