//! Reads this rank's settings from the environment variables of `torchrun`, `mpirun` or `srun`.

use std::{
    env::{self, VarError},
    net::{IpAddr, ToSocketAddrs},
    path::PathBuf,
};

use super::{GroupErrorKind, KindResult, Result};
use crate::store::{Deadline, SecretSetting, TcpStore};

/// The settings of this rank in the environment variables that a launcher sets.
///
/// | variable | meaning |
/// |---|---|
/// | `RANK` | the number of this rank |
/// | `WORLD_SIZE` | the number of ranks |
/// | `LOCAL_RANK` | the number of this rank among the ranks of its host, used as the ordinal of its device |
/// | `LOCAL_WORLD_SIZE` | the number of ranks on this rank's host |
/// | `MASTER_ADDR`, `MASTER_PORT` | the store's address; rank 0 hosts it, unless `TORCHELASTIC_USE_AGENT_STORE` is `True` |
/// | `PROCESS_GROUP_STORE_SECRET` | the store's [secret](crate::store::TcpOptions::secret), at least 16 bytes; `none` for a store without a secret, such as PyTorch's |
/// | `PROCESS_GROUP_STORE_SECRET_FILE` | the path of a file with the secret, in place of `PROCESS_GROUP_STORE_SECRET` |
/// | `PROCESS_GROUP_DUMP_FOLDER` | the folder for the flight recorder's dumps; it is created if absent |
/// | `PROCESS_GROUP_TIMING` | `1`: the device times every operation |
/// | `PROCESS_GROUP_CHECKED` | `1`: calls are compared before they are launched |
/// | `TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK`, else `NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK` | `1`, `y`, `yes`, `t`, `true`: allocators' segments are [registered](super::Builder::registration) |
///
/// If one of the first four variables is not set, a variable of an MPI or Slurm launcher replaces it: Open MPI's
/// (`OMPI_COMM_WORLD_RANK`, …), MPICH's and Intel's (`PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS`), or
/// `srun`'s (`SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`). The first of these launchers that sets a rank is used.
/// MPI and Slurm launchers do not give the store's address: set `MASTER_ADDR` and `MASTER_PORT` on all ranks (`mpirun
/// -x MASTER_ADDR=… -x MASTER_PORT=…`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Environment {
    /// The number of this rank.
    pub rank: Option<usize>,
    /// The number of ranks.
    pub world_size: Option<usize>,
    /// The number of this rank among the ranks of its host.
    pub local_rank: Option<usize>,
    /// The number of ranks on this rank's host.
    pub local_world_size: Option<usize>,
    /// The store's host.
    pub master_address: Option<String>,
    /// The store's port.
    pub master_port: Option<u16>,
    /// True if the launcher hosts the store, so that no rank does.
    pub agent_store: bool,
    /// The store's secret.
    pub store_secret: SecretSetting,
    /// The folder for the flight recorder's dumps.
    pub dump_folder: Option<PathBuf>,
    /// True if the device times every operation.
    pub timing: bool,
    /// True if calls are compared before they are launched.
    pub checked: bool,
    /// True if allocators' segments are registered.
    pub registration: bool,
}

/// A launcher's names for the variables.
struct Names {
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static str,
    /// `None` for Slurm, whose variable lists the rank counts of all hosts, in a syntax that is not parsed here.
    local_world_size: Option<&'static str>,
}

const TORCHRUN: Names = Names {
    rank: "RANK",
    world_size: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_world_size: Some("LOCAL_WORLD_SIZE"),
};

/// Inner launchers first, because `mpirun` may run inside a Slurm job.
const OTHERS: [Names; 3] = [
    Names {
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
    },
    Names {
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_world_size: Some("MPI_LOCALNRANKS"),
    },
    Names {
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_world_size: None,
    },
];

impl Environment {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`GroupErrorKind::Environment`] for a variable with an invalid value, [`GroupErrorKind::NoSuchRank`] for a rank
    /// that is not below the world size, and [`GroupErrorKind::Store`] for an invalid secret. A missing variable is not
    /// an error here, but only where it is needed.
    pub fn read() -> Result<Self> {
        let unreadable = |variable| GroupErrorKind::Environment {
            variable,
            problem: "is not UTF-8".into(),
            instead: "another value",
        };
        let found = Self::find(SecretSetting::from_environment()?, |name| match env::var(name) {
            Ok(text) => Ok(Some(text)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err(unreadable(name)),
        });
        Ok(found?)
    }

    /// Like [`read`](Self::read), but calls `variable` for the value of each variable.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let secret = SecretSetting::from_variables(|name| variable(name).map(Into::into))?;
        Ok(Self::find(secret, |name| Ok(variable(name)))?)
    }

    fn find(
        store_secret: SecretSetting,
        variable: impl Fn(&'static str) -> KindResult<Option<String>>,
    ) -> KindResult<Self> {
        fn number<T: std::str::FromStr>(
            variable: impl Fn(&'static str) -> KindResult<Option<String>>,
            name: &'static str,
            instead: &'static str,
        ) -> KindResult<Option<T>> {
            let Some(text) = variable(name)? else { return Ok(None) };
            text.trim().parse().map(Some).map_err(|_| GroupErrorKind::Environment {
                variable: name,
                problem: format!("is {text:?}, which is not a number of its range"),
                instead,
            })
        }
        let mut other = None;
        for names in &OTHERS {
            if other.is_none() && variable(names.rank)?.is_some() {
                other = Some(names);
            }
        }
        let place = |name: fn(&Names) -> Option<&'static str>, instead| -> KindResult<Option<usize>> {
            for name in [Some(&TORCHRUN), other].into_iter().flatten().filter_map(name) {
                let found = number(&variable, name, instead)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        };
        let found = Self {
            rank: place(|names| Some(names.rank), "a rank")?,
            world_size: place(|names| Some(names.world_size), "a world size")?,
            local_rank: place(|names| Some(names.local_rank), "a context")?,
            local_world_size: place(|names| names.local_world_size, "a store")?,
            master_address: variable("MASTER_ADDR")?.filter(|address| !address.trim().is_empty()),
            master_port: number(&variable, "MASTER_PORT", "a store")?,
            agent_store: variable("TORCHELASTIC_USE_AGENT_STORE")?.as_deref() == Some("True"),
            store_secret,
            dump_folder: variable("PROCESS_GROUP_DUMP_FOLDER")?
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            timing: variable("PROCESS_GROUP_TIMING")?.as_deref() == Some("1"),
            checked: variable("PROCESS_GROUP_CHECKED")?.as_deref() == Some("1"),
            registration: hook(&variable)?,
        };
        if let (Some(rank), Some(size)) = (found.rank, found.world_size)
            && rank >= size
        {
            return Err(GroupErrorKind::NoSuchRank { rank, size });
        }
        Ok(found)
    }

    /// Returns the error for a required variable that is missing.
    pub(super) fn missing(variable: &'static str, instead: &'static str) -> GroupErrorKind {
        GroupErrorKind::Environment { variable, problem: "is not set".into(), instead }
    }
}

impl Environment {
    /// Opens the store at the environment's address. Rank 0 hosts the store, unless the launcher's agent does. All
    /// other ranks connect to it. For `workers` see [`TcpOptions::workers`](crate::store::TcpOptions::workers).
    pub(super) fn tcp_store(
        &self,
        rank: usize,
        workers: Option<usize>,
        deadline: Deadline,
    ) -> KindResult<TcpStore> {
        let host = self.master_address.as_deref().ok_or_else(|| Self::missing("MASTER_ADDR", "a store"))?;
        let port = self.master_port.ok_or_else(|| Self::missing("MASTER_PORT", "a store"))?;
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut options = TcpStore::options();
        if let Some(workers) = workers {
            options = options.workers(i64::try_from(workers).unwrap_or(i64::MAX));
        }
        match &self.store_secret {
            SecretSetting::Secret(secret) => options = options.secret(secret.clone()),
            SecretSetting::Unset if rank == 0 => eprintln!(
                "warning: the store at {address} has no secret: any user who can connect to it can change what ranks agree on, \
                 or end the job; set PROCESS_GROUP_STORE_SECRET_FILE for all ranks, or PROCESS_GROUP_STORE_SECRET=none to \
                 accept that"
            ),
            SecretSetting::Unset | SecretSetting::None => {}
        }
        if rank != 0 || self.agent_store {
            return Ok(options.connect(&address, deadline)?);
        }
        // Listen on the interface that the host's name resolves to. If the name does not resolve, listen on the default
        // 127.0.0.1, because the ranks that connect report the name.
        let interface =
            (host, port).to_socket_addrs().ok().and_then(|mut found| found.next()).map(|found| found.ip());
        let options = match interface {
            Some(interface) if !is_loopback(interface) => options.listen(interface),
            _ => options,
        };
        Ok(options.host(port, deadline)?)
    }
}

fn is_loopback(interface: IpAddr) -> bool {
    interface.to_canonical().is_loopback()
}

/// Returns true if PyTorch's switch for registration is on. The switch has two names; the first that is set counts.
fn hook(variable: impl Fn(&'static str) -> KindResult<Option<String>>) -> KindResult<bool> {
    const NAMES: [&str; 2] =
        ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"];
    let mut set = None;
    for name in NAMES {
        if let (None, Some(text)) = (&set, variable(name)?) {
            set = Some((name, text));
        }
    }
    let Some((name, text)) = set else { return Ok(false) };
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "y" | "yes" | "t" | "true" => Ok(true),
        "" | "0" | "n" | "no" | "f" | "false" => Ok(false),
        _ => Err(GroupErrorKind::Environment {
            variable: name,
            problem: format!("is {text:?}, which is neither yes nor no"),
            instead: "registration",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::GroupError, *};
    use crate::store::Secret;

    fn read(variables: &[(&str, &str)]) -> KindResult<Environment> {
        let read = Environment::from_variables(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        });
        read.map_err(GroupError::into_kind)
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
    fn what_other_launchers_set_is_read() {
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")];
        let found = read(&slurm).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (Some(3), Some(8), Some(1)));
        assert_eq!(found.local_world_size, None);
        let mpich =
            [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
        let found = read(&mpich).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (Some(2), Some(4), Some(0)));
        assert_eq!(found.local_world_size, Some(2));
        // `mpirun` inside a Slurm job: nothing is taken from the outer launcher.
        let within = [&slurm[..], &[("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "6")]].concat();
        let found = read(&within).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (Some(5), Some(6), None));
        // Variables that are set explicitly take precedence.
        let found = read(&[&within[..], &[("RANK", "0"), ("LOCAL_RANK", "4")]].concat()).unwrap();
        assert_eq!((found.rank, found.world_size, found.local_rank), (Some(0), Some(6), Some(4)));
        let error = read(&[("PMI_RANK", "two")]).unwrap_err().to_string();
        assert!(error.contains("PMI_RANK is \"two\""), "{error}");
    }

    #[test]
    fn a_secret_is_read_and_not_shown() {
        let found = read(&[(Secret::VARIABLE, "0123456789abcdef")]).unwrap();
        assert_eq!(found.store_secret.secret(), Some(&Secret::new("0123456789abcdef").unwrap()));
        assert!(!format!("{found:?}").contains("0123"));
        assert!(matches!(read(&[(Secret::VARIABLE, "short")]), Err(GroupErrorKind::Store(_))));
    }

    #[test]
    fn pytorchs_switch_is_read_under_both_names() {
        const OLD: &str = "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK";
        const NEW: &str = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK";
        for (variables, expected) in [
            (&[][..], false),
            (&[(OLD, "1")], true),
            (&[(NEW, "True")], true),
            (&[(NEW, "y")], true),
            (&[(OLD, "no")], false),
            (&[(OLD, "1"), (NEW, "0")], false),
        ] {
            assert_eq!(read(variables).unwrap().registration, expected, "{variables:?}");
        }
        assert!(read(&[(OLD, "maybe")]).unwrap_err().to_string().contains("neither yes nor no"));
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
