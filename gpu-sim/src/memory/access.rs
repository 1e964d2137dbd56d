//! Rights on device memory.

bitflags::bitflags! {
    /// Accesses of an executor to memory, or rights of a device on a mapping.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Reading.
        const READ = 1;
        /// Writing.
        const WRITE = 2;
    }
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.contains(Self::READ), self.contains(Self::WRITE)) {
            (true, true) => "reads and writes",
            (true, false) => "reads",
            (false, true) => "writes",
            (false, false) => "nothing",
        })
    }
}
