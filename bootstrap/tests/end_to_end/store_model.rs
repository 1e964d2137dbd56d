//! Compares every store with a simple model, in random operations. Compares the waits in the server's table with
//! another model.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, OnceLock},
};

use bootstrap::store::{
    Deadline, FileStore, HashStore, PrefixStore, Store, StoreError, TcpStore,
    machine::{Limits, Reply, Request, Table},
};
use proptest::{collection::vec, prelude::*};

#[derive(Debug, Clone)]
enum Op {
    Set(u8, Vec<u8>),
    Get(u8),
    Check(Vec<u8>),
    Add(u8, i64),
    CompareSet(u8, Vec<u8>, Vec<u8>),
    Append(u8, Vec<u8>),
    MultiGet(Vec<u8>),
    MultiSet(Vec<(u8, Vec<u8>)>),
    Delete(u8),
    NumKeys,
    ListKeys,
    Push(u8, Vec<u8>),
    Pop(u8),
    TryPop(u8),
    QueueLen(u8),
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        "[ \\x09-\\x0d]?[-+]?[0-9]{1,3}[a-z ]?".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..6)
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = || 0..4u8;
    prop_oneof![
        (key(), value()).prop_map(|(key, value)| Op::Set(key, value)),
        key().prop_map(Op::Get),
        vec(key(), 0..4).prop_map(Op::Check),
        (key(), any::<i8>()).prop_map(|(key, delta)| Op::Add(key, delta.into())),
        (key(), value(), value()).prop_map(|(key, expected, new)| Op::CompareSet(key, expected, new)),
        (key(), value()).prop_map(|(key, value)| Op::Append(key, value)),
        vec(key(), 0..4).prop_map(Op::MultiGet),
        vec((key(), value()), 0..4).prop_map(Op::MultiSet),
        key().prop_map(Op::Delete),
        Just(Op::NumKeys),
        Just(Op::ListKeys),
        (key(), value()).prop_map(|(key, value)| Op::Push(key, value)),
        key().prop_map(Op::Pop),
        key().prop_map(Op::TryPop),
        key().prop_map(Op::QueueLen),
    ]
}

/// The result of an operation, in a form that can be compared between stores. `None` means an error.
type Outcome = Option<Vec<Vec<u8>>>;

fn number(n: impl ToString) -> Outcome {
    Some(vec![n.to_string().into_bytes()])
}

#[derive(Default)]
struct Model {
    values: BTreeMap<u8, Vec<u8>>,
    queues: BTreeMap<u8, VecDeque<Vec<u8>>>,
}

impl Model {
    fn there(&self, keys: &[u8]) -> bool {
        let queued = |key| self.queues.get(key).is_some_and(|queue| !queue.is_empty());
        keys.iter().all(|key| self.values.contains_key(key) || queued(key))
    }

    fn value(&self, key: u8) -> Vec<u8> {
        self.values.get(&key).cloned().unwrap_or_default()
    }

    /// Parses the decimal number at the start of a value: white space, an optional sign, digits. Returns 0 for an
    /// absent key, and `None` if the value has no digits there.
    fn number(&self, key: u8) -> Option<i128> {
        let Some(value) = self.values.get(&key) else { return Some(0) };
        let text: String = value.iter().map(|byte| *byte as char).collect();
        let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
        let (sign, digits) = match text.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse::<i128>().ok().map(|number| sign * number)
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Set(key, value) => drop(self.values.insert(*key, value.clone())),
            Op::Get(key) => return self.there(&[*key]).then(|| vec![self.value(*key)]),
            Op::Check(keys) => return number(self.there(keys)),
            Op::Add(key, delta) => {
                let sum = self.number(*key)? + i128::from(*delta);
                self.values.insert(*key, sum.to_string().into_bytes());
                return number(sum);
            }
            Op::CompareSet(key, expected, new) => {
                let matches = self.values.get(key).map_or(expected.is_empty(), |held| held == expected);
                if matches {
                    self.values.insert(*key, new.clone());
                }
                return Some(vec![self.values.get(key).unwrap_or(expected).clone()]);
            }
            Op::Append(key, value) => self.values.entry(*key).or_default().extend(value),
            Op::MultiGet(keys) => {
                return self.there(keys).then(|| keys.iter().map(|key| self.value(*key)).collect());
            }
            Op::MultiSet(entries) => self.values.extend(entries.iter().cloned()),
            Op::Delete(key) => return number(self.values.remove(key).is_some()),
            Op::NumKeys => return number(self.values.len()),
            Op::ListKeys => return Some(self.values.keys().map(|key| name(*key).into_bytes()).collect()),
            Op::Push(key, value) => self.queues.entry(*key).or_default().push_back(value.clone()),
            Op::Pop(key) | Op::TryPop(key) => {
                let popped = self.queues.get_mut(key).and_then(VecDeque::pop_front);
                return match (popped, op) {
                    (Some(value), _) => Some(vec![value]),
                    (None, Op::TryPop(_)) => Some(Vec::new()),
                    (None, _) => None,
                };
            }
            Op::QueueLen(key) => return number(self.queues.get(key).map_or(0, VecDeque::len)),
        }
        Some(Vec::new())
    }
}

fn name(key: u8) -> String {
    format!("k{key}")
}

fn perform(store: &dyn Store, op: &Op) -> Outcome {
    let names = |keys: &[u8]| keys.iter().map(|key| name(*key)).collect::<Vec<_>>();
    fn refs(names: &[String]) -> Vec<&str> {
        names.iter().map(String::as_str).collect()
    }
    let done = |outcome: Result<(), StoreError>| outcome.unwrap();
    let now = Deadline::now();
    match op {
        Op::Set(key, value) => done(store.set(&name(*key), value)),
        Op::Get(key) => return store.get(&name(*key), now).ok().map(|value| vec![value]),
        Op::Check(keys) => return number(store.check(&refs(&names(keys))).unwrap()),
        Op::Add(key, delta) => return store.add(&name(*key), *delta).ok().and_then(number),
        Op::CompareSet(key, expected, new) => {
            return Some(vec![store.compare_set(&name(*key), expected, new).unwrap()]);
        }
        Op::Append(key, value) => done(store.append(&name(*key), value)),
        // A wait for the name of a queue ends like one for a key, but the name has no value: the read returns no bytes.
        Op::MultiGet(keys) => return store.multi_get(&refs(&names(keys)), now).ok(),
        Op::MultiSet(entries) => {
            let names = names(&entries.iter().map(|(key, _)| *key).collect::<Vec<_>>());
            let entries: Vec<_> =
                names.iter().zip(entries).map(|(name, (_, value))| (name.as_str(), &value[..])).collect();
            done(store.multi_set(&entries));
        }
        Op::Delete(key) => return number(store.delete(&name(*key)).unwrap()),
        Op::NumKeys => return number(store.num_keys().unwrap()),
        Op::ListKeys => {
            return Some(store.list_keys().unwrap().into_iter().map(String::into_bytes).collect());
        }
        Op::Push(key, value) => done(store.queue_push(&name(*key), value)),
        Op::Pop(key) => return store.queue_pop(&name(*key), now).ok().map(|value| vec![value]),
        Op::TryPop(key) => return Some(store.queue_try_pop(&name(*key)).unwrap().into_iter().collect()),
        Op::QueueLen(key) => return number(store.queue_len(&name(*key)).unwrap()),
    }
    Some(Vec::new())
}

/// Returns a host and a client. All test cases share them, and each case has its own prefix.
fn tcp() -> &'static (TcpStore, TcpStore) {
    static SHARED: OnceLock<(TcpStore, TcpStore)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let host = TcpStore::host(0).unwrap();
        let deadline = Deadline::after(std::time::Duration::from_secs(60));
        let client = TcpStore::connect(&host.address(), deadline).unwrap();
        (host, client)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn all_stores_do_what_the_model_does(ops in vec(op(), 1..40), case in any::<u64>()) {
        let (host, client) = tcp();
        let folder = tempfile::tempdir().unwrap();
        // The file is opened twice, and the operations alternate between the two stores.
        let files = [(); 2].map(|()| FileStore::open(folder.path().join("store")).unwrap());
        let stores: [(&str, Arc<dyn Store>); 4] = [
            ("hash", Arc::new(HashStore::new())),
            ("prefix", Arc::new(PrefixStore::new("a/b", Arc::new(PrefixStore::new("c", Arc::new(HashStore::new())))))),
            ("host", Arc::new(PrefixStore::new(&format!("host {case}"), Arc::new(host.clone())))),
            ("client", Arc::new(PrefixStore::new(&format!("client {case}"), Arc::new(client.clone())))),
        ];
        let mut model = Model::default();
        for (i, op) in ops.iter().enumerate() {
            let expected = model.apply(op);
            for (name, store) in &stores {
                prop_assert_eq!(&perform(&**store, op), &expected, "{}: {:?}, number {}", name, op, i);
            }
            prop_assert_eq!(&perform(&files[i % 2], op), &expected, "file: {:?}, number {}", op, i);
        }
    }
}

/// An action of a client of the table. A `u8` is a key, and a `u64` the number of the client. Some actions begin a
/// wait, and some can end one.
#[derive(Debug, Clone)]
enum Step {
    Set(u8),
    Delete(u8),
    Wait(u64, Vec<u8>),
    Barrier(u64, i64),
    Cancel(u64),
    Leave(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (key, client) = (|| 0..5u8, || 0..6u64);
    prop_oneof![
        3 => key().prop_map(Step::Set),
        2 => key().prop_map(Step::Delete),
        4 => (client(), vec(key(), 0..4)).prop_map(|(client, keys)| Step::Wait(client, keys)),
        1 => (client(), -1..6i64).prop_map(|(client, world)| Step::Barrier(client, world)),
        1 => client().prop_map(Step::Cancel),
        1 => client().prop_map(Step::Leave),
    ]
}

proptest! {
    /// If it is not cancelled and its client does not leave, a wait ends in the first step after which all of its keys
    /// exist, and a barrier in the first step after which enough clients have arrived.
    #[test]
    fn waits_end_exactly_when_all_keys_are_there(steps in vec(step(), 1..200)) {
        const WRITER: u64 = 100;
        const COUNT: u8 = 9;
        let key = |key: &u8| vec![*key];
        let mut table = Table::new(Limits::default());
        let (mut there, mut arrived) = (std::collections::BTreeSet::new(), 0);
        // The waiting clients: `Ok` with the keys of a wait, or `Err` with the number of arrivals that end a barrier.
        let mut waiting: BTreeMap<u64, Result<Vec<u8>, i64>> = BTreeMap::new();
        for step in steps {
            let mut replies = Vec::new();
            let mut expected = Vec::new();
            let request = match &step {
                Step::Set(set) => {
                    there.insert(*set);
                    Some((WRITER, Request::Set { key: key(set), value: Vec::new() }))
                }
                Step::Delete(deleted) => {
                    expected.push((WRITER, Reply::Integer(there.remove(deleted).into())));
                    Some((WRITER, Request::Delete { key: key(deleted) }))
                }
                Step::Wait(client, _) | Step::Barrier(client, _) if waiting.contains_key(client) => None,
                Step::Wait(client, keys) => {
                    waiting.insert(*client, Ok(keys.clone()));
                    Some((*client, Request::Wait { keys: keys.iter().map(key).collect() }))
                }
                Step::Barrier(client, world) => {
                    arrived += 1;
                    waiting.insert(*client, Err(*world));
                    Some((*client, Request::Barrier { key: key(&COUNT), world: *world }))
                }
                Step::Cancel(client) => {
                    waiting.remove(client);
                    expected.push((*client, Reply::Status(1)));
                    Some((*client, Request::CancelWait))
                }
                Step::Leave(client) => {
                    waiting.remove(client);
                    table.leave(*client, &mut replies);
                    None
                }
            };
            if let Some((client, request)) = request {
                table.apply(client, request, &mut replies).unwrap();
            }
            waiting.retain(|client, wait| {
                let over = match wait {
                    Ok(keys) => keys.iter().all(|key| there.contains(key)),
                    Err(world) => arrived >= *world,
                };
                if over {
                    expected.push((*client, Reply::Status(0)));
                }
                !over
            });
            replies.sort_by_key(|(client, _)| *client);
            expected.sort_by_key(|(client, _)| *client);
            prop_assert_eq!(replies, expected, "{:?}", step);
            for client in 0..6 {
                prop_assert_eq!(table.is_waiting(client), waiting.contains_key(&client));
            }
        }
    }
}
