//! The client side: one connection, driven by the calling thread.

use std::{
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::socket;
use crate::random::random;
use crate::store::{
    Deadline,
    machine::{
        Call, Client, Failure, Limits, Reply, Secret,
        client::{Input, Output},
    },
};

/// A connection whose greeting is complete.
pub(super) struct Connection {
    stream: TcpStream,
    machine: Client,
    /// The origin of the state machine's clock.
    opened: Instant,
    /// The buffer for reads from the socket.
    received: Vec<u8>,
    /// The read timeout that was last set on the socket. `None`: reads block without limit.
    timeout: Option<Duration>,
}

/// Omits the received data.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("stream", &self.stream)
            .field("machine", &self.machine)
            .finish_non_exhaustive()
    }
}

/// The reason why an attempt to connect, or a call, has failed.
#[derive(Debug)]
pub(super) enum Broken {
    /// Nothing listens at the address, the connection has ended, or a system call has failed.
    Gone(io::Error),
    /// The connection was made, but ended or failed before the greeting was complete.
    TurnedAway(io::Error),
    /// The greeting or the call has failed. The connection stays usable only after [`Failure::TimedOut`].
    Failed(Failure),
}

impl Connection {
    /// Connects and completes the greeting before `deadline`. `limits` are the largest sizes of replies. `patience` is
    /// how long the host may take to answer a request that does not wait, and to accept bytes.
    pub(super) fn open(
        address: SocketAddr,
        limits: Limits,
        patience: Duration,
        secret: Option<&Secret>,
        deadline: Deadline,
    ) -> Result<Self, Broken> {
        let left = deadline.remaining().max(Duration::from_millis(1));
        let stream = TcpStream::connect_timeout(&address, left).map_err(Broken::Gone)?;
        if stream.local_addr().ok() == stream.peer_addr().ok() {
            // Nothing listened, and the kernel chose the destination port as the local port: the socket is connected to
            // itself.
            return Err(Broken::Gone(io::ErrorKind::ConnectionRefused.into()));
        }
        socket::tune(&stream)
            .and_then(|()| stream.set_write_timeout(Some(patience.max(Duration::from_millis(1)))))
            .map_err(Broken::Gone)?;
        let mut machine = Client::new(limits, patience, std::process::id());
        if let Some(secret) = secret {
            machine = machine.with_secret(secret.clone(), random().map_err(Broken::Gone)?);
        }
        let received = vec![0; 16 << 10];
        let mut connection = Self { stream, machine, opened: Instant::now(), received, timeout: None };
        let due = connection.opened.elapsed() + deadline.remaining();
        match connection.drive(Input::Connected(due)) {
            Ok(_) => Ok(connection),
            Err(Broken::Gone(source)) => Err(Broken::TurnedAway(source)),
            Err(broken) => Err(broken),
        }
    }

    /// Converts a deadline to a time on the state machine's clock, which starts when the connection is opened.
    pub(super) fn time_of(&self, deadline: Deadline) -> Duration {
        self.opened.elapsed() + deadline.remaining()
    }

    /// Makes a call and waits for its outcome. Returns the reply, or `None` if the call has none.
    pub(super) fn call(&mut self, call: Call) -> Result<Option<Reply>, Broken> {
        self.drive(Input::Call(call))
    }

    /// Passes `input` to the state machine, and then sends and receives until the state machine reports the outcome.
    fn drive(&mut self, input: Input<'_>) -> Result<Option<Reply>, Broken> {
        let mut outputs = self.machine.step(input, self.opened.elapsed());
        loop {
            for output in outputs.drain(..) {
                match output {
                    Output::Send(bytes) => self.stream.write_all(&bytes).map_err(stalled)?,
                    Output::Done(outcome) => return outcome.map_err(Broken::Failed),
                }
            }
            outputs = match self.read() {
                Ok(0) => return Err(Broken::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok(length) => {
                    self.machine.step(Input::Received(&self.received[..length]), self.opened.elapsed())
                }
                Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {
                    self.machine.step(Input::Tick, self.opened.elapsed())
                }
                Err(error) => return Err(Broken::Gone(error)),
            };
        }
    }

    /// Reads from the socket into `received`, and returns the number of bytes; 0 if the host has closed the connection.
    /// If nothing arrives, returns an error that [`is_timeout`] accepts, when the state machine's timer is due or
    /// earlier.
    fn read(&mut self) -> io::Result<usize> {
        let timer = self.machine.wake_at().map(|due| due.saturating_sub(self.opened.elapsed()));
        if timer.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = timer.map(at_most);
        if self.timeout != timeout {
            self.stream.set_read_timeout(timeout)?;
            self.timeout = timeout;
        }
        self.stream.read(&mut self.received)
    }
}

/// Returns the read timeout for a timer that is due in `left`: the largest power of two, in milliseconds, that is at
/// most `left`. Calls with the same patience usually get the same value, so the timeout of the socket is rarely set
/// again. A long wait wakes up several times before it ends. The timeout is at least 1 ms, because 0 means no timeout,
/// and at most 2^22 ms, because the system does not accept every duration.
fn at_most(left: Duration) -> Duration {
    const MOST: u64 = 1 << 22;
    let ms = u64::try_from(left.as_millis()).unwrap_or(MOST).clamp(1, MOST);
    Duration::from_millis(1 << ms.ilog2())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Converts an error of a write. A timeout means that the host has accepted no bytes for the whole patience.
fn stalled(error: io::Error) -> Broken {
    if is_timeout(&error) { Broken::Failed(Failure::Unresponsive) } else { Broken::Gone(error) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// With at least 1 ms left, the timeout does not exceed the time left. It is more than half of that time less
        /// 1 ms, or more than an hour, so a wait rarely wakes up.
        #[test]
        fn a_read_takes_no_longer_than_the_timer_and_half_of_that_at_least(micros in 1000..u64::MAX) {
            let left = Duration::from_micros(micros);
            let most = at_most(left);
            prop_assert!(most <= left);
            prop_assert!(most + Duration::from_millis(1) > left / 2 || most > Duration::from_secs(3600), "{most:?}");
        }
    }

    #[test]
    fn a_time_that_is_over_is_none_that_means_forever() {
        assert_eq!(at_most(Duration::ZERO), Duration::from_millis(1));
    }
}
