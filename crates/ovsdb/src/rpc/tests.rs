//! Framing and messages.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::value::tests::any_json;

fn all(framer: &mut Framer) -> Result<Vec<Value>, FrameError> {
    let mut out = Vec::new();
    while let Some(value) = framer.next()? {
        out.push(value);
    }
    Ok(out)
}

proptest! {
    /// However the stream is cut, the same messages come out.
    #[test]
    fn cuts_do_not_matter(bodies in vec(any_json(), 0..6), step in 1..40_usize, pretty in any::<bool>()) {
        let messages: Vec<Value> = bodies.into_iter().map(|b| json!({"x}\"{\\": b})).collect();
        let text: String = messages
            .iter()
            .map(|m| if pretty { format!("\n{m:#} ") } else { m.to_string() })
            .collect();
        let mut framer = Framer::new(1 << 20);
        let mut got = Vec::new();
        for piece in text.as_bytes().chunks(step) {
            framer.push(piece);
            got.extend(all(&mut framer).unwrap());
        }
        prop_assert_eq!(got, messages);
    }

    #[test]
    fn noise_is_refused_or_waited_for(pieces in vec(vec(any::<u8>(), 0..50), 0..10)) {
        let mut framer = Framer::new(100);
        for piece in pieces {
            framer.push(&piece);
            if all(&mut framer).is_err() {
                break;
            }
        }
    }

    #[test]
    fn any_json_is_a_message_or_not(json in any_json()) {
        let _ = Message::from_json(json);
    }
}

#[test]
fn bounds_of_a_message() {
    let mut framer = Framer::new(16);
    framer.push(br#"{"a":"45678901"}{"#);
    assert_eq!(framer.next().unwrap(), Some(json!({"a": "45678901"})));
    framer.push(br#""a":"4567890""#);
    assert!(framer.next().unwrap().is_none());
    framer.push(b"1234567");
    assert!(matches!(framer.next(), Err(FrameError::TooLong(16))));
    let mut framer = Framer::new(16);
    framer.push(br#"{"a":"456789012"}"#);
    assert!(
        matches!(framer.next(), Err(FrameError::TooLong(16))),
        "complete, but longer"
    );
    let mut framer = Framer::new(1 << 20);
    framer.push(b"{\"a\":");
    framer.push(&[b'['; 200]);
    assert!(matches!(framer.next(), Err(FrameError::TooDeep)));
    for (noise, name) in [
        (&b"HTTP/1.1"[..], "text"),
        (b"[1]", "array"),
        (b"\x16\x03\x01", "tls"),
    ] {
        let mut framer = Framer::new(100);
        framer.push(noise);
        assert!(matches!(framer.next(), Err(FrameError::NotObject(_))), "{name}");
    }
    for text in [&b"{]"[..], b"{\"a\" 1}", b"{\"a\": 1e999}", b"{\"a\": \"\xff\"}"] {
        let mut framer = Framer::new(100);
        framer.push(text);
        assert!(matches!(framer.next(), Err(FrameError::Json(_))), "{text:?}");
    }
}

#[test]
fn kinds_of_messages() {
    let read = |v: Value| Message::from_json(v);
    assert_eq!(
        read(request("echo", json!([1]), 3)),
        Ok(Message::Request {
            method: "echo".into(),
            params: vec![json!(1)],
            id: json!(3)
        })
    );
    assert_eq!(
        read(json!({"method": "locked", "params": ["l"], "id": null})),
        Ok(Message::Notification {
            method: "locked".into(),
            params: vec![json!("l")]
        })
    );
    let ok = Message::Reply {
        id: json!(4),
        outcome: Ok(json!({})),
    };
    assert_eq!(read(reply(json!(4), json!({}))), Ok(ok));
    let failed = Message::Reply {
        id: json!("x"),
        outcome: Err(json!("no")),
    };
    assert_eq!(read(error_reply(json!("x"), json!("no"))), Ok(failed));
    // Requests without parameters.
    assert!(matches!(
        read(json!({"method": "list", "params": null, "id": 1})),
        Ok(Message::Request { .. })
    ));
    for bad in [
        json!({}),
        json!([]),
        json!({"method": 3, "params": [], "id": 1}),
        json!({"method": "m", "params": {}, "id": 1}),
        json!({"result": 1, "error": null, "id": null}),
        json!({"error": null, "id": 1}),
    ] {
        assert!(read(bad.clone()).is_err(), "{bad}");
    }
}
