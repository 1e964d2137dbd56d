//! Texts that follow the options in the help of the commands.

pub(crate) const DEMO: &str = "\
Every rank replays a recorded training run through its caching allocator, while a tracker registers every segment with \
the communicators of its device. Then the ranks place gradient buckets in one symmetric pool. Three kinds of group share \
the pool: the pairs TP0, TP1, ..., the groups DP0 and DP1 across the pairs, and the world. The groups agree on the \
segments, register their windows in one order, and all-reduce the buckets eagerly and from a captured graph. At the end \
one rank allocates a segment that the others do not. Every member of each group that it touches gets the same typed \
error, and the other groups go on.

`--backend auto` uses GPUs if there are at least 2, else the embedded device, where host memory is used for touched pages: \
less than 1 GB in all. With 2 ranks the data-parallel groups have one member. They commit without a window, and copy.

Keys of --json: `ok`; `error` (if not `ok`); `backend`, `ranks`, `nccl_version`; `trace` (the replay of each rank: \
`allocations`, `segments`, `peak_active` and `peak_reserved` in bytes, `registrations`, `milliseconds` of the slowest rank); \
`groups` (`name`, `ranks`, `windows`, `verified_bytes`; of the slowest member `commit_ms`, `eager_ms`, `graph_ms`; `refused`, \
the error after the divergence); `divergence` (`detected_on`, the ranks with the error; `error`, its text; `milliseconds` from \
the diverging rank's commit to the last error).";

pub(crate) const DOCTOR: &str = "\
The exit code is 0 when the host was examined, whatever was found.

Keys of --json: `cuda` and `nccl` hold the library that a program would load (`taken`) and all copies on this host (`found`); \
`devices`, `host` and `variables` hold the facts of each part. A part that could not be read is an object with the key \
`error`. `findings` go from bad to worst (`weight`: note, limit, fault; `subject`, `cause`, `remedy`, `crates`). `crates` has the verdicts (`crate`; `outcome`: works, limited, unavailable; `why`).";

pub(crate) const LAUNCH: &str = "\
Hosts the store with a random secret, prefixes each line of output with its rank, and ends all ranks when one fails. Names \
the first rank that failed with its last lines, and exits with the code of that rank.";

pub(crate) const ANALYZE: &str = "\
Ranks write dumps into the folder PROCESS_GROUP_DUMP_FOLDER when work misses its deadline or NCCL reports an error. A \
program needs the feature `pickle` of lockstep-process-group for this. The dumps of PyTorch are read too. To try it: \
`PROCESS_GROUP_DUMP_FOLDER=$PWD/dumps lockstep kill-test --rounds 1; lockstep fr analyze dumps`.";

pub(crate) const LIVE: &str = "\
A job of `lockstep launch` has a free port and a random secret unless you choose them: \
`PROCESS_GROUP_STORE_SECRET=SECRET lockstep launch --port P ...`.

Keys of --json, one object in a line for each group: `group`, `members` (`rank`, `answered`, and of the last call \
`collectives`, `messages`, `operation`, `completed`, `age_ms`, `site`).";

pub(crate) const REPLAY: &str = "\
A trace in text form has one event in a line, in program order: CODE ADDRESS(hex) SIZE(bytes) STREAM. `a` allocates. `r` \
says that the owner has freed the block, `f` that its last use on any stream has ended. The codes `S`, `D`, `M` and `U` \
(calls of the recorded allocator into the driver) are skipped. A snapshot holds one trace for each device.

Keys of --json, one object in a line for each trace: `trace`, `policy`; `operations` (allocations and frees); `ns_per_op` \
(the fastest of seven replays); `peak_active` (the most bytes in use, each request rounded up to 512 bytes); \
`peak_reserved` and `ratio` (the most bytes reserved, and its ratio to `peak_active`); `driver_calls` (calls to create, \
map, set access, unmap and release); `driver_calls_steady` (those after the first tenth of the operations that do not \
belong to a new peak); `min_capacity` (the least memory, in steps of 2 MiB, with which no request failed).";

pub(crate) const VIZ: &str = "\
The page needs no other file. It shows memory over time, fragmentation, owners of addresses, and the largest owners. The \
time axis counts events. Select a moment with the slider or a click; the lower part shows that moment. Call sites are known \
for blocks that a snapshot still has, and for allocations with recorded stacks. All other blocks are listed by size.";

pub(crate) const BENCH: &str = "\
A benchmark takes from a second to a minute on a host without GPUs, and some minutes beside PyTorch and NCCL.

With --json each prints one object. `figures` lists medians: `case`, `contender`, `ns` for one operation, and `ratio` to the \
case's baseline. `machine` names the devices, `bars` the limits that --check tests (`what`, `figure`, `most`, `holds`), and \
`torch` says why PyTorch was left out. `kernels` prints `rows` in place of figures (`collective`, `bytes`, `eager_us`, \
`graph_us`), and `store` prints `servers` (`server`, `latency_us`, `calls_per_second`, `join_ms`).";

pub(crate) const KILL_TEST: &str = "\
The other ranks wait in a collective, at a barrier, or in no call. Measures the time until each of them has the error that \
names the rank, and checks a sum of the remaining ranks, by `shrink` and by a new group. The exit code is not 0 if a rank \
was not noticed, or with --demo if another rank ended later than --within allows.";
