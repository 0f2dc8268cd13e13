//! `[events]`: a webhook to which each event of the server is sent as a JSON object.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use adit_runtime::fault::Fault;
use adit_runtime::paths::Paths;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use rustls::RootCertStore;
use tokio::sync::mpsc;

use super::events::{Counts, Waiting};
use super::http::{self, HttpClient, http_url};
use super::settings::Settings;

/// The time limit for one attempt.
const LIMIT: Duration = Duration::from_secs(10);

/// The pauses before the second attempt and each further one. After the last one, the event is lost.
const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(25)];

/// The fields of a request's head that `header-file` cannot replace, because they describe the request.
const OWN_FIELDS: [&str; 10] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];

/// A webhook.
pub(super) struct Webhook {
    http: HttpClient,
    url: Uri,
    /// The field of `header-file`.
    field: Option<(HeaderName, HeaderValue)>,
    pauses: Vec<Duration>,
}

// Written by hand because it holds a secret.
impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhook").field("host", &self.url.host()).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Reads the files of the settings. Nothing is sent yet.
    ///
    /// # Errors
    /// A file cannot be read, or has a mistake.
    pub(super) fn open(paths: &Paths, settings: &Settings) -> Result<Option<Self>, Fault> {
        let Some(events) = &settings.events else { return Ok(None) };
        let url = http_url(&events.url).map_err(Fault::operator)?;
        let field = match events.header_file.as_deref() {
            Some(path) => {
                let line = http::read_secret(paths, path)?;
                let wrong = |why| Fault::operator(format!("{}: {why}", path.display()));
                Some(field(&line).map_err(wrong)?)
            }
            None => None,
        };
        let roots = match url.scheme_str() {
            Some("https") => http::authorities(paths, events.ca_file.as_deref(), "webhook")?,
            _ => RootCertStore::empty(),
        };
        let mut http = HttpClient::new(roots)?;
        http.limit = LIMIT;
        Ok(Some(Self { http, url, field, pauses: PAUSES.to_vec() }))
    }

    /// Sends the events of a queue, one after another. `server` is the name that clients dial.
    pub(super) async fn deliver(
        self,
        server: String,
        mut queue: mpsc::Receiver<Waiting>,
        counts: Arc<Counts>,
    ) {
        // The events that were lost since the last one that was delivered.
        let (mut lost, mut warned) = (0u64, false);
        while let Some(waiting) = queue.recv().await {
            lost = lost.saturating_add(waiting.dropped);
            match self.send(&waiting.object(&server, lost)).await {
                Ok(()) => {
                    counts.delivered.fetch_add(1, Relaxed);
                    (lost, warned) = (0, false);
                }
                Err(why) => {
                    counts.failed.fetch_add(1, Relaxed);
                    lost = lost.saturating_add(1);
                    // A webhook that keeps failing is reported once. The rest of its URL may be a secret.
                    if !std::mem::replace(&mut warned, true) {
                        let host = self.url.host().unwrap_or_default();
                        tracing::warn!("webhook: {host}: event not delivered: {why}");
                    }
                }
            }
        }
    }

    /// Sends an object, with a few attempts.
    async fn send(&self, object: &str) -> Result<(), String> {
        let mut pauses = self.pauses.iter();
        loop {
            let field = self.field.as_ref();
            let why = match self.http.post_json(&self.url, object.to_owned(), field).await {
                Ok(answer) if answer.status.is_success() => return Ok(()),
                Ok(answer) => {
                    let why = format!("it answers {}", answer.status);
                    // Later attempts would be refused as well, except for "timeout" and "too many requests".
                    if answer.status.is_client_error()
                        && !matches!(answer.status.as_u16(), 408 | 429)
                    {
                        return Err(why);
                    }
                    why
                }
                Err(why) => why,
            };
            match pauses.next() {
                Some(pause) => tokio::time::sleep(*pause).await,
                None => return Err(why),
            }
        }
    }
}

/// Parses a field such as `Authorization: Bearer SECRET`. The error does not contain the line.
fn field(line: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = "the first line must be a field such as Authorization: Bearer SECRET";
    let (name, value) = line.split_once(':').ok_or(wrong)?;
    let name: HeaderName = name.trim().parse().map_err(|_| wrong)?;
    if OWN_FIELDS.contains(&name.as_str()) {
        return Err(format!("the field {name} cannot be replaced"));
    }
    let mut value: HeaderValue = value.trim().parse().map_err(|_| wrong)?;
    value.set_sensitive(true);
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::TcpListener;

    use adit_testbed::identity_provider::{IdentityProvider, Mistake};

    use adit_runtime::metrics::Samples;

    use super::super::event_settings::EventSettings;
    use super::super::events::{Event, Events, QUEUE_LIMIT};
    use super::*;
    use crate::testing::folders;

    struct Setup {
        dir: tempfile::TempDir,
        there: IdentityProvider,
        settings: Settings,
    }

    impl Setup {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let paths = folders(&dir);
            let there = IdentityProvider::start(TcpListener::bind("127.0.0.1:0").unwrap());
            fs::write(paths.config.join("ca.pem"), there.certificate()).unwrap();
            fs::write(paths.config.join("header"), "Authorization: Bearer s3cret\n").unwrap();
            let text = "host = \"vpn\"\nnetwork = \"10.9.9.0/24\"\n";
            let mut settings = Settings::parse(text, std::path::Path::new("x")).unwrap();
            settings.events = Some(EventSettings {
                header_file: Some("header".into()),
                ca_file: Some("ca.pem".into()),
                ..EventSettings::new(&format!("{}/hook", there.issuer()))
            });
            Self { dir, there, settings }
        }

        /// Opens the webhook. Its attempts follow each other at once.
        fn webhook(&self) -> Webhook {
            let paths = Paths::new(Some(self.dir.path())).unwrap();
            let webhook = Webhook::open(&paths, &self.settings).unwrap().unwrap();
            Webhook { pauses: vec![Duration::ZERO; PAUSES.len()], ..webhook }
        }

        /// Delivers an event for each of these names. Returns how many were delivered, and how many failed.
        async fn deliver(&self, webhook: Webhook, names: &[&str]) -> (u64, u64) {
            let (queue, waiting) = mpsc::channel(names.len());
            for name in names {
                let waiting = Waiting { time: 7, dropped: 0, event: refused(name) };
                queue.try_send(waiting).unwrap();
            }
            drop(queue);
            let counts = Arc::new(Counts::default());
            webhook.deliver("vpn".into(), waiting, Arc::clone(&counts)).await;
            (counts.delivered.load(Relaxed), counts.failed.load(Relaxed))
        }
    }

    fn refused(name: &str) -> Event {
        Event::ClientRefused { name: name.into(), from: "h".into(), reason: "r".into() }
    }

    #[tokio::test]
    async fn an_event_arrives_as_an_object_with_the_field() {
        let setup = Setup::new();
        assert_eq!(setup.deliver(setup.webhook(), &["ann"]).await, (1, 0));
        let object = r#"{"time":7,"server":"vpn","event":"client-refused","name":"ann","from":"h","reason":"r"}"#;
        assert_eq!(setup.there.log(), [format!("/hook Bearer s3cret {object}")]);
    }

    #[tokio::test]
    async fn a_failed_attempt_is_repeated_a_few_times() {
        for mistake in [Mistake::Unavailable, Mistake::Redirect] {
            let setup = Setup::new();
            setup.there.change(|behaviour| behaviour.mistake = Some(mistake));
            assert_eq!(setup.deliver(setup.webhook(), &["ann"]).await, (0, 1), "{mistake:?}");
            // A redirect leads nowhere else.
            assert_eq!(setup.there.requests("/hook"), 1 + PAUSES.len(), "{mistake:?}");
            assert_eq!(setup.there.log().len(), 1 + PAUSES.len(), "{mistake:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_not_repeated_and_the_next_object_counts_the_lost_event() {
        let mut setup = Setup::new();
        let url = format!("{}/gone", setup.there.issuer());
        setup.settings.events = setup.settings.events.map(|good| EventSettings { url, ..good });
        assert_eq!(setup.deliver(setup.webhook(), &["ann", "bob"]).await, (0, 2));
        let log = setup.there.log();
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(!log[0].contains("dropped") && log[1].ends_with(r#""dropped":1}"#), "{log:?}");
    }

    /// Events are dropped and counted beyond the queue, and the end of the server does not wait for long.
    #[tokio::test]
    async fn a_webhook_that_never_answers_delays_nothing() {
        let setup = Setup::new();
        setup.there.change(|behaviour| behaviour.mistake = Some(Mistake::Silence));
        let paths = Paths::new(Some(setup.dir.path())).unwrap();
        let mut events = Events::start(&paths, &setup.settings, Some(setup.webhook()));
        for _ in 0..QUEUE_LIMIT + 5 {
            events.send(&refused("ann"));
        }
        while setup.there.requests("/hook") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        events.finish().await;
        let mut samples = Samples::default();
        events.measure(&mut samples);
        let text = samples.text();
        for line in [
            "adit_events_total{receiver=\"webhook\",result=\"delivered\"} 0\n",
            "adit_events_total{receiver=\"webhook\",result=\"dropped\"} 5\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_field_is_one_line_of_its_own() {
        let (name, value) = field("Authorization: Bearer a:b").unwrap();
        assert_eq!((name.as_str(), value.to_str().unwrap()), ("authorization", "Bearer a:b"));
        assert!(value.is_sensitive());
        for line in ["s3cret", ": s3cret", "a b: s3cret", "a: s3cret\u{1}"] {
            assert!(field(line).unwrap_err().contains("Authorization: Bearer"), "{line}");
        }
        for line in ["Host: s3cret", "content-length: 3", "Connection: s3cret"] {
            let error = field(line).unwrap_err();
            assert!(error.contains("cannot be replaced") && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let setup = Setup::new();
        let paths = Paths::new(Some(setup.dir.path())).unwrap();
        fs::write(paths.config.join("header"), "s3cret\n").unwrap();
        let error = Webhook::open(&paths, &setup.settings).unwrap_err().to_string();
        assert!(error.contains("header: the first line") && !error.contains("s3cret"), "{error}");
        fs::remove_file(paths.config.join("header")).unwrap();
        assert!(Webhook::open(&paths, &setup.settings).unwrap_err().to_string().contains("header"));
    }
}
