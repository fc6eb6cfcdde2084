//! The variables of the launchers: which of them are set, and which contradict each other.

use super::{Launcher, PORTS, nodes};
use crate::{Error, Result};
use std::fmt::Display;

/// More ranks than this are a mistake.
const MOST_RANKS: usize = 1 << 16;

/// The variables of one launcher, in the order in which they are tried.
struct Family {
    launcher: Launcher,
    /// Its word in `RIVERRUN_LAUNCHER`.
    word: &'static str,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    /// Whether a rank without a size, or the reverse, is a mistake: of some launchers, one of them is set in other cases too.
    both: bool,
}

const FAMILIES: [Family; 6] = [
    Family {
        launcher: Launcher::Riverrun,
        word: "riverrun",
        rank: &["RIVERRUN_RANK"],
        size: &["RIVERRUN_WORLD_SIZE"],
        local_rank: &["RIVERRUN_LOCAL_RANK"],
        local_size: &["RIVERRUN_LOCAL_WORLD_SIZE"],
        both: true,
    },
    Family {
        launcher: Launcher::Torch,
        word: "torch",
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        both: true,
    },
    Family {
        launcher: Launcher::Kubernetes,
        word: "kubernetes",
        rank: &["JOB_COMPLETION_INDEX"],
        size: &["RIVERRUN_WORLD_SIZE"],
        local_rank: &[],
        local_size: &[],
        both: false,
    },
    Family {
        launcher: Launcher::OpenMpi,
        word: "mpi",
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        both: true,
    },
    Family {
        launcher: Launcher::Pmi,
        word: "mpi",
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        both: true,
    },
    Family {
        launcher: Launcher::Slurm,
        word: "slurm",
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        both: false,
    },
];

/// A number and the variable that has it, for messages.
#[derive(Clone, Copy)]
pub(super) struct Number {
    pub(super) name: &'static str,
    pub(super) value: usize,
}

impl Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// What the variables of one family say.
pub(super) struct Claim {
    pub(super) launcher: Launcher,
    pub(super) rank: Number,
    pub(super) size: Number,
    pub(super) local_rank: Option<usize>,
    pub(super) local_size: Option<usize>,
}

pub(super) struct Variables<'a>(pub(super) &'a dyn Fn(&str) -> Option<String>);

pub(super) fn wrong<T>(text: String) -> Result<T> {
    Err(Error::Environment(text))
}

fn below(part: Number, whole: Number) -> Result<()> {
    if part.value < whole.value {
        return Ok(());
    }
    wrong(format!("{part} is not below {whole}"))
}

impl Variables<'_> {
    /// An empty variable counts as unset.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = (self.0)(name)?.trim().to_owned();
        (!value.is_empty()).then_some(value)
    }

    pub(super) fn first_text(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.text(name))
    }

    pub(super) fn number(&self, names: &[&'static str]) -> Result<Option<Number>> {
        let Some((name, text)) = names.iter().find_map(|n| Some((*n, self.text(n)?))) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) => Ok(Some(Number { name, value })),
            Err(_) => wrong(format!("{name}={text:?} is not a number")),
        }
    }

    pub(super) fn port(&self, name: &'static str) -> Result<Option<usize>> {
        match self.number(&[name])? {
            Some(n) if n.value == 0 || n.value > usize::from(u16::MAX - PORTS) => {
                wrong(format!("{n} is not between 1 and {}", u16::MAX - PORTS))
            }
            n => Ok(n.map(|n| n.value)),
        }
    }

    fn claim(&self, family: &Family) -> Result<Option<Claim>> {
        let (rank, size) = match (self.number(family.rank)?, self.number(family.size)?) {
            (Some(rank), Some(size)) => (rank, size),
            (Some(set), None) if family.both => {
                return wrong(format!("{set} is set, but {} is not", family.size[0]));
            }
            // Kubernetes takes its size from the same variable.
            (None, Some(set)) if family.both && self.text("JOB_COMPLETION_INDEX").is_none() => {
                return wrong(format!("{set} is set, but {} is not", family.rank[0]));
            }
            _ => return Ok(None),
        };
        if size.value == 0 || size.value > MOST_RANKS {
            return wrong(format!("{size} is not between 1 and {MOST_RANKS}"));
        }
        below(rank, size)?;
        let (mut local_rank, mut local_size) = (
            self.number(family.local_rank)?,
            self.number(family.local_size)?,
        );
        if family.launcher == Launcher::Kubernetes {
            let name = "JOB_COMPLETION_INDEX";
            (local_rank, local_size) = (
                Some(Number { name, value: 0 }),
                Some(Number { name, value: 1 }),
            );
        }
        if let Some(local_rank) = local_rank {
            below(local_rank, local_size.unwrap_or(size))?;
        }
        if let Some(local_size) = local_size
            && local_size.value > size.value
        {
            return wrong(format!("{local_size} is more than {size}"));
        }
        let mut local_size = local_size.map(|n| n.value);
        if family.launcher == Launcher::Slurm
            && let Some(counts) =
                self.first_text(&["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"])
            && let Some(node) = self.number(&["SLURM_NODEID"])?
        {
            local_size = nodes::tasks_on(&counts, node.value);
        }
        let local_rank = local_rank.map(|n| n.value);
        Ok(Some(Claim {
            launcher: family.launcher,
            rank,
            size,
            local_rank,
            local_size,
        }))
    }

    /// The claims that count, the first being the one to take.
    pub(super) fn claims(&self) -> Result<Vec<Claim>> {
        let wanted = self.text("RIVERRUN_LAUNCHER");
        if let Some(word) = &wanted
            && word != "none"
            && FAMILIES.iter().all(|f| f.word != word)
        {
            return wrong(format!(
                "RIVERRUN_LAUNCHER={word:?} is none of none, riverrun, torch, kubernetes, mpi and slurm"
            ));
        }
        let mut claims = Vec::new();
        for family in FAMILIES
            .iter()
            .filter(|f| wanted.as_deref().is_none_or(|w| w == f.word))
        {
            match self.claim(family) {
                Ok(claim) => claims.extend(claim),
                Err(e) if claims.is_empty() => return Err(e),
                // Of a launcher further out, which counts something else.
                Err(_) => {}
            }
        }
        match (wanted, claims.first()) {
            (Some(word), None) if word != "none" => {
                return wrong(format!(
                    "RIVERRUN_LAUNCHER={word}, but none of its variables is set"
                ));
            }
            (Some(_), _) => claims.truncate(1),
            (None, Some(first)) => self.contradictions(first, &claims[1..])?,
            (None, None) => {}
        }
        Ok(claims)
    }

    /// Whether this is a step of Slurm, not the batch script: that one is task 0 of as many as the job has, and alone.
    fn in_step(&self) -> bool {
        self.first_text(&["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"])
            .is_some()
    }

    fn contradictions(&self, first: &Claim, others: &[Claim]) -> Result<()> {
        if first.launcher == Launcher::Slurm && first.size.value > 1 && !self.in_step() {
            return wrong(format!(
                "{} and {}, but no SLURM_STEP_ID: this is the batch script itself. Start the program by `srun`, \
                 or set RIVERRUN_LAUNCHER=slurm or none",
                first.rank, first.size
            ));
        }
        // torchrun may run inside anything. A RANK from somebody's profile would make every process rank 0.
        if first.launcher != Launcher::Torch || self.text("TORCHELASTIC_RUN_ID").is_some() {
            return Ok(());
        }
        let differs = |other: &&Claim| {
            (other.launcher != Launcher::Slurm || self.in_step())
                && other.size.value > 1
                && (other.rank.value, other.size.value) != (first.rank.value, first.size.value)
        };
        match others.iter().find(differs) {
            Some(other) => wrong(format!(
                "{} {} contradict {} {}: unset one pair, or set RIVERRUN_LAUNCHER",
                first.rank, first.size, other.rank, other.size
            )),
            None => Ok(()),
        }
    }
}
