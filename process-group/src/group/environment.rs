//! What the environment says about this rank, in the words of `torchrun`.

use std::{env, path::PathBuf};

use super::{GroupError, Result};

/// Where this rank stands, as a launcher tells it.
///
/// | variable | meaning |
/// |---|---|
/// | `RANK` | this rank |
/// | `WORLD_SIZE` | how many ranks there are |
/// | `LOCAL_RANK` | this rank among those of its host: the ordinal of its device |
/// | `MASTER_ADDR`, `MASTER_PORT` | where the store is; rank 0 hosts it, unless `TORCHELASTIC_USE_AGENT_STORE` is `True` |
/// | `PROCESS_GROUP_DUMP_FOLDER` | where the flight recorder's dumps go |
/// | `PROCESS_GROUP_TIMING` | `1`: the device times every operation |
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Environment {
    /// This rank.
    pub rank: Option<usize>,
    /// How many ranks there are.
    pub world_size: Option<usize>,
    /// This rank among those of its host.
    pub local_rank: Option<usize>,
    /// The store's host.
    pub master_address: Option<String>,
    /// The store's port.
    pub master_port: Option<u16>,
    /// Whether the launcher hosts the store, so that no rank does.
    pub agent_store: bool,
    /// Where the flight recorder's dumps go.
    pub dump_folder: Option<PathBuf>,
    /// Whether the device times every operation.
    pub timing: bool,
}

impl Environment {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`GroupError::Environment`] for a variable that is set to something else than it should be; one that is not
    /// set is an error only when it is needed.
    pub fn read() -> Result<Self> {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// Reads variables from wherever `variable` finds them.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        fn number<T: std::str::FromStr>(
            variable: impl Fn(&str) -> Option<String>,
            name: &'static str,
            instead: &'static str,
        ) -> Result<Option<T>> {
            let Some(text) = variable(name) else { return Ok(None) };
            text.trim().parse().map(Some).map_err(|_| GroupError::Environment {
                variable: name,
                problem: format!("is {text:?}, which is not a number of its range"),
                instead,
            })
        }
        let found = Self {
            rank: number(&variable, "RANK", "a rank")?,
            world_size: number(&variable, "WORLD_SIZE", "a world size")?,
            local_rank: number(&variable, "LOCAL_RANK", "a context")?,
            master_address: variable("MASTER_ADDR").filter(|address| !address.trim().is_empty()),
            master_port: number(&variable, "MASTER_PORT", "a store")?,
            agent_store: variable("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True"),
            dump_folder: variable("PROCESS_GROUP_DUMP_FOLDER")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            timing: variable("PROCESS_GROUP_TIMING").as_deref() == Some("1"),
        };
        if let (Some(rank), Some(size)) = (found.rank, found.world_size)
            && rank >= size
        {
            return Err(GroupError::NoSuchRank { rank, size });
        }
        Ok(found)
    }

    /// The error for a variable that is needed.
    pub(super) fn missing(variable: &'static str, instead: &'static str) -> GroupError {
        GroupError::Environment { variable, problem: "is not set".into(), instead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment> {
        Environment::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn what_torchrun_sets_is_read() {
        let found = read(&[
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("PROCESS_GROUP_DUMP_FOLDER", "/tmp/dumps"),
            ("PROCESS_GROUP_TIMING", "1"),
        ])
        .unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (Some(5), Some(8), Some(1)));
        assert_eq!((found.master_address.as_deref(), found.master_port), (Some("127.0.0.1"), Some(29500)));
        assert!(found.agent_store);
        assert_eq!((found.dump_folder, found.timing), (Some("/tmp/dumps".into()), true));
        assert_eq!(read(&[]).unwrap(), Environment::default());
    }

    #[test]
    fn nonsense_is_named() {
        let error = read(&[("WORLD_SIZE", "four")]).unwrap_err().to_string();
        assert!(error.contains("WORLD_SIZE is \"four\""), "{error}");
        let error = read(&[("MASTER_PORT", "70000")]).unwrap_err().to_string();
        assert!(error.contains("70000"), "{error}");
        let error = read(&[("RANK", "4"), ("WORLD_SIZE", "4")]).unwrap_err().to_string();
        assert_eq!(error, "rank 4 is not below the world size 4");
    }
}
