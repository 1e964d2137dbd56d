//! The pinned wheels.

/// One wheel: package, version and the SHA-256 of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
}

const fn pin(package: &'static str, version: &'static str, sha256: &'static str) -> Pin {
    Pin { package, version, sha256 }
}

/// libclang, which bindgen reads C with.
pub(crate) const LIBCLANG: Pin =
    pin("libclang", "18.1.1", "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b");

/// `cuda.h` and `cudaTypedefs.h`, oldest release first.
pub(crate) const CUDA_HEADERS: &[Pin] = &[pin(
    "nvidia-cuda-runtime",
    "13.5.37",
    "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
)];

/// `nccl.h` and `libnccl.so.2`, oldest release first.
pub(crate) const NCCL: &[Pin] =
    &[pin("nvidia-nccl-cu12", "2.32.3", "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c")];
