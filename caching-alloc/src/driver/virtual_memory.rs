//! Segments of virtual memory at fixed addresses.

use std::sync::{Mutex, PoisonError};

use cuda_driver::vmm::{Access, Granularity, HandleTypes, Mapping, PhysicalMemory, Reservation};
use cuda_driver::{Context, Device};

use super::pages::Pages;
use super::{SEGMENT_GRANULARITY, Segments, failed, host_size, memory_info, source_error};
use crate::core::{
    MemoryInfo, PageSource, SegmentMemory, SegmentSource, ShareHandle, ShareKind, SourceError,
};

/// Other devices and processes that may access the segments of a [`VirtualMemorySource`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Sharing {
    /// The handle types for exporting the memory to other processes.
    pub handle_types: HandleTypes,
    /// Devices of this process that may read and write the memory, in addition to the memory's own device. Each of them
    /// makes mapping slower by orders of magnitude: milliseconds instead of µs.
    pub peers: Vec<Device>,
}

impl Sharing {
    /// Shares the memory with no other device or process. Mapping is fastest.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Shares the memory with other processes of the host, by file descriptors. [`export`](SegmentSource::export)
    /// returns the descriptor of a segment.
    #[must_use]
    pub fn by_descriptor() -> Self {
        Self { handle_types: HandleTypes::POSIX_FD, peers: Vec::new() }
    }

    /// Shares the memory with other processes, by every handle type that the driver [grants](HandleTypes::granted):
    /// file descriptors, and, if available, fabric handles, which also reach processes of other hosts.
    ///
    /// # Errors
    /// [`SourceError::OutOfMemory`] if the device or the host has no memory left for the small allocation that tests
    /// the driver's support for fabric handles.
    pub fn granted(context: &Context) -> Result<Self, SourceError> {
        let handle_types = HandleTypes::granted(context)
            .map_err(|error| source_error("cuMemCreate", SEGMENT_GRANULARITY, error))?;
        Ok(Self { handle_types, ..Self::none() })
    }

    /// Also shares the memory with the devices `peers` of this process.
    #[must_use]
    pub fn with_peers(mut self, peers: impl IntoIterator<Item = Device>) -> Self {
        self.peers.extend(peers);
        self
    }
}

/// A source of segments at fixed addresses. Each segment is one physical allocation, mapped once and as a whole.
/// Communicators can register such memory. [`Sharing`] determines which peers can access it, and by which handle types
/// other processes can import it. Addresses and sizes are multiples of 2 MiB, or of the driver's granularity if that is
/// larger.
///
/// A source without peers also makes pages for [re-mappable](crate::core::PoolKind::Remappable) pools.
#[derive(Debug)]
pub struct VirtualMemorySource {
    pub(super) context: Context,
    pub(super) sharing: Sharing,
    granularity: u64,
    segments: Segments<Mapping>,
    pub(super) pages: Pages,
    row: Option<Mutex<Row>>,
}

/// The reservation in which segments are placed at adjacent addresses.
#[derive(Debug)]
struct Row {
    /// Bytes of a new reservation, unless a segment needs more.
    range: usize,
    reservation: Option<Reservation>,
    used: usize,
}

impl Row {
    /// Returns the reservation and the offset in bytes for a segment of `size` bytes: directly after the last segment,
    /// or at the start of a new reservation if the rest is too small.
    fn place(
        &mut self,
        size: usize,
        reserve: impl FnOnce(usize) -> Result<Reservation, SourceError>,
    ) -> Result<(Reservation, usize), SourceError> {
        match &self.reservation {
            Some(reservation) if reservation.bytes() - self.used >= size => {
                Ok((reservation.clone(), self.used))
            }
            _ => {
                let reservation = reserve(self.range.max(size))?;
                self.used = 0;
                Ok((self.reservation.insert(reservation).clone(), 0))
            }
        }
    }
}

impl VirtualMemorySource {
    /// Makes a source of segments of the context's device. That device, and the devices and processes in `sharing`, may
    /// access them.
    ///
    /// # Errors
    /// [`SourceError::Failed`] if the driver or the device does not support virtual memory, or does not support the
    /// handle types of `sharing`.
    pub fn new(context: &Context, sharing: Sharing) -> Result<Self, SourceError> {
        let granularity = Granularity::of(context.device(), sharing.handle_types)
            .map_err(failed("cuMemGetAllocationGranularity"))?;
        let granularity = SEGMENT_GRANULARITY.max(granularity.recommended as u64);
        Ok(Self {
            context: context.clone(),
            sharing,
            granularity,
            segments: Segments::default(),
            pages: Pages::default(),
            row: None,
        })
    }

    /// Places segments at adjacent addresses, in reservations as large as the device's memory. From NCCL 2.30.3 on, one
    /// window can then span several segments. Addresses of released segments are not reused.
    ///
    /// # Errors
    /// [`SourceError::Failed`] from `cuDeviceTotalMem`.
    pub fn in_a_row(self) -> Result<Self, SourceError> {
        let total = self.context.device().total_memory().map_err(failed("cuDeviceTotalMem"))?;
        let range = total.next_multiple_of(host_size(self.granularity)?);
        let row = Row { range, reservation: None, used: 0 };
        Ok(Self { row: Some(Mutex::new(row)), ..self })
    }

    /// Returns the physical memory of the live segment or page that starts at `address`, for exporting it or mapping it
    /// once more; `None` if there is none.
    ///
    /// The handle keeps the memory alive even after the segment is released. The caller must ensure that nobody uses
    /// `address` after the release. A page must be [held](crate::core::Hold) while it is exported.
    #[must_use]
    pub fn physical(&self, address: u64) -> Option<PhysicalMemory> {
        self.segments
            .with(address, |_, mapping| mapping.memory().clone())
            .or_else(|| self.pages.physical(address))
    }

    /// Returns the devices that may access the memory, without the memory's own device.
    fn peers(&self) -> impl Iterator<Item = &Device> {
        self.sharing.peers.iter().filter(|peer| *peer != self.context.device())
    }

    fn map(&self, bytes: u64) -> Result<Mapping, SourceError> {
        let size = host_size(bytes)?;
        let alignment = host_size(self.granularity)?;
        let memory = PhysicalMemory::create(&self.context, size, self.sharing.handle_types)
            .map_err(|error| source_error("cuMemCreate", bytes, error))?;
        // A lack of addresses is not reported as out of memory, since releasing segments would not help.
        let reserve = |size| {
            Reservation::new(self.context.driver(), size, alignment).map_err(failed("cuMemAddressReserve"))
        };
        let map = |reservation: &Reservation, at| {
            reservation.map(at, &memory, 0, size).map_err(|error| source_error("cuMemMap", bytes, error))
        };
        let mapping = match &self.row {
            None => map(&reserve(size)?, 0)?,
            Some(row) => {
                let mut row = row.lock().unwrap_or_else(PoisonError::into_inner);
                let (reservation, at) = row.place(size, reserve)?;
                let mapping = map(&reservation, at)?;
                row.used = at + size;
                mapping
            }
        };
        let devices: Vec<_> = std::iter::once(self.context.device())
            .chain(self.peers())
            .map(|device| (device, Access::ReadWrite))
            .collect();
        mapping.set_access(&devices).map_err(|error| source_error("cuMemSetAccess", bytes, error))?;
        Ok(mapping)
    }
}

impl SegmentSource for VirtualMemorySource {
    fn device(&self) -> u32 {
        self.context.device().ordinal()
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn allocate(&self, bytes: u64) -> Result<SegmentMemory, SourceError> {
        let mapping = self.map(bytes)?;
        let made = SegmentMemory { address: mapping.ptr().0, bytes, token: mapping.memory().raw() };
        self.segments.insert(&made, mapping);
        Ok(made)
    }

    fn release(&self, memory: &SegmentMemory) -> Result<(), SourceError> {
        if self.pages.has(memory) {
            return self.pages.release(memory);
        }
        self.segments.remove(memory)?.unmap().map_err(failed("cuMemUnmap"))
    }

    fn as_pages(&self) -> Option<&dyn PageSource> {
        self.peers().next().is_none().then_some(self)
    }

    fn is_exportable(&self) -> bool {
        !self.sharing.handle_types.is_empty()
    }

    fn export(&self, memory: &SegmentMemory, kind: ShareKind) -> Result<ShareHandle, SourceError> {
        let physical = self.physical(memory.address);
        let refused = SourceError::NotExportable { memory: *memory, kind };
        match (physical, kind) {
            (Some(physical), ShareKind::PosixFd)
                if physical.handle_types().contains(HandleTypes::POSIX_FD) =>
            {
                let handle = physical.export_fd().map_err(failed("cuMemExportToShareableHandle"))?;
                Ok(ShareHandle::PosixFd(handle))
            }
            (Some(physical), ShareKind::Fabric) if physical.handle_types().contains(HandleTypes::FABRIC) => {
                let handle = physical.export_fabric().map_err(failed("cuMemExportToShareableHandle"))?;
                Ok(ShareHandle::Fabric(handle.0))
            }
            _ => Err(refused),
        }
    }

    fn memory_info(&self) -> Result<MemoryInfo, SourceError> {
        memory_info(&self.context)
    }
}
