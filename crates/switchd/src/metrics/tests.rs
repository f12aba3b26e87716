//! Requests, and labels made of names from the database.

use super::serve::request;

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
