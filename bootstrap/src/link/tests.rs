//! Tests of exchanges: connections that do not belong to the exchange, missing members, processes of another user. And
//! tests of the folders of listeners. The members of an exchange are threads of one process, but their descriptors pass
//! through the kernel as between processes.

use std::{
    env,
    fs::{self, File, Permissions},
    io::{self, BufRead, BufReader, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, FileExt, PermissionsExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use gpu_sim::process::test_command;
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    net::{
        RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, accept, bind,
        connect, listen, recv, sendmsg,
    },
    process::{Resource, Rlimit, Uid, geteuid, getrlimit, setrlimit},
};

use super::{
    LinkError, Listener, Peer, Tag,
    connection::{new_socket, receive_message},
    exchange, exchange_between,
    folder::check_home,
    poll_all, sweep,
};
use crate::store::Deadline;

const TAGS: [Tag; 2] = [Tag(*b"one "), Tag(*b"two ")];

fn far() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

/// Makes a file that contains `text`.
fn file(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Returns the contents of a file.
fn read(descriptor: &OwnedFd) -> String {
    // All duplicates of a descriptor share one file position. `read_exact_at` neither uses nor moves it.
    let file = File::from(descriptor.try_clone().unwrap());
    let mut text = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut text, 0).unwrap();
    String::from_utf8(text).unwrap()
}

/// Runs the exchange of the member at place `me`, with one file per tag. Each member has one of `listeners`. Returns
/// the other members with their descriptors, in ascending order of places.
fn member(
    listeners: &[Listener],
    me: usize,
    tags: &[Tag],
    deadline: Deadline,
) -> Result<Vec<Peer>, LinkError> {
    let files: Vec<File> = tags.iter().map(|tag| file(&format!("{tag} of {me}"))).collect();
    let own: Vec<(Tag, BorrowedFd<'_>)> = tags.iter().copied().zip(files.iter().map(File::as_fd)).collect();
    let others: Vec<u64> = (0..listeners.len() as u64).filter(|other| *other != me as u64).collect();
    let endpoint = |place: u64| Ok(listeners[place as usize].endpoint());
    let mut met = exchange(&listeners[me], me as u64, &others, endpoint, &own, deadline)?;
    met.sort_by_key(|met| met.link.place());
    Ok(met)
}

/// Runs the exchange of all members. Asserts that each receives every other member's descriptors.
fn all_meet(listeners: &[Listener]) {
    thread::scope(|scope| {
        for me in 0..listeners.len() {
            scope.spawn(move || {
                let met = member(listeners, me, &TAGS, far()).unwrap();
                let places: Vec<u64> = met.iter().map(|met| met.link.place()).collect();
                let others: Vec<u64> =
                    (0..listeners.len() as u64).filter(|other| *other != me as u64).collect();
                assert_eq!(places, others);
                for Peer { link, descriptors } in &met {
                    assert!(
                        format!("{link:?}").ends_with(&format!("from place {me} to place {})", link.place()))
                    );
                    let said: Vec<String> = descriptors.iter().map(read).collect();
                    assert_eq!(said, TAGS.map(|tag| format!("{tag} of {}", link.place())));
                }
            });
        }
    });
}

fn listeners(count: usize) -> Vec<Listener> {
    (0..count).map(|_| Listener::open().unwrap()).collect()
}

fn path(listener: &Listener) -> PathBuf {
    PathBuf::from(std::str::from_utf8(&listener.endpoint()[16..]).unwrap())
}

/// Connects to the listener, and sends nothing.
fn knock(listener: &Listener) -> OwnedFd {
    let socket = new_socket().unwrap();
    connect(&socket, &SocketAddrUnix::new(path(listener)).unwrap()).unwrap();
    socket
}

/// Sends `message` with `count` descriptors. Ignores errors, because the listener may have closed the connection.
fn say(socket: &OwnedFd, message: &[u8], count: usize) {
    let file = file("garbage");
    let attached = vec![file.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if count > 0 {
        control.push(SendAncillaryMessage::ScmRights(&attached));
    }
    let _ = sendmsg(socket, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
}

#[test]
fn each_member_receives_the_descriptors_of_all_others() {
    all_meet(&listeners(4));
}

#[test]
fn garbage_does_not_delay_an_exchange() {
    let listeners = listeners(3);
    let unidentified: Vec<OwnedFd> = listeners
        .iter()
        .flat_map(|listener| {
            // A silent connection, garbage with 1 to 6 descriptors, a wrong token, and a connection that closes.
            let mut unidentified: Vec<OwnedFd> = (0..7).map(|_| knock(listener)).collect();
            for (count, socket) in unidentified.iter().enumerate().skip(1) {
                say(socket, b"garbage", count);
            }
            let wrong = knock(listener);
            say(&wrong, &[&[7; 16][..], &TAGS[0].0, &0u64.to_le_bytes()].concat(), 1);
            drop(knock(listener));
            unidentified.push(wrong);
            unidentified
        })
        .collect();
    all_meet(&listeners);
    drop(unidentified);
}

#[test]
fn a_flood_does_not_keep_members_out() {
    let listeners = listeners(2);
    thread::scope(|scope| {
        let (over, until) = std::sync::mpsc::channel::<()>();
        let crowded = &listeners[1];
        scope.spawn(move || {
            let mut flood = Vec::new();
            while until.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                let socket = new_socket().unwrap();
                if connect(&socket, &SocketAddrUnix::new(path(crowded)).unwrap()).is_ok() {
                    flood.push(socket);
                }
                if flood.len() > 300 {
                    flood.clear();
                }
            }
        });
        all_meet(&listeners);
        drop(over);
    });
}

#[test]
fn another_kind_of_descriptor_is_refused() {
    let listeners = listeners(2);
    let (low, high) = thread::scope(|scope| {
        let low = scope.spawn(|| member(&listeners, 0, &[Tag(*b"cats")], far()));
        (member(&listeners, 1, &[Tag(*b"dogs")], far()), low.join().unwrap())
    });
    let text = low.unwrap_err().to_string();
    assert!(text.contains("place 0: it sent \"cats\", expected \"dogs\""), "{text}");
    assert!(matches!(high, Err(LinkError::Gone { place: 1, .. })), "{high:?}");
}

#[test]
fn a_member_that_does_not_connect_is_named() {
    let mut listeners = listeners(3);
    // Member 2 waits for members 0 and 1, in vain. Then the listeners of members 1 and 2 are dropped, and member 0
    // finds no listener of member 1.
    let absent = member(&listeners, 2, &TAGS, soon()).unwrap_err();
    assert!(matches!(&absent, LinkError::Absent { places, .. } if *places == [0, 1]), "{absent}");
    let endpoints: Vec<_> = listeners.iter().map(Listener::endpoint).collect();
    drop(listeners.split_off(1));
    let endpoint = |place: u64| Ok(endpoints[place as usize].clone());
    let file = file("");
    let gone = exchange(&listeners[0], 0, &[1], endpoint, &[(TAGS[0], file.as_fd())], far()).unwrap_err();
    assert!(matches!(gone, LinkError::Gone { place: 1, .. }), "{gone}");
}

/// The wait has a far deadline, so it ends only because the other member has ended.
#[test]
fn a_member_that_has_ended_is_not_waited_for() {
    let (own, other) = (Listener::open().unwrap(), Listener::open().unwrap());
    let (endpoint, folder) = (other.endpoint(), path(&other).parent().map(Path::to_owned).unwrap());
    drop(other);
    let file = file("");
    let meet =
        || exchange_between(&own, 1, &[(0, &endpoint)], &[(TAGS[0], file.as_fd())], far()).unwrap_err();
    assert!(matches!(meet(), LinkError::Gone { place: 0, .. }), "its listener is dropped");
    // A killed process leaves its folder, which no process has locked.
    fs::create_dir(&folder).unwrap();
    File::create(folder.join("socket")).unwrap();
    assert!(matches!(meet(), LinkError::Gone { place: 0, .. }), "it was killed");
    // Another process may have removed the folder by now.
    let _ = fs::remove_dir_all(folder);
}

#[test]
#[ignore = "a process, which the test below starts"]
fn an_exchange_without_free_descriptors() {
    let listeners = listeners(2);
    let _waiting = knock(&listeners[1]);
    let own = file("");
    // This file is closed at once, so the number of its descriptor is free again, and no smaller number is free. With
    // this number as the limit, no descriptor can be opened.
    let free = file("").as_fd().as_raw_fd() as u64;
    let limit = Rlimit { current: Some(free), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let result = exchange(&listeners[1], 1, &[0], |_| panic!(), &[(TAGS[0], own.as_fd())], soon());
    assert!(matches!(result, Err(LinkError::Absent { .. })));
}

/// The exchange cannot accept the waiting connection, so the listening socket stays readable, even after the deadline.
/// The exchange must end nevertheless.
#[test]
fn a_connection_that_cannot_be_accepted_does_not_prolong_an_exchange() {
    let name = concat!(module_path!(), "::an_exchange_without_free_descriptors");
    let mut process = test_command(name).unwrap().spawn().unwrap();
    let deadline = far();
    let status = loop {
        match process.try_wait().unwrap() {
            Some(status) => break status,
            None if deadline.expired() => {
                process.kill().unwrap();
                panic!("the exchange does not end");
            }
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_malformed_endpoint_is_refused() {
    let listener = Listener::open().unwrap();
    let file = file("");
    for endpoint in [&b"short"[..], &[0xff; 40], &[b'/'; 400]] {
        let met = exchange(&listener, 0, &[1], |_| Ok(endpoint.to_vec()), &[(TAGS[0], file.as_fd())], far());
        assert!(matches!(met, Err(LinkError::Unexpected { place: 1, .. })), "{met:?}");
    }
}

#[test]
fn the_folder_goes_with_the_listener_and_after_its_death() {
    let listener = Listener::open().unwrap();
    let folder = path(&listener).parent().map(Path::to_owned).unwrap();
    assert!(folder.exists());
    drop(listener);
    assert!(!folder.exists());

    // A killed process leaves a folder that no process has locked, with a socket. A folder without a socket may be one
    // that another process is creating.
    fs::create_dir(&folder).unwrap();
    sweep();
    assert!(folder.exists(), "it may be one that is being made");
    File::create(folder.join("socket")).unwrap();
    let living = Listener::open().unwrap();
    sweep();
    assert!(!folder.exists());
    assert!(path(&living).exists());
}

/// The user id of the user `nobody`.
const NOBODY: u32 = 65534;

/// The environment variable that is set for a test's process that runs as another user. For the process of
/// `another_users_listener`, its value is the path of the socket.
const OTHER: &str = "PROCESS_GROUP_TEST_OTHER_USER";

/// The outputs of `another_user`: it could not enter the listener's folder, or it entered it and connected.
const PLACES: [&str; 2] = ["outside", "inside"];

/// The process that [`start_as_nobody`] starts. It reads an endpoint from its input, and tries to connect. If it can,
/// it sends the message of member 0, and the listener must close the connection.
#[test]
#[ignore = "the body of a process that a test starts"]
fn another_user() {
    env::var_os(OTHER).expect("the test below starts this process");
    let mut endpoint = Vec::new();
    io::stdin().read_to_end(&mut endpoint).unwrap();
    let (token, path) = endpoint.split_at(16);
    let socket = new_socket().unwrap();
    match connect(&socket, &SocketAddrUnix::new(path).unwrap()) {
        Err(Errno::ACCESS) => return println!("{}", PLACES[0]),
        connected => connected.unwrap(),
    }
    say(&socket, &[token, &TAGS[0].0[..], &0u64.to_le_bytes()].concat(), 1);
    println!("{}", PLACES[1]);
    poll_all(&mut [PollFd::new(&socket, PollFlags::IN)], far().remaining()).unwrap();
    let message = recv(&socket, &mut [0; 64], RecvFlags::empty());
    assert!(matches!(message, Ok((_, 0)) | Err(Errno::CONNRESET)), "{message:?}");
}

/// Starts `another_user` as the user `nobody`.
fn start_as_nobody() -> io::Result<Child> {
    test_command(concat!(module_path!(), "::another_user"))?
        .env(OTHER, "1")
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

#[test]
fn another_user_enters_no_folder_and_is_ignored_by_every_listener() {
    let listeners = listeners(2);
    let socket = path(&listeners[1]);
    let folder = socket.parent().unwrap();
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o7777, 0o700);
    if !geteuid().is_root() {
        return println!("skipped: who is not root cannot be another user");
    }
    // First the folder has the mode with which it was made. Then its mode lets every user in, so that the listener
    // itself has to check the peer's user.
    for place in PLACES {
        if place == PLACES[1] {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
            fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
        }
        let mut other = match start_as_nobody() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return println!(
                    "skipped: another user cannot run {}",
                    env::current_exe().unwrap().display()
                );
            }
            started => started.unwrap(),
        };
        other.stdin.take().unwrap().write_all(&listeners[1].endpoint()).unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map_while(io::Result::ok);
        let said = lines.find_map(|line| PLACES.into_iter().find(|place| line.ends_with(place)));
        assert_eq!(said, Some(place));
        // Members refuse to connect through a folder that other users can enter, so its mode is restored.
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
        all_meet(&listeners);
        lines.for_each(drop);
        assert!(other.wait().unwrap().success());
    }
}

/// The process of the test `a_listener_of_another_user_is_given_nothing`. It starts as root, listens at the path in
/// [`OTHER`] as the user `nobody`, and prints whether it received anything. If the folder does not exist, it makes the
/// folder as `nobody`.
#[test]
#[ignore = "the body of a process that a test starts"]
fn another_users_listener() {
    let path = PathBuf::from(env::var_os(OTHER).expect("the test below starts this process"));
    let become_nobody = || rustix::thread::set_thread_uid(Uid::from_raw(NOBODY)).unwrap();
    let folder = path.parent().unwrap();
    let socket = new_socket().unwrap();
    if !folder.exists() {
        become_nobody();
        fs::DirBuilder::new().mode(0o700).create(folder).unwrap();
    }
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    become_nobody();
    listen(&socket, 8).unwrap();
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let given = accept(&socket).map(|visitor| receive_message(&visitor));
    let nothing = matches!(&given, Err(Errno::AGAIN) | Ok(Ok(None)));
    println!("{}", if nothing { "given nothing" } else { "given something" });
}

#[test]
fn a_listener_of_another_user_is_given_nothing() {
    if !geteuid().is_root() {
        return println!("skipped: who is not root cannot be another user");
    }
    let listener = Listener::open().unwrap();
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o1777)).unwrap();
    let own = place.path().join("own");
    fs::DirBuilder::new().mode(0o700).create(&own).unwrap();
    for (folder, problem) in
        [(place.path().join("other"), "of user 65534"), (own, "is user 65534, expected 0")]
    {
        let path = folder.join("socket");
        let mut other = test_command(concat!(module_path!(), "::another_users_listener"))
            .unwrap()
            .env(OTHER, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines().map_while(io::Result::ok);
        assert!(lines.any(|line| line.ends_with("ready")));
        let endpoint = [&[7; 16][..], path.as_os_str().as_encoded_bytes()].concat();
        let secret = file("secret");
        let met = exchange(&listener, 0, &[1], |_| Ok(endpoint.clone()), &[(TAGS[0], secret.as_fd())], far());
        let error = met.unwrap_err();
        assert!(matches!(error, LinkError::Unexpected { place: 1, .. }), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
        drop(other.stdin.take());
        assert!(lines.any(|line| line.ends_with("given nothing")));
        assert!(other.wait().unwrap().success());
    }
}

#[test]
fn a_folder_that_others_can_enter_or_replace_is_refused() {
    let listeners = listeners(2);
    fs::set_permissions(path(&listeners[1]).parent().unwrap(), Permissions::from_mode(0o750)).unwrap();
    let file = file("");
    let endpoint = |place: u64| Ok(listeners[place as usize].endpoint());
    let error = exchange(&listeners[0], 0, &[1], endpoint, &[(TAGS[0], file.as_fd())], far()).unwrap_err();
    assert!(error.to_string().contains("mode 750; expected"), "{error}");

    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
    let error = check_home(home.path()).unwrap_err().to_string();
    assert!(error.contains("its mode is 777, expected the sticky bit"), "{error}");
    fs::set_permissions(home.path(), Permissions::from_mode(0o1777)).unwrap();
    check_home(home.path()).unwrap();
}

/// A member does not connect through a symbolic link in place of the listener's folder.
#[test]
fn a_folder_that_is_swapped_is_seen() {
    let listeners = listeners(2);
    let folder = path(&listeners[1]).parent().map(Path::to_owned).unwrap();
    let aside = folder.with_extension("aside");
    fs::rename(&folder, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &folder).unwrap();
    let file = file("");
    let endpoint = |place: u64| Ok(listeners[place as usize].endpoint());
    let met = exchange(&listeners[0], 0, &[1], endpoint, &[(TAGS[0], file.as_fd())], far());
    fs::remove_file(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    let error = met.unwrap_err();
    assert!(matches!(error, LinkError::Unexpected { place: 1, .. }), "{error}");
    all_meet(&listeners);
}
