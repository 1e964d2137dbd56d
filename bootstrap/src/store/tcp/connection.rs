//! The client side: one connection, driven by the calling thread.

use std::{fmt, io, net::SocketAddr, time::Duration};

use crate::random::random;
use crate::runtime::{self, ClientSocket, Instant};
use crate::store::{
    Deadline,
    machine::{
        Call, Client, Failure, Limits, Reply, Secret,
        client::{Input, Output},
    },
};

/// A connection whose greeting is complete.
pub(super) struct Connection {
    socket: Box<dyn ClientSocket>,
    machine: Client,
    /// The longest time for which a write may wait until the host accepts more bytes.
    patience: Duration,
    /// The origin of the state machine's clock.
    opened: Instant,
    /// The buffer for reads from the socket.
    received: Vec<u8>,
}

/// Omits the received data.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("socket", &self.socket)
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
    /// how long the host may take to answer a request that does not wait, and how long a write may wait until the
    /// host accepts more bytes.
    pub(super) fn open(
        address: SocketAddr,
        limits: Limits,
        patience: Duration,
        secret: Option<&Secret>,
        deadline: Deadline,
    ) -> Result<Self, Broken> {
        let socket = runtime::connect(address, deadline.remaining()).map_err(Broken::Gone)?;
        let mut machine = Client::new(limits, patience, runtime::process());
        if let Some(secret) = secret {
            machine = machine.with_secret(secret.clone(), random().map_err(Broken::Gone)?);
        }
        let received = vec![0; 16 << 10];
        let mut connection = Self { socket, machine, patience, opened: Instant::now(), received };
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
                    Output::Send(bytes) => self.socket.write_all(&bytes, self.patience).map_err(stalled)?,
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
    /// If nothing arrives until the state machine's timer is due, returns an error that [`is_timeout`] accepts. This
    /// error may also come before the timer is due.
    fn read(&mut self) -> io::Result<usize> {
        let timer = self.machine.wake_at().map(|due| due.saturating_sub(self.opened.elapsed()));
        if timer.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.read(&mut self.received, timer)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Converts an error of a write. A timeout means that the host has accepted no bytes for the whole patience.
fn stalled(error: io::Error) -> Broken {
    if is_timeout(&error) { Broken::Failed(Failure::Unresponsive) } else { Broken::Gone(error) }
}
