//! Texts that follow the options in the help of the commands.

pub(crate) const EXIT_CODES: &str = "\
The exit code is 0 if the command did all that it should, 2 if its arguments are wrong, and 1 after any other error. \
An argument is wrong if the command cannot take its value: it is malformed, out of range, in conflict with another, or names a file of a wrong kind. A file or folder that does not exist, and a host that does not answer, are other errors. \
`lockstep launch` exits with the code of the rank that failed. With --json, a command that fails prints the object \
{\"error\": TEXT} as its last line.";

pub(crate) const DEMO: &str = "\
Every rank replays a recorded training run through its caching allocator, while a tracker registers every segment with \
the communicators of its device. Then the ranks place gradient buckets in one symmetric pool. Three kinds of group share \
the pool: the tensor-parallel pairs TP0, TP1, ..., the data-parallel groups DP0 and DP1 across the pairs, and the world. \
Errors of a process group name it with its index in the split: TP[0] is TP0. The groups agree on the \
segments, register their windows in one order, and all-reduce the buckets eagerly and from a captured graph. At the end \
one rank allocates a segment that the others do not. Every member of each group that it touches gets the same typed \
error, and the other groups go on.

`--backend auto` uses GPUs if there are at least 2, else the embedded device, where host memory is used for touched pages: \
less than 1 GB in all. With 2 ranks the data-parallel groups have one member. They commit without a window, and copy.

Keys of --json: `ok`; `backend`, `ranks`, `nccl_version`; `trace` (the replay of each rank: \
`allocations`, `segments`, `peak_active` and `peak_reserved` in bytes, `registrations`, `milliseconds` of the slowest rank); \
`groups` (`name`, `ranks`, `windows`, `verified_bytes`; of the slowest member `commit_ms`, `eager_ms`, `graph_ms`; `refused`, \
the error after the divergence); `divergence` (`detected_on`, the ranks with the error; `error`, its text; `milliseconds` from \
the diverging rank's commit to the last error).";

pub(crate) const DOCTOR: &str = "\
The exit code is 0 when the host was examined, whatever was found.

Keys of --json: `cuda` and `nccl` hold the library that a program would load (`taken`) and all copies on this host (`found`); \
`devices`, `host` and `variables` hold the facts of each part. A part that could not be read is an object with the key \
`error`. `findings` go from bad to worst (`weight`: note, limit, fault; `subject`, `cause`, `remedy`, `crates`). `crates` has the verdicts (`crate`; \
`outcome`, as in the text: `works`, `works with limits`, `works on the embedded device only`, `does not work here`; `why`).";

pub(crate) const LAUNCH: &str = "\
Hosts the store with a random secret, prefixes each line of output with its rank, and ends all ranks when one fails. Other \
ranks may fail by themselves in the half second before, because a rank that fails ends their groups too. Names the ranks that failed, and \
shows the last lines of up to four. The first shown, whose code is the exit code, is one that was killed or crashed, else the first \
that failed. The code of a rank that a signal ended is 128 plus the number of the signal. Also names ranks that had ended with \
exit status 0, for which the others may have waited. A note says so 5 s after the first of them, if others still run.

With `--on-failure continue` the other ranks go on, as those of a program that shrinks its group do. Each failure is noted \
when it happens. The exit code is that of the first rank that failed, also if the others end with exit status 0. \
A signal that arrives after a failure interrupts the job, too.

Ranks get the variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as those of torchrun \
do, and PROCESS_GROUP_STORE_SECRET_FILE, which names the file with the random secret. If the environment of this command \
has PROCESS_GROUP_STORE_SECRET or PROCESS_GROUP_STORE_SECRET_FILE, ranks inherit it instead. TORCHELASTIC_USE_AGENT_STORE=True says to PyTorch that this command hosts the store. The \
standard input of each rank is empty.

SIGINT (Ctrl-C), SIGTERM and SIGHUP interrupt the job: they are passed on to the ranks, and the exit code is 128 plus the \
number of the signal, 130 for Ctrl-C. Ranks that remain after --grace are killed; a second signal kills them at once.";

pub(crate) const ANALYZE: &str = "\
Ranks write dumps into the folder PROCESS_GROUP_DUMP_FOLDER when work misses its deadline or NCCL reports an error. A folder that does not exist is created. A \
program needs the feature `pickle` of lockstep-process-group for this. The dumps of PyTorch are read too. To try it: \
`PROCESS_GROUP_DUMP_FOLDER=$PWD/dumps lockstep kill-test --rounds 1; lockstep fr analyze dumps`.

How to read the result: a rank without a dump comes first. It died, or ended before it could write one: a rank that lives writes a dump when a \
collective fails. Ranks that are `missing` or `also missing` have a dump, but have not called the collective. Beside a rank \
without a dump, they are often survivors that waited for it elsewhere. `odd` are the ranks whose call differs from that of \
the majority. The dumps are of different moments, because each rank writes its own when it learns of the failure: a rank may have called \
more, or have more work done, only because its dump is later. The list of the dumps, the oldest first, says how much later, by the clocks of the ranks' hosts. \
Ranks are `not judged` in a collective that is later than their dumps: they may have called it since. So a group that works, such as one that shrank after the failure, shows \
`nothing found`, or members that are `not judged` and no other finding. For a rank that is `missing`, the time from the first call of the collective to its dump follows: if it is a small part of a second, the rank may have been about to call. Ranks are those of the job. The exit code is 0 if the dumps were read, whatever was found: test \
--json for findings. The folder should hold nothing but dumps; names that begin with a dot are skipped.

Empty the folder before each job: a rank that writes no dump leaves the one of an earlier job. If the dumps are of several jobs, the output begins with that, and only the newest job is judged.

Keys of --json: `other_jobs` (older jobs, whose dumps are left out: `job`, `ranks`); `ranks` (those with a dump); `dumps` (`rank`, and `written_ns`, the time of the dump in ns since 1970, null for a dump of PyTorch); `without_dump` (members of groups that have none); `groups`, each with `id`, \
`name`, `ranks`, and null or an empty list for what was not found: `mismatch` (the first collective in which members differ: \
`collective`, `what`, `ranks`, and `values` with `value`, `ranks`, `site`), `missing` (the first collective that not all \
members called; a rank that has no dump is not in it, but in `without_dump`, and is the likely cause: `collective`, `operation`, and `ranks` with `rank`, its last `call`, and the number of that call as `collective`, null for a message, and `dump_after_ns`, the time from the first call of the collective to that rank's dump, null if one is not known), `not_judged` (the first collective that is later than the dumps of ranks which have not called it in them: `collective`, `operation`, `ranks`), `unfinished` (`collective`, \
`operation`, `ranks` on which it is not done, `unknown`, the members without a dump or with one that is older than the collective), `messages` (`from`, `to`, `number`, \
`problem`).";

pub(crate) const LIVE: &str = "\
A job of `lockstep launch` has a free port and a random secret unless you choose them: \
`PROCESS_GROUP_STORE_SECRET=SECRET lockstep launch --port P ...`. To try it, stop a rank of the demo when all \
groups have called collectives. The other ranks wait for it, and give up after some seconds:

    export PROCESS_GROUP_STORE_SECRET=0123456789abcdef0123456789abcdef
    rm -f demo.log
    lockstep demo --backend sim --port 29500 > demo.log 2>&1 &
    while kill -0 $! && ! grep -qs graphs demo.log; do sleep 0.05; done
    pkill -STOP -P $! -f '__rank --rank 3 '
    lockstep fr live 127.0.0.1:29500

The output says that rank 3 does not answer, and which collective each other rank called last, where, and whether it is done.

Ranks answer at different times. If a rank seems to be behind, all are asked again, and only a rank that is behind in both \
rounds is reported as not having joined.

Keys of --json, one object in a line for each group: `group`, `members` (`rank`, `answered`, and of the last call \
`collectives`, `messages`, `graph_launches` (those that the program marks), `operation`, `completed`, `age_ms`, `site`), `not_joined` (the ranks that are behind in both \
rounds), `unconfirmed` (the ranks that are behind in the first, of a group that did not answer in the second). If no \
member of any group answers, that is an error.";

pub(crate) const REPLAY: &str = "\
A trace in text form has one event in a line, in program order: CODE ADDRESS(hex) SIZE(bytes) STREAM. `a` allocates. `r` \
says that the owner has freed the block, `f` that its last use on any stream has ended. Every `f` needs an `r` line with the same address before it. The codes `S`, `D`, `M` and `U` \
(calls of the recorded allocator into the driver) are skipped. A snapshot holds one trace for each device. Recorded traces to try \
lie in the folder cli/data of the repository: gpt2_train.trace.gz, resnet_train.trace.gz and two_stream.trace.gz.

A file that is no trace is named, and the others are replayed. The exit code is then 1.

Keys of --json, one object in a line for each trace: `trace`, `policy`; `operations` (allocations and frees); `ns_per_op` \
(the fastest of seven replays); `peak_active` (the most bytes in use, each request rounded up to 512 bytes; a block counts until its `f`, so also while it is freed but \
not completed); \
`peak_reserved` and `ratio` (the most bytes reserved, and its ratio to `peak_active`, null if that is 0); `driver_calls` (calls to create, \
map, set access, unmap and release); `driver_calls_steady` (those after the first tenth of the operations that do not \
belong to a new peak); `min_capacity` (the least memory, in steps of 2 MiB, with which no request failed); `checked_bytes` (only with --check, the bytes that were verified); \
`driver_time_ns` (not with --backend host: for each kind of driver call, the part of the time that these calls took).

`peak_reserved` and `min_capacity` may be below `peak_active`. When memory is short, the allocator waits for the end of the uses of freed blocks. \
In a replay they end at that wait, which is before the `f` of the recording.

Keys of the file of --curves, a list with one object for each trace: `trace`, `policy`; `reserved` (over the program's \
progress: `operation`, `active`, `peak_active`, `reserved`, `driver_calls`); `least_capacity` (of the first `operations`: \
`peak_active`, `min_capacity`); `driver_calls` (for each `capacity`: `peak_reserved`, `driver_calls`, `driver_calls_steady`, \
`ns_per_op`). Sizes are in bytes.";

pub(crate) const VIZ: &str = "\
A trace is replayed through the caching allocator first: text form (see `lockstep help replay`) or minimalloc CSV.

The page needs no other file. It shows memory over time, fragmentation, owners of addresses, and the largest owners. The \
time axis counts events. Select a moment with the slider or a click; the lower part shows that moment. Call sites are known \
for blocks that a snapshot still has, and for allocations with recorded stacks. All other blocks are listed by size.";

pub(crate) const BENCH: &str = "\
The number of rounds is fixed, except of `store`; the progress on standard error names it. The time of a round depends on the host's processors and, beside PyTorch, \
on its peer, which `alloc` also compiles first. `store --attack` takes --seconds for each attack.

With --json each prints one object, whose numbers have at most three decimals. `figures`, except of `kernels` and `store`, lists medians: `case`, `contender`, `ns` for one operation, and `ratio` to the \
case's baseline. `machine`, except of `alloc` and `store`, names the devices. `bars`, of `call`, `pool` and `symm`, are the limits that --check tests (`what`, \
`figure`, `most`, `holds`). `torch`, of `alloc`, `call`, `kernels` and `symm`, says why PyTorch was left out. `pool` has `footprints` (`pools`, `reserved_bytes`, `segments`, `windows`), and \
`symm` has the output of `pool` as `pools`. `call` has `results` (`contender`, `compared`, `differ`) and \
`above_raw_us`, `above_raw_and_event_us`, `of_torch`, `in_graph`. `alloc` has `scaling`, and `p2p` has `memory` (`policy`, \
`bytes`), `group_bytes`, `skipped`. `kernels` prints `ranks`, and `rows` in place of figures (`collective`, `bytes`, `eager_us`, \
`graph_us`, and `peers`, each with `contender`, `eager_us`, `graph_us` and `left_out`, the reason if a time is null), and `store` prints `servers` (`server`, `latency_us`, `calls_per_second`, `join_ms`, each with `median`, `p1`, `p99`, `least` and `most`; `latency_us` for each kind of call) and `ratios`. `store --attack` prints a list (`attack`, `calls`, \
`wait_ms` with `p50`, `p99`, `most`).

The limits of --check on times are for GPUs: all of `call`, all of `symm`'s own, and allocation and look-up of `pool`. On \
embedded devices they are left out, and --check says so. Without --check a limit that does not hold is no error. The limits on the memory of `pool` and those of `store --attack` apply on every \
host.";

pub(crate) const KILL_TEST: &str = "\
The other ranks wait in a collective, at a barrier, or in no call. Measures the time until each of them has the error that \
names the rank, and checks a sum of the remaining ranks, by `shrink` and by a new group. The exit code is not 0 if a rank \
was not noticed, or with --demo if another rank ended later than --within allows.

With PROCESS_GROUP_DUMP_FOLDER the ranks write dumps of their flight recorders for `lockstep fr analyze`. The dumps of a round \
overwrite those of the round before, so use --rounds 1.

Keys of --json: `backend`, `ranks`, `rounds`, `pinned_gib`, `stopped`, `heartbeat_ms`, `apart`; `known` (from the signal to \
the error, one object for each state of a survivor), `shrunk` and `rebuilt` (to a correct sum). With --demo: `backend`, \
`ranks`, `rounds`, `seed`, `within_ms`, `ended` (from the kill to the end of another rank, one object for each stage of the \
killed rank), `late` (a text for each rank that ended too late). Times are objects with `place`, `count`, and `p50`, `p99` \
and `most` in ms, rounded to one decimal.";
