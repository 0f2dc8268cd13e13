//! `crl-verify DIRECTORY dir`: a directory with a file for each revoked certificate, named by its serial number.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_runtime::helper::files;

use super::file_thread::FileThread;
use super::{Check, ClientFacts, Verdict, VerdictFuture};

/// The directory. It is read for each certificate, so a new file takes effect at the next handshake or renegotiation.
pub(crate) struct CrlDirectory {
    directory: PathBuf,
    thread: FileThread,
}

impl CrlDirectory {
    pub(super) fn new(directory: PathBuf, thread: FileThread) -> Self {
        Self { directory, thread }
    }
}

impl Check for CrlDirectory {
    fn verify_certificate(&self, facts: &Arc<ClientFacts>, depth: usize) -> VerdictFuture {
        let Some(certificate) = facts.identity.certificates.get(depth) else {
            return Box::pin(std::future::ready(Verdict::NotMine));
        };
        let serial = certificate.serial_decimal.clone();
        // openvpn's words, which other programs look for.
        let words = format!("VERIFY CRL: depth={depth}, {}, serial={serial}", certificate.subject);
        let path = self.directory.join(&serial);
        let found = self.thread.run(move || revoked(&path));
        Box::pin(async move {
            let problem = match found.await {
                Ok(Ok(false)) => return Verdict::Accept,
                Ok(Ok(true)) => " is revoked".to_owned(),
                Ok(Err(problem)) | Err(problem) => format!(": {problem}"),
            };
            Verdict::Reject(format!("{words}{problem}").into())
        })
    }
}

/// Returns whether a file exists. If that cannot be known, the certificate may be revoked.
fn revoked(path: &Path) -> Result<bool, String> {
    match files::metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => match path.parent().map(files::metadata) {
            Some(Ok(directory)) if directory.is_dir() => Ok(false),
            Some(Err(e)) => Err(format!("cannot read the directory of {}: {e}", path.display())),
            _ => Err(format!("{} is in no directory", path.display())),
        },
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use adit_engine::{CertificateFacts, Identity};

    use super::*;
    use crate::openvpn::authorization::tests::facts_of;

    #[tokio::test]
    async fn a_certificate_with_a_file_of_its_number_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let check = CrlDirectory::new(folder.path().to_owned(), FileThread::default());
        let certificate =
            |serial: &str| CertificateFacts { serial_decimal: serial.into(), ..Default::default() };
        let certificates = vec![certificate("42"), certificate("1")];
        let facts = facts_of(Identity { certificates, ..Identity::default() });
        let judge = async |depth| check.verify_certificate(&facts, depth).await;
        assert_eq!(judge(0).await, Verdict::Accept);
        std::fs::write(folder.path().join("42"), "").unwrap();
        assert!(
            matches!(judge(0).await, Verdict::Reject(why) if why.log.contains("serial=42 is revoked"))
        );
        assert_eq!(judge(1).await, Verdict::Accept);
        assert_eq!(judge(2).await, Verdict::NotMine);
        // Without its directory no certificate is known to be good.
        folder.close().unwrap();
        assert!(matches!(judge(1).await, Verdict::Reject(why) if why.log.contains("cannot read")));
    }
}
