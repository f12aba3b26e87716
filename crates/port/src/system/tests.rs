//! Tests that need no privilege.

use super::SystemPort;

#[test]
fn refusals_use_the_expected_words() {
    let e = SystemPort::open("no-such-dev0").unwrap_err();
    assert_eq!(
        e.to_string(),
        "could not open network device no-such-dev0 (No such device)"
    );
    // This device exists in any namespace; no process would receive packets that are sent to it.
    let e = SystemPort::open("lo").unwrap_err();
    assert_eq!(
        e.to_string(),
        "could not add network device lo to ofproto (Invalid argument: a loopback device cannot be a port)"
    );
    let e = crate::open("vxlanx", "v0", &Default::default()).err().unwrap();
    assert_eq!(
        e.to_string(),
        "could not create v0: unknown interface type vxlanx"
    );
}
