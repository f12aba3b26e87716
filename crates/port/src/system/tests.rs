//! What needs no privilege.

use super::SystemPort;

#[test]
fn refusals_use_the_expected_words() {
    let e = SystemPort::open("no-such-dev0").unwrap_err();
    assert_eq!(
        e.to_string(),
        "could not open network device no-such-dev0 (No such device)"
    );
    // There in any namespace; packets that are sent to it would come back to nobody.
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
