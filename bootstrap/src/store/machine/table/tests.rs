//! Tests of the table's count of its memory, of its predictions for requests (growth, reply sizes and work), and of a
//! refused request by a client that was woken.

use proptest::{collection::vec, prelude::*};

use super::*;

impl Table {
    /// Computes the expected value of [`memory`](Self::memory) from all values and queues.
    fn recount(&self) -> usize {
        let values = self.values.iter().map(|(key, value)| entry(key, value.capacity()));
        let queues = self
            .queues
            .iter()
            .map(|(key, elements)| queue(key) + elements.iter().map(|value| element(value)).sum::<usize>());
        values.chain(queues).sum()
    }
}

fn request() -> impl Strategy<Value = Request> {
    let key = || (0..6u8).prop_map(|name| vec![b'k'; name.into()]);
    let value = || prop_oneof![vec(b'0'..=b'9', 0..5), vec(any::<u8>(), 0..300)];
    let keys = || vec(key(), 0..4);
    prop_oneof![
        1 => (key(), value()).prop_map(|(key, value)| Request::Set { key, value }),
        1 => (key(), value(), value())
            .prop_map(|(key, expected, new)| Request::CompareSet { key, expected, new }),
        1 => (key(), value()).prop_map(|(key, new)| Request::CompareSet { key, expected: Vec::new(), new }),
        1 => key().prop_map(|key| Request::Get { key }),
        1 => (key(), any::<i64>()).prop_map(|(key, delta)| Request::Add { key, delta }),
        1 => keys().prop_map(|keys| Request::Wait { keys }),
        1 => keys().prop_map(|keys| Request::MultiGet { keys }),
        1 => key().prop_map(|key| Request::Delete { key }),
        1 => (key(), value()).prop_map(|(key, value)| Request::Append { key, value }),
        1 => vec((key(), value()), 0..4).prop_map(|entries| Request::MultiSet { entries }),
        1 => Just(Request::CancelWait),
        3 => (key(), value()).prop_map(|(key, value)| Request::QueuePush { key, value }),
        2 => key().prop_map(|key| Request::QueuePop { key }),
        1 => Just(Request::ListKeys),
        1 => (key(), 0..4i64).prop_map(|(key, world)| Request::Barrier { key, world }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// After each request, the memory equals the recount, has grown by no more than predicted, and is within the limit.
    /// A refused request does not change the memory. A reply to the client, except for `MultiGet` and `ListKeys`, has
    /// at most the predicted size, or at most 8 bytes if the prediction is smaller. The wait memory of a client
    /// that waits is not 0. Every wait whose key has arrived has been resumed, even if the request was refused. After
    /// all clients have disconnected, the table contains no wait.
    #[test]
    fn memory_is_counted(requests in vec((0..5u64, request()), 1..200), limit in 1000..20_000usize) {
        let mut table = Table::new(Limits { store_bytes: limit, value_bytes: 1000, ..Limits::default() });
        for (client, request) in requests {
            let (before, growth) = (table.memory(), table.growth(&request));
            let size = table.reply_size(&request);
            let mut replies = Vec::new();
            let outcome = table.apply(client, request.clone(), &mut replies);
            prop_assert_eq!(table.memory(), table.recount(), "{:?}", request);
            prop_assert!(table.memory() <= (before + growth).min(limit), "{:?}", request);
            if outcome.is_err() {
                prop_assert_eq!(table.memory(), before, "{:?}", request);
            }
            let is_of_one = !matches!(request, Request::MultiGet { .. } | Request::ListKeys);
            for (_, reply) in replies.iter().filter(|(to, _)| *to == client && is_of_one) {
                let mut bytes = Vec::new();
                reply.encode(&mut bytes);
                prop_assert!(bytes.len() <= size.max(8), "{:?} for {:?}", reply, request);
            }
            if table.is_waiting(client) {
                prop_assert!(table.wait_memory(client) > 0);
            }
            prop_assert!((0..5).all(|client| !table.is_woken(client)), "{:?}", request);
        }
        (0..5).for_each(|client| table.leave(client, &mut Vec::new()));
        prop_assert!(table.waits.is_empty());
    }
}

/// Client 1 was woken for the only element of a queue. If its next request is refused, client 2 is woken, which waits
/// for the same queue.
#[test]
fn a_refused_request_ends_the_claim_to_an_element() {
    let mut table = Table::new(Limits { store_bytes: 10_000, ..Limits::default() });
    let mut replies = Vec::new();
    let (queue, word) = (b"queue".to_vec(), b"word".to_vec());
    table.apply(0, Request::Set { key: word.clone(), value: word.clone() }, &mut replies).unwrap();
    for refused in [
        Request::Add { key: word.clone(), delta: 1 },
        Request::Append { key: word.clone(), value: vec![0; 10_000] },
    ] {
        for client in [1, 2] {
            table.apply(client, Request::Wait { keys: vec![queue.clone()] }, &mut replies).unwrap();
        }
        replies.clear();
        table.apply(0, Request::QueuePush { key: queue.clone(), value: Vec::new() }, &mut replies).unwrap();
        assert!(matches!(replies[..], [(1, Reply::Status(0))]), "{replies:?}");
        replies.clear();
        table.apply(1, refused, &mut replies).unwrap_err();
        assert!(matches!(replies[..], [(2, Reply::Status(0))]), "{replies:?}");
        table.apply(2, Request::QueuePop { key: queue.clone() }, &mut replies).unwrap();
    }
}

/// The memory of removed elements, queues and values is no longer counted.
#[test]
fn what_is_emptied_gives_its_memory_back() {
    let mut table = Table::default();
    let mut replies = Vec::new();
    let mut ask = |request| {
        table.apply(1, request, &mut replies).unwrap();
        table.memory()
    };
    let key = |number: u32| number.to_le_bytes().to_vec();
    for number in 0..10_000 {
        ask(Request::QueuePush { key: key(0), value: key(number) });
        ask(Request::QueuePush { key: key(number + 1), value: Vec::new() });
        ask(Request::Set { key: key(number), value: Vec::new() });
    }
    for number in 1..10_000 {
        ask(Request::QueuePop { key: key(0) });
        ask(Request::QueuePop { key: key(number) });
        ask(Request::Delete { key: key(number) });
    }
    let memory = ask(Request::NumKeys);
    assert!(memory < 8 << 10, "{memory}");
}

/// Appending 1 MiB to a value byte by byte moves at most 6 MiB in total, according to [`Table::work`], which rounds the
/// size of each move down to whole KiB. The value's memory is then at most about a quarter more than its size.
#[test]
fn a_value_that_grows_is_seldom_moved() {
    let mut table = Table::default();
    let mut moved = 0;
    for _ in 0..1 << 20 {
        let append = Request::Append { key: b"k".to_vec(), value: vec![0] };
        moved += table.work(&append) - 1;
        table.apply(1, append, &mut Vec::new()).unwrap();
    }
    assert!(moved <= 6 << 10, "{moved} KiB for 1 MiB");
    assert!(table.memory() < (5 << 18) + 1000, "{}", table.memory());
}
