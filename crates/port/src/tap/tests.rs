//! Tests that need no device.

use super::TapPort;

#[test]
fn refusals_use_the_expected_words() {
    let e = TapPort::open("a-name-that-is-too-long").unwrap_err();
    assert_eq!(
        e.to_string(),
        "could not open network device a-name-that-is-too-long (Invalid argument)"
    );
}
