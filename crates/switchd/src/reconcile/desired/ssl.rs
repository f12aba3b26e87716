//! The row of `SSL`: keys for connections to the database and to controllers.

use heddle_ovsdb::{Db, Row};
use heddle_stream::Settings;

use super::{text, value};

/// The `SSL` row that the switch's row refers to; `None` without one.
pub(super) fn read(db: &Db, top: &Row) -> Option<Settings> {
    let row = db.referenced(top, "ssl", "SSL").into_iter().next()?;
    let file = |column| Some(text(row, column)).filter(|f| !f.is_empty()).map(Into::into);
    Some(Settings {
        private_key: file("private_key"),
        certificate: file("certificate"),
        ca_cert: file("ca_cert"),
        bootstrap: value(row.bool("bootstrap_ca_cert")),
        peer_ca_cert: None,
        // Newer schemas have the column; older ones do not, which is no fault.
        protocols: row
            .opt_str("ssl_protocols")
            .ok()
            .flatten()
            .filter(|p| !p.is_empty())
            .map(str::to_owned),
    })
}
