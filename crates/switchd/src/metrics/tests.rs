//! Endpoints, requests, and labels made of names from the database.

use std::path::PathBuf;

use super::Place;
use super::serve::request;

#[test]
fn places() {
    let at = |text: &str| Place::parse(text).map(|p| p.to_string());
    assert_eq!(at("tcp:9310"), Ok("tcp:127.0.0.1:9310".into()));
    assert_eq!(at("tcp:0.0.0.0:9310"), Ok("tcp:0.0.0.0:9310".into()));
    assert_eq!(at("tcp:[::1]:9310"), Ok("tcp:[::1]:9310".into()));
    assert_eq!(
        Place::parse("unix:/run/x"),
        Ok(Place::Unix(PathBuf::from("/run/x")))
    );
    for wrong in [
        "",
        "unix:",
        "tcp:",
        "tcp:host:1",
        "tcp:1.2.3.4",
        "tcp:99999",
        "udp:1",
        "9310",
    ] {
        assert!(Place::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn requests() {
    assert_eq!(request("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Ok(()));
    assert_eq!(request("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n"), Ok(()));
    assert_eq!(request("GET /etc HTTP/1.1\r\n\r\n"), Err("404 Not Found"));
    assert_eq!(
        request("POST /metrics HTTP/1.1\r\n\r\n"),
        Err("405 Method Not Allowed")
    );
    for wrong in ["", "GET", "GET /metrics", "GET /metrics FTP/1", "\u{0}\u{1}"] {
        assert_eq!(request(wrong), Err("400 Bad Request"), "{wrong:?}");
    }
}
