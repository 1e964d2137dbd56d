//! The tests that cause each hazard and each error.

use std::{collections::BTreeSet, fs, path::Path};

/// The hazard or error, the path of the file from the workspace's root, and the tests.
type Entry = (&'static str, &'static str, &'static [&'static str]);

const AGREEMENT: &str = "symm-mem/src/agreement/tests/mod.rs";
const EMBEDDED: &str = "symm-mem/tests/end_to_end/embedded/mod.rs";
const RETIRE: &str = "symm-mem/tests/end_to_end/embedded/retire.rs";
const CHECKS: &str = "symm-mem/tests/end_to_end/embedded/checks.rs";
const EXPLAIN: &str = "symm-mem/tests/end_to_end/embedded/explain.rs";
const HERE: &str = "symm-mem/tests/end_to_end/hazards/mod.rs";
const SIMULATION: &str = "symm-mem/src/simulation/tests.rs";
const ARENA: &str = "caching-alloc/src/core/symmetric/tests.rs";

/// The hazards of registration by several ranks.
const HAZARDS: &[Entry] = &[
    // Order inside a communicator.
    ("H1", EMBEDDED, &["two_pools_are_committed_for_a_group_one_after_the_other"]),
    // Order across communicators.
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
    ("H3", EMBEDDED, &["a_rank_that_differs_is_named_to_every_member_of_its_groups_and_the_others_go_on"]),
    // Decisions that a rank makes from its own memory of earlier commits.
    ("H4", HERE, &["nothing_new_where_others_have_something"]),
    // Groups that extend beyond the ranks that promised equal allocations.
    ("H5", EMBEDDED, &["one_rank_in_an_open_group_or_outside_the_domain_is_an_error_for_all"]),
    // Groups that are committed late.
    ("H6", RETIRE, &["a_segment_is_retired_everywhere_or_nowhere"]),
    ("H6", HERE, &["different_retirements"]),
    // Growth during a capture.
    ("H7", EMBEDDED, &["a_captured_graph_reduces_from_windows_and_keeps_its_blocks"]),
    // Graphs that outlive the memory that they use.
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
    ("H10", ARENA, &["placement_is_a_function_of_the_requests"]),
    ("H10", AGREEMENT, &["equal_sizes_after_different_histories_are_no_agreement"]),
    // Reuse that depends on time.
    ("H11", "caching-alloc/src/core/symmetric/tests.rs", &["placement_is_a_function_of_the_requests"]),
    // Addresses and handles as names.
    ("H12", EMBEDDED, &["a_group_that_was_forgotten_does_not_find_its_former_decisions"]),
    ("H12", "symm-mem/src/domain.rs", &["a_second_generation_is_told_from_the_first"]),
    // A rank that fails before the collective, and inside it.
    ("H13", EMBEDDED, &["a_rank_without_memory_is_named_to_all"]),
    ("H13", HERE, &["a_rank_that_fails_before"]),
    ("H14", EMBEDDED, &["a_failed_registration_poisons_the_group_on_all_members"]),
    // Another environment, and success without a window.
    ("H15", HERE, &["another_environment", "no_window_after_success"]),
    // The same memory registered twice.
    ("H16", "process-group/src/comm/window/request.rs", &["accepted_requests_are_disjoint"]),
    ("H16", CHECKS, &["memory_that_is_a_window_already_is_refused_on_all"]),
    ("H16", EMBEDDED, &["a_commit_of_nothing_new_does_not_call_the_library"]),
    // Past the end of a segment.
    ("H17", "symm-mem/src/pool/lookup.rs", &["every_address_is_found_where_it_lies"]),
    // Symmetric on some ranks only.
    (
        "H18",
        "symm-mem/tests/end_to_end/embedded/places.rs",
        &["a_buffer_elsewhere_is_told_to_all_before_anything_is_launched"],
    ),
    ("H18", EXPLAIN, &["the_fallback_of_an_old_release_is_explained_alike_on_all"]),
    // Pads for signals that groups share.
    (
        "H19",
        "symm-mem/tests/end_to_end/rendezvous/meetings.rs",
        &["two_groups_share_an_allocation_and_no_pad"],
    ),
    // Numbers by process or by name, and keys that go before they are read.
    ("H20", HERE, &["subgroups_may_commit_more_often"]),
    ("H21", SIMULATION, &["members_agree_whatever_happens"]),
    // Registration under the allocator's lock.
    ("H22", HERE, &["a_commit_that_waits_holds_no_lock"]),
    // Registration beside collectives.
    ("H23", EMBEDDED, &["unequal_numbers_of_collectives_are_refused_before_anything_waits"]),
    ("H23", RETIRE, &["half_enqueued_collectives_stop_a_retirement"]),
    ("H23", CHECKS, &["a_message_with_one_end_is_refused_on_all"]),
    // A match by accident.
    ("H24", AGREEMENT, &["equal_sizes_after_different_histories_are_no_agreement"]),
    // A communicator that is not made yet.
    ("H25", HERE, &["a_group_without_a_communicator_is_refused"]),
];

/// The errors, each with the rank, the ordinal and both values on every member.
const ERRORS: &[Entry] = &[
    ("SyncTimeout", HERE, &["a_rank_that_does_not_come"]),
    (
        "MemberLost",
        "symm-mem/src/agreement/tests/endings.rs",
        &["only_a_search_after_a_refusal_leaves_no_doubt"],
    ),
    ("SegmentCountMismatch", HERE, &["an_extra_segment", "nothing_new_where_others_have_something"]),
    ("SegmentShapeMismatch", HERE, &["another_size"]),
    ("AllocationDiverged", HERE, &["the_same_sizes_by_another_way"]),
    ("CommittedLogDiverged", HERE, &["different_retirements"]),
    ("EpochMismatch", HERE, &["another_epoch"]),
    (
        "GroupOutsideDomain",
        EMBEDDED,
        &["one_rank_in_an_open_group_or_outside_the_domain_is_an_error_for_all"],
    ),
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
    ("WindowsUnsupported", HERE, &["no_window_after_success"]),
    ("RegistrationFailed", HERE, &["a_registration_that_fails"]),
    ("WindowRequest", "process-group/src/comm/window/request.rs", &["accepted_requests_are_disjoint"]),
    ("SpansSegments", "symm-mem/src/pool/lookup.rs", &["every_address_is_found_where_it_lies"]),
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
