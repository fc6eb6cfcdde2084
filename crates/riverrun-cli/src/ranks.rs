//! The rank of this process in a run that a launcher has started on several: torchrun, srun, mpirun, `riverrun launch`.

#[cfg(unix)]
use std::sync::Arc;
use std::sync::OnceLock;

use burn::tensor::Device;
use riverrun::Neighbours;
use riverrun_train::{Connected, Objective, RunDir, Setup};
#[cfg(unix)]
use riverrun_world::{Launcher, Options, Place, World};

use crate::failure::Failure;

/// The start of messages of this rank, where nothing else names it.
static LABEL: OnceLock<String> = OnceLock::new();

/// What stands before an error of this process: its rank, unless it is the first or the launcher names it.
pub fn label() -> &'static str {
    LABEL.get().map_or("", String::as_str)
}

/// The number of GPUs that `auto` chooses among. Opens none of them, and loads no kernels.
pub fn gpus() -> usize {
    let mut all = riverrun::device::list().into_iter();
    let first = all.find(|info| !info.software);
    first.map_or(0, |info| alike(&info.spec))
}

/// The number of GPUs of the kind of one; 0 for the CPU.
fn alike(name: &str) -> usize {
    let Some((kind, _)) = name.split_once(':') else {
        return 0;
    };
    let of_kind = |spec: &str| spec.split_once(':').is_some_and(|(of, _)| of == kind);
    let all = riverrun::device::list().into_iter();
    all.filter(|info| of_kind(&info.spec)).count()
}

/// The ranks of this machine, if the environment says it; 1 otherwise.
pub fn on_this_machine() -> usize {
    #[cfg(unix)]
    let ranks = Place::from_environment()
        .ok()
        .and_then(|place| place.local_size);
    #[cfg(not(unix))]
    let ranks = None;
    ranks.unwrap_or(1).max(1)
}

/// The rank of this process, and the world that it has joined if it is not alone.
pub struct Ranks {
    rank: usize,
    size: usize,
    local_rank: usize,
    restarted: bool,
    #[cfg(unix)]
    world: Option<Arc<World>>,
}

impl Ranks {
    /// The only process.
    pub fn alone() -> Self {
        Self {
            rank: 0,
            size: 1,
            local_rank: 0,
            restarted: false,
            #[cfg(unix)]
            world: None,
        }
    }

    /// Joins the world that the environment names.
    ///
    /// # Errors
    /// Variables that contradict each other; ranks that do not come, or that are another version of the program.
    #[cfg(unix)]
    pub fn join() -> Result<Self, Failure> {
        let user = |error: riverrun_world::Error| Failure::User(error.to_string());
        let place = Place::from_environment().map_err(user)?;
        let mut ranks = Self {
            rank: place.rank,
            size: place.size,
            local_rank: place.local_rank,
            restarted: place.restarts > 0,
            world: None,
        };
        if place.size > 1 {
            if place.rank > 0 && place.launcher != Launcher::Riverrun {
                let _ = LABEL.set(format!("[rank {}] ", place.rank));
            }
            let version = riverrun_world::Fingerprint::of(env!("CARGO_PKG_VERSION").as_bytes());
            let mut options =
                Options::from_environment().agreeing("the version of riverrun", version);
            options.report = |text| tracing::warn!("{text}");
            options.until_exit = true;
            let world = World::join(&place, options, || Ok(Vec::new()));
            ranks.world = Some(Arc::new(world.map_err(|error| match error {
                riverrun_world::Error::Failed(cause) => Failure::World(cause),
                error => user(error),
            })?));
            tracing::debug!("{} ranks have met", place.size);
        }
        Ok(ranks)
    }

    /// There is one process.
    #[cfg(not(unix))]
    pub fn join() -> Result<Self, Failure> {
        Ok(Self::alone())
    }

    /// Whether this process prints, and writes the run's folder.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Whether the launcher has started the ranks again, after one had failed.
    pub fn restarted(&self) -> bool {
        self.restarted
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The device of this rank: where a name leaves the number out, the GPU of its number on the machine.
    ///
    /// # Errors
    /// A device that does not exist.
    pub fn device(&self, spec: &str) -> Result<String, Failure> {
        if self.size == 1 || spec.contains(':') {
            return Ok(spec.into());
        }
        let name = riverrun::device::name(&riverrun::device::parse(spec)?);
        Ok(match (name.split_once(':'), alike(&name)) {
            (Some((kind, _)), found) if found > 0 => format!("{kind}:{}", self.local_rank % found),
            _ => name,
        })
    }

    /// The folder of a run to go on with, locked by the rank that writes it.
    ///
    /// # Errors
    /// A folder that another program uses.
    pub fn lock(&self, dir: RunDir) -> Result<RunDir, Failure> {
        match self.is_first() {
            true => Ok(dir.lock()?),
            false => Ok(dir),
        }
    }

    /// The way among the ranks, if there are several, for runs on this device of this rank; once.
    ///
    /// # Errors
    /// A rank that cannot be reached; a way that was asked for and cannot be had.
    pub fn connect(&self, device: &Device) -> Result<Option<Connected>, Failure> {
        let found = self.along_time(device, 1)?;
        Ok(found.map(|(connected, _)| connected))
    }

    /// As [`connect`](Self::connect), with the neighbours of this rank in groups of `group` ranks along time.
    ///
    /// # Errors
    /// As there.
    #[cfg(unix)]
    pub fn along_time(
        &self,
        device: &Device,
        group: usize,
    ) -> Result<Option<(Connected, Neighbours)>, Failure> {
        let world = self.world.as_ref();
        let connected = world.map(|world| riverrun_train::connect(world, device, group));
        Ok(connected.transpose()?)
    }

    /// There is one process.
    #[cfg(not(unix))]
    pub fn along_time(
        &self,
        _device: &Device,
        _group: usize,
    ) -> Result<Option<(Connected, Neighbours)>, Failure> {
        Ok(None)
    }

    /// The run spread over all ranks, if there are several, with every sequence divided among groups of `along_time` ranks; and the
    /// way among them in words.
    ///
    /// # Errors
    /// A run that cannot be spread; ranks that differ, or do not make whole groups; an optimizer that is to be sharded where there
    /// is one rank, or where sequences are divided.
    pub fn spread<O: Objective>(
        &self,
        setup: Setup<O>,
        device: &Device,
        along_time: usize,
        shard_optimizer: bool,
    ) -> Result<(Setup<O>, Option<String>), Failure> {
        if !self.size.is_multiple_of(along_time) {
            let ranks = match self.size {
                1 => "there is one rank: start several, with riverrun launch --processes N".into(),
                ranks => format!("it does not divide the {ranks} ranks"),
            };
            return Err(Failure::User(format!(
                "--context-parallel {along_time}: {ranks}"
            )));
        }
        if along_time > 1 && shard_optimizer {
            return Err(Failure::User(format!(
                "--shard-optimizer: with --context-parallel {along_time} every rank keeps the whole optimizer"
            )));
        }
        match self.along_time(device, along_time)? {
            Some((Connected { ranks, way }, neighbours)) if along_time > 1 => {
                Ok((setup.spread_over_time(ranks, neighbours)?, Some(way)))
            }
            Some((Connected { ranks, way }, _)) => {
                Ok((setup.spread_over(ranks, shard_optimizer)?, Some(way)))
            }
            None if shard_optimizer => Err(Failure::User(
                "--shard-optimizer: there is one rank, which has all of it".into(),
            )),
            None => Ok((setup, None)),
        }
    }

    /// Leaves the world, once all ranks do; after an error of this rank, tells the others.
    ///
    /// # Errors
    /// The error of `result`; a rank that failed before it came here.
    #[cfg(unix)]
    pub fn leave(self, result: Result<(), Failure>) -> Result<(), Failure> {
        let Some(world) = self.world else {
            return result;
        };
        match &result {
            Ok(()) | Err(Failure::Interrupted) => {
                // All other owners were parts of the run, which is over.
                tracing::debug!("this rank has no part in the run any more");
                if let Some(world) = Arc::into_inner(world) {
                    world.finish().map_err(riverrun_train::Error::from)?;
                }
                tracing::debug!("all ranks have left");
            }
            Err(Failure::World(_)) => {}
            Err(failure) => {
                world.fail(&failure.to_string());
            }
        }
        result
    }

    /// As the result.
    #[cfg(not(unix))]
    pub fn leave(self, result: Result<(), Failure>) -> Result<(), Failure> {
        result
    }
}
