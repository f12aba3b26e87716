//! Status of a port, and requests to it.

use super::*;

#[test]
fn status_has_the_keys_that_people_know() {
    let (shared, told) = shared();
    let get = |key: &str| {
        let all = shared.status().extra;
        all.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone())
    };
    assert_eq!(
        (get("mode"), get("status")),
        (Some("client".into()), Some("disconnected".into()))
    );
    assert_eq!(shared.status().extra.len(), 2);
    shared.update(|s| {
        s.connected();
        s.session.features = Features::VERSION_1 | Features::MRG_RXBUF;
        for i in 0..4 {
            s.session.start(i, 256, i < 2);
        }
        s.session.numa = Some(1);
    });
    assert_eq!(told.load(Relaxed), 1);
    let status = shared.status();
    assert!(status.link_up);
    assert_eq!(
        (status.n_rxq, status.numa, status.link_resets),
        (Some(2), Some(1), 1)
    );
    for (key, value) in [
        ("status", "connected"),
        ("socket", "/nowhere"),
        ("features", "0x0000000100008000"),
        ("numa", "1"),
        ("num_of_vrings", "4"),
        ("vring_3_size", "256"),
    ] {
        assert_eq!(get(key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(get("mtu"), None);
    assert!(shared.state.lock().session.polls(0) && !shared.state.lock().session.polls(1));
    shared.update(|s| s.disconnected("it was switched off"));
    let status = shared.status();
    assert!(!status.link_up);
    assert_eq!((status.n_rxq, status.numa), (Some(1), None));
    assert_eq!(get("disconnect_reason").as_deref(), Some("it was switched off"));
}
