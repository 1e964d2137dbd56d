//! Layout of signal pads. The device code is compiled with the constants of this file, and computes the same offsets in
//! `kernels/ranks.cuh`.

/// Size of a cache line in bytes. Pads, and the word [`gave_up`](PadLayout::gave_up) in them, are aligned to it.
pub(crate) const LINE: usize = 128;

/// The layout of a rank's signal pad, in words of 32 bits. A pad is memory on its rank's device that the devices of all
/// ranks read and write. A *channel* is a set of words, one for each rank that sends signals to the pad's rank.
///
/// | words | use |
/// |---|---|
/// | [`USER_CHANNELS`](Self::USER_CHANNELS) × world | signals of the program: `barrier`, `put_signal`, `wait_signal` |
/// | [`KERNEL_CHANNELS`](Self::KERNEL_CHANNELS) × world | signals of collective kernels: a channel per thread block |
/// | one word, at the next multiple of 128 bytes | 0, or 1 once a kernel of the rank has [given up](crate) |
///
/// The word of a channel for signals from rank `source` has the index `world * channel + source` in the pad, as in
/// PyTorch's pads. The channels of collective kernels are numbered from [`USER_CHANNELS`](Self::USER_CHANNELS) on. To
/// put a signal, a kernel of the source rank waits until the word is 0, then sets it to 1. To consume the signal, a
/// kernel of the pad's rank waits until the word is 1, then resets it to 0. So on one channel, at most one signal at a
/// time is in flight from one rank to another.
///
/// ```
/// use peer_kernels::PadLayout;
/// let layout = PadLayout::new(4);
/// assert_eq!(layout.slot(3, 1), 4 * (4 * 3 + 1));
/// assert_eq!(layout.bytes(), 1024 + 128);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PadLayout {
    world: usize,
}

impl PadLayout {
    /// Number of channels on which programs signal.
    pub const USER_CHANNELS: u32 = 32;
    /// Number of channels on which collective kernels signal. Each thread block has its own channel, so a collective
    /// kernel has at most this many blocks.
    pub const KERNEL_CHANNELS: u32 = 32;

    /// The layout in a group of `world` ranks.
    #[must_use]
    pub const fn new(world: u32) -> Self {
        Self { world: world as usize }
    }

    /// Offset in the pad, in bytes, of the word for signals from rank `source` on `channel`. Channels from
    /// [`USER_CHANNELS`](Self::USER_CHANNELS) on are those of collective kernels.
    #[must_use]
    pub const fn slot(self, channel: u32, source: u32) -> usize {
        4 * (self.world * channel as usize + source as usize)
    }

    /// Offset in the pad, in bytes, of the word that is 1 once a kernel of the rank has [given up](crate).
    #[must_use]
    pub const fn gave_up(self) -> usize {
        self.slot(Self::USER_CHANNELS + Self::KERNEL_CHANNELS, 0).next_multiple_of(LINE)
    }

    /// Size of a pad in bytes, a multiple of 128.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.gave_up() + LINE
    }
}
