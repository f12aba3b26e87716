//! The client against the unmodified ovsdb-server with the switch's schema. Skipped where it is not
//! installed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Kind, Server, client, quick, until};
use heddle_ovsdb::{
    ChangeKind, Client, ColumnError, Columns, Datum, MonitorSpec, Mutation, Mutator, Txn, TxnError,
};

#[tokio::test]
async fn what_vsctl_inserts_is_seen() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    let mut client = client(&server, quick());
    until(&client, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    let first = client.poll();
    assert!(
        first
            .changes
            .iter()
            .any(|c| &*c.table == "Open_vSwitch" && c.kind == ChangeKind::Insert)
    );

    server.vsctl(&[
        "add-br",
        "br0",
        "--",
        "set",
        "bridge",
        "br0",
        "other_config:a=b",
        "other_config:c=d",
    ]);
    until(&client, "bridge", |db, _| {
        db.find("Bridge", "name", "br0").is_some()
    })
    .await;
    let batch = client.poll();
    assert!(!batch.resync);
    let tables: Vec<(&str, ChangeKind)> = batch.changes.iter().map(|c| (&*c.table, c.kind)).collect();
    for wanted in ["Bridge", "Port", "Interface"] {
        assert!(
            tables.contains(&(wanted, ChangeKind::Insert)),
            "{wanted} in {tables:?}"
        );
    }
    let bridge = batch.db.find("Bridge", "name", "br0").unwrap();
    let options = BTreeMap::from([
        ("a".to_string(), "b".to_string()),
        ("c".to_string(), "d".to_string()),
    ]);
    assert_eq!(bridge.map_str("other_config").unwrap(), options);
    let ports = batch.db.referenced(bridge, "ports", "Port");
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0].str("name").unwrap(), "br0");
    assert_eq!(ports[0].uuids("interfaces").unwrap().len(), 1);
    assert_eq!(ports[0].opt_int("tag").unwrap(), None);

    // Differences of sets, of maps and of optional scalars.
    server.vsctl(&["set", "port", "br0", "trunks=1,2,3", "tag=9"]);
    server.vsctl(&["set", "port", "br0", "trunks=2,3,4"]);
    server.vsctl(&["set", "bridge", "br0", "other_config:a=x", "other_config:e=f"]);
    server.vsctl(&["remove", "bridge", "br0", "other_config", "c"]);
    server.vsctl(&["clear", "port", "br0", "tag"]);
    until(&client, "changes", |db, _| {
        let port = db.find("Port", "name", "br0").unwrap();
        port.ints("trunks").unwrap() == [2, 3, 4] && port.opt_int("tag") == Ok(None)
    })
    .await;
    let batch = client.poll();
    let options = BTreeMap::from([
        ("a".to_string(), "x".to_string()),
        ("e".to_string(), "f".to_string()),
    ]);
    let bridge = batch.db.find("Bridge", "name", "br0").unwrap();
    assert_eq!(bridge.map_str("other_config").unwrap(), options);
    let port_change = batch.changes.iter().find(|c| &*c.table == "Port").unwrap();
    assert_eq!(port_change.kind, ChangeKind::Modify);
    assert!(port_change.columns.iter().any(|c| &**c == "trunks"));

    let before = client.snapshot();
    server.vsctl(&["del-br", "br0"]);
    until(&client, "deletion", |db, _| {
        db.table("Bridge").unwrap().is_empty()
    })
    .await;
    let deleted = client.poll().changes;
    assert!(
        deleted
            .iter()
            .any(|c| &*c.table == "Interface" && c.kind == ChangeKind::Delete)
    );
    assert!(
        before.find("Bridge", "name", "br0").is_some(),
        "a snapshot does not change"
    );
}

/// Restarts the server; the replica stays and follows again. With `kind` of a cluster, the server continues
/// from the transaction that the client knows.
async fn restart(kind: Kind) {
    let Some(mut server) = Server::start(kind) else {
        return;
    };
    let mut client = client(&server, quick());
    server.vsctl(&["add-br", "br0"]);
    until(&client, "bridge", |db, _| {
        db.find("Bridge", "name", "br0").is_some()
    })
    .await;
    client.poll();
    let before = client.snapshot();

    server.down();
    until(&client, "loss noticed", |_, s| !s.is_connected()).await;
    assert!(
        client.snapshot().find("Bridge", "name", "br0").is_some(),
        "contents stay"
    );
    assert_eq!(client.transact(Txn::new()).await, Err(TxnError::NotConnected));
    assert!(client.status().last_error.is_some());

    server.up();
    until(&client, "second connection", |_, s| {
        s.is_connected() && s.connections == 2
    })
    .await;
    let batch = client.poll();
    assert!(!batch.resync);
    assert_eq!(batch.changes, [], "nothing changed while it was away");
    assert_eq!(
        batch.db.seqno(),
        before.seqno(),
        "contents that are the same are no new state"
    );
    let (old, new) = (
        before.find("Bridge", "name", "br0"),
        batch.db.find("Bridge", "name", "br0"),
    );
    assert!(Arc::ptr_eq(old.unwrap(), new.unwrap()), "the row was kept");

    // A row that changes while the client is away is reported as a change after.
    server.vsctl(&["add-br", "br1"]);
    until(&client, "new bridge", |db, _| {
        db.find("Bridge", "name", "br1").is_some()
    })
    .await;
    client.poll();
    server.down();
    until(&client, "loss noticed", |_, s| !s.is_connected()).await;
    server.up();
    server.vsctl(&["del-br", "br0", "--", "set", "bridge", "br1", "fail_mode=secure"]);
    until(&client, "deletion", |db, s| {
        s.is_connected() && db.find("Bridge", "name", "br0").is_none()
    })
    .await;
    let changes = client.poll().changes;
    let kinds: Vec<_> = changes
        .iter()
        .filter(|c| &*c.table == "Bridge")
        .map(|c| c.kind)
        .collect();
    assert!(
        kinds.contains(&ChangeKind::Delete) && kinds.contains(&ChangeKind::Modify),
        "{changes:?}"
    );
}

#[tokio::test]
async fn restart_of_a_standalone_server() {
    restart(Kind::Standalone).await;
}

#[tokio::test]
async fn restart_of_a_clustered_server() {
    restart(Kind::Clustered).await;
}

#[tokio::test]
async fn a_chosen_part_and_columns_that_the_schema_lacks() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    server.vsctl(&["add-br", "br0"]);
    let spec = MonitorSpec::new()
        .table("Bridge", ["name", "from_the_future"])
        .table("Port", ["name"])
        .table("No_Such_Table", ["name"]);
    let client = Client::spawn(&server.remote(), "Open_vSwitch", spec, quick()).unwrap();
    until(&client, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    let db = client.snapshot();
    assert_eq!(db.tables().len(), 2);
    let schema = db.schema().unwrap();
    assert!(schema.column("Bridge", "fail_mode").is_some());
    assert!(schema.column("Bridge", "from_the_future").is_none());
    assert!(schema.tables.contains_key("Interface") && db.table("Interface").is_none());
    let bridge = db.find("Bridge", "name", "br0").unwrap();
    assert_eq!(bridge.opt_str("from_the_future"), Ok(None));
    assert!(matches!(
        bridge.str("from_the_future"),
        Err(ColumnError::Absent { .. })
    ));
    assert!(matches!(
        bridge.opt_str("fail_mode"),
        Err(ColumnError::NotMonitored { .. })
    ));
    assert!(matches!(bridge.int("name"), Err(ColumnError::Type { .. })));
}

#[tokio::test]
async fn a_database_that_is_not_there() {
    let Some(server) = Server::start(Kind::Standalone) else {
        return;
    };
    let client = Client::spawn(&server.remote(), "Nowhere", MonitorSpec::all(), quick()).unwrap();
    until(&client, "failure told", |_, s| s.last_error.is_some()).await;
    assert!(!client.snapshot().is_loaded());
}

/// Thousands of ports in one transaction, statistics of all of them in another, and a reload.
#[tokio::test]
async fn many_rows() {
    const PORTS: usize = 2000;
    let Some(mut server) = Server::start(Kind::Standalone) else {
        return;
    };
    let mut client = client(&server, quick());
    until(&client, "loaded", |db, s| db.is_loaded() && s.is_connected()).await;
    client.poll();
    let mut txn = Txn::new();
    let mut ports = Vec::new();
    for n in 0..PORTS {
        let name = format!("p{n}");
        let iface = txn.insert("Interface", Columns::new().with("name", name.as_str()));
        let columns = Columns::new()
            .with("name", name)
            .with("interfaces", iface.reference());
        ports.push(txn.insert("Port", columns).reference());
    }
    let bridge = txn.insert(
        "Bridge",
        Columns::new()
            .with("name", "br0")
            .with("ports", Datum::set(ports)),
    );
    let top = client.snapshot().first("Open_vSwitch").unwrap().uuid();
    txn.mutate(
        "Open_vSwitch",
        top,
        [Mutation::new("bridges", Mutator::Insert, bridge.reference())],
    );
    client.transact(txn).await.unwrap();
    let batch = client.poll();
    assert_eq!(batch.changes.len(), 2 * PORTS + 2);
    let bridge = batch.db.find("Bridge", "name", "br0").unwrap();
    assert_eq!(batch.db.referenced(bridge, "ports", "Port").len(), PORTS);

    let mut txn = Txn::new();
    for (n, row) in (0_i64..).zip(batch.db.rows("Interface")) {
        let statistics = Datum::map([("rx_packets", n), ("tx_packets", 2 * n)]);
        assert!(
            txn.update_changed(row, &Columns::new().with("statistics", statistics))
                .is_empty()
        );
    }
    assert_eq!(txn.len(), PORTS);
    client.transact(txn).await.unwrap();
    let changes = client.poll().changes;
    assert_eq!(changes.len(), PORTS);
    assert!(changes.iter().all(|c| !c.touches_other_than(&["statistics"])));

    // Statistics are not stored by the server: after its restart they are changed, and nothing else is.
    server.down();
    until(&client, "loss noticed", |_, s| !s.is_connected()).await;
    server.up();
    until(&client, "second connection", |_, s| s.connections == 2).await;
    let changes = client.poll().changes;
    assert_eq!(changes.len(), PORTS, "{:?}", changes.first());
    assert!(changes.iter().all(|c| !c.touches_other_than(&["statistics"])));
}
