//! The result as text.

use std::fmt;

use super::analyze::{GroupReport, Report};
use crate::plain::Plain;

fn list(ranks: &[usize]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in &self.without_dump {
            writeln!(f, "rank {rank}: no dump; it probably died")?;
        }
        writeln!(f, "dumps of {}", list(&self.ranks))?;
        self.groups.iter().try_for_each(|group| group.write(&self.without_dump, f))
    }
}

impl GroupReport {
    /// Writes the findings of the group. `without_dump` are the ranks of the job that have no dump.
    fn write(&self, without_dump: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ngroup {} ({}), {}", Plain(&self.name), Plain(&self.id), list(&self.ranks))?;
        let is_member = |rank: &usize| self.ranks.contains(rank);
        let lost: Vec<_> = without_dump.iter().copied().filter(is_member).collect();
        let mut quiet = true;
        if let Some(found) = &self.mismatch {
            quiet = false;
            writeln!(f, "  first mismatch: collective {} differs in {}", found.collective, found.what)?;
            for value in &found.values {
                let site = value.site.as_deref().map_or(String::new(), |site| format!(" at {}", Plain(site)));
                writeln!(f, "    {}: {}{site}", list(&value.ranks), Plain(&value.value))?;
            }
            writeln!(f, "    odd: {}", list(&found.ranks))?;
        }
        if let Some(missing) = &self.missing {
            quiet = false;
            let ranks: Vec<_> = missing.ranks.iter().map(|last| last.rank).collect();
            let (ranks, number) = (list(&ranks), missing.collective);
            let operation = Plain(&missing.operation);
            if lost.is_empty() {
                writeln!(f, "  missing: {ranks} in collective {number} ({operation})")?;
            } else {
                let lost = list(&lost);
                writeln!(f, "  missing: {lost} without a dump, the likely cause")?;
                writeln!(
                    f,
                    "  also missing: {ranks} in collective {number} ({operation}), perhaps because of {lost}"
                )?;
            }
            for last in &missing.ranks {
                let call = last.call.as_deref().unwrap_or("nothing");
                writeln!(f, "    rank {} called last: {}", last.rank, Plain(call))?;
            }
        }
        if let Some(open) = &self.unfinished {
            quiet = false;
            let (number, operation) = (open.collective, Plain(&open.operation));
            let ranks = list(&open.ranks);
            if open.unknown.is_empty() {
                writeln!(f, "  collective {number} ({operation}) was called by all; not done on {ranks}")?;
            } else {
                let unknown = list(&open.unknown);
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
        match (quiet, &lost[..]) {
            (false, _) => Ok(()),
            (true, []) => writeln!(f, "  nothing found: all members made the same calls, and all are done"),
            (true, lost) => {
                writeln!(
                    f,
                    "  nothing found, but {} left no dump: the others made the same calls, and all are done",
                    list(lost)
                )
            }
        }
    }
}
