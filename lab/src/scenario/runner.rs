//! The state shared by the trials of a run, and the dispatch by kind of trial.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::sandbox::Sandbox;

use super::trial_run::TrialRun;
use super::{
    growth, handshake_load, hostile, latency, loss, management, memory, postgres, relay, scrape,
    soak, throughput, udp, volume,
};
use crate::plan::{Kind, Outer, Settings, Trial};
use crate::record::Measurement;
use crate::subject::{MemberPath, Subject, Toolchain, TunnelSpec};
use crate::testbed::{Database, LinkMode, Testbed};

/// Config files as `(name, text)`.
pub(super) type Configs = Vec<(String, String)>;

/// Runs trials.
pub struct Runner {
    toolchain: Toolchain,
    /// The database server, started by the first trial that needs one.
    database: Option<Database>,
    /// The stars of hosts. They are kept because making and removing a hundred hosts takes longer than measuring with them.
    stars: BTreeMap<(u16, LinkMode), Rc<Testbed>>,
    /// The shapes of testbeds whose largest frame has been checked.
    looked: BTreeSet<(u16, LinkMode)>,
    /// The relay's throughput without impairment, once it has been measured.
    pub(super) relay_ceiling: Option<f64>,
    /// The sustained handshakes per second of each server, once they have been measured.
    pub(super) sustained: BTreeMap<Subject, f64>,
    configs: BTreeMap<String, Configs>,
    // Declared last, because the other fields exist inside it.
    _sandbox: Sandbox,
}

impl Runner {
    /// Creates a runner in this sandbox, with these programs.
    pub fn new(sandbox: Sandbox, toolchain: Toolchain) -> Self {
        Self {
            toolchain,
            database: None,
            stars: BTreeMap::new(),
            looked: BTreeSet::new(),
            relay_ceiling: None,
            sustained: BTreeMap::new(),
            configs: BTreeMap::new(),
            _sandbox: sandbox,
        }
    }

    /// Returns the configuration files of each subject as they were first used.
    pub fn into_configs(self) -> BTreeMap<String, Configs> {
        self.configs
    }

    /// Runs one trial.
    ///
    /// # Errors
    /// The trial failed; the error includes the ends of all logs.
    pub fn run(&mut self, trial: &Trial) -> Result<Measurement> {
        let settings = &trial.settings;
        let subject = trial.subject.as_ref();
        match trial.kind {
            Kind::InMemory => return memory::in_memory(settings),
            Kind::Handshakes => return memory::handshakes(settings),
            Kind::Instructions => return memory::instructions(settings),
            _ => {}
        }
        let subject = subject.context("a trial without a subject")?;
        match trial.kind {
            Kind::Throughput => throughput::run(self, settings, subject, trial.key.round),
            Kind::Udp => udp::run(self, settings, subject),
            Kind::Latency => latency::run(self, settings, subject),
            Kind::Loss => loss::run(self, settings, subject, trial.key.round),
            Kind::Growth => growth::run(self, settings, subject),
            Kind::Connections => handshake_load::connections(self, settings, subject),
            Kind::Overload => handshake_load::overload(self, settings, subject),
            Kind::Hostile => hostile::run(self, settings, subject),
            Kind::Control => handshake_load::control(self, settings, subject),
            Kind::Management => management::run(self, settings, subject),
            Kind::Scrape => scrape::run(self, settings, subject),
            Kind::Postgres => postgres::run(self, settings, subject),
            Kind::Relay => relay::run(self, settings, subject),
            Kind::Soak => soak::run(self, settings, subject),
            Kind::Volume => volume::run(self, settings, subject),
            Kind::InMemory | Kind::Handshakes | Kind::Instructions => {
                unreachable!("these have no subject")
            }
        }
    }

    pub(super) fn toolchain(&self) -> &Toolchain {
        &self.toolchain
    }

    /// Returns the run's database server with a new database in it.
    ///
    /// # Errors
    /// The server is not available on this machine, or refuses.
    pub(super) fn database(&mut self) -> Result<(&Toolchain, &Database)> {
        if self.database.is_none() {
            self.database = Some(Database::new()?);
        }
        let database = self.database.as_mut().context("there is a database")?;
        database.renew()?;
        Ok((&self.toolchain, database))
    }

    /// Records the first configuration of each subject.
    pub(super) fn keep_configs(&mut self, subject: &Subject, configs: Configs) {
        self.configs.entry(subject.to_string()).or_insert(configs);
    }

    /// Returns the testbed for these settings: a new pair, or the run's star with this many clients. The first testbed of each shape is
    /// checked, because its label must be true.
    ///
    /// # Errors
    /// The testbed could not be made, or its label is not true.
    pub(super) fn testbed(&mut self, settings: &Settings) -> Result<Rc<Testbed>> {
        let testbed = self.make(settings)?;
        if self.looked.insert((settings.clients, settings.link)) {
            let run = self.start(Rc::clone(&testbed), settings, &Subject::Bare)?;
            testbed.check_mode(throughput::largest(&run)?).map_err(Failure)?;
        }
        Ok(testbed)
    }

    fn make(&mut self, settings: &Settings) -> Result<Rc<Testbed>> {
        let (clients, link) = (settings.clients, settings.link);
        if clients == 1 {
            return Ok(Rc::new(Testbed::pair(link)?));
        }
        if let Some(testbed) = self.stars.get(&(clients, link)) {
            return Ok(Rc::clone(testbed));
        }
        let testbed = Rc::new(Testbed::star(clients, link)?);
        self.stars.insert((clients, link), Rc::clone(&testbed));
        Ok(testbed)
    }

    /// Starts the subject's tunnels on a testbed.
    pub(super) fn start(
        &mut self,
        testbed: Rc<Testbed>,
        settings: &Settings,
        subject: &Subject,
    ) -> Result<TrialRun> {
        self.start_with(testbed, settings, subject, Vec::new())
    }

    /// Starts the subject's tunnels with additional lines in the server's file.
    pub(super) fn start_with(
        &mut self,
        testbed: Rc<Testbed>,
        settings: &Settings,
        subject: &Subject,
        server_lines: Vec<String>,
    ) -> Result<TrialRun> {
        let outer_v6 = settings.outer == Outer::Ipv6;
        let cipher = settings.cipher.clone();
        let spec = TunnelSpec { cipher, outer_v6, server_lines, ..TunnelSpec::default() };
        self.start_as(testbed, subject, &spec)
    }

    /// Starts a mesh whose clients reach each other over this path.
    pub(super) fn start_members(
        &mut self,
        testbed: Rc<Testbed>,
        settings: &Settings,
        subject: &Subject,
        path: MemberPath,
    ) -> Result<TrialRun> {
        let cipher = settings.cipher.clone();
        let spec = TunnelSpec { cipher, members: Some(path), ..TunnelSpec::default() };
        self.start_as(testbed, subject, &spec)
    }

    fn start_as(
        &mut self,
        testbed: Rc<Testbed>,
        subject: &Subject,
        spec: &TunnelSpec,
    ) -> Result<TrialRun> {
        let tunnels = self.toolchain.start(subject, &testbed, spec)?;
        let configs = self.configs.entry(subject.to_string()).or_default();
        if configs.is_empty() {
            configs.clone_from(&tunnels.configs);
        }
        Ok(TrialRun { tunnels, testbed })
    }
}
