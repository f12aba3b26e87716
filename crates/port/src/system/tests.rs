//! What needs no privilege.

use super::SystemPort;

#[test]
fn refusals_use_the_expected_words() {
    let e = SystemPort::open("no-such-dev0").unwrap_err();
    assert_eq!(
        e.to_string(),
        "could not open network device no-such-dev0 (No such device)"
    );
    let e = crate::open("vxlanx", "v0", &Default::default()).err().unwrap();
    assert_eq!(
        e.to_string(),
        "could not create v0: unknown interface type vxlanx"
    );
}
