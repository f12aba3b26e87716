//! Errors of decapsulation.

/// The reason why a packet cannot be decapsulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PopError {
    /// Not IP, not of the tunnel's protocol, or a wrong checksum in the IP header.
    Header,
    /// The headers extend beyond the packet's end.
    Truncated,
    /// A length in a header does not match the packet.
    Length,
    /// An IPv4 header with a source route, or with malformed options.
    IpOptions,
    /// A fragment.
    Fragment,
    /// A time to live of zero.
    Ttl,
    /// A wrong outer UDP, TCP or GRE checksum.
    Csum,
    /// An unknown version.
    Version,
    /// A flag that is unknown, or must be zero.
    Flags,
    /// An unknown protocol of the inner packet.
    Protocol,
    /// Options that extend beyond their end, or whose lengths are not those of their fields.
    Options,
    /// An unknown option that is critical.
    Critical,
    /// A GSO packet of outer packets.
    OuterGso,
    /// A segment of an STT frame, and the caller gave no buffer for segments.
    Part,
    /// A segment that extends beyond its frame.
    Beyond,
    /// A segment whose length of the frame differs from that of earlier segments.
    Frame,
    /// A segment whose bytes have arrived before.
    Duplicate,
    /// A segment of which some bytes have arrived before.
    Overlap,
    /// A segment that would give its frame too many ranges.
    Scattered,
    /// The metadata in an STT header does not match the frame.
    Metadata,
}
