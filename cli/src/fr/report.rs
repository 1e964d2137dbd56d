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
        writeln!(f, "dumps of {}", list(&self.ranks))?;
        if !self.without_dump.is_empty() {
            writeln!(f, "no dump of {}: dead, or not asked for one", list(&self.without_dump))?;
        }
        self.groups.iter().try_for_each(|group| write!(f, "{group}"))
    }
}

impl fmt::Display for GroupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ngroup {} ({}), {}", Plain(&self.name), Plain(&self.id), list(&self.ranks))?;
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
            writeln!(
                f,
                "  missing: {} in collective {} ({})",
                list(&ranks),
                missing.collective,
                Plain(&missing.operation)
            )?;
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
        if quiet {
            writeln!(f, "  nothing found: all members made the same calls, and all are done")
        } else {
            Ok(())
        }
    }
}
