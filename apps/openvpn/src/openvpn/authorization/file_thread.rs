//! A thread that reads files, so that a file system that hangs delays only the clients whose files are on it.

use std::future::Future;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// The maximum number of clients that wait for their files: as many as may wait for any response.
const WAITING: usize = adit_runtime::driver::QUESTION_LIMIT;

type Job = Box<dyn FnOnce() + Send>;

/// The thread. The first job starts it, after the process has dropped its privileges.
#[derive(Clone, Default)]
pub(super) struct FileThread(Arc<Mutex<Option<SyncSender<Job>>>>);

impl FileThread {
    /// Runs `work` on the thread.
    ///
    /// # Errors
    /// The thread cannot be started, has ended, or too many jobs wait.
    pub(super) fn run<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, String>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let submitted = self.submit(Box::new(move || {
            // The client may have gone.
            let _ = reply.send(work());
        }));
        async move {
            submitted?;
            answer.await.map_err(|_| ENDED.to_owned())
        }
    }

    fn submit(&self, job: Job) -> Result<(), String> {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*thread {
            Some(sender) => sender.clone(),
            None => {
                let (sender, jobs) = sync_channel(WAITING);
                let started = std::thread::Builder::new()
                    .name("client-files".into())
                    .spawn(move || serve(&jobs));
                started.map_err(|e| format!("cannot start a thread for files: {e}"))?;
                thread.insert(sender).clone()
            }
        };
        sender.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => "too many clients wait for their files".into(),
            TrySendError::Disconnected(_) => ENDED.into(),
        })
    }

    /// Creates a handle of a thread that never takes a job, with room for `waiting` jobs.
    #[cfg(test)]
    fn stuck(waiting: usize) -> (Self, Receiver<Job>) {
        let (sender, jobs) = sync_channel(waiting);
        (Self(Arc::new(Mutex::new(Some(sender)))), jobs)
    }
}

const ENDED: &str = "the thread for files has ended";

fn serve(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a file system hangs, only clients whose files are on it wait; their number is limited.
    #[tokio::test]
    async fn a_thread_that_hangs_does_not_hold_up_the_caller() {
        let (thread, stuck) = FileThread::stuck(2);
        let waiting: Vec<_> = (0..2).map(|n| thread.run(move || n)).collect();
        assert!(thread.run(|| 0).await.unwrap_err().contains("too many"));
        drop((stuck, waiting));
        assert!(thread.run(|| 0).await.unwrap_err().contains("has ended"));
    }

    #[tokio::test]
    async fn the_first_job_starts_the_thread() {
        let thread = FileThread::default();
        let name = thread.run(|| std::thread::current().name().map(str::to_owned)).await;
        assert_eq!(name.unwrap().as_deref(), Some("client-files"));
    }
}
