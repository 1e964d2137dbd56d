//! Tests of the round trips and the time limits of a client.

use proptest::prelude::*;

use super::*;

/// A call with `peeks` reads an existing value with one message in each direction.
#[test]
fn a_present_key_is_read_in_one_round_trip() {
    const NOW: Duration = Duration::ZERO;
    let mut client = Client::new(Limits::default(), Duration::from_secs(1), 7);
    client.step(Input::Connected(Duration::from_secs(1)), NOW);
    client.step(Input::Received(&7u32.to_le_bytes()), NOW);
    let (keys, then) = (vec![b"k".to_vec()], Request::Get { key: b"k".to_vec() });
    let sent = client.step(
        Input::Call(Call::WhenThere { keys, then: Some(then), peeks: true, deadline: Duration::ZERO }),
        NOW,
    );
    assert!(matches!(sent[..], [Output::Send(_)]), "{sent:?}");
    let mut value = vec![0];
    Reply::Bytes(b"v".to_vec()).encode(&mut value);
    let done = client.step(Input::Received(&value), NOW);
    assert_eq!(done, [Output::Done(Ok(Some(Reply::Bytes(b"v".to_vec()))))]);
}

/// The wait times out, so the client sends `CancelWait`. The server answers just before `GRACE` has passed. That does
/// not extend the limit: the answers to the client's next requests are also due `GRACE` after `CancelWait` was sent.
#[test]
fn a_call_fails_at_the_same_time_with_a_slow_and_with_a_silent_host() {
    const DEADLINE: Duration = Duration::from_secs(3);
    let mut client = Client::new(Limits::default(), Duration::from_secs(60), 7);
    client.step(Input::Connected(DEADLINE), Duration::ZERO);
    client.step(Input::Received(&7u32.to_le_bytes()), Duration::ZERO);
    let (keys, then) = (vec![b"k".to_vec(), b"l".to_vec()], Request::Get { key: b"k".to_vec() });
    let call = Call::WhenThere { keys, then: Some(then), peeks: false, deadline: DEADLINE };
    client.step(Input::Call(call), Duration::ZERO);
    client.step(Input::Tick, DEADLINE);
    // Status 1 answers the cancellation. Then the checks find that both keys exist, so the client sends `Get`.
    let late = DEADLINE + GRACE - Duration::from_millis(1);
    for answer in [[1].as_slice(), &[0, 0]] {
        client.step(Input::Received(answer), late);
    }
    assert_eq!(client.wake_at(), Some(DEADLINE + GRACE));
    assert_eq!(client.step(Input::Tick, DEADLINE + GRACE), [Output::Done(Err(Failure::Unresponsive))]);
}

proptest! {
    /// The server sends zero to three pairs of answers to a call that waits, and then nothing. The call fails at
    /// most `GRACE` after its deadline.
    #[test]
    fn a_call_to_a_silent_host_fails_soon_after_the_deadline(
        patience in 0..100u64, deadline in 0..100u64, peeks: bool, answers in 0..4usize,
    ) {
        let [patience, deadline] = [patience, deadline].map(Duration::from_secs);
        let mut client = Client::new(Limits::default(), patience, 7);
        client.step(Input::Connected(Duration::MAX), Duration::ZERO);
        client.step(Input::Received(&7u32.to_le_bytes()), Duration::ZERO);
        let (keys, then) = (vec![b"k".to_vec()], Request::QueuePop { key: b"k".to_vec() });
        let call = Call::WhenThere { keys, then: Some(then), peeks, deadline };
        let mut outputs = client.step(Input::Call(call), Duration::ZERO);
        // Status 0 for the wait or the check, then an empty queue. During a pause between two pops, these bytes are
        // a protocol error, which fails the call at once.
        let mut empty = vec![0];
        Reply::Popped(None).encode(&mut empty);
        for answer in std::iter::repeat_n(&empty, answers) {
            outputs.extend(client.step(Input::Received(answer), Duration::ZERO));
        }
        let mut now = Duration::ZERO;
        while let Some(due) = client.wake_at() {
            now = due;
            outputs.extend(client.step(Input::Tick, now));
        }
        prop_assert!(now <= deadline + GRACE, "{now:?}");
        prop_assert!(matches!(outputs.last(), Some(Output::Done(Err(_)))), "{outputs:?}");
    }
}
