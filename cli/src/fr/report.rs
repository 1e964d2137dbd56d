//! The result as text.

use std::fmt;

use process_group::agreement::Ranks;

use super::analyze::{GroupReport, Report};
use crate::plain::Plain;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in &self.without_dump {
            writeln!(f, "rank {rank}: no dump; it died, or ended before it could write one")?;
        }
        writeln!(f, "dumps of {}", Ranks(&self.ranks))?;
        self.groups.iter().try_for_each(|group| group.write(&self.without_dump, f))
    }
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
            let ranks: Vec<_> = missing.ranks.iter().map(|last| last.rank).collect();
            let (ranks, number) = (Ranks(&ranks), missing.collective);
            let operation = Plain(&missing.operation);
            if lost.is_empty() {
                writeln!(f, "  missing: {ranks} in collective {number} ({operation})")?;
            } else {
                let lost = Ranks(&lost);
                writeln!(f, "  missing: {lost} without a dump, the likely cause")?;
                writeln!(
                    f,
                    "  also missing: {ranks} in collective {number} ({operation}), perhaps because of {lost}"
                )?;
            }
            for last in &missing.ranks {
                let call = last.call.as_deref();
                let call = call.unwrap_or("nothing in this group, or its dump was written before");
                write!(f, "    rank {} called last: ", last.rank)?;
                if let Some(number) = last.collective {
                    write!(f, "collective {number}, ")?;
                }
                writeln!(f, "{}", Plain(call))?;
            }
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
        match (quiet, &lost[..]) {
            (false, _) => Ok(()),
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
