//! Protocol features (specification, "Protocol features").

bitflags::bitflags! {
    /// Features of the protocol itself that both sides agree on (the device's features are
    /// [`heddle_virtio::Features`]).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ProtocolFeatures: u64 {
        /// GET_QUEUE_NUM: several queue pairs.
        const MQ = 1;
        /// The dirty log comes as a descriptor.
        const LOG_SHMFD = 1 << 1;
        /// SEND_RARP.
        const RARP = 1 << 2;
        /// Any request may require a reply.
        const REPLY_ACK = 1 << 3;
        /// NET_SET_MTU.
        const MTU = 1 << 4;
        /// A channel for requests of the back end.
        const BACKEND_REQ = 1 << 5;
        /// The front end sends the byte order of legacy rings.
        const CROSS_ENDIAN = 1 << 6;
        /// Crypto sessions.
        const CRYPTO_SESSION = 1 << 7;
        /// Postcopy migration.
        const PAGEFAULT = 1 << 8;
        /// GET_CONFIG, SET_CONFIG.
        const CONFIG = 1 << 9;
        /// Descriptors on the back end's channel.
        const BACKEND_SEND_FD = 1 << 10;
        /// Notification areas of the host.
        const HOST_NOTIFIER = 1 << 11;
        /// The record of chains in flight survives the back end.
        const INFLIGHT_SHMFD = 1 << 12;
        /// RESET_DEVICE.
        const RESET_DEVICE = 1 << 13;
        /// Kicks and calls as messages.
        const INBAND_NOTIFICATIONS = 1 << 14;
        /// ADD_MEM_REG, REM_MEM_REG, GET_MAX_MEM_SLOTS.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        /// GET_STATUS, SET_STATUS.
        const STATUS = 1 << 16;
        /// Xen's memory mapping.
        const XEN_MMAP = 1 << 17;
        /// Shared objects.
        const SHARED_OBJECT = 1 << 18;
        /// Migration of the back end's own state.
        const DEVICE_STATE = 1 << 19;
    }
}
