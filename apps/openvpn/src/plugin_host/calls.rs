//! The open plugins, and the combination of their answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_linux::plugin::{CallInput, InitPoint, Kind, Module, Plugin, Returned, Status};

use super::deferred::{DeferredCall, DeferredCalls, MAX_DEFERRED};
use super::files::AnswerFiles;
use super::protocol::{CallRequest, MAX_CONFIG, OpenRequest, Outcome, PluginFile, Processed};

/// The directories in which openvpn's packages install plugins.
const DIRECTORIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/openvpn/plugins",
    "/usr/lib/aarch64-linux-gnu/openvpn/plugins",
    "/usr/lib64/openvpn/plugins",
    "/usr/lib/openvpn/plugins",
    "/usr/lib/openvpn",
];

/// The level of `say!` for the result of each call, as in openvpn.
const CALL_VERB: u64 = 3;

/// A function that writes a log line: level and verbosity as in [`super::protocol::Message::Line`].
pub(super) type LogLine = fn(u8, u64, String);

/// An open plugin.
#[derive(Debug)]
struct OpenPlugin {
    file: String,
    plugin: Plugin,
}

/// A loaded plugin that is not open yet.
#[derive(Debug)]
struct Waiting {
    /// Its position among all plugins.
    index: usize,
    file: PluginFile,
    module: Module,
}

/// All plugins of the configuration.
#[derive(Debug)]
pub(super) struct PluginSet {
    begun: OpenRequest,
    /// By position; `None` until the plugin is open.
    open: Vec<Option<OpenPlugin>>,
    waiting: Vec<Waiting>,
    user_changed: bool,
    deferred: Arc<DeferredCalls>,
    log: LogLine,
}

impl PluginSet {
    /// Loads all plugins, and opens those that want to be opened as root.
    pub(super) fn open(begun: OpenRequest, log: LogLine) -> Result<Self, String> {
        let deferred = DeferredCalls::new().map_err(|e| format!("plugin host: {e}"))?;
        let mut set = Self {
            begun,
            open: Vec::new(),
            waiting: Vec::new(),
            user_changed: false,
            deferred: Arc::new(deferred),
            log,
        };
        let env = std::mem::take(&mut set.begun.env);
        set.load()?;
        set.open_waiting(&env)?;
        Ok(set)
    }

    /// Closes all plugins and opens them again.
    pub(super) fn reopen(&mut self, env: &[(String, String)]) -> Result<(), String> {
        self.close();
        self.load()?;
        self.open_waiting(env)
    }

    /// Opens the plugins that want to be opened after the change of user.
    pub(super) fn user_changed(&mut self, env: &[(String, String)]) -> Result<(), String> {
        self.user_changed = true;
        self.open_waiting(env)
    }

    /// Closes all plugins in the order in which they were opened.
    pub(super) fn close(&mut self) {
        self.waiting.clear();
        for OpenPlugin { file, plugin } in self.open.drain(..).flatten() {
            (self.log)(2, CALL_VERB, format!("PLUGIN_CLOSE: {file}"));
            drop(plugin);
        }
    }

    fn load(&mut self) -> Result<(), String> {
        for (index, file) in self.begun.plugins.iter().enumerate() {
            let path = resolve(&file.file, file.directory.as_deref());
            let module = Module::load(&path).map_err(|e| format!("plugin '{}': {e}", file.file))?;
            self.waiting.push(Waiting { index, file: file.clone(), module });
        }
        self.open.resize_with(self.begun.plugins.len(), || None);
        Ok(())
    }

    fn open_waiting(&mut self, env: &[(String, String)]) -> Result<(), String> {
        let user_changed = self.user_changed;
        let (now, later) = std::mem::take(&mut self.waiting).into_iter().partition(|waiting| {
            user_changed || waiting.module.init_point() == InitPoint::BeforeUserChange
        });
        self.waiting = later;
        for Waiting { index, file: PluginFile { file, args, .. }, module } in now {
            let args: Vec<String> = std::iter::once(file.clone()).chain(args).collect();
            let failed = |reason: String| format!("plugin '{file}': {reason}");
            let (plugin, list) = module.open(&args, env).map_err(|e| failed(e.to_string()))?;
            if !list.is_empty() {
                return Err(failed(
                    "it returns directives for the configuration, which is not supported: write them into the \
                     configuration"
                        .into(),
                ));
            }
            let shown: Vec<String> = args.iter().map(|arg| format!("[{arg}]")).collect();
            let wants = Kind::ALL.into_iter().filter(|kind| plugin.wants(*kind));
            let names: Vec<&str> = wants.map(Kind::name).collect();
            (self.log)(
                2,
                1,
                format!(
                    "PLUGIN_INIT: POST {file} '{}' intercepted={} ",
                    shown.join(" "),
                    names.join("|")
                ),
            );
            if let Some(place) = self.open.get_mut(index) {
                *place = Some(OpenPlugin { file, plugin });
            }
        }
        Ok(())
    }

    /// Returns the calls that at least one plugin wants.
    pub(super) fn mask(&self) -> u32 {
        self.open.iter().flatten().fold(0, |mask, open| mask | open.plugin.mask())
    }

    /// Returns the calls that await their answers.
    pub(super) fn deferred(&self) -> &Arc<DeferredCalls> {
        &self.deferred
    }

    /// Releases the plugins' memory for a client.
    pub(super) fn end_client(&mut self, client: u64) {
        self.open.iter_mut().flatten().for_each(|open| open.plugin.end_client(client));
    }

    /// Calls all plugins that want a call, in the order of the configuration.
    pub(super) fn call(&mut self, id: u64, mut request: CallRequest) -> Processed {
        let Some(kind) = Kind::from_number(request.kind) else {
            return Processed::Called(Outcome::refused("unknown kind of call"));
        };
        let files = match AnswerFiles::create(kind, &self.begun.folder) {
            Ok(files) => files,
            Err(e) => return Processed::Called(Outcome::refused(e.to_string())),
        };
        files.announce(&mut request.args, &mut request.env);
        if kind == Kind::ClientCrResponse {
            self.deferred.announce(request.client, &mut request.env);
        }
        let answers = self.ask(kind, &request);
        let outcome = match answers.refused {
            Some(log) => Outcome::refused(log),
            None => Outcome::Accepted { config: answers.config },
        };
        let (config, deferred) = match outcome {
            Outcome::Accepted { config } if answers.deferred > 0 || files.is_deferred() => {
                (config, answers.deferred)
            }
            outcome => return Processed::Called(files.complete(outcome)),
        };
        // Several background processes would answer through the same file, and the first answer would count for all.
        if deferred > 1 {
            return Processed::Called(Outcome::refused(format!(
                "{deferred} plugins answer {} later, and only one may",
                kind.name()
            )));
        }
        let request = Arc::new(request);
        let call = DeferredCall { kind, request, files, config, pending_sent: false };
        match self.deferred.add(id, call) {
            Ok(()) => Processed::Deferred,
            Err(_) => Processed::Called(Outcome::refused(format!(
                "{MAX_DEFERRED} calls of plugins await their answers"
            ))),
        }
    }

    /// Asks the plugins again about a deferred `client-connect`.
    pub(super) fn poll(&mut self, id: u64) -> Processed {
        let Some((kind, request)) = self.deferred.request(id) else { return Processed::Done };
        let again = match kind {
            Kind::ClientConnect => Kind::ClientConnectDefer,
            Kind::ClientConnectV2 => Kind::ClientConnectDeferV2,
            _ => return Processed::Deferred,
        };
        let answers = self.ask(again, &request);
        if answers.refused.is_none() && (answers.deferred > 0 || kind == Kind::ClientConnect) {
            // The answer of a call with files is in the files.
            return Processed::Deferred;
        }
        // Otherwise the thread that watches the files has just answered.
        let Some(call) = self.deferred.remove(id) else { return Processed::Done };
        Processed::Called(match answers.refused {
            Some(log) => Outcome::refused(log),
            None => Outcome::Accepted { config: [call.config, answers.config].concat() },
        })
    }

    fn ask(&mut self, kind: Kind, request: &CallRequest) -> Answers {
        let mut answers = Answers::default();
        let certificate = request.certificate.as_ref();
        for open in self.open.iter_mut().flatten().filter(|open| open.plugin.wants(kind)) {
            let args: Vec<String> =
                std::iter::once(&open.file).chain(&request.args).cloned().collect();
            let output = open.plugin.call(
                kind,
                &CallInput {
                    args: &args,
                    env: &request.env,
                    client: request.client,
                    certificate: certificate.map(|(depth, der)| (*depth, der.as_slice())),
                },
            );
            let (file, name, code) = (&open.file, kind.name(), output.code);
            (self.log)(2, CALL_VERB, format!("PLUGIN_CALL: POST {file}/{name} status={code}"));
            match (output.status, output.list) {
                (Status::Error, _) => answers.refuse(format!(
                    "PLUGIN_CALL: plugin function {name} failed with status {code}: {file}"
                )),
                (Status::Deferred, _) if !may_defer(kind) => answers.refuse(format!(
                    "PLUGIN_CALL: plugin function {name} cannot be deferred: {file}"
                )),
                (_, None) => {
                    answers.refuse(format!("PLUGIN_CALL: {name} returned too long a list: {file}"));
                }
                (Status::Deferred, _) => answers.deferred = answers.deferred.saturating_add(1),
                (Status::Success, Some(list)) => answers.add(kind, list, file),
            }
        }
        answers
    }
}

/// The answers of all plugins to one call.
#[derive(Debug, Default)]
struct Answers {
    /// The reason of the first refusal.
    refused: Option<String>,
    /// The number of plugins that answer later.
    deferred: usize,
    config: Vec<String>,
}

impl Answers {
    fn refuse(&mut self, reason: String) {
        self.refused.get_or_insert(reason);
    }

    fn add(&mut self, kind: Kind, list: Vec<Returned>, file: &str) {
        if !matches!(kind, Kind::ClientConnectV2 | Kind::ClientConnectDeferV2) {
            return;
        }
        let config = list.into_iter().filter(|entry| entry.name == "config");
        self.config.extend(config.map(|entry| entry.value));
        if self.config.iter().map(String::len).fold(0, usize::saturating_add) > MAX_CONFIG {
            self.config.clear();
            self.refuse(format!(
                "the client's configuration has more than {MAX_CONFIG} bytes: {file}"
            ));
        }
    }
}

/// Returns whether a plugin may answer a call later.
fn may_defer(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::AuthUserPassVerify
            | Kind::ClientConnect
            | Kind::ClientConnectV2
            | Kind::ClientConnectDefer
            | Kind::ClientConnectDeferV2
    )
}

/// Returns the path of a plugin. Only a path that begins with a dot is relative to the working directory; other
/// relative paths are relative to the directory of plugins.
fn resolve(file: &str, directory: Option<&Path>) -> PathBuf {
    let path = Path::new(file);
    if path.is_absolute() {
        return path.to_owned();
    }
    if file.starts_with('.') {
        // A name without a slash would be searched in the linker's directories.
        return directory.unwrap_or(Path::new(".")).join(path);
    }
    let mut places = DIRECTORIES.iter().map(|directory| Path::new(directory).join(path));
    places.find(|place| place.exists()).unwrap_or_else(|| Path::new(DIRECTORIES[0]).join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_relative_to_the_directory_of_plugins_unless_it_begins_with_a_dot() {
        assert_eq!(resolve("/a/b.so", None), Path::new("/a/b.so"));
        assert_eq!(resolve("./b.so", Some(Path::new("/etc"))), Path::new("/etc/./b.so"));
        assert_eq!(resolve("./b.so", None), Path::new("././b.so"));
        assert!(resolve("no-such/b.so", None).ends_with("openvpn/plugins/no-such/b.so"));
    }
}
