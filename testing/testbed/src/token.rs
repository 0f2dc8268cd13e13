//! Tokens of SoftHSM, which scripts/softhsm.sh unpacks, and a module that fails on demand (`token/fault.c`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Context, Result, ensure};
use crate::process::output;

/// The variable that names SoftHSM's configuration.
pub const CONFIG: &str = "SOFTHSM2_CONF";

/// The PIN of the tokens.
pub const PIN: &str = "1234";

/// The PIN of the security officer, who initializes tokens.
const OFFICER: &str = "12345678";

/// The reason why tests with tokens do not run.
pub const NO_SOFTHSM: &str = "no SoftHSM: scripts/softhsm.sh fetches it";

/// Tokens in a folder.
#[derive(Debug)]
pub struct Tokens {
    folder: PathBuf,
    root: PathBuf,
}

impl Tokens {
    /// Creates the folder of the tokens, which everyone may use. `None` if SoftHSM is not there.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn new(folder: &Path) -> Result<Option<Self>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/roots/softhsm");
        let Ok(root) = root.canonicalize() else { return Ok(None) };
        fs::create_dir_all(folder.join("tokens")).context(folder.display())?;
        let config = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\n",
            folder.join("tokens").display()
        );
        fs::write(folder.join("softhsm.conf"), config).context(folder.display())?;
        Ok(Some(Self { folder: folder.to_owned(), root }))
    }

    /// Returns the module.
    pub fn module(&self) -> PathBuf {
        self.root.join("usr/lib/softhsm/libsofthsm2.so")
    }

    /// Returns the value of [`CONFIG`] for programs that use the module.
    pub fn config(&self) -> PathBuf {
        self.folder.join("softhsm.conf")
    }

    /// Initializes a token.
    ///
    /// # Errors
    /// SoftHSM's program failed.
    pub fn initialize(&self, label: &str) -> Result<()> {
        let words = ["--init-token", "--free", "--so-pin", OFFICER, "--pin", PIN, "--label", label];
        self.softhsm(&words)
    }

    /// Puts a key and its certificate on a token, both in PEM. The id is hexadecimal. A private certificate can be seen
    /// only after the PIN.
    ///
    /// # Errors
    /// A program failed.
    pub fn import(
        &self,
        token: &str,
        id: &str,
        (key, certificate): (&Path, &Path),
        private: bool,
    ) -> Result<()> {
        let [plain, der] =
            ["key", "der"].map(|name| self.folder.join(format!("import-{id}.{name}")));
        let mut convert = Command::new("openssl");
        convert.args(["pkcs8", "-topk8", "-nocrypt", "-in"]).arg(key).arg("-out").arg(&plain);
        output(convert)?;
        let mut convert = Command::new("openssl");
        convert.args(["x509", "-outform", "der", "-in"]).arg(certificate).arg("-out").arg(&der);
        output(convert)?;
        let file = plain.display().to_string();
        self.softhsm(&[
            "--import", &file, "--token", token, "--label", id, "--id", id, "--pin", PIN,
        ])?;
        let tool = self.folder.join("import");
        if !tool.exists() {
            compile("import.c", &tool, &[])?;
        }
        let mut import = Command::new(tool);
        import.env(CONFIG, self.config()).arg(self.module());
        import.args([token, PIN, id, "certificate"]).arg(der).arg(u8::from(private).to_string());
        output(import).map(drop)
    }

    fn softhsm(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(self.root.join("usr/bin/softhsm2-util"));
        command.env(CONFIG, self.config()).arg("--module").arg(self.module()).args(words);
        output(command).map(drop)
    }

    /// Compiles a module that passes all calls to SoftHSM's, and fails as files in the folder of the tokens say
    /// ([`Self::fault`]).
    ///
    /// # Errors
    /// There is no C compiler, or it fails.
    pub fn faulty_module(&self) -> Result<PathBuf> {
        let object = self.folder.join("fault.so");
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        let (module, folder) = (quoted(&self.module()), quoted(&self.folder));
        let words = [
            "-shared".to_owned(),
            "-fPIC".into(),
            format!("-DMODULE={module}"),
            format!("-DFOLDER={folder}"),
        ];
        compile("fault.c", &object, &words)?;
        Ok(object)
    }

    /// Begins or ends a fault of the faulty module: `block`, `crash`, `gone`, `final-try`, `locked`, `keypad`, `always`.
    ///
    /// # Errors
    /// The file cannot be written or removed.
    pub fn fault(&self, name: &str, begins: bool) -> Result<()> {
        let path = self.folder.join(name);
        let done = if begins { fs::write(&path, PIN) } else { fs::remove_file(&path) };
        done.context(path.display())
    }

    /// Returns the logins through the faulty module: the kind of user and the PIN of each.
    pub fn logins(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("logins")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn compile(source: &str, program: &Path, words: &[String]) -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("token");
    let mut command = Command::new("cc");
    command.args(["-Wall", "-Werror"]).args(words).arg("-o").arg(program);
    command.arg(folder.join(source)).arg("-ldl");
    output(command)?;
    ensure(program.exists(), || format!("cc made no {}", program.display()))
}
