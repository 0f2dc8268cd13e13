use std::fs;
use std::path::Path;

use super::*;
use crate::lock::Taken;

fn service(dir: &Path) -> Service {
    let paths = Paths::new(Some(dir)).unwrap();
    let socket = paths.run.join("connect-a.sock");
    Service::new(&paths, "adit-connect", Some("a"), vec!["connect".into()], socket)
}

fn record(service: &Service, text: &str) {
    fs::create_dir_all(service.files.record.parent().unwrap()).unwrap();
    fs::write(&service.files.record, text).unwrap();
}

#[test]
fn the_files_and_the_unit_have_the_programs_name() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    let base = fs::canonicalize(dir.path()).unwrap();
    assert_eq!(service.files.lock, base.join("run/background/connect-a.lock"));
    assert_eq!(service.files.log, base.join("log/connect-a.log"));
    assert_eq!(
        (service.unit(), service.unit_file()),
        ("adit-connect@a.service".into(), "adit-connect@.service".into())
    );
    let paths = Paths::new(None).unwrap();
    let server = Service::new(&paths, "adit-server", None, Vec::new(), paths.control_socket());
    assert_eq!(server.unit(), "adit-server.service");
    assert_eq!(server.files.log, Path::new("/var/log/adit/server.log"));
}

#[test]
fn the_state_follows_from_the_lock_and_the_record() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    assert_eq!(service.state().unwrap(), State::default());
    record(&service, r#"{"phase":"waiting","restarts":3,"next":9,"code":1,"message":"no route"}"#);
    let Taken::Ours(held) = lock::take(&service.files.lock, 77).unwrap() else { panic!("held") };
    let waiting = service.state().unwrap();
    assert_eq!(waiting.manager, Some(Manager::Supervisor(77)));
    assert_eq!((waiting.phase, waiting.restarts, waiting.next), (Phase::Waiting, 3, Some(9)));
    assert_eq!((waiting.code, waiting.message.as_deref()), (Some(1), Some("no route")));
    fs::remove_file(&service.files.record).unwrap();
    assert_eq!(service.state().unwrap().phase, Phase::Running, "it has just begun");
    // A killed supervisor no longer has the lock.
    record(&service, r#"{"phase":"running","pid":5}"#);
    drop(held);
    let killed = service.state().unwrap();
    assert_eq!((killed.phase, killed.pid), (Phase::Stopped, None));
    assert!(killed.message.unwrap().contains("killed"));
    record(&service, r#"{"phase":"failed","code":2,"message":"line 3: what?"}"#);
    let failed = service.state().unwrap();
    assert_eq!((failed.phase, failed.code), (Phase::Failed, Some(2)));
    assert!(!service.stop().unwrap(), "there was nothing to stop");
    assert_eq!(service.state().unwrap(), State::default(), "and the failure is forgotten");
    record(&service, "{");
    assert_eq!(service.state().unwrap(), State::default());
}

#[test]
fn waiting_ends_with_a_failure_or_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    let wait = || service.wait(Duration::ZERO, |_| true).unwrap_err();
    assert_eq!(wait(), NotUp::Stopped);
    record(&service, r#"{"phase":"failed","code":2}"#);
    assert!(matches!(wait(), NotUp::Failed(state) if state.code == Some(2)));
    let _held = lock::take(&service.files.lock, 77).unwrap();
    assert_eq!(wait(), NotUp::NotYet);
}

#[test]
fn without_a_unit_nothing_is_enabled_and_the_remedy_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = service(dir.path()).set_at_boot(true).unwrap_err();
    assert_eq!(refused.blame(), crate::fault::Blame::Operator);
    assert!(refused.to_string().contains("adit connect"), "{refused}");
}

#[test]
fn a_missing_log_is_no_fault_of_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(dir.path());
    let missing = service.print_log(10, false, &mut Vec::new()).unwrap_err();
    assert!(missing.to_string().contains("no log yet"), "{missing}");
    fs::create_dir_all(service.files.log.parent().unwrap()).unwrap();
    assert_eq!(service.last_warning(), None);
    fs::write(&service.files.log, "1\n2026-11-26 10:50:08 warning: no route\n2\n").unwrap();
    assert_eq!(service.last_warning().as_deref(), Some("no route"));
    let mut out = Vec::new();
    service.print_log(1, false, &mut out).unwrap();
    assert_eq!(out, b"2\n");
}
