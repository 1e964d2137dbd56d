//! A command line for a store between processes: one process hosts it, others send requests.
//!
//! ```text
//! tcp_store serve 127.0.0.1:0                      prints only the port that it listens on,
//!                                                  and serves until the process is killed
//! tcp_store client 127.0.0.1:PORT set KEY VALUE
//! tcp_store client 127.0.0.1:PORT get KEY          waits for the key
//! tcp_store client 127.0.0.1:PORT add KEY NUMBER
//! ```
//!
//! `--timeout SECONDS` (default 30) limits the attempts to connect, and the waits for keys, for queues and in
//! `barrier`. It comes before `--secret-file`.
//!
//! With a secret, `serve` serves only clients that know the secret, and `client` proves that it knows the secret. The
//! secret comes from the file of `--secret-file FILE`. Without this option, it comes from the environment variable
//! `PROCESS_GROUP_STORE_SECRET`, or from the file that `PROCESS_GROUP_STORE_SECRET_FILE` names. If neither variable is
//! set, or the first one is `none`, there is no secret. A secret has at least 16 bytes. Line ends at the end of the
//! file are ignored.
//!
//! `client` also supports `check KEY…`, `wait KEY…`, `compare_set KEY EXPECTED NEW`, `append KEY VALUE`,
//! `multi_get KEY…`, `multi_set KEY VALUE …`, `delete KEY`, `list_keys`, `num_keys`, `queue_push KEY VALUE`,
//! `queue_pop KEY`, `queue_try_pop KEY`, `queue_len KEY` and `barrier NAME RANK WORLD`. `queue_try_pop`
//! prints nothing if the queue is empty.
//!
//! Without a secret, the server or the client may be PyTorch's `TCPStore` instead.

use std::{error::Error, net::SocketAddr, process::ExitCode, thread, time::Duration};

use bootstrap::store::{Deadline, Secret, SecretSetting, Store, TcpOptions, TcpStore, barrier};

const USAGE: &str = "tcp_store [--timeout SECONDS] [--secret-file FILE] \
                     (serve ADDRESS:PORT | client ADDRESS:PORT OPERATION [ARGUMENT…])
operations: set KEY VALUE, get KEY, add KEY NUMBER, check KEY…, wait KEY…, compare_set KEY EXPECTED NEW, \
                     append KEY VALUE, multi_get KEY…, multi_set KEY VALUE …, delete KEY, list_keys, num_keys, \
                     queue_push KEY VALUE, queue_pop KEY, queue_try_pop KEY, queue_len KEY, barrier NAME RANK WORLD";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let (timeout, arguments) = match arguments {
        ["--timeout", seconds, rest @ ..] => (Duration::try_from_secs_f64(seconds.parse()?)?, rest),
        _ => (Duration::from_secs(30), arguments),
    };
    let (secret, arguments) = match arguments {
        ["--secret-file", file, rest @ ..] => (Some(Secret::read_file(file)?), rest),
        _ => (SecretSetting::from_environment()?.secret().cloned(), arguments),
    };
    let mut options = TcpStore::options();
    if let Some(secret) = secret {
        options = options.secret(secret);
    }
    match arguments {
        ["serve", address] => serve(options, address, timeout),
        ["client", address, operation, rest @ ..] => client(options, address, operation, rest, timeout),
        _ => Err(format!("unknown arguments\n{USAGE}").into()),
    }
}

fn serve(options: TcpOptions, address: &str, timeout: Duration) -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = address.parse()?;
    let store = options.listen(address.ip()).host(address.port(), Deadline::after(timeout))?;
    let listening: SocketAddr = store.address().parse()?;
    println!("{}", listening.port());
    loop {
        thread::park();
    }
}

fn client(
    options: TcpOptions,
    address: &str,
    operation: &str,
    arguments: &[&str],
    timeout: Duration,
) -> Result<(), Box<dyn Error>> {
    let soon = || Deadline::after(timeout);
    let store = options.connect(address, soon())?;
    let show = |value: Vec<u8>| println!("{}", String::from_utf8_lossy(&value));
    match (operation, arguments) {
        ("set", [key, value]) => store.set(key, value.as_bytes())?,
        ("get", [key]) => show(store.get(key, soon())?),
        ("add", [key, delta]) => println!("{}", store.add(key, delta.parse()?)?),
        ("check", keys) => println!("{}", store.check(keys)?),
        ("wait", keys) => store.wait(keys, soon())?,
        ("compare_set", [key, expected, new]) => {
            show(store.compare_set(key, expected.as_bytes(), new.as_bytes())?);
        }
        ("append", [key, value]) => store.append(key, value.as_bytes())?,
        ("multi_get", keys) => store.multi_get(keys, soon())?.into_iter().for_each(show),
        ("multi_set", entries) if entries.len().is_multiple_of(2) => {
            let entries: Vec<_> = entries.chunks(2).map(|entry| (entry[0], entry[1].as_bytes())).collect();
            store.multi_set(&entries)?;
        }
        ("delete", [key]) => println!("{}", store.delete(key)?),
        ("list_keys", []) => store.list_keys()?.iter().for_each(|key| println!("{key}")),
        ("num_keys", []) => println!("{}", store.num_keys()?),
        ("queue_push", [key, value]) => store.queue_push(key, value.as_bytes())?,
        ("queue_pop", [key]) => show(store.queue_pop(key, soon())?),
        ("queue_try_pop", [key]) => store.queue_try_pop(key)?.into_iter().for_each(show),
        ("queue_len", [key]) => println!("{}", store.queue_len(key)?),
        ("barrier", [name, rank, world]) => barrier(&store, name, rank.parse()?, world.parse()?, soon())?,
        _ => {
            return Err(
                format!("no operation `{operation}` with {} arguments\n{USAGE}", arguments.len()).into()
            );
        }
    }
    Ok(())
}
