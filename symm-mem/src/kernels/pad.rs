//! Which word of a signal pad is whose: the one place that says it.

/// Size of a line of memory in bytes, to which parts of a pad are aligned.
pub(super) const LINE: usize = 128;

/// The layout of a rank's signal pad, in words of 32 bits. A pad is memory of its rank's device that every rank's
/// device reads and writes.
///
/// | words | for |
/// |---|---|
/// | [`USER_CHANNELS`](Self::USER_CHANNELS) × world | signals of the program: `barrier`, `put_signal`, `wait_signal` |
/// | [`KERNEL_CHANNELS`](Self::KERNEL_CHANNELS) × world | signals of collective kernels: a channel for each block |
/// | from the next multiple of 128 bytes | 1 once a kernel of the rank has given up; then nothing |
///
/// Within both parts the word of (channel, source rank) is `world * channel + source`, as in PyTorch's pads: 1 from the
/// source's put to the owner's wait, else 0. So on one channel a rank has one signal to each other one under way.
///
/// ```
/// use symm_mem::kernels::PadLayout;
/// let layout = PadLayout::new(4);
/// assert_eq!(layout.slot(3, 1), 4 * (4 * 3 + 1));
/// assert_eq!(layout.bytes(), 1024 + 128);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PadLayout {
    world: usize,
}

impl PadLayout {
    /// Channels that programs signal on.
    pub const USER_CHANNELS: u32 = 32;
    /// Channels that collective kernels signal on, and so the most blocks that one has.
    pub const KERNEL_CHANNELS: u32 = 32;

    /// Of a group of so many ranks.
    #[must_use]
    pub const fn new(world: u32) -> Self {
        Self { world: world as usize }
    }

    /// The offset in bytes of a word: the signal of rank `source` on `channel`. The kernels' channels follow the
    /// program's.
    #[must_use]
    pub const fn slot(self, channel: u32, source: u32) -> usize {
        4 * (self.world * channel as usize + source as usize)
    }

    /// The offset in bytes of the word that says whether a kernel of the rank has given up.
    #[must_use]
    pub const fn gave_up(self) -> usize {
        self.slot(Self::USER_CHANNELS + Self::KERNEL_CHANNELS, 0).next_multiple_of(LINE)
    }

    /// The size of a pad in bytes, a multiple of 128.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.gave_up() + LINE
    }
}
