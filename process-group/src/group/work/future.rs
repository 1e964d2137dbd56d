//! Waiting for operations in asynchronous programs.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use super::Work;
use crate::group::Result;

/// Future that waits for an operation, made by [`Work::into_future`](IntoFuture::into_future). Works with any executor.
///
/// Returns `Ok` when the operation is complete, or an error as [`Work::is_completed`] does, for example the error that
/// ended the group. The future has no deadline of its own. The group's [work
/// timeout](crate::group::Builder::work_timeout) applies. Dropping the future has no effect on the operation.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct WorkFuture {
    work: Work,
    /// Waker of the task to wake when the operation is complete or the group has ended.
    waker: Arc<Mutex<Option<Waker>>>,
    /// True once the `work-keeper` thread has the request to wake the task.
    is_kept: bool,
}

/// Wakes a task when it is dropped.
struct WakeOnDrop(Arc<Mutex<Option<Waker>>>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl IntoFuture for Work {
    type Output = Result<()>;
    type IntoFuture = WorkFuture;

    fn into_future(self) -> WorkFuture {
        WorkFuture { work: self, waker: Arc::default(), is_kept: false }
    }
}

impl Future for WorkFuture {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        *this.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        // Checked after the waker is stored, so if the operation ends now, either this check sees it or the waker is
        // called.
        if this.work.is_completed()? {
            return Poll::Ready(Ok(()));
        }
        if !this.is_kept {
            let kept = this.work.keep_until_ended(WakeOnDrop(this.waker.clone()));
            this.work.in_call(kept)?;
            this.is_kept = true;
        }
        Poll::Pending
    }
}
