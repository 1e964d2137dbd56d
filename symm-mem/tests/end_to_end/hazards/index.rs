//! The tests that cause each hazard and each error.

use std::{collections::BTreeSet, fs, path::Path};

/// The hazard or error, the path of the file from the workspace's root, and the tests.
type Entry = (&'static str, &'static str, &'static [&'static str]);

const AGREEMENT: &str = "symm-agreement/src/tests/mod.rs";
const EMBEDDED: &str = "symm-mem/tests/end_to_end/embedded/mod.rs";
const RETIRE: &str = "symm-mem/tests/end_to_end/embedded/retire.rs";
const CHECKS: &str = "symm-mem/tests/end_to_end/embedded/checks.rs";
const EXPLAIN: &str = "symm-mem/tests/end_to_end/embedded/explain.rs";
const HERE: &str = "symm-mem/tests/end_to_end/hazards/mod.rs";
const LIFETIMES: &str = "symm-mem/tests/end_to_end/hazards/lifetimes.rs";
const BESIDE: &str = "symm-mem/tests/end_to_end/hazards/beside.rs";
const CAPTURES: &str = "symm-mem/tests/end_to_end/hazards/captures.rs";
const PROCESSES: &str = "symm-mem/tests/end_to_end/hazards/processes.rs";
const PROMISES: &str = "symm-mem/tests/end_to_end/hazards/promises.rs";
const DOMAINS: &str = "symm-mem/tests/end_to_end/embedded/domains.rs";
const GRAPHS: &str = "symm-mem/tests/end_to_end/embedded/graphs.rs";
const SIMULATION: &str = "simulation/src/tests.rs";
const ARENA: &str = "caching-alloc/src/core/symmetric/tests.rs";

/// The hazards of registration by several ranks. Ranks cause them by calls on the embedded device, and tests of pure
/// functions cover more cases.
const HAZARDS: &[Entry] = &[
    // Order inside a communicator.
    (
        "H1",
        PROCESSES,
        &[
            "pools_that_are_committed_in_another_order_at_once_are_never_mixed_up",
            "pools_that_are_committed_in_another_order_one_after_the_other_are_never_mixed_up",
        ],
    ),
    ("H1", DOMAINS, &["commits_of_two_pools_that_cross_are_told_as_a_circle"]),
    ("H1", EMBEDDED, &["two_pools_are_committed_for_a_group_one_after_the_other"]),
    // Order across communicators.
    (
        "H2",
        "symm-mem/tests/end_to_end/embedded/processes.rs",
        &["processes_commit_in_any_order_or_are_all_told_of_the_circle"],
    ),
    (
        "H2",
        "symm-mem/tests/end_to_end/orders/mod.rs",
        &[
            "every_order_of_two_calls_commits_or_tells_the_circle",
            "every_order_of_three_calls_of_one_pool_commits_or_tells_the_circle",
            "every_order_of_three_calls_of_a_pool_each_commits_or_tells_the_circle",
        ],
    ),
    // Different numbers of calls.
    ("H3", PROMISES, &["a_commit_that_one_rank_makes_alone_pairs_with_no_later_call"]),
    ("H3", EMBEDDED, &["a_rank_that_differs_is_named_to_every_member_of_its_groups_and_the_others_go_on"]),
    // Decisions that a rank makes from its own memory of earlier commits.
    (
        "H4",
        PROMISES,
        &[
            "a_segment_that_is_old_for_one_group_is_new_for_another",
            "a_rank_that_has_forgotten_earlier_commits_registers_nothing_alone",
        ],
    ),
    (
        "H4",
        "symm-mem/tests/end_to_end/embedded/scope.rs",
        &[
            "a_member_without_anything_new_is_named_and_then_compared",
            "a_member_that_made_a_request_late_is_met_by_the_others_at_once",
        ],
    ),
    ("H4", EMBEDDED, &["a_rank_that_differs_is_named_to_every_member_of_its_groups_and_the_others_go_on"]),
    ("H4", HERE, &["nothing_new_where_others_have_something"]),
    // Groups that extend beyond the ranks that promised equal allocations.
    (
        "H5",
        PROMISES,
        &[
            "a_group_across_two_domains_is_refused_on_all_members",
            "a_promise_that_only_pairs_keep_serves_the_pairs_alone",
        ],
    ),
    ("H5", DOMAINS, &["a_group_outside_of_one_domain_is_told_to_the_others"]),
    ("H5", EMBEDDED, &["one_rank_in_an_open_group_or_outside_the_domain_is_an_error_for_all"]),
    // Groups that are committed late.
    ("H6", RETIRE, &["a_segment_is_retired_everywhere_or_nowhere"]),
    ("H6", HERE, &["different_retirements"]),
    // Growth during a capture.
    (
        "H7",
        CAPTURES,
        &[
            "a_pool_that_grows_while_a_stream_captures_registers_nothing_and_keeps_the_blocks",
            "a_pool_that_grows_in_the_capture_of_one_rank_is_told_to_all",
            "a_pool_that_grows_while_another_library_captures_registers_nothing_and_keeps_the_blocks_for_good",
            "a_commit_or_a_retirement_leaves_a_capture_of_another_library_as_it_was",
        ],
    ),
    (
        "H7",
        GRAPHS,
        &[
            "a_commit_or_a_retirement_is_refused_on_all_members_while_one_captures_and_leaves_the_capture_as_it_was",
        ],
    ),
    // A declared capture.
    ("H7", EMBEDDED, &["a_captured_graph_reduces_from_windows_and_keeps_its_blocks"]),
    // Graphs that outlive the memory that they use.
    (
        "H8",
        GRAPHS,
        &[
            "a_collective_that_a_stream_captures_pins_its_blocks",
            "what_is_allocated_during_a_capture_stays_until_the_graph_goes",
            "a_segment_is_not_retired_while_a_graph_uses_it_and_outlives_the_pool",
            "a_capture_that_another_library_began_keeps_its_blocks_as_declared",
            "a_capture_that_another_library_began_undeclared_keeps_its_blocks_for_good",
        ],
    ),
    ("H8", RETIRE, &["a_block_that_a_graph_uses_is_not_placed_again", "a_graph_keeps_what_it_looked_up"]),
    // Deregistration is local.
    (
        "H9",
        RETIRE,
        &[
            "a_segment_is_retired_everywhere_or_nowhere",
            "a_failed_deregistration_is_told_to_all_and_the_memory_stays",
            "a_rank_that_does_not_come_is_named_and_nothing_goes",
        ],
    ),
    // The same segments, another offset.
    ("H10", PROMISES, &["segments_that_are_equal_by_accident_are_not_paired"]),
    ("H10", ARENA, &["placement_is_a_function_of_the_requests"]),
    ("H10", AGREEMENT, &["equal_sizes_after_different_histories_are_no_agreement"]),
    // Reuse that depends on time.
    ("H11", PROMISES, &["a_block_is_placed_alike_whether_or_not_its_former_work_is_done"]),
    ("H11", ARENA, &["placement_is_a_function_of_the_requests"]),
    // Addresses and handles as names.
    ("H12", EMBEDDED, &["a_group_that_was_forgotten_does_not_find_its_former_decisions"]),
    ("H12", DOMAINS, &["a_domain_too_many_is_told_with_both_generations"]),
    (
        "H12",
        LIFETIMES,
        &[
            "a_new_pool_at_the_addresses_of_a_dropped_one_has_its_own_places",
            "a_new_communicator_has_no_registration_of_the_former_at_the_same_addresses",
        ],
    ),
    ("H12", "symm-mem/src/domain.rs", &["a_second_generation_is_told_from_the_first"]),
    // A rank that fails before the collective, and inside it.
    ("H13", EMBEDDED, &["a_rank_without_memory_is_named_to_all"]),
    ("H13", CHECKS, &["memory_that_cannot_be_shared_is_refused_on_all"]),
    ("H13", HERE, &["a_rank_that_fails_before"]),
    ("H14", EMBEDDED, &["a_failed_registration_poisons_the_group_on_all_members"]),
    // Another environment, and success without a window.
    (
        "H15",
        PROCESSES,
        &[
            "windows_that_one_environment_disables_are_used_by_no_member",
            "an_environment_that_differs_is_told_to_all_before_a_registration",
            "another_release_on_one_rank_is_told_to_all_before_they_join",
            "success_without_a_window_on_one_rank_leaves_no_rank_with_a_window",
            "success_without_a_window_on_all_ranks_is_a_uniform_fallback",
        ],
    ),
    ("H15", HERE, &["another_environment", "no_window_after_success"]),
    // The same memory registered twice.
    ("H16", "process-group/src/comm/window/request.rs", &["accepted_requests_are_disjoint"]),
    ("H16", CHECKS, &["memory_that_is_a_window_already_is_refused_on_all"]),
    ("H16", EMBEDDED, &["a_commit_of_nothing_new_does_not_call_the_library"]),
    // Past the end of a segment.
    ("H17", PROMISES, &["a_buffer_over_the_end_of_a_window_is_refused"]),
    ("H17", EMBEDDED, &["groups_share_a_pool_and_reduce_from_its_windows"]),
    ("H17", "symm-mem/src/membership/lookup.rs", &["every_address_is_found_where_it_lies"]),
    // Symmetric on some ranks only.
    (
        "H18",
        "symm-mem/tests/end_to_end/embedded/places.rs",
        &[
            "a_buffer_elsewhere_is_told_to_all_before_anything_is_launched",
            "a_buffer_elsewhere_in_a_window_is_a_divergence",
        ],
    ),
    ("H18", BESIDE, &["a_collective_on_both_sides_of_the_registration_of_its_buffer_is_told_to_all"]),
    ("H18", EXPLAIN, &["the_fallback_of_an_old_release_is_explained_alike_on_all"]),
    // Pads for signals that groups share.
    (
        "H19",
        "symm-mem/tests/end_to_end/hazards/signals.rs",
        &[
            "a_signal_of_one_group_is_not_consumed_by_another_over_the_same_memory",
            "signals_of_two_groups_are_in_flight_at_once_and_bring_their_own_values",
            "signals_of_groups_with_other_members_reach_only_their_own",
        ],
    ),
    (
        "H19",
        "symm-mem/tests/end_to_end/rendezvous/meetings.rs",
        &["two_groups_share_an_allocation_and_no_pad"],
    ),
    // Numbers by process or by name, and keys that go before they are read.
    ("H20", HERE, &["subgroups_may_commit_more_often"]),
    (
        "H20",
        "symm-mem/tests/end_to_end/rendezvous/meetings.rs",
        &["groups_that_have_met_unequally_often_meet_in_the_world"],
    ),
    ("H21", DOMAINS, &["a_rank_that_comes_late_is_told_of_commits_that_another_has_refused_alone"]),
    (
        "H21",
        "symm-mem/tests/end_to_end/hazards/readers.rs",
        &["a_member_that_reads_after_all_others_have_ended_finds_what_was_agreed"],
    ),
    ("H21", SIMULATION, &["members_agree_whatever_happens"]),
    // Registration under the allocator's lock.
    ("H22", PROCESSES, &["a_registration_that_blocks_inside_the_library_locks_no_pool"]),
    ("H22", HERE, &["a_commit_that_waits_holds_no_lock"]),
    // Registration beside collectives.
    (
        "H23",
        BESIDE,
        &[
            "a_commit_does_not_wait_for_collectives_of_another_library",
            "a_commit_beside_enqueued_calls_of_another_library_on_its_communicator",
            "a_commit_beside_a_call_that_one_rank_alone_has_enqueued_on_its_communicator",
            "a_collective_that_another_thread_enqueues_after_the_record_is_counted_by_the_next_commit",
            "a_collective_on_both_sides_of_the_registration_of_its_buffer_is_told_to_all",
        ],
    ),
    ("H23", EMBEDDED, &["unequal_numbers_of_collectives_are_refused_before_anything_waits"]),
    ("H23", RETIRE, &["half_enqueued_collectives_stop_a_retirement"]),
    ("H23", CHECKS, &["a_message_with_one_end_is_refused_on_all"]),
    // A match by accident.
    ("H24", PROMISES, &["segments_that_are_equal_by_accident_are_not_paired"]),
    ("H24", AGREEMENT, &["equal_sizes_after_different_histories_are_no_agreement"]),
    // A communicator that is not made yet.
    ("H25", HERE, &["a_group_without_a_communicator_is_refused"]),
    (
        "H25",
        LIFETIMES,
        &[
            "a_communicator_that_one_rank_has_not_created_is_refused_on_all",
            "a_communicator_that_has_run_nothing_on_one_rank_gets_its_windows",
        ],
    ),
];

/// The errors, each with the rank, the ordinal and both values on every member.
const ERRORS: &[Entry] = &[
    ("SyncTimeout", PROMISES, &["a_commit_that_one_rank_makes_alone_pairs_with_no_later_call"]),
    ("SyncTimeout", HERE, &["a_rank_that_does_not_come"]),
    ("MemberLost", "symm-agreement/src/tests/endings.rs", &["only_a_search_after_a_refusal_leaves_no_doubt"]),
    ("SegmentCountMismatch", HERE, &["an_extra_segment", "nothing_new_where_others_have_something"]),
    ("SegmentShapeMismatch", HERE, &["another_size"]),
    ("AllocationDiverged", PROMISES, &["segments_that_are_equal_by_accident_are_not_paired"]),
    ("AllocationDiverged", HERE, &["the_same_sizes_by_another_way"]),
    (
        "CommittedLogDiverged",
        PROMISES,
        &["a_rank_that_has_forgotten_earlier_commits_registers_nothing_alone"],
    ),
    ("CommittedLogDiverged", HERE, &["different_retirements"]),
    ("EpochMismatch", HERE, &["another_epoch"]),
    (
        "GroupOutsideDomain",
        EMBEDDED,
        &["one_rank_in_an_open_group_or_outside_the_domain_is_an_error_for_all"],
    ),
    ("CapabilityMismatch", PROCESSES, &["an_environment_that_differs_is_told_to_all_before_a_registration"]),
    ("CapabilityMismatch", HERE, &["another_library", "another_environment"]),
    ("PeerPrepareFailed", HERE, &["a_rank_that_fails_before"]),
    ("PeerPrepareFailed", CHECKS, &["memory_that_cannot_be_shared_is_refused_on_all"]),
    // It is reported as the reason why a rank cannot take part.
    ("AlreadyRegistered", CHECKS, &["memory_that_is_a_window_already_is_refused_on_all"]),
    (
        "CollectivesOutstanding",
        EMBEDDED,
        &["unequal_numbers_of_collectives_are_refused_before_anything_waits"],
    ),
    ("MessagesOutstanding", CHECKS, &["a_message_with_one_end_is_refused_on_all"]),
    ("CommitDuringCapture", HERE, &["a_rank_that_captures_or_is_inside_a_group"]),
    ("PoolWouldGrowDuringCapture", ARENA, &["a_frozen_arena_says_what_is_missing"]),
    ("WindowsUnsupported", PROCESSES, &["success_without_a_window_on_one_rank_leaves_no_rank_with_a_window"]),
    ("WindowsUnsupported", HERE, &["no_window_after_success"]),
    ("RegistrationFailed", HERE, &["a_registration_that_fails"]),
    ("WindowRequest", "process-group/src/comm/window/request.rs", &["accepted_requests_are_disjoint"]),
    ("SpansSegments", "symm-mem/src/membership/lookup.rs", &["every_address_is_found_where_it_lies"]),
    (
        "SymmetricOffsetMismatch",
        "symm-mem/tests/end_to_end/embedded/places.rs",
        &["a_buffer_elsewhere_is_told_to_all_before_anything_is_launched"],
    ),
    (
        "NCCL_CHECK_MODE=DEBUG_GLOBAL",
        "symm-mem/tests/end_to_end/commits/disagree.rs",
        &[
            "ranks_that_use_other_places_of_a_window_are_told_by_a_library_that_compares",
            "hardware_disagreement",
        ],
    ),
    ("SegmentPinned", RETIRE, &["a_graph_keeps_what_it_looked_up"]),
    ("SegmentCommitted", RETIRE, &["a_segment_is_retired_everywhere_or_nowhere"]),
];

#[test]
fn every_hazard_and_error_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
    if !root.join("Cargo.toml").exists() {
        println!("skipped: the sources are not here");
        return;
    }
    for (what, file, tests) in HAZARDS.iter().chain(ERRORS) {
        let text =
            fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{what}: {file}: {error}"));
        for test in *tests {
            let at = text
                .find(&format!("fn {test}("))
                .unwrap_or_else(|| panic!("{what}: {test} is not in {file}"));
            let before = &text[..at];
            let marked = before.rfind("#[test]").is_some_and(|mark| !before[mark..].contains("\n}"));
            assert!(marked, "{what}: {test} in {file} is no test");
        }
    }
    let named: BTreeSet<&str> = HAZARDS.iter().map(|(what, ..)| *what).collect();
    let all: Vec<String> = (1..=25).map(|number| format!("H{number}")).collect();
    assert!(all.iter().all(|hazard| named.contains(hazard.as_str())), "{named:?}");
}
