//! The thread on which policies are loaded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, mpsc};

use tokio::sync::oneshot;

type LoaderTask = Box<dyn FnOnce() + Send>;

/// Runs `work` on the one thread of this process that loads policies, after what others have begun
/// there. `None` if it panicked.
///
/// A policy is large, and each reload makes another one before the old one is freed. The allocator
/// of glibc gives threads memory of their own: on changing threads, each reload took new memory,
/// and 5,000 rules needed three times as much after 25 reloads.
pub(crate) async fn run_on_loader<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, result) = oneshot::channel();
    let task = move || {
        if let Ok(done) = catch_unwind(AssertUnwindSafe(work)) {
            // The caller may have stopped waiting.
            let _ = sender.send(done);
        }
    };
    match loader().send(Box::new(task)) {
        Ok(()) => result.await.ok(),
        Err(mpsc::SendError(task)) => {
            // The thread could not be started.
            tokio::task::spawn_blocking(task).await.ok()?;
            result.await.ok()
        }
    }
}

fn loader() -> &'static mpsc::Sender<LoaderTask> {
    static LOADER: OnceLock<mpsc::Sender<LoaderTask>> = OnceLock::new();
    LOADER.get_or_init(|| {
        let (sender, tasks) = mpsc::channel::<LoaderTask>();
        let thread = std::thread::Builder::new().name("policy".into());
        // Without the thread, `tasks` is dropped, and a send fails.
        let _ = thread.spawn(move || tasks.into_iter().for_each(|task| task()));
        sender
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_runs_on_one_thread_also_after_a_panic() {
        let id = || std::thread::current().id();
        let first = run_on_loader(id).await.unwrap();
        assert_ne!(first, id());
        assert_eq!(run_on_loader(|| panic!("on purpose")).await, None::<()>);
        let others = [run_on_loader(id).await, tokio::spawn(run_on_loader(id)).await.unwrap()];
        assert_eq!(others, [Some(first); 2]);
    }
}
