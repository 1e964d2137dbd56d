//! A robust list: the futex words that the kernel marks when a thread ends (`set_robust_list(2)`).
//!
//! The list nodes lie in private memory, the words in shared memory. The kernel finds the word of a node by adding one
//! constant offset to the node's address, so nodes have the same distance from each other as words.

use std::{io, ptr};

/// A list node. It is as large as a `page::Slot`, the entry in shared memory that contains one futex word.
#[repr(C, align(64))]
struct Entry {
    next: *const Entry,
}

/// The kernel's `struct robust_list_head`.
#[repr(C)]
struct Head {
    first: *const Entry,
    /// Distance from a node to its word, in bytes.
    offset: libc::c_long,
    /// A lock operation in progress; unused here.
    pending: *const Entry,
}

/// The robust list of this thread. This list replaces the C library's list, which is restored on drop. The value is
/// not [`Send`]. If it is forgotten, the memory of the list is leaked, and the list stays registered until the thread
/// ends.
pub(super) struct RobustList {
    _head: Box<Head>,
    _entries: Box<[Entry]>,
    before: (*const Head, usize),
}

impl RobustList {
    /// Makes the kernel mark each of `words` that holds this thread's id when the thread ends. The futex word is the
    /// first field of `T`.
    ///
    /// # Errors
    /// Those of the system calls, which a sandbox may refuse.
    pub(super) fn install<T>(words: &[T]) -> io::Result<Self> {
        const { assert!(size_of::<T>() == size_of::<Entry>(), "nodes and words have one stride") };
        let mut head = Box::new(Head { first: ptr::null(), offset: 0, pending: ptr::null() });
        let end = (&raw const *head).cast::<Entry>();
        let mut entries: Box<[Entry]> = words.iter().map(|_| Entry { next: end }).collect();
        for at in 1..entries.len() {
            entries[at - 1].next = &raw const entries[at];
        }
        head.first = entries.first().map_or(end, |first| &raw const *first);
        // The difference wraps, and so does the kernel's sum.
        head.offset =
            (words.as_ptr().addr().wrapping_sub(entries.as_ptr().addr())).cast_signed() as libc::c_long;
        let mut before = (ptr::null::<Head>(), 0usize);
        // SAFETY: the system call writes a pointer and a length to locals that outlive the call. Thread id 0 is this
        // thread.
        check(unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut before.0, &raw mut before.1) })?;
        // SAFETY: the list is circular, and its nodes stay on the heap until `drop` unregisters it or the thread has
        // ended. The kernel changes only words that hold this thread's id.
        check(unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *head, size_of::<Head>()) })?;
        Ok(Self { _head: head, _entries: entries, before })
    }
}

impl Drop for RobustList {
    fn drop(&mut self) {
        let (head, bytes) = self.before;
        // SAFETY: `head` is the C library's list for this thread, and lives as long as the thread. The call fails
        // only for a wrong length.
        let _ = unsafe { libc::syscall(libc::SYS_set_robust_list, head, bytes) };
    }
}

fn check(code: libc::c_long) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
