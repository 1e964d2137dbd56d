//! The result as text.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use process_group::agreement::Ranks;

use super::analyze::{GroupReport, Missing, NotJudged, Report};
use crate::plain::Plain;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.other_jobs.is_empty() {
            let jobs = self.other_jobs.len() + 1;
            writeln!(
                f,
                "the dumps are of {jobs} jobs; only the newest is judged. Empty the folder before each job"
            )?;
            for other in &self.other_jobs {
                let ranks: Vec<_> = other.ranks.iter().copied().collect();
                writeln!(f, "  left out: {} of the older job {}", Ranks(&ranks), Plain(&other.job))?;
            }
        }
        for rank in &self.without_dump {
            writeln!(f, "rank {rank}: no dump; it died, or ended before it could write one")?;
        }
        writeln!(f, "dumps of {}", Ranks(&self.ranks))?;
        self.write_times(f)?;
        self.groups.iter().try_for_each(|group| group.write(&self.without_dump, f))
    }
}

impl Report {
    /// The number of dumps whose times are shown.
    const SHOWN: usize = 16;

    /// Writes when the dumps were made, the oldest first. If there are many, the newest stands for those left out.
    fn write_times(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.dumps.iter().filter_map(|dump| Some((dump.written_ns?, dump.rank)));
        let mut times: Vec<_> = known.collect();
        times.sort_unstable();
        let Some(&(first, oldest)) = times.first() else { return Ok(()) };
        writeln!(f, "  rank {oldest}: written at {} UTC, the first", time_of_day(first))?;
        let left_out = times.len().saturating_sub(Self::SHOWN);
        for (place, (time, rank)) in times.iter().enumerate().skip(1) {
            let later = (time - first) as f64 / 1e9;
            if place + 1 < Self::SHOWN || place + 1 == times.len() {
                writeln!(f, "  rank {rank}: {later:.3} s later")?;
            } else if place + 1 == Self::SHOWN {
                writeln!(f, "  {left_out} more in between")?;
            }
        }
        Ok(())
    }
}

/// Formats a time in ns since 1970 as date and time in UTC, to a millisecond.
fn time_of_day(ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(ns);
    humantime::format_rfc3339_millis(time).to_string().replace('T', " ").replace('Z', "")
}

impl GroupReport {
    /// Writes the findings of the group. `without_dump` are the ranks of the job that have no dump.
    fn write(&self, without_dump: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ngroup {} ({}), {}", Plain(&self.name), Plain(&self.id), Ranks(&self.ranks))?;
        let is_member = |rank: &usize| self.ranks.contains(rank);
        let lost: Vec<_> = without_dump.iter().copied().filter(is_member).collect();
        let mut quiet = true;
        if let Some(found) = &self.mismatch {
            quiet = false;
            writeln!(f, "  first mismatch: collective {} differs in {}", found.collective, found.what)?;
            for value in &found.values {
                let site = value.site.as_deref().map_or(String::new(), |site| format!(" at {}", Plain(site)));
                writeln!(f, "    {}: {}{site}", Ranks(&value.ranks), Plain(&value.value))?;
            }
            writeln!(f, "    odd: {}", Ranks(&found.ranks))?;
        }
        if let Some(missing) = &self.missing {
            quiet = false;
            missing.write(&lost, f)?;
        }
        if let Some(open) = &self.unfinished {
            quiet = false;
            let (number, operation) = (open.collective, Plain(&open.operation));
            let ranks = Ranks(&open.ranks);
            if open.unknown.is_empty() {
                writeln!(f, "  collective {number} ({operation}) was called by all; not done on {ranks}")?;
            } else {
                let unknown = Ranks(&open.unknown);
                writeln!(
                    f,
                    "  collective {number} ({operation}) is not done on {ranks}; has {unknown} called it?"
                )?;
            }
        }
        for message in &self.messages {
            quiet = false;
            let (from, to, number) = (message.from, message.to, message.number);
            writeln!(f, "  message {number} from rank {from} to {to}: {}", Plain(&message.problem))?;
        }
        self.not_judged.iter().try_for_each(|early| early.write(f))?;
        match (quiet, &lost[..]) {
            (false, _) => Ok(()),
            (true, []) if self.not_judged.is_some() => writeln!(f, "  nothing else found"),
            (true, lost) if self.not_judged.is_some() => {
                writeln!(f, "  nothing else found, but {} left no dump", Ranks(lost))
            }
            (true, []) => writeln!(f, "  nothing found: all members made the same calls, and all are done"),
            (true, lost) => {
                writeln!(
                    f,
                    "  nothing found, but {} left no dump: the others made the same calls, and all are done",
                    Ranks(lost)
                )
            }
        }
    }
}

impl Missing {
    /// Writes the ranks and their last calls. `lost` are the members without a dump.
    fn write(&self, lost: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.ranks.iter().map(|last| last.rank).collect();
        let (ranks, number, operation) = (Ranks(&ranks), self.collective, Plain(&self.operation));
        if lost.is_empty() {
            writeln!(f, "  missing: {ranks} in collective {number} ({operation})")?;
        } else {
            let lost = Ranks(lost);
            writeln!(f, "  missing: {lost} without a dump, the likely cause")?;
            writeln!(
                f,
                "  also missing: {ranks} in collective {number} ({operation}), perhaps because of {lost}"
            )?;
        }
        for last in &self.ranks {
            let nothing = match last.dump_after_ns {
                Some(_) => "nothing in this group",
                None => "nothing in this group, or its dump was written before",
            };
            write!(f, "    rank {} called last: ", last.rank)?;
            if let Some(number) = last.collective {
                write!(f, "collective {number}, ")?;
            }
            write!(f, "{}", Plain(last.call.as_deref().unwrap_or(nothing)))?;
            if let Some(after) = last.dump_after_ns {
                let after = after as f64 / 1e9;
                write!(f, "; its dump was written {after:.3} s after the first call of collective {number}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl NotJudged {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, operation) = (self.collective, Plain(&self.operation));
        let (dumps, clocks) = match self.ranks.len() {
            1 => ("its dump was", "clock of its host"),
            _ => ("their dumps were", "clocks of their hosts"),
        };
        let ranks = Ranks(&self.ranks);
        writeln!(
            f,
            "  not judged: {ranks} in collective {number} ({operation}); {dumps} written before it was called, by the \
             {clocks}"
        )
    }
}
