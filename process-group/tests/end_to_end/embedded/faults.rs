//! Every call fails in turn. Each failure is one typed error, nothing hangs, and no resource is left.

use std::{collections::BTreeMap, sync::Arc};

use gpu_sim::{Action, Injection};
use process_group::comm::{
    CommError, Communicator, DataType::F32, Group, ReduceOp, Result, wait_for_dropped,
};
use rusty_fork::rusty_fork_test;

use super::common::{Machine, far, machine};

/// The calls of a single rank to a communicator, covering every function that this crate calls.
fn flow(machine: &Machine) -> Result<()> {
    let context = machine.context(0);
    let id = machine.nccl.unique_id()?;
    let config = process_group::comm::Config::new().name("alone");
    let communicator = Communicator::init(&machine.nccl, &context, &id, 0, 1, &config, far())?;
    let stream = cuda_driver::Stream::new(&context, cuda_driver::StreamFlags::NON_BLOCKING)?;
    let memory = cuda_driver::memory::DeviceMemory::new(&context, 64)?;
    let (from, to) = (memory.ptr(), memory.ptr() + 32usize);
    unsafe {
        let registration = communicator.register(from, 64, far())?;
        communicator.all_reduce(from, from, 8, F32, ReduceOp::Sum, &stream)?;
        communicator.broadcast(from, from, 8, F32, 0, &stream)?;
        communicator.reduce(from, from, 8, F32, ReduceOp::Sum, 0, &stream)?;
        communicator.all_gather(from, to, 8, F32, &stream)?;
        communicator.reduce_scatter(from, to, 8, F32, ReduceOp::Sum, &stream)?;
        communicator.all_to_all(from, to, 8, F32, &stream)?;
        communicator.gather(from, to, 8, F32, 0, &stream)?;
        communicator.scatter(from, to, 8, F32, 0, &stream)?;
        communicator.all_reduce(from, from, 8, F32, ReduceOp::PreMulSum(0.5), &stream)?;
        let group = Group::begin(&machine.nccl)?;
        communicator.send(from, 8, F32, 0, &stream)?;
        communicator.recv(to, 8, F32, 0, &stream)?;
        group.finish()?;
        stream.synchronize()?;
        registration.deregister(far())?;
    }
    let child = communicator.split(Some(0), 0, &config, far())?;
    communicator.async_error()?;
    child.map_or(Ok(()), |child| child.destroy(far()))?;
    communicator.destroy(far())
}

fn calls(machine: &Machine) -> BTreeMap<String, u64> {
    let nccl = |(name, _): &(String, u64)| name.starts_with("nccl");
    machine.world.faults().all_calls().into_iter().filter(nccl).collect()
}

/// Texts and versions, which are queried by the errors and not by the flow.
const ASKED_BY_ERRORS: [&str; 3] = ["ncclGetErrorString", "ncclGetLastError", "ncclGetVersion"];

rusty_fork_test! {
    #[test]
    fn every_call_of_nccl_can_fail() {
        let machine = machine(1);
        process_group::comm::set_drop_error_hook(|_| ());
        let before = calls(&machine);
        flow(&machine).unwrap();
        let mut struck = 0;
        for (name, after) in calls(&machine) {
            if ASKED_BY_ERRORS.contains(&name.as_str()) {
                continue;
            }
            for nth in 1..=after - before.get(&name).unwrap_or(&0) {
                // 2: a system error; 4: an invalid argument, which leaves the communicator as it was.
                for code in [2, 4] {
                    let faults = machine.world.faults();
                    let hits = faults.hits();
                    faults.inject(Injection::new(&name, Action::Fail(code)).nth(nth)).unwrap();
                    let result = flow(&machine);
                    assert!(wait_for_dropped(far()));
                    assert_eq!(faults.hits(), hits + 1, "{name} {nth}");
                    match result {
                        Err(CommError::Nccl { call, code: found, .. }) => {
                            assert_eq!((call, found.0), (name.as_str(), code), "{name} {nth}");
                        }
                        Err(CommError::Poisoned { reason, .. }) => assert!(reason.contains(&name), "{reason}"),
                        other => panic!("{name} {nth} failed with {code}: {other:?}"),
                    }
                    faults.clear();
                    struck += 1;
                }
            }
        }
        assert!(struck > 40, "only {struck} calls were made to fail");
        // The machine is still usable.
        flow(&machine).unwrap();
    }

    #[test]
    fn an_abort_that_fails_is_an_error_and_leaks() {
        let machine = machine(1);
        let context = machine.context(0);
        for name in ["ncclGroupStart", "ncclCommAbort", "ncclGroupEnd"] {
            let id = machine.nccl.unique_id().unwrap();
            let config = process_group::comm::Config::new();
            let communicator = Communicator::init(&machine.nccl, &context, &id, 0, 1, &config, far()).unwrap();
            machine.world.faults().inject(Injection::new(name, Action::Fail(3))).unwrap();
            let handle = communicator.abort_handle();
            let error = communicator.abort(far()).unwrap_err();
            assert!(matches!(error, CommError::Nccl { call, .. } if call == name), "{error}");
            let again = handle.abort(far()).unwrap_err();
            assert!(matches!(&again, CommError::Leaked { why, .. } if why.contains(name)), "{again}");
        }
    }

    #[test]
    fn a_destruction_that_fails_keeps_what_nccl_may_still_reach() {
        let machine = machine(1);
        let context = machine.context(0);
        let id = machine.nccl.unique_id().unwrap();
        let config = process_group::comm::Config::new();
        let communicator = Communicator::init(&machine.nccl, &context, &id, 0, 1, &config, far()).unwrap();
        let memory = Arc::new(());
        communicator.keep(memory.clone());
        machine.world.faults().inject(Injection::new("ncclCommDestroy", Action::Fail(3))).unwrap();
        let error = communicator.destroy(far()).unwrap_err();
        assert!(matches!(error, CommError::Nccl { call: "ncclCommDestroy", .. }), "{error}");
        assert_eq!(Arc::strong_count(&memory), 2);
    }

    #[test]
    fn nccls_last_message_is_in_the_error() {
        let machine = machine(1);
        let context = machine.context(0);
        let id = machine.nccl.unique_id().unwrap();
        let config = process_group::comm::Config::new().name("x");
        let communicator = Communicator::init(&machine.nccl, &context, &id, 0, 1, &config, far()).unwrap();
        machine.world.faults().inject(Injection::new("ncclAllReduce", Action::Fail(3))).unwrap();
        let stream = cuda_driver::Stream::new(&context, cuda_driver::StreamFlags::NON_BLOCKING).unwrap();
        let memory = cuda_driver::memory::DeviceMemory::new(&context, 64).unwrap();
        let reduce = || unsafe {
            communicator.all_reduce(memory.ptr(), memory.ptr(), 8, F32, ReduceOp::Sum, &stream)
        };
        let error = reduce().unwrap_err().to_string();
        assert!(error.contains("ncclAllReduce failed on communicator x (rank 0 of 1) with ncclInternalError (3)"), "{error}");
        let error = reduce().unwrap_err();
        assert!(matches!(error, CommError::Poisoned { .. }), "{error}");
        communicator.abort(far()).unwrap();
    }
}
