//! The announcement of a guest that has migrated and cannot make its own. It is a RARP request (RFC 903) that
//! teaches switches the new location of the guest's address (vhost-user VHOST_USER_SEND_RARP).

/// Shortest frame, without its check sequence.
const LEN: usize = 60;

/// A broadcast RARP request from `mac` for its own address.
pub(super) fn request(mac: [u8; 6]) -> [u8; LEN] {
    let mut frame = [0; LEN];
    let fields: [&[u8]; 8] = [
        &[0xff; 6],
        &mac,
        &[0x80, 0x35],             // RARP
        &[0, 1, 8, 0, 6, 4, 0, 3], // Ethernet, IPv4, lengths, request reverse
        &mac,
        &[0; 4],
        &mac,
        &[0; 4],
    ];
    let bytes = fields.into_iter().flatten();
    for (to, from) in frame.iter_mut().zip(bytes) {
        *to = *from;
    }
    frame
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_rfc_903_lays_it_out() {
        let mac = [2, 3, 4, 5, 6, 7];
        let f = super::request(mac);
        assert_eq!(
            (&f[..6], &f[6..12], &f[12..14]),
            (&[0xff; 6][..], &mac[..], &[0x80, 0x35][..])
        );
        assert_eq!(&f[20..22], &[0, 3], "request reverse");
        assert_eq!((&f[22..28], &f[32..38]), (&mac[..], &mac[..]));
        assert!(f[38..].iter().all(|b| *b == 0));
    }
}
