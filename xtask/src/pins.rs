//! The pinned wheels.

/// One wheel: package, version and the SHA-256 of the file.
#[derive(Clone, Copy, Debug)]
pub struct Pin {
    /// The package in Python's index.
    pub package: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The hash of the wheel's file, in hexadecimal digits.
    pub sha256: &'static str,
}

const fn pin(package: &'static str, version: &'static str, sha256: &'static str) -> Pin {
    Pin { package, version, sha256 }
}

/// libclang, which bindgen reads C with.
#[cfg(feature = "codegen")]
pub const LIBCLANG: Pin =
    pin("libclang", "18.1.1", "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b");

/// NVRTC, which compiles CUDA C++ to PTX. The oldest supported driver loads the PTX of this release.
pub const NVRTC: Pin = pin(
    "nvidia-cuda-nvrtc-cu11",
    "11.7.99",
    "9f1562822ea264b7e34ed5930567e89242d266448e936b85bc97a3370feabb03",
);

/// The name of NVRTC's library.
pub const NVRTC_LIBRARY: &str = "libnvrtc.so.11.2";

/// PyTorch, for its viewer of memory snapshots.
pub const TORCH: Pin =
    pin("torch", "2.15.0", "593e5fd0c204284890d1c3dff643be34e549e1d24523e13402510f960d4da438");

/// `cuda.h` and `cudaTypedefs.h`, one wheel a release, oldest first.
pub const CUDA_HEADERS: &[Pin] = &[
    pin(
        "nvidia-cuda-runtime-cu11",
        "11.7.99",
        "cc768314ae58d2641f07eac350f40f99dcb35719c4faff4bc458a7cd2b119e31",
    ),
    pin(
        "nvidia-cuda-runtime-cu11",
        "11.8.89",
        "92d04069a987e1fbc9213f8376d265df0f7bb42617d44f5eda1f496acea7f2d1",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.0.107",
        "9ab985dd92728e1c577bb75ae83dcc42357ce7c00016c782e8b196f6fea05b91",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.1.55",
        "a485693383c7a28ba022587c5a640353ef61a21eb2e87382d0a76340bda92e2e",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.2.53",
        "7235bee83dfc0202172e35e262c604784e3f417e234779c6e4fae7ca75d65456",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.3.52",
        "038de2d9e9aa0f07fcd4b9615a7ea23ef28bca0073b0f212e4201246b386bfec",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.4.99",
        "1454a7c101976d3a9ade86040d01c4e57e8f6396c35b13f7a42c787dab145bed",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.5.39",
        "6b27a0b8ddfe399f9b228c676a2a68bb2a077ea962ec7de92d13d01a7d9d8bc8",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.6.37",
        "e98261a2c152248c801a7c967df70f5558fab42f8cb7a92559d72ffcdbbea386",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.8.57",
        "75342e28567340b7428ce79a5d6bb6ca5ff9d07b69e7ce00d2c7b4dc23eff0be",
    ),
    pin(
        "nvidia-cuda-runtime-cu12",
        "12.9.37",
        "60a3ee8b71b2bf8af594e67d2e8e3b0228713cd99be77209a662f1f35c08f105",
    ),
    pin("nvidia-cuda-runtime", "13.0.48", "5b54d12087a1abff81a4cbfa6556876e3afea1fc60da2e0816da374619810c89"),
    pin("nvidia-cuda-runtime", "13.1.80", "dac25b52e69050e5a7a84957e6df470a85b185f8f648a99a1ab1dfce027576cf"),
    pin("nvidia-cuda-runtime", "13.2.51", "9c43b06a52c5b9316e19abc047236932c4d5c729969918a83223c4d2a4132f9a"),
    pin("nvidia-cuda-runtime", "13.3.29", "e04420616e72f563167a7733272992d7e6df6dc5cb54b2f94f9f1520ea9e30c1"),
    pin("nvidia-cuda-runtime", "13.4.49", "0b228cc646acda27e9b512b8b94417c3ff8b3d24a0ad9b1d6603dc6c2a908046"),
    pin("nvidia-cuda-runtime", "13.5.37", "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d"),
];

/// `nccl.h` and `libnccl.so.2`, oldest release first.
pub const NCCL: &[Pin] = &[
    pin("nvidia-nccl-cu11", "2.13.4", "dec943cc2b75a700565965b59918137778e7917802734f40bf6084c043d9ad98"),
    pin("nvidia-nccl-cu11", "2.14.3", "5e5534257d1284b8e825bc3a182c6f06acd6eb405e9f89d49340e98cd8f136eb"),
    pin("nvidia-nccl-cu11", "2.15.5", "61444d28fe90ec02d6198a08c24fba249b4d34e924b597bb260c54f8951a4529"),
    pin("nvidia-nccl-cu12", "2.16.2", "b69f072630a3ae824409e5b3075ff7bfbf81c125ab583dd4272e32365c902d7c"),
    pin("nvidia-nccl-cu12", "2.16.5", "84695a4248138fb2ca12f5fd3defe986e790e71ccdaad51b2ca34ca4e83ef421"),
    pin("nvidia-nccl-cu12", "2.17.1", "0e8c73799b5cfa35fd4fb04c7a358ea6943b206de34ec83594fd0b0bf665387f"),
    pin("nvidia-nccl-cu12", "2.18.1", "1a6c4acefcbebfa6de320f412bf7866de856e786e0462326ba1bac40de0b5e71"),
    pin("nvidia-nccl-cu12", "2.18.3", "89cf220910c43e53df992f54f7aa2a35c6d606b077c9ae95b1f17c544d3ad3f3"),
    pin("nvidia-nccl-cu12", "2.19.3", "a9734707a2c96443331c1e48c717024aa6678a0e2a4cb66b2c364d18cee6b48d"),
    pin("nvidia-nccl-cu12", "2.20.5", "057f6bf9685f75215d0c53bf3ac4a10b3e6578351de307abad9e18a99182af56"),
    pin("nvidia-nccl-cu12", "2.21.5", "8579076d30a8c24988834445f8d633c697d42397e92ffc3f63fa26766d25e0a0"),
    pin("nvidia-nccl-cu12", "2.22.3", "f9f5e03c00269dee2cd1aa57019f9a024478a74ae6e9b32d5341c849fe6f6302"),
    pin("nvidia-nccl-cu12", "2.23.4", "b097258d9aab2fa9f686e33c6fe40ae57b27df60cedbd15d139701bb5509e0c1"),
    pin("nvidia-nccl-cu12", "2.24.3", "e5c5167351e8936b96ddad8ac6f687199e22d09db07cf08af9457a123b34cac0"),
    pin("nvidia-nccl-cu12", "2.25.1", "362aed5963fb9ea2ed2f264409baae30143498fd0e5c503aeaa1badd88cdc54a"),
    pin("nvidia-nccl-cu12", "2.26.2", "694cf3879a206553cc9d7dbda76b13efaf610fdb70a50cba303de1b0d1530ac6"),
    pin("nvidia-nccl-cu12", "2.26.5", "ea5ed3e053c735f16809bee7111deac62ac35b10128a8c102960a0462ce16cbe"),
    pin("nvidia-nccl-cu12", "2.27.3", "adf27ccf4238253e0b826bce3ff5fa532d65fc42322c8bfdfaf28024c0fbe039"),
    pin("nvidia-nccl-cu12", "2.27.5", "ad730cf15cb5d25fe849c6e6ca9eb5b76db16a80f13f425ac68d8e2e55624457"),
    pin("nvidia-nccl-cu12", "2.27.6", "8be9c0a7d7f95489f407593ad3842ba66bbb7c3370622c3592efb6dd67540968"),
    pin("nvidia-nccl-cu12", "2.27.7", "de5ba5562f08029a19cb1cd659404b18411ed0d6c90ac5f52f30bf99ad5809aa"),
    pin("nvidia-nccl-cu12", "2.28.3", "79cf0412094e4a552889e5cb7757d92c010ead557ec722c5eebe6a94b1d8681c"),
    pin("nvidia-nccl-cu12", "2.28.7", "29ea236d02fd57ea5f14537e95985d190c6ca067a1eba2e2b319deebdd6ccdc3"),
    pin("nvidia-nccl-cu12", "2.28.9", "485776daa8447da5da39681af455aa3b2c2586ddcf4af8772495e7c532c7e5ab"),
    pin("nvidia-nccl-cu12", "2.29.2", "3a9a0bf4142126e0d0ed99ec202579bef8d007601f9fab75af60b10324666b12"),
    pin("nvidia-nccl-cu12", "2.29.3", "35ad42e7d5d722a83c36a3a478e281c20a5646383deaf1b9ed1a9ab7d61bed53"),
    pin("nvidia-nccl-cu12", "2.29.7", "ecd0a012051abc20c1aa87328841efa8cade3ced65803046e38c2f03c0891fea"),
    pin("nvidia-nccl-cu12", "2.30.3", "62e38baa98ce8151785a0bbbfda8719daf22e4003a180ecd640212c5b228d56e"),
    pin("nvidia-nccl-cu12", "2.30.4", "040974b261edec4b8b793e59e92ab7176fe4ab4bc61b800f9f3bfaeec2d436f3"),
    pin("nvidia-nccl-cu12", "2.30.7", "8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9"),
    pin("nvidia-nccl-cu12", "2.31.2", "f9b1dc3c2a7e20176054144ebb3b32fea83b40402ee5d7ac7045cd11ecc956c0"),
    pin("nvidia-nccl-cu12", "2.32.3", "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c"),
];
