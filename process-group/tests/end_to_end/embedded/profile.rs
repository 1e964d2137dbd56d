//! Spans of `tracing`.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use process_group::{
    comm::{DataType::F32, ReduceOp},
    group::Buffer,
    store::Deadline,
};
use rusty_fork::rusty_fork_test;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::common::{far, machine};

/// Records this crate's output: spans as they begin and end, and events.
#[derive(Clone, Default)]
struct Notes {
    lines: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Notes {
    fn write(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "process_group"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        self.write(fields.0);
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().level().to_string());
        event.record(&mut fields);
        self.write(fields.0);
    }

    fn exit(&self, span: &Id) {
        self.write(format!("end {}", span.into_u64()));
    }

    fn enter(&self, _: &Id) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
}

rusty_fork_test! {
    #[test]
    fn calls_are_spans_and_trouble_is_an_event() {
        let machine = machine(2);
        let notes = Notes::default();
        machine.ranks(2, |rank| {
            let world = rank.world();
            let (stream, memory) = (rank.stream(), rank.memory(&[0.0; 2]));
            let two = Buffer::new(memory.ptr(), 2, F32);
            let all = || unsafe { world.raw().all_reduce(two, two, ReduceOp::Sum, &stream) }.unwrap();
            if rank.rank == 1 {
                world.barrier(far()).unwrap();
                all();
            } else {
                tracing::subscriber::with_default(notes.clone(), || {
                    let work = all();
                    work.wait_until(Deadline::now()).unwrap_err();
                    world.barrier(far()).unwrap();
                    work.wait_until(far()).unwrap();
                });
            }
            world.destroy(far()).unwrap();
        });
        machine.world.finish().unwrap();
        let lines = notes.lines.lock().unwrap();
        let (trouble, rest): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("WARN"));
        assert_eq!(rest, [
            r#"call operation="all_reduce" group="world" bytes=8"#,
            "end 1",
            r#"call operation="wait" group="world" bytes=0"#,
            "end 2",
            r#"call operation="wait" group="world" bytes=0"#,
            "end 3",
        ]);
        assert!(trouble.len() == 1 && trouble[0].contains("problem=all_reduce (number 1 of world)"), "{trouble:?}");
    }
}
