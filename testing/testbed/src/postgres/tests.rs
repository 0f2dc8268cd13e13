//! Tests of the clusters themselves, through the socket. The scenarios test everything that needs a
//! namespace.

use super::*;

/// Creates a cluster in a temporary folder, or prints why none can be created here.
fn cluster() -> Option<(tempfile::TempDir, Cluster)> {
    if let Some(why) = missing() {
        let thread = thread::current();
        crate::skip::skip(thread.name().unwrap_or("cluster"), &why);
        return None;
    }
    let folder = scratch().unwrap();
    let cluster = Cluster::start(&folder.path().join("pg"), &Options::default()).unwrap();
    Some((folder, cluster))
}

#[test]
fn it_starts_is_killed_and_comes_back_with_what_was_committed() {
    let Some((_folder, mut cluster)) = cluster() else { return };
    cluster.create("vpn", "secret", "").unwrap();
    cluster.sql("vpn", "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)").unwrap();
    for how in [StopMode::Killed, StopMode::Immediate, StopMode::Fast] {
        cluster.stop_service(how).unwrap();
        assert!(cluster.sql("vpn", "SELECT 1").is_err(), "{how:?}: it still answers");
        cluster.resume_service().unwrap();
        assert_eq!(cluster.number("vpn", "SELECT n FROM kept").unwrap(), 7, "{how:?}");
    }
}

#[test]
fn a_frozen_server_does_not_answer_and_a_thawed_one_does() {
    let Some((_folder, cluster)) = cluster() else { return };
    cluster.pause().unwrap();
    let mut asked = cluster.psql(SUPERUSER, SUPERUSER);
    asked.env("PGCONNECT_TIMEOUT", "2").args(["--command", "SELECT 1"]);
    assert!(output(asked).is_err());
    cluster.resume().unwrap();
    assert_eq!(cluster.number(SUPERUSER, "SELECT 1").unwrap(), 1);
}

#[test]
fn nothing_is_left_of_a_dropped_one() {
    let Some((_folder, cluster)) = cluster() else { return };
    let (pids, data) = (cluster.pids().unwrap(), cluster.data());
    assert!(pids.len() > 3, "{pids:?}");
    drop(cluster);
    processes::wait_without(&data, TIMEOUT).unwrap();
    assert!(pids.iter().all(|pid| !Path::new(&format!("/proc/{pid}/cwd")).exists()));
}

#[test]
fn an_error_is_told_with_its_code() {
    let Some((_folder, cluster)) = cluster() else { return };
    let said = cluster.sql(SUPERUSER, "SELECT * FROM nosuch").unwrap_err().0;
    assert!(said.contains("42P01"), "{said}");
    assert!(cluster.number(SUPERUSER, "SELECT 'x'").is_err());
}
