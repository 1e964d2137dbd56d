//! A rank's communicators, through NCCL's raw function table. Blocking calls suspend the actor that makes them.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use crate::agreement::Outcome;
use cuda_driver::{Context, DevicePtr, Stream};
use nccl_sys::{Api, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId, ncclWindow_t};

use super::queue::Queue;

/// Makes an NCCL call, and returns its result code.
macro_rules! nccl {
    ($api:expr, $name:ident($($argument:expr),*)) => {{
        let function = $api.$name().expect(stringify!($name));
        // SAFETY: the handles belong to the world, which still runs, and the pointers outlive the call.
        unsafe { function($($argument),*) }
    }};
}

/// Makes an NCCL call that must succeed.
macro_rules! must {
    ($api:expr, $name:ident($($argument:expr),*)) => {{
        let code = nccl!($api, $name($($argument),*));
        assert_eq!(code, ncclResult_t::ncclSuccess, "{}", stringify!($name));
    }};
}

/// One rank's communicator for a group of ranks.
pub(super) struct Group {
    pub(super) uid: u64,
    pub(super) members: Vec<u32>,
    api: Api,
    /// The communicator's handle as a number, until a call takes it to destroy or abort the communicator.
    handle: Mutex<Option<usize>>,
}

impl Group {
    fn new(api: &Api, uid: u64, members: Vec<u32>, handle: ncclComm_t) -> Self {
        Self { uid, members, api: api.clone(), handle: Mutex::new(Some(handle as usize)) }
    }

    /// Joins the group of all ranks.
    pub(super) fn join(api: &Api, id: ncclUniqueId, rank: u32, size: u32) -> Self {
        let mut handle = ptr::null_mut();
        must!(api, ncclCommInitRank(&mut handle, size as c_int, id, rank as c_int));
        Self::new(api, 0, (0..size).collect(), handle)
    }

    /// Splits off the group of the members with the same color as `rank`. Its uid is `uid` plus that color.
    pub(super) fn split(&self, uid: u64, color: impl Fn(u32) -> u32, rank: u32) -> Self {
        let mut child = ptr::null_mut();
        let own = color(rank);
        let parent = self.handle().expect("nothing has failed yet");
        must!(self.api, ncclCommSplit(parent, own as c_int, rank as c_int, &mut child, ptr::null_mut()));
        let members = self.members.iter().copied().filter(|member| color(*member) == own).collect();
        Self::new(&self.api, uid + u64::from(own), members, child)
    }

    fn handle(&self) -> Option<ncclComm_t> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).map(|handle| handle as ncclComm_t)
    }

    fn take(&self) -> Option<ncclComm_t> {
        let taken = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.map(|handle| handle as ncclComm_t)
    }

    /// Aborts the communicator, which ends blocked calls. Only the first call has an effect.
    pub(super) fn abort(&self) {
        if let Some(handle) = self.take() {
            must!(self.api, ncclCommAbort(handle));
        }
    }

    /// Ends the communicator, unless it was aborted.
    pub(super) fn destroy(&self) {
        if let Some(handle) = self.take() {
            must!(self.api, ncclCommDestroy(handle));
        }
    }

    /// Returns whether the communicator was neither aborted nor destroyed.
    pub(super) fn is_alive(&self) -> bool {
        self.handle().is_some()
    }

    /// Sums `count` floats at `at` over the members, in place. Does nothing if the communicator is not alive.
    pub(super) fn all_reduce(&self, at: DevicePtr, count: usize, stream: &Stream) {
        let Some(handle) = self.handle() else { return };
        let (at, stream) = (at.0 as *mut c_void, stream.raw().cast());
        let (element, sum) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        let code = nccl!(self.api, ncclAllReduce(at, at, count, element, sum, handle, stream));
        // The group may have been aborted meanwhile.
        assert!(code == ncclResult_t::ncclSuccess || !self.is_alive(), "ncclAllReduce: {code:?}");
    }

    /// Registers windows in one NCCL group. Blocks until all members have registered theirs, a call fails, or the
    /// communicator is aborted.
    fn register(&self, windows: &[(DevicePtr, usize)]) -> Registration {
        let mut handles: Vec<ncclWindow_t> = vec![ptr::null_mut(); windows.len()];
        must!(self.api, ncclGroupStart());
        let mut failure = None;
        for ((at, bytes), handle) in windows.iter().zip(&mut handles) {
            // The communicator may have been aborted during a slow previous call.
            let Some(comm) = self.handle() else { break };
            let at = at.0 as *mut c_void;
            let code = nccl!(
                self.api,
                ncclCommWindowRegister(comm, at, *bytes, handle, nccl_sys::NCCL_WIN_COLL_SYMMETRIC as c_int)
            );
            if code != ncclResult_t::ncclSuccess {
                failure = Some(code);
                break;
            }
        }
        let call = failure;
        let ended = nccl!(self.api, ncclGroupEnd());
        let failure = failure.or((ended != ncclResult_t::ncclSuccess).then_some(ended));
        let outcome = match failure {
            Some(code) => Outcome::Failed { ordinal: None, cause: format!("code {}", code.0) },
            None if handles.iter().any(|handle| handle.is_null()) => {
                Outcome::Failed { ordinal: None, cause: "no handle".to_owned() }
            }
            None => Outcome::Registered,
        };
        Registration { outcome, refused: call.is_some() && self.handle().is_some() }
    }
}

/// Result of a registration.
pub(super) struct Registration {
    pub(super) outcome: Outcome,
    /// True if a registration call failed on this rank before it waited for the other members, and the communicator was
    /// not aborted.
    pub(super) refused: bool,
}

/// A request to the rank's service actor.
pub(super) struct Job {
    pub(super) group: Arc<Group>,
    pub(super) context: Context,
    pub(super) windows: Vec<(DevicePtr, usize)>,
    pub(super) answer: Arc<Queue<Registration>>,
}

/// Runs the rank's service actor. It makes the library's blocking calls, so that the rank can keep its deadline.
pub(super) fn serve(jobs: &Queue<Job>) {
    while let Some(Job { group, context, windows, answer }) = jobs.take("windows to register", None) {
        let register = || answer.put(group.register(&windows));
        context.with_current(register).expect("the device is well");
    }
}

/// Returns a new NCCL unique id for a communicator.
pub(super) fn unique_id(api: &Api) -> ncclUniqueId {
    let mut id = ncclUniqueId { internal: [0; 128] };
    must!(api, ncclGetUniqueId(&mut id));
    id
}
