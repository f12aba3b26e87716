//! OpenFlow 1.0 to 1.5 and the Nicira extensions: encode and decode, no sockets.
