//! The rank of this process, read from the environment variables that its launcher set.
//!
//! | launcher | variables |
//! | --- | --- |
//! | [`Launch`](crate::Launch) | `RIVERRUN_RANK`, `RIVERRUN_WORLD_SIZE`, `RIVERRUN_LOCAL_RANK`, `RIVERRUN_LOCAL_WORLD_SIZE`, `RIVERRUN_ADDRESS`, `RIVERRUN_PORT` |
//! | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RUN_ID`, `TORCHELASTIC_RESTART_COUNT` |
//! | Kubernetes, indexed jobs | `JOB_COMPLETION_INDEX`, with `RIVERRUN_WORLD_SIZE` and `RIVERRUN_ADDRESS` set by you |
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `…_SIZE`, `…_LOCAL_RANK`, `…_LOCAL_SIZE`, and `RIVERRUN_ADDRESS` |
//! | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS`, and `RIVERRUN_ADDRESS` |
//! | Slurm's `srun` | `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`, `SLURM_STEP_NODELIST`, `SLURM_JOB_ID` |
//!
//! The first row whose variables are set is used; if none is, the world has one process. MPI comes before Slurm because `mpirun` starts its own
//! daemons by `srun`, and the ranks inherit the daemons' variables. `RIVERRUN_LAUNCHER` (`none`, `riverrun`, `torch`,
//! `kubernetes`, `mpi` or `slurm`) selects one row, `RIVERRUN_ADDRESS` and `RIVERRUN_PORT` give the address of rank 0, and
//! `RIVERRUN_RUN_ID` names the run. `MASTER_ADDR` and `MASTER_PORT` work with every launcher.

mod nodes;
#[cfg(test)]
mod tests;
mod variables;

use crate::Result;
use variables::{Claim, Variables, wrong};

/// The number of ports that rank 0 tries, starting at [`Place::port`]; it takes the first free one.
pub const PORTS: u16 = 16;
/// The first port if no variable gives one.
const DEFAULT_PORT: usize = 29_400;

/// What started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Nothing: a process on its own.
    Single,
    /// [`Launch`](crate::Launch), of this crate.
    Riverrun,
    /// torchrun, or anything that sets its variables.
    Torch,
    /// An indexed job of Kubernetes, one process a pod.
    Kubernetes,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH, Intel MPI, or `srun --mpi=pmi2`.
    Pmi,
    /// Slurm's `srun`.
    Slurm,
}

/// The place of this process in its world.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The number of this process, from 0 on.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The number of this process among those of its machine: it chooses the GPU.
    pub local_rank: usize,
    /// The number of processes on this machine, where the launcher says it.
    pub local_size: Option<usize>,
    /// The hosts where rank 0 may be, the likeliest first. The handshake finds the right one.
    pub addresses: Vec<String>,
    /// The first port of rank 0; it is one of the [`PORTS`] from here on.
    pub port: u16,
    /// The name of the run: all ranks of one start have it, and no other run. It is no secret.
    pub run_id: String,
    /// What started this process.
    pub launcher: Launcher,
    /// How often the launcher has started all ranks again after one had failed.
    pub restarts: usize,
}

/// How often torchrun, or Slurm with `--requeue`, has started the run again.
const RESTARTS: [&str; 2] = ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"];

impl Variables<'_> {
    fn addresses(&self, claim: &Claim) -> Result<Vec<String>> {
        if let Some(given) = self.first_text(&["RIVERRUN_ADDRESS", "MASTER_ADDR"]) {
            return Ok(vec![given]);
        }
        let mut found = Vec::new();
        if !matches!(claim.launcher, Launcher::Torch | Launcher::Kubernetes)
            && self.text("SLURM_JOB_ID").is_some()
        {
            // The first node before the place where srun ran, which may be a login node.
            let lists = [
                "SLURM_STEP_NODELIST",
                "SLURM_JOB_NODELIST",
                "SLURM_NODELIST",
            ];
            if let Some(list) = self.first_text(&lists) {
                found.push(nodes::first(&list)?);
            }
            found.extend(self.text("SLURM_LAUNCH_NODE_IPADDR"));
            found.dedup();
        }
        if found.is_empty() && (claim.size.value == 1 || claim.local_size == Some(claim.size.value))
        {
            found.push("127.0.0.1".into());
        }
        if found.is_empty() {
            return wrong(format!(
                "{} {} are set, but neither RIVERRUN_ADDRESS nor MASTER_ADDR, the host of rank 0",
                claim.rank, claim.size
            ));
        }
        Ok(found)
    }

    fn default_port(&self, claim: &Claim) -> Result<usize> {
        if let Some(port) = self.port("MASTER_PORT")? {
            // The agent of torchrun listens on MASTER_PORT itself.
            return Ok(port + 1);
        }
        if claim.launcher == Launcher::Torch && claim.size.value > 1 {
            return wrong(format!(
                "{} {} are set, but MASTER_PORT is not",
                claim.rank, claim.size
            ));
        }
        let job = self.number(&["SLURM_JOB_ID"])?;
        Ok(job.map_or(DEFAULT_PORT, |job| 15_000 + job.value % 17_000))
    }

    fn run_id(&self, launcher: Launcher, address: &str, port: u16) -> String {
        let value = |names: &[&str]| self.first_text(names).unwrap_or_default();
        let restarts = value(&RESTARTS);
        let name = match launcher {
            Launcher::Torch => value(&["TORCHELASTIC_RUN_ID"]),
            Launcher::OpenMpi => value(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]),
            Launcher::Pmi => value(&["PMI_JOBID"]),
            Launcher::Kubernetes => value(&["JOB_NAME"]),
            _ => String::new(),
        };
        // A host may be named differently where several candidates exist, but the first is the same for all ranks.
        let job = value(&["SLURM_JOB_ID"]);
        let step = value(&["SLURM_STEP_ID", "SLURM_STEPID"]);
        format!("{launcher:?}/{name}/{job}.{step}/{restarts}/{address}:{port}")
    }
}

impl Place {
    /// The place of a process that is alone.
    pub fn single() -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: 0,
            local_size: Some(1),
            addresses: vec!["127.0.0.1".into()],
            port: DEFAULT_PORT as u16,
            run_id: "single".into(),
            launcher: Launcher::Single,
            restarts: 0,
        }
    }

    /// The place that the environment of this process names.
    ///
    /// # Errors
    ///
    /// [`Error::Environment`](crate::Error::Environment) where variables contradict each other or one is missing; it names them.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// The place that `lookup` names; it returns the value of a variable.
    ///
    /// # Errors
    ///
    /// The errors of [`Place::from_environment`].
    pub fn from_variables(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let variables = Variables(lookup);
        let claims = variables.claims()?;
        let Some(claim) = claims.first() else {
            return Ok(Self::single());
        };
        let (rank, size) = (claim.rank.value, claim.size.value);
        // A launcher above may know more of this very process: srun below PMI, for one.
        let same = |c: &&Claim| (c.rank.value, c.size.value) == (rank, size);
        let local = |pick: fn(&Claim) -> Option<usize>| claims.iter().filter(same).find_map(pick);
        let local_size = local(|c| c.local_size).or((size == 1).then_some(1));
        let Some(local_rank) = local(|c| c.local_rank).or((size == 1).then_some(0)) else {
            return wrong(format!(
                "{} is set, but no local rank: set LOCAL_RANK with RIVERRUN_LAUNCHER=torch, or RIVERRUN_LOCAL_RANK",
                claim.rank
            ));
        };
        let addresses = variables.addresses(claim)?;
        let port = match variables.port("RIVERRUN_PORT")? {
            Some(port) => port,
            None => variables.default_port(claim)?,
        } as u16;
        let run_id = variables.text("RIVERRUN_RUN_ID");
        let run_id =
            run_id.unwrap_or_else(|| variables.run_id(claim.launcher, &addresses[0], port));
        let launcher = claim.launcher;
        let restarts = variables.number(&RESTARTS)?.map_or(0, |count| count.value);
        Ok(Self {
            rank,
            size,
            local_rank,
            local_size,
            addresses,
            port,
            run_id,
            launcher,
            restarts,
        })
    }
}
