//! What the help texts of the commands say beside their options.

pub(crate) const DEMO: &str = "\
Every rank replays a recorded training run through its caching allocator, while a tracker registers every segment with \
the communicators of its device. Then the ranks place gradient buckets in one symmetric pool. Three kinds of group share \
the pool: the pairs TP0, TP1, ..., the groups DP0 and DP1 across the pairs, and the world. The groups agree on the \
segments, register their windows in one order, and all-reduce the buckets eagerly and from a captured graph. At the end \
one rank allocates a segment that the others do not. Every member of each group that it touches gets the same typed \
error, and the other groups go on.

`--backend auto` uses GPUs if there are at least 2, else the embedded device, where host memory is used for touched pages: \
less than 1 GB in all. With 2 ranks the data-parallel groups have one member. They commit without a window, and copy.";

pub(crate) const DOCTOR: &str = "\
The exit code is 0 when the host was examined, whatever was found.

Keys of --json: `cuda`, `nccl`, `devices`, `host` and `variables` hold the facts of each part, or an object with the key \
`error` where one could not be read. `findings` go from bad to worst (`weight`: note, limit, fault; `subject`, `cause`, \
`remedy`, `crates`). `crates` has the verdicts (`crate`; `outcome`: works, limited, unavailable; `why`).";

pub(crate) const LAUNCH: &str = "\
Hosts the store with a random secret, prefixes each line of output with its rank, and ends all ranks when one fails. Names \
the first rank that failed with its last lines, and exits with the code of that rank.";

pub(crate) const ANALYZE: &str = "\
Ranks write dumps into the folder PROCESS_GROUP_DUMP_FOLDER when work misses its deadline or NCCL reports an error. The \
dumps of PyTorch are read too.";

pub(crate) const LIVE: &str = "\
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

pub(crate) const KILL_TEST: &str = "\
The other ranks wait in a collective, at a barrier, or in no call. Measures the time until each of them has the error that \
names the rank, and checks a sum of the remaining ranks, by `shrink` and by a new group. The exit code is not 0 if a rank \
was not noticed, or with --demo if another rank ended later than --within allows.";
