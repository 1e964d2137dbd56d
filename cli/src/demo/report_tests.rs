//! The verdict reports each claim of the demo that is broken by itself.

use super::super::groups::layout;
use super::*;

const RANKS: u32 = 4;

/// The figures of a job in which everything held.
fn good(ranks: u32) -> Figures {
    let mut figures = Figures::new(Backend::Sim, ranks, layout(ranks));
    let replayed = Replayed {
        allocations: 100,
        segments: 7,
        peak_active: 1000,
        peak_reserved: 1024,
        registrations: 21,
        milliseconds: 1.0,
    };
    let diverging = diverging_rank(ranks);
    for rank in 0..ranks {
        figures.hear(rank, Message::Ready { nccl_version: "2.28.9".into(), device: "a device".into() });
        figures.hear(rank, Message::Replayed(replayed.clone()));
    }
    figures.hear(diverging, Message::Diverging { nanoseconds: 1_000_000 });
    for (group, layout) in (0..).zip(layout(ranks)) {
        let alone = layout.ranks.len() == 1;
        for &rank in &layout.ranks {
            figures.hear(
                rank,
                Message::Committed(Committed {
                    group,
                    windows: if alone { 0 } else { 2 },
                    no_windows: alone.then(|| "a group of one needs no window".into()),
                    milliseconds: 1.0,
                }),
            );
            let mut modes = vec![Mode::Eager, Mode::Graph];
            if layout.disagrees_with(diverging) {
                figures.hear(
                    rank,
                    Message::Refused {
                        group,
                        kind: "SegmentCountMismatch".into(),
                        text: "ranks differ".into(),
                        ahead: vec![diverging],
                        nanoseconds: 3_000_000,
                    },
                );
            } else {
                modes.push(Mode::GoOn);
            }
            for mode in modes {
                let reduced = Reduced { group, mode, verified_bytes: 4096, milliseconds: 1.0 };
                figures.hear(rank, Message::Reduced(reduced));
            }
        }
    }
    figures
}

/// The world, of which every rank is a member.
const WORLD: u32 = 0;

fn set_windows(figures: &mut Figures, windows: u64, reason: Option<&str>) {
    for rank in 0..figures.ranks {
        let committed = figures.committed.get_mut(&(WORLD, rank)).unwrap();
        (committed.windows, committed.no_windows) = (windows, reason.map(str::to_owned));
    }
}

fn change_refusals(figures: &mut Figures, change: impl Fn(&mut Refusal)) {
    (0..figures.ranks).for_each(|rank| change(figures.refused.get_mut(&(WORLD, rank)).unwrap()));
}

/// Returns the verdict on a good job with one change.
fn broken(change: impl FnOnce(&mut Figures)) -> String {
    let mut figures = good(RANKS);
    change(&mut figures);
    figures.verdict().expect_err("the verdict misses it").to_string()
}

#[track_caller]
fn says(verdict: &str, words: &str) {
    assert!(verdict.contains(words), "expected {words:?} in {verdict:?}");
}

#[test]
fn a_job_in_which_everything_held_passes() {
    for ranks in [2, 4, 8] {
        good(ranks).verdict().unwrap();
        assert_eq!(good(ranks).detected_after_ms(), Some(2.0));
    }
}

#[test]
fn a_group_without_windows_is_missed() {
    says(&broken(|figures| set_windows(figures, 0, None)), "group world: expected windows, found none");
    says(&broken(|figures| set_windows(figures, 0, Some("switched off"))), "found none: switched off");
    says(&broken(|figures| figures.committed.get_mut(&(WORLD, 1)).unwrap().windows = 3), "different windows");
    says(&broken(|figures| drop(figures.committed.remove(&(WORLD, 1)))), "different windows");
}

#[test]
fn a_real_library_without_windows_is_excused_if_it_says_so() {
    let mut figures = Figures { backend: Backend::Cuda, ..good(RANKS) };
    set_windows(&mut figures, 0, Some("NCCL 2.26.2 has no windows"));
    figures.verdict().unwrap();
    set_windows(&mut figures, 0, None);
    says(&figures.verdict().unwrap_err().to_string(), "expected windows, found none");
}

#[test]
fn an_error_of_another_kind_or_about_another_rank_is_missed() {
    let kind = broken(|figures| change_refusals(figures, |refusal| refusal.kind = "SyncTimeout".into()));
    says(&kind, "expected SegmentCountMismatch that names rank 2, found SyncTimeout");
    for ahead in [vec![], vec![0], vec![2, 3]] {
        let rank = broken(|figures| change_refusals(figures, |refusal| refusal.ahead = ahead.clone()));
        says(&rank, "expected SegmentCountMismatch that names rank 2, found SegmentCountMismatch that names");
    }
    let text = broken(|figures| figures.refused.get_mut(&(WORLD, 3)).unwrap().text = "something else".into());
    says(&text, "the same error on every member");
    says(&broken(|figures| drop(figures.refused.remove(&(WORLD, 3)))), "the same error on every member");
    let refusal = good(RANKS).refused[&(WORLD, 0)].clone();
    // Group DP1 agrees.
    says(&broken(|figures| drop(figures.refused.insert((4, 1), refusal))), "group DP1: expected no error");
}

#[test]
fn a_pass_that_is_missing_or_verified_nothing_is_missed() {
    says(
        &broken(|figures| drop(figures.reduced.remove(&(WORLD, 1)))),
        "group world, rank 1: expected verified passes",
    );
    says(&broken(|figures| figures.reduced.get_mut(&(4, 3)).unwrap().truncate(2)), "group DP1, rank 3");
    let nothing = broken(|figures| figures.reduced.get_mut(&(WORLD, 2)).unwrap()[1].verified_bytes = 0);
    says(&nothing, "group world, rank 2");
}

#[test]
fn replays_that_differ_are_missed() {
    let words = "the replay of one trace came to different figures";
    says(&broken(|figures| figures.replayed.retain(|rank, _| *rank != 1)), words);
    let changes: [fn(&mut Replayed); 4] = [
        |replayed| replayed.allocations += 1,
        |replayed| replayed.segments += 1,
        |replayed| replayed.peak_active += 1,
        |replayed| replayed.peak_reserved += 1,
    ];
    for change in changes {
        says(&broken(|figures| change(figures.replayed.get_mut(&3).unwrap())), words);
    }
}
